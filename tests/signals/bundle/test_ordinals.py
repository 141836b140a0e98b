"""Which rank a container of compose, or a file of several, is, by the number in its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.ordinals import containers


def log(*names: str, text: str = "step {0} loss 2.0") -> bytes:
    width = max(map(len, names))
    return "".join(f"{name:<{width}}  | {text.format(step)}\n" for step in range(5) for name in names).encode()


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("trainer-0", "trainer-1", "trainer-2"), (0, 1, 2)),
        (("trainer-1", "trainer-2", "trainer-3"), (0, 1, 2)),
        (("worker0", "worker1"), (0, 1)),
        (("ml-node0-1", "ml-node1-1"), (0, 1)),
        (tuple(f"w-{n}" for n in range(12)), tuple(range(12))),
    ],
)
def test_numbers_in_a_row_are_ranks(names: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    assert containers(log(*names), b"") == dict(zip(names, ranks, strict=True))


@pytest.mark.parametrize(
    "names",
    [
        ("trainer-1",),
        ("trainer-1", "trainer-3"),
        ("trainer-5", "trainer-6"),
        ("trainer-0", "redis-1"),
        ("trainer-0", "trainer-1", "postgres"),
    ],
)
def test_other_names_tell_nothing(names: tuple[str, ...]) -> None:
    assert containers(log(*names), b"") == {}


@pytest.mark.parametrize(
    "text", ["[rank5]: step {0}", "torchrun --nproc-per-node 8, step {0}", "rank=3 step={0} loss=2"]
)
def test_containers_of_several_processes_are_no_ranks(text: str) -> None:
    assert containers(log("node-0", "node-1", text=text), b"") == {}


def test_the_end_of_a_long_log_counts_too() -> None:
    assert containers(log("w-0", "w-1"), log("w-0", "w-1", "w-2")) == {"w-0": 0, "w-1": 1, "w-2": 2}


STEPS = "".join(f"2026-11-16 13:14:{second:02d} step {second} loss 2.0\n" for second in range(9))
LOST = "[rank{0}]:[E1116 13:15:00.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout\n"


def ranks_of(folder: Path, files: dict[str, str]) -> dict[str, object]:
    for name, text in files.items():
        (folder / name).write_text(text)
    streams = discover([folder]).streams
    return {stream.path.rpartition("/")[2]: stream.resource.get("gen_ai.training.rank") for stream in streams}


def test_files_in_a_row_are_ranks_where_some_of_them_say_so(tmp_path: Path) -> None:
    """`srun --output=%x-%j_%t.out`: the rank that left without a word is known by those that say who they are."""
    said = {f"job-7_{rank}.err": LOST.format(rank) for rank in (0, 2)}
    told = {f"job-7_{rank}.out": STEPS for rank in range(3)}
    found = ranks_of(tmp_path, said | told)
    assert found == {name: int(name[6]) for name in (*said, *told)}


def test_logs_that_introduce_each_rank_of_all_are_of_those_ranks(tmp_path: Path) -> None:
    files = {
        "alpha.log": "host a pid 71 rank 2/3 master 10.0.0.1\n",
        "beta.log": "Rank: 0 of 3, starting\n",
        "gamma.log": "init rank=1 world_size=3\n",
    }
    found = ranks_of(tmp_path, {name: text + STEPS for name, text in files.items()} | {"other.log": STEPS})
    assert found == {"alpha.log": 2, "beta.log": 0, "gamma.log": 1, "other.log": None}


@pytest.mark.parametrize(
    "texts",
    [
        ("rank 0/16 ready\n", "rank 8/16 ready\n"),
        ("rank 0/2 ready\nrank 1/2 ready\n", "rank 1/2 ready\n"),
        ("rank 0/2 ready\n", "rank 0/2 ready\n"),
        ("rank 0/2 ready\n", "torchrun --nproc-per-node 8\nrank 1/2 ready\n"),
        ("rank 0/1 ready\n", ""),
    ],
    ids=("of nodes", "a log of both", "twice the same", "of a launcher", "alone"),
)
def test_logs_that_may_be_of_more_processes_are_of_no_rank(texts: tuple[str, ...], tmp_path: Path) -> None:
    found = ranks_of(tmp_path, {f"{name}.log": text + STEPS for name, text in zip("ab", texts, strict=True)})
    assert [*found.values()] == [None, None]


@pytest.mark.parametrize(
    "files",
    [
        {"job-7_0.out": STEPS, "job-7_1.out": STEPS},
        {"job-7_0.out": LOST.format(0), "job-7_1.out": LOST.format(0)},
        {"job-7_0.out": LOST.format(0), "job-7_1.out": STEPS},
        {"job-7_1.out": LOST.format(1), "job-7_2.out": STEPS},
        {"job-7_0.out": STEPS, "job-7_1.out": LOST.format(1), "job-7_2.out": LOST.format(0)},
    ],
    ids=("nobody says so", "tasks of an array", "only the first", "not in a row", "another says otherwise"),
)
def test_other_files_in_a_row_are_no_ranks(files: dict[str, str], tmp_path: Path) -> None:
    found = ranks_of(tmp_path, files)
    assert [found[name] for name, text in files.items() if text == STEPS] == [None] * [*files.values()].count(STEPS)


@pytest.mark.parametrize(
    ("name", "text", "rank"),
    [
        ("host-a.log", "process_index: 2, process_count: 4\n", 2),
        ("host-a.log", "process_index: 2, process_count: 4\nprocess_index: 3, process_count: 4\n", None),
        ("host-a.log", "jax.process_index() = 1\n", 1),
        ("host-a.log", "AcceleratorState(num_processes=8, process_index=0)\n", None),
        ("trainer-worker-2.log", "PET_NPROC_PER_NODE=1\nRANK=3\n", 3),
        ("trainer-worker-2.log", "PET_NPROC_PER_NODE=8\nRANK=2\n", None),
        ("worker-2.log", "E1 torch/elastic] failed (exitcode: 1) local_rank: 5 (pid: 77) of binary: python\n", None),
        ("worker-2.log", "E1 torch/elastic] failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: python\n", 2),
        ("rank2.log", "E1 torch/elastic] failed (exitcode: 1) local_rank: 5 (pid: 77) of binary: python\n", 2),
        ("worker-2.log", "export LOCAL_RANK=1\n", 2),
    ],
)
def test_a_process_says_which_rank_it_is(tmp_path: Path, name: str, text: str, rank: int | None) -> None:
    assert ranks_of(tmp_path, {name: text + STEPS}) == {name: rank}


def test_a_prefix_confirms_the_number_in_a_name(tmp_path: Path) -> None:
    files = {f"r{rank}.log": f"09:15:22.839 [r{rank}] step 4000 loss 2.2\n" for rank in range(3)}
    assert ranks_of(tmp_path, files) == {"r0.log": 0, "r1.log": 1, "r2.log": 2}


def test_a_folder_of_a_device_is_a_local_rank(tmp_path: Path) -> None:
    for device in range(2):
        (tmp_path / f"device{device}").mkdir()
        (tmp_path / f"device{device}" / "train.log").write_text(STEPS)
    assert [s.resource.get("gen_ai.training.rank") for s in discover([tmp_path]).streams] == [0, 1]


PDSH = "".join(f"worker-{number}: step {step} loss 2.0\n" for step in range(4) for number in range(2))


@pytest.mark.parametrize(
    ("text", "wrapping"),
    [
        (PDSH, "pdsh"),
        (PDSH.replace("worker-", "gpu"), ""),
        (PDSH.replace("worker-", "epoch"), ""),
        (PDSH.replace("worker-1", "worker-0"), ""),
        ("".join(f"file{number}: read\n" for number in range(20)), ""),
    ],
)
def test_names_of_machines_before_every_line(tmp_path: Path, text: str, wrapping: str) -> None:
    (tmp_path / "all.txt").write_text(text)
    (stream,) = discover([tmp_path]).streams
    assert stream.wrapping == wrapping
