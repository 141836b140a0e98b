"""What people leave behind, in forms that no recording has: who failed, and of what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose

STEPS = "".join(
    f"2026-10-03 04:12:{second:02d} INFO [rank {{0}}] step={second} loss=2.{99 - second} step_time=1.00s\n"
    for second in range(20)
)
RAISED = """Traceback (most recent call last):
  File "/app/train.py", line 70, in <module>
    main()
  File "/app/data.py", line 31, in collate
    return torch.stack(rows)
RuntimeError: stack expects each tensor to be equal size, but got [2048] at entry 0 and [2047] at entry 3
"""
LOST = """Traceback (most recent call last):
  File "/app/train.py", line 70, in <module>
    main()
  File "/app/train.py", line 61, in main
    dist.all_reduce(gradients)
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgressOpt: Connection closed by remote peer 10.4.2.9<43112>
"""


def first(place: Path, **files: str) -> dict[str, Any]:
    """The first incident of a bundle of these files, by name with `__` for a dot."""
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    incidents = diagnose([place]).document()["incidents"]
    assert incidents
    found: dict[str, Any] = incidents[0]
    return found


def root_of(incident: dict[str, Any]) -> str | None:
    return incident["root_cause"]["pattern"] if incident["root_cause"] else None


def test_of_exit_statuses_alone_a_kill_comes_before_aborts(tmp_path: Path) -> None:
    logs = {f"rank{rank}__log": STEPS.format(rank) for rank in range(4)}
    found = first(tmp_path, exit_codes__json='{"0": -6, "1": -6, "2": -9, "3": -6}', **logs)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [2])
    assert found["failure"]["class"] == "infrastructure"


def test_who_is_terminated_after_a_crash_of_another_only_followed(tmp_path: Path) -> None:
    logs = {f"rank{rank}__log": STEPS.format(rank) for rank in range(2)}
    found = first(tmp_path, exit_codes__json='{"0": -15, "1": -11}', **logs)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [1])


def test_an_exception_comes_before_the_aborts_of_those_that_waited(tmp_path: Path) -> None:
    logs = {f"rank{rank}__log": STEPS.format(rank) + (RAISED if rank == 2 else "") for rank in range(4)}
    found = first(tmp_path, exit_codes__json='{"0": -6, "1": -6, "2": 1, "3": -6}', **logs)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [2])
    assert "stack expects" in found["headline"]


def test_ray_carries_the_loss_of_a_peer_to_its_driver(tmp_path: Path) -> None:
    said = """(raylet, ip=10.0.3.8) A worker died or was killed while executing a task by an unexpected system error. \
RayTask ID: ff Worker ID: 77 Node ID: 0e Worker IP address: 10.0.3.8 Worker port: 10008 Worker PID: 8123 Worker exit \
type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.
Traceback (most recent call last):
  File "/srv/train.py", line 90, in <module>
    result = trainer.fit()
ray.exceptions.RayTaskError(RuntimeError): ray::_Inner.train() (pid=8099, ip=10.0.3.7)
  File "/srv/train.py", line 55, in train_loop
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.3.8]:44321
"""
    found = first(tmp_path, driver__log=said)
    assert root_of(found) == "worker_crash"
    assert "10.0.3.8" in found["headline"]
    assert found["failure"]["class"] == "infrastructure"


def test_a_jax_task_that_is_not_heard_any_more(tmp_path: Path) -> None:
    said = """E1003 04:15:10.101300 140288 client.h:80] Terminating process because the JAX distributed service \
detected fatal errors. absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
/job:jax_worker/replica:0/task:3
The tasks have crashed. Check the task logs for an earlier error to debug further.
"""
    found = first(tmp_path, host0__log=said)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [3])
    assert found["failure"]["class"] == "infrastructure"


# -- whose line it is ------------------------------------------------------------------------------------------------


def labelled(who: str, text: str) -> str:
    return "".join(f"{who}{line}\n" for line in text.splitlines())


WORK = "".join(f"epoch 1 batch {batch} loss 0.{500 - batch}\n" for batch in range(12))


@pytest.mark.parametrize(
    "before",
    [
        "trainer-{0}  | ",
        "trainer-{0}  | 2026-10-03T04:12:31.123456789Z ",
        "bert-worker-{0} main ",
        "[pod/bert-{0}/main] ",
    ],
)
def test_lines_of_several_containers_in_one_file(tmp_path: Path, before: str) -> None:
    """As `docker compose logs`, `stern` and `kubectl logs --prefix` print them."""
    text = "".join(labelled(before.format(who), line) for line in WORK.splitlines() for who in range(3))
    # Two at once, line by line.
    for raised, lost in zip(RAISED.splitlines() + [""] * 9, LOST.splitlines(), strict=False):
        text += labelled(before.format(1), raised) + labelled(before.format(0), lost)
    found = first(tmp_path, all__log=text)
    assert root_of(found) == "worker_crash"
    assert found["failure"]["class"] in ("code", "data")
    (name,) = found["suspects"]["nodes"] + found["suspects"]["pods"]
    assert name.endswith("-1")


def test_a_time_before_every_line_is_not_the_programs(tmp_path: Path) -> None:
    text = labelled("2026-10-03T04:12:31.123456789Z ", WORK + RAISED)
    assert root_of(first(tmp_path, all__log=text)) == "worker_crash"


def test_a_table_with_bars_is_no_container(tmp_path: Path) -> None:
    text = "".join(f"{step} | 0.{900 - step} | 12.5\n" for step in range(40)) + RAISED
    found = first(tmp_path, all__log="step | loss | time\n" + text)
    assert root_of(found) == "worker_crash"
    assert found["suspects"]["nodes"] == []


def test_a_traceback_in_a_line_of_json(tmp_path: Path) -> None:
    lines = [json.dumps({"ts": f"2026-10-03T04:12:{s:02d}Z", "rank": 1, "step": s, "loss": 2.0}) for s in range(20)]
    lines.append(json.dumps({"ts": "2026-10-03T04:12:21Z", "level": "error", "rank": 1, "exc_info": RAISED}))
    found = first(tmp_path, trainer__jsonl="\n".join(lines) + "\n")
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [1])


def pod_logs(place: Path, pods: dict[str, str]) -> dict[str, Any]:
    for number, (pod, text) in enumerate(pods.items()):
        folder = place / f"ml_{pod}_{number:08d}-1111-4222-8333-444455556666" / "pytorch"
        folder.mkdir(parents=True)
        (folder / "0.log").write_text(labelled("2026-10-03T04:12:31.123456789Z stderr F ", text))
    return first(place)


@pytest.mark.parametrize(
    ("pods", "rank"),
    [
        (("train-0", "train-1", "train-2"), 2),
        (("llm-master-0", "llm-worker-0", "llm-worker-1"), 2),
        (("llm-worker-0", "llm-worker-1", "llm-worker-2"), 2),
        (("pt-0-x1f2k", "pt-1-x2f2k", "pt-2-x3f2k"), 2),
        (("pt-workers-0-0-x1f2k", "pt-workers-0-1-x2f2k", "pt-workers-1-1-x3f2k"), 3),
    ],
)
def test_the_number_of_a_pod_is_its_rank(tmp_path: Path, pods: tuple[str, ...], rank: int) -> None:
    found = pod_logs(tmp_path, {pod: WORK + (RAISED if pod == pods[-1] else LOST) for pod in pods})
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [rank])


@pytest.mark.parametrize(
    "said",
    [
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n",
        "distributed init: world_size=16 backend=nccl\n",
        "[rank9]: ready\n",
        "rank 8 | step 12 | loss 2.1\nrank 9 | step 12 | loss 2.1\n",
        '{"rank": 8, "step": 12, "loss": 2.1}\n{"rank": 9, "step": 12, "loss": 2.1}\n',
    ],
)
def test_a_pod_with_several_processes_is_no_rank(tmp_path: Path, said: str) -> None:
    found = pod_logs(tmp_path, {"train-0": said + WORK + LOST, "train-1": said + WORK + RAISED})
    assert (root_of(found), found["suspects"]["pods"]) == ("worker_crash", ["ml/train-1"])
    # Those that its lines name are its ranks.
    assert found["suspects"]["ranks"] == ([8, 9] if "step" in said else [])


def test_workers_beside_a_master_are_counted_after_it(tmp_path: Path) -> None:
    found = first(tmp_path, **{"llm-master-0__log": WORK + LOST, "llm-worker-0__log": WORK + RAISED})
    assert found["suspects"]["ranks"] == [1]


# -- what the machine says -------------------------------------------------------------------------------------------


def test_a_job_whose_node_failed_did_not_end_well(tmp_path: Path) -> None:
    out = "".join(f"[2026-10-03 04:12:{s:02d}] step {s} | loss 2.1\n" for s in range(20))
    out += "srun: error: Node failure on gpu-17\n"
    out += "slurmstepd: error: *** JOB 88121 ON gpu-14 CANCELLED AT 2026-10-03T04:19:00 DUE TO NODE FAILURE ***\n"
    found = first(tmp_path, **{"slurm-88121__out": out, "sacct__txt": "JobID|State|ExitCode\n88121|NODE_FAIL|0:0\n"})
    assert (root_of(found), found["suspects"]["nodes"]) == ("host_lost", ["gpu-17"])
    assert found["failure"]["class"] == "infrastructure"


KERNEL = "[Wed Sep {0} 04:12:44 2026] NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"


def test_what_a_kernel_said_days_before_the_run_is_history(tmp_path: Path) -> None:
    found = first(tmp_path, rank1__log=STEPS.format(1) + RAISED, dmesg__txt=KERNEL.format(23))
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [1])


def test_a_well_run_with_a_history_has_no_incident(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(STEPS.format(0))
    (tmp_path / "dmesg.txt").write_text(KERNEL.format(23))
    found = diagnose([tmp_path])
    assert found.incidents == []
    assert any("Long before the run" in note for note in found.notes)


@pytest.mark.parametrize("form", ["short", "json"])
def test_a_worker_that_writes_to_the_journal(tmp_path: Path, form: str) -> None:
    lines = (WORK + RAISED).splitlines()
    if form == "short":
        text = labelled("Oct 03 04:12:44 n4 python3[9912]: ", "\n".join(lines))
        text += "Oct 03 04:12:45 n4 systemd[1]: train.service: Main process exited, code=exited, status=1/FAILURE\n"
    else:
        entry = {"__REALTIME_TIMESTAMP": "1791000764000000", "_HOSTNAME": "n4", "SYSLOG_IDENTIFIER": "python3"}
        text = "".join(json.dumps({**entry, "_PID": "9912", "MESSAGE": line}) + "\n" for line in lines)
    found = first(tmp_path, journal__txt=text)
    assert (root_of(found), found["suspects"]["nodes"]) == ("worker_crash", ["n4"])


def test_systemd_tells_of_a_kill_for_memory(tmp_path: Path) -> None:
    text = labelled("Oct 03 04:12:44 n4 python3[9912]: ", WORK)
    text += "Oct 03 04:12:45 n4 systemd[1]: train.service: A process of this unit has been killed by the OOM killer.\n"
    assert root_of(first(tmp_path, journal__txt=text)) == "host_oom"


def test_an_events_table_says_where_a_pod_was_put(tmp_path: Path) -> None:
    events = """\
LAST SEEN   TYPE      REASON      OBJECT            MESSAGE
9m          Normal    Scheduled   pod/train-3       Successfully assigned ml/train-3 to gpu-node-4
2m          Warning   Evicted     pod/train-3       The node was low on resource: ephemeral-storage.
"""
    found = first(tmp_path, events__txt=events)
    assert root_of(found) == "pod_evicted"
    assert (found["suspects"]["pods"], found["suspects"]["nodes"]) == (["ml/train-3"], ["gpu-node-4"])
    assert "20" not in found["headline"], "no time is known here, so none is told"


def test_who_does_not_come_to_make_a_communicator(tmp_path: Path) -> None:
    said = (
        "[rank{0}]: torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '3:0', but store->get('3:0') got error: wait timeout "
        "after 20000ms\n"
    )
    logs = {f"rank{rank}__log": STEPS.format(rank) + (said.format(rank) if rank else "") for rank in range(4)}
    found = first(tmp_path, **logs)
    assert (root_of(found), found["suspects"]["ranks"]) == ("nccl_hang", [0])


def test_a_traceback_in_a_field_of_json_is_read_from_a_pods_log_too(tmp_path: Path) -> None:
    for rank in range(3):
        said = json.dumps({"level": "critical", "rank": rank, "exc_info": RAISED if rank == 1 else LOST})
        pod = tmp_path / f"ml_job-{rank}_0000{rank}aaa-1111-4222-8333-444455556666" / "main"
        pod.mkdir(parents=True)
        steps = STEPS.format(rank).splitlines()
        lines = [
            f"2026-10-03T04:12:{20 + n // 40:02d}.{n:09d}Z stdout F {line}" for n, line in enumerate([*steps, said])
        ]
        (pod / "0.log").write_text("\n".join(lines) + "\n")
    found = first(tmp_path)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [1])


def test_rank_0_is_named_where_the_launcher_ended_others(tmp_path: Path) -> None:
    table = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-10-03_04:12:22
  host      : node-b
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 1112)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1112
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-10-03_04:12:21
  host      : node-b
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 1111)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
    raised = "".join(f"[rank0]: {line}\n" for line in RAISED.splitlines())
    steps = "".join(f"2026-10-03 04:12:{second:02d} INFO step={second} loss=2.5\n" for second in range(20))
    found = first(tmp_path, out__log=steps + raised + table)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [0])


def test_a_restart_that_could_not_connect_is_told_after_what_ended_the_run_before_it(tmp_path: Path) -> None:
    mesh = (
        "[E1003 04:12:40.110212085 ProcessGroupGloo.cpp:69] Gloo connectFullMesh failed with "
        "[/b/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[10.1.0.7]:75\n"
    )
    logs = tmp_path / "none_abc"
    for rank in range(2):
        for attempt, said in enumerate((STEPS.format(rank) + (RAISED if rank else LOST), mesh)):
            place = logs / f"attempt_{attempt}" / str(rank)
            place.mkdir(parents=True)
            (place / "stderr.log").write_text(said)
    incidents = diagnose([tmp_path]).document()["incidents"]
    assert (root_of(incidents[0]), incidents[0]["suspects"]["ranks"]) == ("worker_crash", [1])
    assert [root_of(incident) for incident in incidents[1:]] == ["nccl_bootstrap"]


def test_of_a_checkpoint_that_fails_everywhere_the_rank_is_named_that_failed(tmp_path: Path) -> None:
    said = """Traceback (most recent call last):
  File "/app/train.py", line 19, in save
    dcp.save(state)
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])
Traceback (most recent call last): (RANK 2)
  File "/usr/lib/python3/site-packages/torch/serialization.py", line 1254, in _save
    pickler.dump(obj)
  File "/app/train.py", line 17, in __reduce__
    raise TypeError("no pickle")
TypeError: no pickle
"""
    logs = {
        f"rank{rank}__log": STEPS.format(rank) + "".join(f"[rank{rank}]: {line}\n" for line in said.splitlines())
        for rank in range(4)
    }
    found = first(tmp_path, exit_codes__json='{"0": 1, "1": 1, "2": 1, "3": 1}', **logs)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [2])
    assert found["headline"].startswith("Rank 2 raised TypeError: no pickle")


def test_who_ended_well_and_left_the_others_is_the_cause(tmp_path: Path) -> None:
    closed = "RuntimeError: [/b/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:42416\n"
    logs = {f"rank{r}__log": STEPS.format(r) + (f"[rank{r}]: {closed}" if r else "") for r in range(3)}
    found = first(tmp_path, exit_codes__json='{"0": 0, "1": 1, "2": 1}', **logs)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [0])
    assert found["headline"] == "Rank 0 ended with status 0 before the others; 2 other ranks followed"
