"""Ranks of a real Slurm job are recognised by the processes that write their logs, also after a requeue.

Needs Debian's slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins, munge and libhwloc15, installed, or unpacked
with `dpkg-deb -x` into the directory that TRACECORE_SLURM_ROOT names; and root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.processes import writers
from tracecore.signals.processes.identity import identity
from tracecore.signals.processes.writers import find_writers

ROOT = Path(os.environ.get("TRACECORE_SLURM_ROOT") or "/")
LIBRARIES = ROOT / "usr" / "lib" / "x86_64-linux-gnu"
PLUGINS = LIBRARIES / "slurm-wlm"
NODES = 2


def binary(*names: str) -> str:
    """The first of these programs that there is; the test is skipped without it."""
    for name in names:
        for folder in ("usr/sbin", "usr/bin"):
            if (ROOT / folder / name).exists():
                return str(ROOT / folder / name)
        if found := shutil.which(name):
            return found
    pytest.skip(f"NO SLURM: {names[0]} is not installed; see the head of {Path(__file__).name}")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s")


class Slurm:
    """A controller and two nodes on this machine."""

    def __init__(self, place: Path) -> None:
        programs = [binary("slurmctld-wlm", "slurmctld"), binary("slurmd-wlm", "slurmd"), binary("munged")]
        stepd = binary("slurmstepd-wlm", "slurmstepd")
        if os.geteuid():
            pytest.skip("NO SLURM: slurmd needs root")
        self.place = place
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(place / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{LIBRARIES}:{PLUGINS}",
        }
        key = place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (place / "state").mkdir()
        for number in range(1, NODES + 1):
            (place / f"spool-n{number}").mkdir()
        (place / "slurm.conf").write_text(self._configuration())
        self._processes: list[subprocess.Popen[bytes]] = []
        sock = place / "munge.sock"
        files = [f"--{name}-file={place / f'munge.{name}'}" for name in ("key", "log", "pid", "seed")]
        self._start([programs[2], "--foreground", "--force", f"--socket={sock}", *files], "munged")
        until(sock.exists)
        self._start([programs[0], "-D", "-i"], "slurmctld")
        for number in range(1, NODES + 1):
            self._start([programs[1], "-D", "-N", f"n{number}", "-d", stepd], f"n{number}")
        try:
            until(lambda: self.run("sinfo", "-h", "-o", "%T %D").stdout.split() == ["idle", str(NODES)])
        except AssertionError:
            self.close()
            raise

    def _configuration(self) -> str:
        first = free_port()
        while first > 64_000:
            first = free_port()
        host = socket.gethostname().partition(".")[0]
        return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.place}/munge.sock
CredType=cred/munge
PluginDir={PLUGINS}
StateSaveLocation={self.place}/state
SlurmdSpoolDir={self.place}/spool-%n
SlurmctldPidFile={self.place}/slurmctld.pid
SlurmdPidFile={self.place}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SwitchType=switch/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ReturnToService=2
NodeName=n[1-{NODES}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{first + NODES - 1}] CPUs=1 RealMemory=50
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

    def _start(self, command: list[str], name: str) -> None:
        with (self.place / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.place)
            )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        program = binary(command[0])
        return subprocess.run(
            [program, *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.place,
            check=False,
        )

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    one = Slurm(tmp_path)
    yield one
    one.run("scancel", "--full", "-u", "root")
    time.sleep(1)
    one.close()


def test_ranks_of_a_slurm_job_are_recognised_by_their_processes(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MAX_SECONDS", 10)
    program = tmp_path / "train.py"
    program.write_text("import time\nprint('step 1', flush=True)\ntime.sleep(120)\n")
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/sh\n{binary('srun')} --output={tmp_path}/rank-%t-$SLURM_RESTART_COUNT.log {sys.executable} {program}\n"
    )
    answer = slurm.run(
        "sbatch", "--parsable", "--requeue", "-N", "2", "-n", "2", "-o", f"{tmp_path}/batch.log", str(script)
    )
    assert answer.returncode == 0, answer.stderr
    job = answer.stdout.strip()

    def found(attempt: str) -> dict[int, dict[str, Any]]:
        paths = {str(tmp_path / f"rank-{rank}-{attempt}.log"): rank for rank in (0, 1)}
        written, _ = find_writers(paths.keys())
        return {paths[path]: identity(p.environment, p.cgroup, p.command) for path, p in written.items()}

    until(lambda: len(found("")) == 2)
    for rank, attributes in found("").items():
        assert attributes["gen_ai.training.job_id"] == attributes["slurm.job.id"] == job
        assert attributes["gen_ai.training.rank"] == rank
        assert attributes["host.name"] == f"n{rank + 1}"
        assert attributes["slurm.job.nodelist"] == "n[1-2]"
        assert "tracecore.attempt" not in attributes
    assert slurm.run("scontrol", "requeue", job).returncode == 0
    until(lambda: "PENDING" in slurm.run("squeue", "-h", "-o", "%T", "-j", job).stdout)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: len(found("1")) == 2)
    assert {rank: one["tracecore.attempt"] for rank, one in found("1").items()} == {0: 1, 1: 1}
