"""What people leave behind, in forms that no recording has: who failed, and of what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracecore.pipeline.offline import diagnose

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
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error
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
    said = """E1003 04:15:10.101300 140288 client.h:80] Terminating process because the JAX distributed service detected \
fatal errors. absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
/job:jax_worker/replica:0/task:3
The tasks have crashed. Check the task logs for an earlier error to debug further.
"""
    found = first(tmp_path, host0__log=said)
    assert (root_of(found), found["suspects"]["ranks"]) == ("worker_crash", [3])
    assert found["failure"]["class"] == "infrastructure"
