"""A command under its keeper, with real processes: what it says, how it ends, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tracecore.actions.supervisor import keeper, process
from tracecore.actions.supervisor.process import Process, RunOptions


def begin(folder: Path, *command: str, lifeline: bool = False, **settings: float) -> Process:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output.log", "ab") as log:
        run = RunOptions(command=list(command), **settings)
        return process.start(
            folder, run, mark=str(folder), env=os.environ, stdout=log.fileno(), stderr=log.fileno(), lifeline=lifeline
        )


def output(folder: Path) -> str:
    return (folder / "output.log").read_text()


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-u", "-c", code


@pytest.mark.parametrize(
    ("script", "code", "name", "status"),
    [
        ("exit 0", 0, "", 0),
        ("exit 7", 7, "", 7),
        ("kill -9 $$", -9, "SIGKILL", 137),
        ("kill -SEGV $$", -11, "SIGSEGV", 139),
        ("kill -TERM $$", -15, "SIGTERM", 143),
    ],
)
def test_the_exit_is_told_as_it_was(tmp_path: Path, script: str, code: int, name: str, status: int) -> None:
    ended = begin(tmp_path, "sh", "-c", script).wait(60)
    assert ended is not None
    assert (ended.exit_code, ended.signal, ended.status, ended.cause) == (code, name, status, "")


def test_a_program_that_is_not_there_ends_as_in_a_shell(tmp_path: Path) -> None:
    ended = begin(tmp_path / "a", "no-such-program-anywhere").wait(60)
    assert ended is not None
    assert ended.status == 127
    assert output(tmp_path / "a") == "tracecore: cannot run no-such-program-anywhere: No such file or directory\n"
    (tmp_path / "plain").write_text("not a program")
    ended = begin(tmp_path / "b", str(tmp_path / "plain")).wait(60)
    assert ended is not None
    assert ended.status == 126


def test_signals_are_as_a_shell_would_leave_them(tmp_path: Path) -> None:
    code = "import signal; print([int(s) for s in range(1, 32) if signal.getsignal(s) == signal.SIG_IGN])"
    begin(tmp_path, *python(code)).wait(60)
    # Python itself ignores SIGPIPE and SIGXFSZ; nothing else may be ignored.
    assert set(json.loads(output(tmp_path))) <= {signal.SIGPIPE, signal.SIGXFSZ}


def test_what_the_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    # A grandchild in a session of its own that ignores SIGTERM: neither the group nor the parent leads to it.
    code = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n"
        "        print('pid', os.getpid(), flush=True)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "time.sleep(0.3)\n"
    )
    kept = begin(tmp_path, *python(code), linger_s=0.1, grace_s=0.3)
    ended = kept.wait(60)
    assert ended is not None
    assert ended.exit_code == 0
    assert keeper.start_time(int(output(tmp_path).split()[1])) is None


def test_what_the_command_leaves_behind_has_its_time_to_end(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    signal.signal(15, lambda *_: (time.sleep(0.3), print('saved'), os._exit(0)))\n"
        "    print('up')\n"
        "    time.sleep(600)\n"
        "time.sleep(0.5)\n"
    )
    assert begin(tmp_path, *python(code), linger_s=0.1, grace_s=30.0).wait(60) is not None
    assert eventually(lambda: "saved" in output(tmp_path), 10)


def test_a_keeper_that_was_woken_goes_back_to_sleep(tmp_path: Path) -> None:
    # An orphan of the command ends: its keeper hears of it, and has nothing to do.
    kept = begin(tmp_path, "sh", "-c", "(sh -c 'echo gone' &); sleep 600", linger_s=0.1, grace_s=0.3)
    assert eventually(lambda: "gone" in output(tmp_path))
    pid = json.loads((tmp_path / "pid.json").read_text())["keeper"]

    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    time.sleep(0.2)
    before = ticks()
    time.sleep(0.5)
    assert ticks() - before <= 0.1 * os.sysconf("SC_CLK_TCK")
    kept.stop(0.1)
    assert kept.wait(60) is not None


def test_a_stop_gives_time_and_then_no_more(tmp_path: Path) -> None:
    polite = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: (print('saved'), sys.exit(3)))\n"
        "print('up')\ntime.sleep(60)"
    )
    kept = begin(tmp_path / "polite", *python(polite))
    assert eventually(lambda: "up" in output(tmp_path / "polite"))
    kept.stop(10)
    ended = kept.wait(60)
    assert ended is not None
    assert (ended.exit_code, ended.cause, output(tmp_path / "polite")) == (3, "stopped", "up\nsaved\n")

    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\ntime.sleep(60)"
    kept = begin(tmp_path / "deaf", *python(deaf))
    assert eventually(lambda: "up" in output(tmp_path / "deaf"))
    begun = time.monotonic()
    kept.stop(0.5)
    ended = kept.wait(60)
    assert ended is not None
    assert (ended.signal, ended.cause) == ("SIGKILL", "stopped")
    assert 0.4 < time.monotonic() - begun < 30


def test_a_command_on_a_lifeline_ends_with_its_starter(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from tracecore.actions.supervisor.process import RunOptions, start\n"
        "options = RunOptions(command=['sleep', '600'], grace_s=0.2, lease_s=600.0)\n"
        "kept = start(Path(sys.argv[1]), options, mark='life',\n"
        "             env=os.environ, stdout=1, stderr=2, lifeline=True)\n"
        "print(kept.pid, flush=True)\ntime.sleep(600)\n"
    )
    starter = subprocess.Popen([*python(code), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert keeper.start_time(pid) is not None
    starter.kill()
    starter.wait()
    starter.stdout.close()
    assert eventually(lambda: keeper.start_time(pid) is None)
    assert eventually(lambda: process.find(tmp_path) is None)
    ended = process.ended(tmp_path)
    assert ended is not None
    assert ended.cause == "lost"


def test_a_lease_that_is_not_renewed_ends_the_command(tmp_path: Path) -> None:
    kept = begin(tmp_path, "sleep", "600", lifeline=True, lease_s=0.5)
    for _ in range(5):
        time.sleep(0.3)
        kept.renew(0.5)
    assert kept.alive()
    ended = kept.wait(60)
    assert ended is not None
    assert (ended.signal, ended.cause) == ("SIGKILL", "lease")


def test_a_command_outlives_its_starter_and_is_found_again(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.1; done; exit 5"
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom tracecore.actions.supervisor.process import RunOptions, start\n"
        "log = os.open(sys.argv[1] + '/output.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        f"run = RunOptions(command=['sh', '-c', {script!r}])\n"
        "start(Path(sys.argv[1]), run, mark='find', env=os.environ, stdout=log, stderr=log)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([*python(code), str(tmp_path)], check=False).returncode == -9
    found = process.find(tmp_path)
    assert found is not None
    ended = found.wait(60)
    assert ended is not None
    assert ended.exit_code == 5
    assert output(tmp_path).splitlines() == [f"line {n}" for n in range(1, 9)]
    assert process.find(tmp_path) is None


def test_a_killed_keeper_takes_the_command_with_it_and_the_sweep_finds_the_rest(tmp_path: Path) -> None:
    kept = begin(tmp_path, "sh", "-c", "setsid sleep 600 & sleep 600")
    assert eventually(lambda: len(process.marked(str(tmp_path))) == 4)
    os.kill(kept.ids.keeper, signal.SIGKILL)
    ended = kept.wait(60)
    assert ended is not None
    assert ended.exit_code is None
    assert process.sweep(str(tmp_path)) >= 1
    assert process.marked(str(tmp_path)) == []
    assert eventually(lambda: keeper.start_time(kept.pid) is None)


@pytest.mark.parametrize("lifeline", [False, True])
@pytest.mark.parametrize("program", ["/missing/python", "/bin/true"])
def test_a_keeper_that_does_not_start_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, lifeline: bool
) -> None:
    begin(tmp_path / "first", "true").wait(60)
    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(process.StartError):
        begin(tmp_path / "attempt", "true", lifeline=lifeline)
    assert sorted(os.listdir("/proc/self/fd")) == before
