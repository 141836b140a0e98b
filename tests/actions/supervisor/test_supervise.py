"""`tracecore supervise` with real commands: killed, hung, orphaned, stopped, recovered."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tracecore.actions.supervisor import keeper, process

SUPERVISE = (sys.executable, "-m", "tracecore", "supervise")


def supervise(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*SUPERVISE, "--no-diagnose", "--state-dir", str(folder / "state"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def begin(folder: Path, *arguments: str, stdout: int | IO[bytes] = subprocess.DEVNULL, **options: Any) -> Any:
    command = [*SUPERVISE, "--no-diagnose", "--state-dir", str(folder / "state"), *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL, **options)


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def record(folder: Path, attempt: int, name: str = "attempt") -> dict[str, Any]:
    path = folder / "state" / "attempts" / f"{attempt:04d}" / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def state(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "state" / "state.json").read_text())
    return document


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def patient(tmp_path: Path) -> str:
    """A policy that tries anything again, at once."""
    path = tmp_path / "patient.yaml"
    classes = "".join(
        f"  {name}: {{retries: 2}}\n" for name in ("infrastructure", "code", "data", "resource", "unknown")
    )
    path.write_text(f"name: patient\nabout: For tests.\ntotal: 10\nclasses:\n{classes}")
    return str(path)


def test_output_is_passed_on_byte_for_byte_and_kept(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "os.write(1, bytes(range(256)) * 100 + b'\\r 50%\\rno end')\n"
        "os.write(2, b'\\xff\\xfe err\\x1b[31m\\n' * 5000)\n"
    )
    command = [*SUPERVISE, "--quiet", "--state-dir", str(tmp_path / "state"), "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0
    assert done.stdout == bytes(range(256)) * 100 + b"\r 50%\rno end"
    assert done.stderr == b"\xff\xfe err\x1b[31m\n" * 5000
    place = tmp_path / "state" / "attempts" / "0001" / "evidence"
    assert (place / "stdout.log").read_bytes() == done.stdout
    assert (place / "stderr.log").read_bytes() == done.stderr


def test_where_both_outputs_are_one_their_order_stays(tmp_path: Path) -> None:
    script = "for i in $(seq 200); do echo out $i; echo err $i >&2; done"
    command = [*SUPERVISE, "--state-dir", str(tmp_path / "state"), "--", "sh", "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [f"{kind} {i}" for i in range(1, 201) for kind in ("out", "err")]


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 42", 42), ("kill -SEGV $$", 139)])
def test_the_exit_status_is_the_commands_own(tmp_path: Path, script: str, status: int) -> None:
    assert supervise(tmp_path, "--max-restarts", "0", "--", "sh", "-c", script).returncode == status


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    done = supervise(tmp_path, "--", "/no/such/program")
    assert done.returncode == 127
    assert "cannot run /no/such/program: No such file or directory" in done.stderr


def test_a_bug_is_not_retried_and_a_kill_is(tmp_path: Path) -> None:
    bug = "raise ValueError('shapes do not match')"
    done = supervise(tmp_path / "bug", "--", sys.executable, "-c", bug)
    assert done.returncode == 1
    failure = record(tmp_path / "bug", 1, "failure")
    assert (failure["class"], failure["retry"]["decision"]) == ("code", "stop")
    assert "ValueError: shapes do not match" in failure["evidence"]["line"]
    assert state(tmp_path / "bug")["attempt"] == 1

    script = 'echo attempt $TRACECORE_ATTEMPT; [ "$TRACECORE_ATTEMPT" -ge 3 ] || kill -9 $$'
    done = supervise(tmp_path / "kill", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert done.stdout == "attempt 1\nattempt 2\nattempt 3\n"
    assert [record(tmp_path / "kill", n)["outcome"] for n in (1, 2, 3)] == ["failed", "failed", "completed"]
    first = record(tmp_path / "kill", 1, "failure")
    assert (first["class"], first["signal"], first["auto_retried"]) == ("infrastructure", "SIGKILL", True)


def test_a_root_without_progress_is_given_up_and_progress_starts_its_count_again(tmp_path: Path) -> None:
    done = supervise(tmp_path / "stuck", "--", "sh", "-c", "echo step 5 loss 1.0; kill -9 $$")
    assert done.returncode == 137
    assert state(tmp_path / "stuck")["attempt"] == 4
    # Each attempt gets further than the one before: three retries are not the end.
    script = 'echo "step $((TRACECORE_ATTEMPT * 10)) loss 1.0"; [ "$TRACECORE_ATTEMPT" -ge 7 ] || kill -9 $$'
    done = supervise(tmp_path / "moving", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert state(tmp_path / "moving")["attempt"] == 7


def test_a_hang_up_that_was_ignored_before_stays_ignored(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for folder, before, code in (("nohup", signal.SIG_IGN, 0), ("plain", signal.SIG_DFL, 129)):
        script = f"echo {folder}; sleep 1; exit 0"
        with log.open("ab") as file:
            ignoring = lambda before=before: signal.signal(signal.SIGHUP, before)  # noqa: E731
            running = begin(tmp_path / folder, "--", "sh", "-c", script, stdout=file, preexec_fn=ignoring)
        assert eventually(lambda folder=folder: folder in text(log))
        running.send_signal(signal.SIGHUP)
        assert running.wait(60) == code


def test_the_step_before_an_exit_is_recorded(tmp_path: Path) -> None:
    assert supervise(tmp_path, "--", "sh", "-c", "echo step 7 loss 1.0; exit 1").returncode == 1
    assert record(tmp_path, 1)["step"] == 7


def test_max_restarts_bounds_the_policy(tmp_path: Path) -> None:
    done = supervise(tmp_path, "--max-restarts", "1", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    assert state(tmp_path)["attempt"] == 2
    assert "--max-restarts is 1" in done.stderr


POLITE = (
    "import signal, sys, time\n"
    "def save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n"
    "print('up', flush=True)\nwhile True: time.sleep(0.1)\n"
)


def test_signals_reach_the_command_and_a_stop_is_no_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        running = begin(tmp_path, "--", sys.executable, "-c", POLITE, stdout=file)
    assert eventually(lambda: "up" in text(log))
    running.send_signal(signal.SIGUSR1)
    assert eventually(lambda: "usr1" in text(log))
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    assert text(log) == "up\nusr1\nsaved\n"
    assert record(tmp_path, 1)["outcome"] == "stopped"
    assert not (tmp_path / "state" / "attempts" / "0001" / "failure.json").exists()
    # What was stopped goes on: the same run, the next attempt.
    run = state(tmp_path)["run"]
    with log.open("wb") as file:
        running = begin(tmp_path, "--", sys.executable, "-c", POLITE, stdout=file)
    assert eventually(lambda: "up" in text(log))
    running.terminate()
    running.wait(60)
    assert (state(tmp_path)["run"], state(tmp_path)["attempt"]) == (run, 2)


def test_who_does_not_listen_is_killed_after_the_grace_with_all_below(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "trap '' TERM; (trap '' TERM; echo pid $(sh -c 'echo $PPID'); sleep 600) & wait; sleep 600"
    with log.open("wb") as file:
        running = begin(tmp_path, "--grace", "1s", "--", "sh", "-c", script, stdout=file)
    assert eventually(lambda: re.search(r"pid \d+\n", text(log)))
    running.terminate()
    assert running.wait(60) == 137
    assert keeper.start_time(int(text(log).split()[1])) is None
    assert process.marked(f"supervise/{state(tmp_path)['run']}/1") == []


def test_ctrl_c_goes_to_the_whole_group(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "trap 'echo shell' INT; sh -c 'trap \"echo child; exit 0\" INT; echo up; while :; do sleep 0.1; done' ; exit 9"
    )
    with log.open("wb") as file:
        running = begin(tmp_path, "--", "sh", "-c", script, stdout=file)
    assert eventually(lambda: "up" in text(log))
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 9
    assert sorted(text(log).split()) == ["child", "shell", "up"]


#: What is left after the kill takes longer than the start of a supervisor on a busy machine.
COUNT = "for i in $(seq 100); do echo line $i; sleep 0.08; done; exit {status}"


def kill_in_the_middle(folder: Path, log: Path, script: str, *options: str) -> None:
    with log.open("wb") as file:
        running = begin(folder, *options, "--", "sh", "-c", script, stdout=file)
    assert eventually(lambda: "line 20\n" in text(log))
    running.kill()
    running.wait()


def test_a_killed_supervisor_loses_no_line_and_the_next_adopts_the_command(tmp_path: Path) -> None:
    script = COUNT.format(status=0)
    kill_in_the_middle(tmp_path, tmp_path / "log", script)
    done = supervise(tmp_path, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "outlived its supervisor: adopted" in done.stderr
    passed = text(tmp_path / "log") + done.stdout
    # Nothing is lost; what was passed on in the very moment of the kill may come twice.
    lines = list(dict.fromkeys(passed.splitlines()))
    assert lines == [f"line {i}" for i in range(1, 101)]
    assert state(tmp_path)["attempt"] == 1
    assert record(tmp_path, 1)["outcome"] == "completed"


def test_an_orphan_that_ended_meanwhile_is_judged_by_how_it_ended(tmp_path: Path) -> None:
    script = 'if [ "$TRACECORE_ATTEMPT" = 2 ]; then echo second; exit 0; fi;' + COUNT.replace(
        "exit {status}", "kill -9 $$"
    )
    kill_in_the_middle(tmp_path, tmp_path / "log", script)
    folder = tmp_path / "state" / "attempts" / "0001"
    assert eventually(lambda: (folder / "exit.json").exists() and process.find(folder) is None)
    done = supervise(tmp_path, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "it ended with SIGKILL" in done.stderr
    lines = list(dict.fromkeys((text(tmp_path / "log") + done.stdout).splitlines()))
    assert lines == [*(f"line {i}" for i in range(1, 101)), "second"]
    assert record(tmp_path, 1, "failure")["class"] == "infrastructure"


def test_an_orphan_can_be_refused_or_ended(tmp_path: Path) -> None:
    script = 'if [ "$TRACECORE_ATTEMPT" = 2 ]; then echo second; exit 0; fi; echo line 20; sleep 600'
    kill_in_the_middle(tmp_path, tmp_path / "log", script)
    ids = json.loads((tmp_path / "state" / "attempts" / "0001" / "pid.json").read_text())
    done = supervise(tmp_path, "--orphan", "fail", "--", "sh", "-c", script)
    assert done.returncode == 1
    assert f"pid {ids['pid']}" in done.stderr
    assert keeper.start_time(ids["pid"]) is not None
    done = supervise(tmp_path, "--orphan", "fail", "--", "something", "else")
    assert done.returncode == 1
    assert "another command" in done.stderr
    done = supervise(tmp_path, "--orphan", "kill", "--grace", "1s", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "second\n")
    assert keeper.start_time(ids["pid"]) is None


def test_supervisor_and_keeper_both_killed_leave_nothing_running_twice(tmp_path: Path) -> None:
    script = 'if [ "$TRACECORE_ATTEMPT" = 2 ]; then echo second; exit 0; fi; setsid sleep 600 & echo line 20; sleep 600'
    kill_in_the_middle(tmp_path, tmp_path / "log", script)
    mark = f"supervise/{state(tmp_path)['run']}/1"
    ids = json.loads((tmp_path / "state" / "attempts" / "0001" / "pid.json").read_text())
    os.kill(ids["keeper"], signal.SIGKILL)
    assert eventually(lambda: keeper.start_time(ids["pid"]) is None)
    assert process.marked(mark) != []
    done = supervise(tmp_path, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "second\n")
    assert "nobody saw how it ended" in done.stderr
    assert process.marked(mark) == []


def test_a_killed_keeper_leaves_nothing_of_its_command(tmp_path: Path) -> None:
    # A process in a session of its own is in no group that anybody could end.
    script = f"setsid sh -c 'echo $$ > {tmp_path}/stray; sleep 600' & sleep 600"
    running = begin(tmp_path, "--max-restarts", "0", "--", "sh", "-c", script)
    written = tmp_path / "state" / "attempts" / "0001" / "pid.json"
    assert eventually(lambda: text(tmp_path / "stray") and written.exists())
    os.kill(record(tmp_path, 1, "pid")["keeper"], signal.SIGKILL)
    assert running.wait(60) != 0
    assert keeper.start_time(int(text(tmp_path / "stray"))) is None


def test_two_supervisors_do_not_share_a_folder(tmp_path: Path) -> None:
    running = begin(tmp_path, "--", "sleep", "600")
    try:
        assert eventually(lambda: (tmp_path / "state" / "attempts" / "0001" / "pid.json").exists())
        done = supervise(tmp_path, "--", "sleep", "600")
        assert done.returncode == 1
        assert "in use by another supervisor" in done.stderr
    finally:
        running.terminate()
        assert running.wait(60) == 143


HANGS = """
import os, sys, threading, time
attempt, rank = int(os.environ["TRACECORE_ATTEMPT"]), 0
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{rank}.pipe"
os.mkfifo(pipe)
def recorder():
    while True:
        with open(pipe, "rb") as asked:
            if asked.read():
                with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as dump:
                    dump.write(b"a dump")
threading.Thread(target=recorder, daemon=True).start()
for step in range(5):
    print(f"step {attempt * 100 + step} loss 2.0", flush=True)
    time.sleep(0.2)
while attempt == 1:
    print("still waiting for rank 1", flush=True)
    time.sleep(0.1)
"""


def test_a_stall_is_dumped_judged_and_restarted(tmp_path: Path, patient: str) -> None:
    options = ("--stall-timeout", "2s", "--grace", "1s", "--policy", patient)
    done = supervise(tmp_path, *options, "--", sys.executable, "-c", HANGS)
    assert done.returncode == 0
    assert "since step 104: asking for dumps" in done.stderr
    assert "1 Flight Recorder dump asked for" in done.stderr
    dump = tmp_path / "state" / "attempts" / "0001" / "evidence" / "fr" / "nccl_trace_rank_0"
    assert dump.read_bytes() == b"a dump"
    failure = record(tmp_path, 1, "failure")
    assert failure["class"] == "infrastructure"
    assert "no progress for" in failure["evidence"]["line"]
    assert record(tmp_path, 1)["step"] == 104
    assert record(tmp_path, 2)["outcome"] == "completed"


def test_a_stall_can_be_reported_only(tmp_path: Path) -> None:
    code = "import time\nprint('step 1 loss 2', flush=True)\ntime.sleep(4)\nprint('step 2 loss 1', flush=True)"
    done = supervise(tmp_path, "--stall-timeout", "1s", "--on-stall", "report", "--", sys.executable, "-c", code)
    assert done.returncode == 0
    assert done.stderr.count("asking for dumps") == 1
    assert "left alone" in done.stderr
    assert state(tmp_path)["attempt"] == 1


def test_what_gets_on_slowly_or_only_talks_is_no_stall(tmp_path: Path) -> None:
    # No step is ever said: then output is what shows that it lives.
    talk = "import time\nfor i in range(20):\n    print('compiling kernel', flush=True)\n    time.sleep(0.2)"
    done = supervise(tmp_path / "talk", "--stall-timeout", "2s", "--", sys.executable, "-c", talk)
    assert (done.returncode, done.stderr) == (0, "")
    slow = "import time\nfor i in range(4):\n    print(f'step {i} loss 2.0', flush=True)\n    time.sleep(1)"
    done = supervise(tmp_path / "slow", "--stall-timeout", "3s", "--", sys.executable, "-c", slow)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stop_while_waiting_for_the_next_attempt(tmp_path: Path) -> None:
    policy = tmp_path / "slow.yaml"
    classes = "".join(
        f"  {name}: {{retries: 2, delay: 600s}}\n" for name in ("infrastructure", "code", "data", "resource", "unknown")
    )
    policy.write_text(f"name: slow\nabout: For tests.\ntotal: 10\nclasses:\n{classes}")
    running = begin(tmp_path, "--policy", str(policy), "--", "sh", "-c", "exit 5")
    # It is waiting before the attempt, too: only then is what came of it known.
    assert eventually(lambda: (tmp_path / "state" / "state.json").exists() and state(tmp_path)["phase"] == "waiting"
                      and state(tmp_path)["attempt"] == 1 and state(tmp_path)["ledger"]["retries"] == 1)  # fmt: skip
    running.terminate()
    assert running.wait(60) == 5
    assert state(tmp_path)["outcome"] == "stopped"
    assert state(tmp_path)["ledger"]["retries"] == 1


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    running = begin(tmp_path, "--", "sh", "-c", "seq 100000; sleep 1; echo end", stdout=writer)
    os.close(writer)
    os.close(reader)
    assert running.wait(30) == 0
    kept = (tmp_path / "state" / "attempts" / "0001" / "evidence" / "stdout.log").read_text()
    assert kept.splitlines() == [*map(str, range(1, 100001)), "end"]


def test_dry_run_runs_nothing(tmp_path: Path) -> None:
    done = supervise(tmp_path, "--dry-run", "--stall-timeout", "15m", "--", "touch", str(tmp_path / "touched"))
    plan = json.loads(done.stdout)
    assert (plan["begins"], plan["next_attempt"], plan["stall_timeout_s"]) == ("a new run", 1, 900)
    assert plan["retries"]["infrastructure"] == {"retries": 3, "delay_s": 0}
    assert not (tmp_path / "touched").exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("--policy", "nonesuch", "--", "true"), "no such policy"),
        (("--stall-timeout", "soon", "--", "true"), "no duration"),
    ],
)
def test_bad_usage(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = supervise(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_state_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.json").write_text('{"run": 1}')
    done = supervise(tmp_path, "--", "true")
    assert done.returncode == 1
    assert "move it away" in done.stderr


def test_no_secret_of_the_command_line_is_stored(tmp_path: Path) -> None:
    secret = "hf_Zk3vQ9x7Lm2Rt5Yw8Bn4Ab"
    done = supervise(tmp_path, "--", sys.executable, "-c", "pass", "--token", secret)
    assert done.returncode == 0
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert len(kept) > 4
    assert [path for path in kept if secret.encode() in path.read_bytes()] == []
    assert state(tmp_path)["command"][-2:] == ["--token", "[redacted]"]


def test_a_run_goes_on_with_a_new_token(tmp_path: Path) -> None:
    program = "import time; print('up', flush=True); time.sleep(60)"
    first = begin(tmp_path, "--", sys.executable, "-c", program, "--token", "hf_Zk3vQ9x7Lm2Rt5Yw8Bn4Ab")
    output = tmp_path / "state" / "attempts" / "0001" / "evidence" / "output.log"
    assert eventually(lambda: "up" in text(output))
    first.send_signal(signal.SIGTERM)
    first.wait(60)
    run = state(tmp_path)["run"]
    second = begin(tmp_path, "--", sys.executable, "-c", program, "--token", "hf_Other9x7Lm2Rt5Yw8Bn4Cd")
    assert eventually(lambda: state(tmp_path)["attempt"] == 2)
    assert state(tmp_path)["run"] == run
    second.send_signal(signal.SIGTERM)
    second.wait(60)
