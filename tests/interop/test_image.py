"""The image, put together as its recipe does but for the base: it runs read-only, as nobody, without capabilities."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
CONFINED = ROOT / "tests" / "deploy" / "confined.py"
CONFIG = ROOT / "deploy" / "kustomize" / "base" / "config"
#: The steps of the Dockerfile's build stage, with /opt of their own.
BUILD = """
set -eu
mount --bind "$1/opt" /opt
cd "$1/src"
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
sh deploy/image/install.sh packages
sh deploy/image/install.sh tracecore
python3 deploy/image/rootfs.py "$1/rootfs"
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    alone = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or alone.returncode:
        pytest.skip("a file system of its own needs root")
    if not Path("/usr/bin/python3").exists() or not Path("/usr/bin/journalctl").exists():
        pytest.skip("this is no Debian with Python and systemd, from which the image is made")
    probe = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"
    made = subprocess.run(["/usr/bin/python3", "-c", probe], capture_output=True, check=False)
    if made.returncode or not Path("/etc/debian_version").exists():
        pytest.skip("this is no Debian with Python 3.11 and python3-venv")
    place = tmp_path_factory.mktemp("image")
    # Folders that pytest makes are closed to everybody else, and the agent is somebody else.
    for folder in (place, *place.parents[:2]):
        folder.chmod(0o755)
    for name in ("opt", "src/deploy"):
        (place / name).mkdir(parents=True)
    shutil.copytree(ROOT / "deploy" / "image", place / "src" / "deploy" / "image")
    shutil.copytree(ROOT / "src", place / "src" / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, place / "src")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", BUILD, "build", str(place)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "rootfs"


@pytest.fixture
def confined(image: Path, tmp_path: Path) -> Run:
    """Runs a program in it as a container of the chart would."""
    state, config = tmp_path / "state", tmp_path / "config"
    state.mkdir(mode=0o755)
    shutil.copytree(CONFIG, config)

    def run(*command: str, user: int = 65532, groups: str = "0,4") -> subprocess.CompletedProcess[str]:
        arguments = [
            str(image),
            str(user),
            groups,
            f"--bind={state}=/var/lib/tracecore",
            f"--bind={config}=/etc/tracecore",
        ]
        whole = ["unshare", "--mount", sys.executable, str(CONFINED), *arguments, "--", *command]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=300)

    return run


def test_configurations_of_the_base_are_valid_in_it(confined: Run) -> None:
    for name in ("agent.yaml", "cluster.yaml"):
        done = confined("/opt/tracecore/bin/tracecore", "validate", "--config", f"/etc/tracecore/{name}")
        assert done.returncode == 0, done.stderr
        assert "valid:" in done.stderr


def test_it_is_confined_as_the_tests_believe(confined: Run) -> None:
    program = (
        "import os\n"
        "print(os.getuid(), os.getgid(), *sorted(os.getgroups()))\n"
        "wanted = ('CapEff', 'CapBnd', 'NoNew')\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(wanted)])\n"
        "try: open('/new', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    done = confined("/opt/tracecore/bin/python3", "-I", "-c", program)
    assert done.stdout.splitlines() == ["65532 65532 0 4", "['0000000000000000', '0000000000000000', '1']",
                                        "Read-only file system"], done.stderr  # fmt: skip


def test_the_state_directory_of_a_fresh_node_is_opened_by_the_init_container(confined: Run) -> None:
    writing = "open('/var/lib/tracecore/a', 'w').close()"
    python = "/opt/tracecore/bin/python3"
    before = confined(python, "-I", "-c", writing)
    assert "Permission denied" in before.stderr
    manifest = (ROOT / "deploy" / "kustomize" / "base" / "agent-daemonset.yaml").read_text()
    opening = "import os; os.chmod('/var/lib/tracecore', 0o770)"
    assert f'command: [{python}, -I, -c, "{opening}"]' in manifest
    init = confined(python, "-I", "-c", opening, user=0, groups="")
    assert init.returncode == 0, init.stderr
    after = confined(python, "-I", "-c", writing)
    assert after.returncode == 0, after.stderr


def test_an_agent_of_a_node_runs_in_it(confined: Run, tmp_path: Path) -> None:
    """With the chart's configuration; only ports and times are of this test. There is no API server: it says so."""
    (tmp_path / "config" / "own.yaml").write_text(
        "extensions: {health_check: {endpoint: '127.0.0.1:0'}}\n"
        "service: {telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: 0}}}}]}}}\n"
    )
    (tmp_path / "state").chmod(0o770)
    program = (
        "import os, signal, subprocess, sys\n"
        "command = ['tracecore', 'run', '--drain', '1', '--config', '/etc/tracecore/agent.yaml']\n"
        "command += ['--config', '/etc/tracecore/own.yaml']\n"
        "agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)\n"
        "signal.alarm(120)\n"
        "for line in agent.stderr:\n"
        "    print(line, end='')\n"
        "    if 'pods are not known' in line or 'k8sattributes' in line and 'WARNING' in line:\n"
        "        agent.terminate()\n"
        "print(agent.wait(), os.listdir('/var/lib/tracecore/state'), os.stat('/var/lib/tracecore/state').st_uid)\n"
    )
    done = confined("/opt/tracecore/bin/python3", "-I", "-c", program)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("0 ["), done.stdout + done.stderr
    assert last.endswith("65532")
    assert "running logs: filelog/pods → memory_limiter" in done.stdout
    assert "logs/kernel: journald → memory_limiter" in done.stdout


def test_the_catalogue_is_in_it(confined: Run) -> None:
    done = confined("/opt/tracecore/bin/tracecore", "patterns", "list")
    assert done.returncode == 0, done.stderr
    assert "nccl_hang" in done.stdout


def test_journalctl_runs_in_it(confined: Run) -> None:
    done = confined("/usr/bin/journalctl", "--version")
    assert done.returncode == 0, done.stderr
    for compression in ("+ZSTD", "+LZ4", "+XZ"):
        assert compression in done.stdout


#: A real journald with a /run of its own, which takes over what the kernel has said since boot; then a command.
JOURNALD = """
set -eu
mount -t tmpfs none /run
mkdir -p "/run/systemd/journal" "/run/log/journal/$(cat /etc/machine-id)"
systemd-tmpfiles --create --prefix=/run/log/journal
/lib/systemd/systemd-journald &
journald=$!
until [ -s "/run/log/journal/$(cat /etc/machine-id)/system.journal" ]; do sleep 0.1; done
sleep 1
"$@" || status=$?
kill $journald
exit ${status:-0}
"""


def test_the_journal_is_read_by_the_group_adm_and_by_nobody_else(image: Path) -> None:
    if not Path("/lib/systemd/systemd-journald").exists() or not Path("/dev/kmsg").exists():
        pytest.skip("journald cannot run here")
    if not Path("/etc/machine-id").exists() or not Path("/etc/machine-id").read_text().strip():
        pytest.skip("this machine has no id, without which journald does not write")

    def read(groups: str) -> subprocess.CompletedProcess[str]:
        # The journal is mounted where the root file system, which is read-only, has a folder already.
        confined = [
            sys.executable,
            str(CONFINED),
            str(image),
            "65532",
            groups,
            "--bind=/run/log/journal=/var/lib/tracecore",
        ]
        command = [
            "/usr/bin/journalctl",
            "--directory=/var/lib/tracecore",
            "--output=json",
            "--lines=1",
            "_TRANSPORT=kernel",
        ]
        whole = ["unshare", "--mount", "sh", "-c", JOURNALD, "journald", *confined, "--", *command]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)

    allowed = read("0,4")
    if "_TRANSPORT" not in allowed.stdout and "No entries" in allowed.stdout + allowed.stderr:
        pytest.skip("the kernel of this machine does not say anything to journald")
    assert '"_TRANSPORT":"kernel"' in allowed.stdout, allowed.stderr
    refused = read("0")
    assert refused.stdout == ""
    assert "insufficient permissions" in refused.stderr


def test_nothing_is_left_that_installs_or_is_a_shell(image: Path) -> None:
    names = {
        path.name for folder in ("usr/bin", "usr/sbin", "opt/tracecore/bin") for path in (image / folder).iterdir()
    }
    assert not names & {"sh", "bash", "dash", "apt", "apt-get", "dpkg", "pip", "pip3", "perl", "busybox"}
    assert not list((image / "opt").rglob("site-packages/pip"))
    writable = [path for path in image.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o002]
    assert writable == [image / "tmp"]
    assert not [path for path in image.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]
