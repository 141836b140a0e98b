"""Which rank a worker of Ray is, whose lines begin with the number of its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose

LISTED = """\
(TorchTrainer pid=3012, ip=10.0.7.4) Started distributed worker processes:
(TorchTrainer pid=3012, ip=10.0.7.4) - (node_id=ab12, ip=10.0.7.4, pid=3390) world_rank=0, local_rank=0, node_rank=0
(TorchTrainer pid=3012, ip=10.0.7.4) - (node_id=ab12, ip=10.0.7.4, pid=3391) world_rank=1, local_rank=1, node_rank=0
(TorchTrainer pid=3012, ip=10.0.7.4) - (ip=10.0.7.5, pid=3390) world_rank=2, local_rank=0, node_rank=1
"""
STEP = "({0}) epoch=0 step=120 loss=0.712\n"
RAISED = """\
({0}) Traceback (most recent call last):
({0})   File "/app/train.py", line 88, in train_loop
({0})     labels = batch["labels"]
({0}) KeyError: 'labels'
"""

ABORTED = "terminate called without an active exception"


def suspected(folder: Path, **logs: str) -> tuple[int, ...]:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    (incident,) = diagnose([folder]).incidents
    return tuple(incident.suspects.ranks)


@pytest.mark.parametrize(
    ("who", "ranks"),
    [
        ("RayTrainWorker pid=3391, ip=10.0.7.4", (1,)),
        ("RayTrainWorker pid=3390, ip=10.0.7.5", (2,)),
        ("RayTrainWorker pid=3391", (1,)),
        ("RayTrainWorker pid=3390", ()),
        ("RayTrainWorker pid=3390, ip=10.0.7.6", ()),
        ("SplitCoordinator pid=4000", ()),
    ],
)
def test_the_controller_lists_its_workers(tmp_path: Path, who: str, ranks: tuple[int, ...]) -> None:
    step = STEP.format("RayTrainWorker pid=3390, ip=10.0.7.4")
    assert suspected(tmp_path, driver=LISTED + step + RAISED.format(who)) == ranks


@pytest.mark.parametrize(
    "said",
    [
        "[world_rank=3, local_rank=1, node_rank=1] building the model",
        "[rank: 3] actor loaded",
        "[Rank 3] actor loaded",
        "[rank-3]: actor loaded",
        "Setting up process group for: env:// [rank=3, world_size=4]",
        "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8",
        "rank 3 step 10 loss 2.5",
        "world_rank=3 initialized",
        "Rank 3/8: epoch 1",
    ],
)
def test_a_worker_says_its_rank(tmp_path: Path, said: str) -> None:
    who = "WorkerDict pid=771"
    assert suspected(tmp_path, driver=f"({who}) {said}\n" + RAISED.format(who)) == (3,)


@pytest.mark.parametrize(
    "said",
    [
        "I0301 10:00:01.519922 2223 train.py:20] distributed init (rank 3): env://, world size 4",
        "[rank3]:[W301 10:00:01.106 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called",
        "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8",
    ],
)
@pytest.mark.parametrize(("pid", "ranks"), [(2223, (3,)), (2224, ())])
def test_a_process_says_its_rank_in_a_journal(tmp_path: Path, said: str, pid: int, ranks: tuple[int, ...]) -> None:
    lines = [f"Mar  1 10:00:01 node-3 trainer[2223]: {said}"]
    lines += [f"Mar  1 10:00:{step:02} node-3 trainer[{pid}]: step {step} loss=0.{90 - step}" for step in range(10, 20)]
    lines += [f"Mar  1 10:00:30 node-3 trainer[{pid}]: {line}" for line in ("pure virtual method called", ABORTED)]
    assert suspected(tmp_path, journal="\n".join(lines)) == ranks


@pytest.mark.parametrize(
    "said", ["waits for [rank 3]", "rank 3 never came", "[rank: 3] of the rollout failed\n({0}) [rank: 4] did not"]
)
def test_other_ranks_are_not_its_own(tmp_path: Path, said: str) -> None:
    who = "WorkerDict pid=771"
    assert suspected(tmp_path, driver=f"({who}) {said.format(who)}\n" + RAISED.format(who)) == ()


def test_the_driver_names_the_process_of_the_innermost_call(tmp_path: Path) -> None:
    driver = """\
Traceback (most recent call last):
  File "/verl/trainer/main_ppo.py", line 31, in main
    run_ppo(config)
ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=9001, ip=172.17.0.2, actor_id=01)
  File "/verl/single_controller/ray/base.py", line 42, in func
    output = ray.get(output)
ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.update_actor() (pid=9124, ip=172.17.0.2, actor_id=0b)
  File "/verl/workers/fsdp_workers.py", line 520, in update_actor
    metrics = self.actor.update_policy(data=data)
ValueError: too many values to unpack
"""
    workers = "(WorkerDict pid=9121) [Rank 0] init\n(WorkerDict pid=9124) [Rank 3] init\n"
    assert suspected(tmp_path, driver=driver, workers=workers) == (3,)


def test_a_coloured_line_says_the_rank_of_a_worker_that_died(tmp_path: Path) -> None:
    driver = """\
\x1b[36m(TrainWorker pid=771)\x1b[0m rank 2 step 10 |w| 7.1
\x1b[36m(TrainWorker pid=772)\x1b[0m rank 3 step 10 |w| 7.1
\x1b[33m(raylet)\x1b[0m A worker died or was killed while executing a task by an unexpected system error. \
Worker IP address: 10.0.0.2 Worker port: 43687 Worker PID: 772 Worker exit type: SYSTEM_ERROR Worker exit detail: \
Worker unexpectedly exits with a connection error code 2. End of file.
"""
    assert suspected(tmp_path, driver=driver) == (3,)


def test_a_worker_that_was_killed_for_memory_has_its_rank(tmp_path: Path) -> None:
    killed = """\
Traceback (most recent call last):
  File "event_manager.py", line 110, in resolve_future
    result = ray.get(future)
ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.7.4, ID: ab12f0c3) where the task (actor ID: 77aa, name=RayTrainWorker.__init__, \
pid=3391, memory used=121.40GB) was running was 244.11GB / 256.00GB (0.953), which exceeds the memory usage \
threshold of 0.95.
"""
    assert suspected(tmp_path, driver=LISTED + killed) == (1,)


AGENT = """\
I0301 10:00:01.0 1 torch/distributed/elastic/agent/server/api.py:525]   local_ranks=[0, 1, 2, 3]
I0301 10:00:01.0 1 torch/distributed/elastic/agent/server/api.py:525]   global_ranks=[{0}]
"""
FAILED = """\
Traceback (most recent call last):
  File "/app/train.py", line 41, in loop
    out = model(x)
IndexError: index out of range in self
E0301 10:00:31.0 1 torch/distributed/elastic/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 102) of binary: python
"""


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        (AGENT.format("8, 9, 10, 11"), (11,)),
        (AGENT.format("0, 1, 2, 3"), (3,)),
    ],
)
def test_torchrun_lists_the_ranks_of_its_machine(tmp_path: Path, told: str, ranks: tuple[int, ...]) -> None:
    assert suspected(tmp_path, agent=told + FAILED) == ranks


def test_lines_of_a_local_rank_have_the_rank_of_its_machine(tmp_path: Path) -> None:
    raised = "".join(f"[default2]:{line}\n" for line in FAILED.splitlines()[:4])
    assert suspected(tmp_path, agent=AGENT.format("8, 9, 10, 11") + raised) == (10,)


@pytest.mark.parametrize(
    ("settings", "ranks", "who"),
    [
        ("torchrun --nnodes=4 --node_rank=2 --nproc_per_node=8 train.py", (19,), "Rank 19"),
        ("NNODES=2 NODE_RANK=1 LOCAL_WORLD_SIZE=4", (7,), "Rank 7"),
        ("accelerate launch --num_machines 2 --machine_rank 0 train.py", (), "Local rank 3"),
        ("torchrun --nnodes 2:4 --nproc-per-node 8 train.py", (), "Local rank 3"),
        ("torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 train.py", (3,), "Rank 3"),
        ("torchrun --nnodes=1 --nproc_per_node=8 train.py", (3,), "Rank 3"),
        ("torchrun --nproc_per_node=8 train.py", (3,), "Rank 3"),
        ("NODE_RANK=0 LOCAL_WORLD_SIZE=4\nNODE_RANK=1 LOCAL_WORLD_SIZE=4\nNNODES=2", (), "Local rank 3"),
    ],
)
def test_a_local_rank_is_the_rank_where_one_machine_runs_or_the_launcher_says_which(
    tmp_path: Path, settings: str, ranks: tuple[int, ...], who: str
) -> None:
    (tmp_path / "node.log").write_text(settings + "\n" + RAISED.replace("({0}) ", "[default3]:"))
    (incident,) = diagnose([tmp_path]).incidents
    assert tuple(incident.suspects.ranks) == ranks
    assert incident.headline.startswith(f"{who} raised KeyError")
