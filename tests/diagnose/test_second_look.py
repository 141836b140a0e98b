"""Logs that have ended: the last complaint counts where no pattern knows it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.actions.last_words import LINES, complaint
from tracecore.diagnose.offline import diagnose
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.patterns import catalogue

STEPS = "".join(f"step {number} loss {3 - number / 100:.2f}\n" for number in range(8))
WATCHDOG = (
    "[rank{0}]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=98, NumelOut=98, Timeout(ms)=600000) ran for 600020 "
    "milliseconds before timing out.\n"
)
#: Complaints of programs in several languages, in words that no recipe has.
COMPLAINTS = [
    "HCCL demo error: In function initDevice(): synDeviceAcquire failed with synapse error: 20",
    "thread 'main' panicked at src/loader.rs:88:14: shard index out of order",
    "panic: runtime error: index out of range [3] with length 3",
    'Exception in thread "main" java.lang.IllegalStateException: executor 7 is not registered',
    "python: pack.c:12: pack_rows: Assertion `n % 8 == 0' failed.",
    "Error: quantiser for layer 12 has no calibration data",
    "2026-11-16 11:02:41 | CRITICAL | trainer - vocabulary does not fit the embedding: giving up",
    "E1116 11:02:41.118 driver.go:88] cannot bind the allocation to a device",
    "tool: symbol lookup error: libfoo.so: undefined symbol: bar",
    "launcher: worker 3 exited with exit code 4",
    'exec: "train": executable file not found in $PATH',
    "403 Client Error. (Request ID: Root=1-6629a4c2)",
    "Error in xgb.train(params, dtrain) : the labels are not numbers",
    "ERROR: LoadError: shard 4 cannot be read",
    "The replica worker 2 exited with a non-zero status of 1. It was run with verbose=False, debug=False",
    "n1: Test NCCL failure common.cu.cpp:775 'unhandled error (run with NCCL_DEBUG=INFO for details)'",
    "[14:49:15] rpc/tcp_socket.cc:76: Failed send on 10.1.0.4:34567 , error: Success",
    "Error when constructing operator: readers__Webdataset encountered:",
    '[/opt/dali/loader.h:223] Assert on "num_shards_ > shard_id_" failed',
    "run.pl: job failed, log is in exp/log/train.1.3.log",
    "<FATAL> the map of shards is empty",
    "The map of shards is empty, aborting.",
    "ASSERTION_FAILED (train[5.5]:Process():egs.cc:301) (frames % factor == 0)",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
]
#: The stack of a Go program below its last words.
STACK = """
goroutine 1 [running]:
main.(*plugins).Get(0xc00011c278)
        /build/cmd/plugin/mig.go:57 +0x1a5
github.com/urfave/cli/v2.(*App).Run(...)
        /build/vendor/github.com/urfave/cli/v2/app.go:224
created by main.main in goroutine 1
exit status 2
"""
STALLED = (
    "WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
    "waiting for remainder of ranks for more than 60 seconds. Stalled ops: allreduce.conv1 [ready ranks: 5, 1]\n"
)


def answer(folder: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
    return diagnose([folder])


def root(said: Diagnosis) -> str | None:
    first = said.incidents[0] if said.incidents else None
    return first.root.verdict.pattern_name if first is not None and first.root is not None else None


@pytest.mark.parametrize("line", COMPLAINTS)
def test_a_log_that_ends_with_a_complaint_crashed(line: str, tmp_path: Path) -> None:
    said = answer(tmp_path, train=f"{STEPS}{line}\n")
    assert root(said) == "worker_crash"
    incident = said.incidents[0]
    assert incident.root is not None
    assert incident.root.verdict.confidence == "partial"
    assert line[:40] in incident.headline
    assert incident.evidence[0].source.line == 9


@pytest.mark.parametrize(
    "text",
    [
        "/bin/bash: module: command not found\nPython 3.11.7\nGPUs: 8\n",
        "salloc: Granted job allocation 71\nsalloc: error: Job allocation 71 has been revoked\n",
        "error: RPC failed; curl 56 recv error\nUsing local copy of the repository\nbuild ok\n",
        "rm: cannot remove 'tmp/x': No such file or directory\npython train.py --lr 1e-4\n",
        "10:00:00,123 ERROR [tracker] failed to log metric batch: HTTP 503\n10:00:10,123 epoch 3 done\n",
        "mpirun was unable to find the requested btl\nOpen MPI uses tcp\nrank count 8\n",
        "E0000 00:00:1731.1 1234 cuda_dnn.cc:8310] Unable to register cuDNN factory: one has already been registered\n",
        "Failed to load image Python extension: libjpeg.so.9: cannot open shared object file\nresults in /out\n",
        "Lost worker 3 on node 2\nits task was given to worker 4\n",
        "fatal: not a git repository (or any of the parent directories): .git\n",
    ],
)
def test_a_complaint_before_ordinary_lines_or_known_to_be_harmless_is_none(text: str, tmp_path: Path) -> None:
    assert root(answer(tmp_path, train=text)) is None


def test_what_follows_from_the_end_does_not_hide_the_complaint(tmp_path: Path) -> None:
    after = "  at loader.rs:88\nclosing 4 files\nPlease see the manual\n\nexit status 3\n"
    said = answer(tmp_path, train=f"{STEPS}{COMPLAINTS[0]}\n{after}")
    assert root(said) == "worker_crash"
    assert COMPLAINTS[0][:40] in said.incidents[0].headline


def test_a_stack_below_the_complaint_does_not_hide_it(tmp_path: Path) -> None:
    said = answer(tmp_path, train=f"{STEPS}panic: send on closed channel\n{STACK}")
    assert root(said) == "worker_crash"
    assert "panic: send on closed channel" in said.incidents[0].headline


def test_a_native_stack_may_be_longer_than_the_lines_that_are_looked_at(tmp_path: Path) -> None:
    frames = "".join(f"#{number}  0x00007f{number:04x} in pkg::frame{number} ()\n" for number in range(2 * LINES))
    said = answer(tmp_path, train=f"{STEPS}pack.c:12: pack_rows: Assertion `n % 8 == 0' failed.\n{frames}")
    assert root(said) == "worker_crash"
    assert "pack_rows" in said.incidents[0].headline


@pytest.mark.parametrize("line", COMPLAINTS)
def test_steps_after_it_say_that_it_was_overcome(line: str, tmp_path: Path) -> None:
    assert root(answer(tmp_path, train=f"step 0 loss 3.1\n{line}\n{STEPS}")) is None


@pytest.mark.parametrize("line", COMPLAINTS)
def test_lines_far_below_it_say_the_same(line: str, tmp_path: Path) -> None:
    quiet = "".join(f"reading part {number} of the index\n" for number in range(LINES + 1))
    assert root(answer(tmp_path, train=f"{STEPS}{line}\n{quiet}")) is None


@pytest.mark.parametrize(
    "line",
    [
        "eval error: 0.0345",
        "0 errors, 3 warnings, 0 failed",
        "WARNING: failed to open the profile, using defaults",
        "INFO error feedback is enabled",
        "Error: could not reach the hub, retrying in 5 s",
        "host:1:2 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
        "(autoscaler +1m2s) Error: No available node types can fulfill resource request {'GPU': 8.0}",
        "if error: raise ValueError(error)",
        "process failed health probe once, probe ok now",
        'Assert on "fast path" disabled',
        "2 jobs failed, 30 succeeded",
        "distributed.nanny - WARNING - Worker process 50 was killed by signal 15",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f25 in /opt/torch/lib/libc10.so)",
    ],
)
def test_what_is_no_complaint(line: str, tmp_path: Path) -> None:
    assert root(answer(tmp_path, train=f"{STEPS}{line}\n")) is None


def test_a_watchdog_that_was_stuck_itself_is_a_hang_of_its_rank(tmp_path: Path) -> None:
    line = "[rank0]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds\n"
    said = answer(tmp_path, train=STEPS + line)
    assert root(said) == "nccl_hang"
    incident = said.incidents[0]
    assert incident.suspects.ranks == (0,)
    assert "hangs in a CUDA or NCCL call (the watchdog itself was stuck)" in incident.headline
    assert "Compare the logs of the other ranks" in incident.advice


def test_a_run_that_ended_well_is_not_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "exit_codes.json").write_text('{"0": 0}')
    assert root(answer(tmp_path, rank0=f"{STEPS}{COMPLAINTS[0]}\n")) is None


def test_an_exception_with_its_traceback_says_more(tmp_path: Path) -> None:
    raised = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\nKeyError: "lr"\n'
    said = answer(tmp_path, train=f"{STEPS}{raised}{COMPLAINTS[0]}\n")
    assert "KeyError" in said.incidents[0].headline


def test_the_rank_of_a_labelled_line_is_named(tmp_path: Path) -> None:
    text = "".join(f"[rank{rank}]: step 5 loss 2.0\n" for rank in range(4))
    said = answer(tmp_path, train=f"{text}[rank2]: {COMPLAINTS[5]}\n")
    assert root(said) == "worker_crash"
    assert said.incidents[0].suspects.ranks == (2,)


def test_one_rank_that_gave_up_is_a_hang_without_a_culprit(tmp_path: Path) -> None:
    said = answer(tmp_path, train=WATCHDOG.format(1))
    assert root(said) == "nccl_hang"
    assert said.incidents[0].suspects.ranks == ()
    assert "which rank it waits for" in said.incidents[0].headline


def test_ranks_that_nobody_names_hang(tmp_path: Path) -> None:
    said = answer(tmp_path, train=f"{STEPS}{STALLED}")
    assert root(said) == "nccl_hang"
    assert said.incidents[0].suspects.ranks == ()
    assert "which ranks, or which rank they wait for" in said.incidents[0].headline
    assert "with this one" in said.document()["incidents"][0]["remediation"]


def test_a_wait_that_ended_is_no_hang(tmp_path: Path) -> None:
    assert root(answer(tmp_path, train=f"step 0 loss 3.2\n{STALLED}{STEPS}")) is None


def test_two_complaints_in_a_row_are_not_ordinary_lines(tmp_path: Path) -> None:
    said = answer(tmp_path, train=f"{STEPS}{COMPLAINTS[-4]}\n{COMPLAINTS[-3]}\n")
    assert COMPLAINTS[-4] in said.incidents[0].headline


def test_who_only_passes_a_failure_on_has_no_class(tmp_path: Path) -> None:
    said = answer(tmp_path, train=f"{STEPS}{COMPLAINTS[-1]}\n")
    assert said.incidents[0].failure["class"] == "unknown"


def test_gradients_that_stay_not_finite_at_the_end_diverged(tmp_path: Path) -> None:
    row = "{{'loss': {0}, 'grad_norm': {1}, 'learning_rate': 1e-05, 'epoch': 0.{2}}}\n"
    good = "".join(row.format(1.2, 0.8, number) for number in range(1, 6))
    bad = "".join(row.format(1.1, "nan", number) for number in range(6, 9))
    assert root(answer(tmp_path, train=good + bad)) == "training_divergence"
    assert root(answer(tmp_path, train=good + bad + good)) is None


def test_the_complaint_of_a_text() -> None:
    found = complaint(f"{STEPS}{COMPLAINTS[0]}\n".encode())
    assert found is not None
    assert (found.line, found.offset, found.length) == (9, len(STEPS), len(COMPLAINTS[0]))
    assert complaint(b"") is None


DMESG = (
    "[Tue Mar  3 04:12:{:02d} 2026] NVRM: Xid (PCI:0000:3b:00): {}, pid=22871, name=python3, Ch 00000008, "
    "intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_7 faulted @ 0x7f1c_2a000000. Fault is of type "
    "FAULT_PDE ACCESS_TYPE_READ\n"
)
TIMED = "".join(f"2026-03-03 04:12:{second:02d} step {second} loss 2.1\n" for second in range(5, 45, 10))


@pytest.mark.parametrize(
    ("second", "code", "steps", "expected"),
    [
        (9, 31, "", "gpu_app_fault"),
        (9, 69, "", "gpu_app_fault"),
        (9, 45, "", None),  # it follows something else
        (45, 31, TIMED, "gpu_app_fault"),
        (9, 31, TIMED, None),  # the run went on
        (45, 31, STEPS, None),  # nothing tells when the steps were
    ],
)
def test_an_xid_of_a_program_is_the_cause_where_no_step_follows_it(
    second: int, code: int, steps: str, expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "dmesg.txt").write_text(DMESG.format(second, code), encoding="utf-8")
    if steps:
        (tmp_path / "train.log").write_text(steps, encoding="utf-8")
    assert root(diagnose([tmp_path])) == expected


def test_settings_of_the_second_look_belong_to_patterns() -> None:
    from tracecore.diagnose.second_look import SETTINGS, relaxed

    changed = {pattern.name: pattern.config for pattern in relaxed(catalogue(), [])}
    for name, settings in SETTINGS.items():
        assert {key: getattr(changed[name], key) for key in settings} == settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "State:          Terminated\n  Reason:       OOMKilled\n  Exit Code:    137\nReady:          False\n",
            "host_oom",
        ),
        ("    Last State: Terminated\n      Reason: OOMKilled\n      Exit Code: 137\n    Ready: True\n", "host_oom"),
        ("Status:   Failed\nReason:   Evicted\nMessage:  The node was low on resource: memory.\n", "pod_evicted"),
        ("The node was low on resource: ephemeral-storage.\nKilling container with id docker://x\n", "pod_evicted"),
        ("State:      Running\n  Started:  Mon, 13 Nov 2023 03:50:57 +0100\nReady:  True\n", None),
    ],
)
def test_a_piece_of_a_described_pod(text: str, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "pod.txt").write_text(text)
    assert root(diagnose([tmp_path])) == expected


def test_a_kernel_log_without_host_names(tmp_path: Path) -> None:
    line = "Mar 21 21:42:01 kernel: NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out\n"
    (tmp_path / "dmesg.txt").write_text(f"Mar 21 21:41:58 kernel: nvidia 0000:05:00.0: Enabling HDA controller\n{line}")
    assert root(diagnose([tmp_path])) == "gpu_fault"


def test_an_abort_without_a_rank_after_a_watchdog_is_no_crash_of_its_own(tmp_path: Path) -> None:
    said = answer(tmp_path, train=f"{WATCHDOG.format(4)}Fatal Python error: Aborted\n\nThread 0x00007eff6f28b740:\n")
    assert root(said) == "nccl_hang"


ROOT_ENTRY = """Root Cause (first observed failure):
[0]:
  time      : 2024-03-05_07:01:51
  host      : node1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 69811)
  error_file: <N/A>
"""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (f"train.py FAILED\n------\nFailures:\n{ROOT_ENTRY.replace('[0]', '[1]')}======\n", (0,)),
        ("mpirun noticed that process rank 0 with PID 26987 on node n1 exited on signal 6 (Aborted).\n", (0,)),
        ("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n", (2,)),
        (
            f"rank 0 {STEPS}mpirun noticed that process rank 0 with PID 7 on node n1 exited on signal 9 (Killed).\n",
            (0,),
        ),
    ],
)
def test_the_rank_that_a_launcher_names(text: str, ranks: tuple[int, ...], tmp_path: Path) -> None:
    said = answer(tmp_path, train=text)
    assert root(said) == "worker_crash"
    assert said.incidents[0].suspects.ranks == ranks


def test_what_was_thrown_says_more_than_the_abort(tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of 'ps::Error'\n  what():  Check failed: sizes differ\n"
    ended = "mpirun noticed that process rank 3 with PID 7 on node n1 exited on signal 6 (Aborted).\n"
    said = answer(tmp_path, train=f"{thrown}{ended}")
    assert "Rank 3 raised ps::Error" in said.incidents[0].headline
    assert said.incidents[0].suspects.ranks == (3,)
