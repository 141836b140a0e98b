"""A long log, of which few progress lines are parsed, gets the diagnosis that it gets when every line is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose import facts as reading
from tracecore.diagnose.offline import diagnose

START = 1_794_700_000
Line = tuple[float, str]


def _steps(rank: int, first: int, last: int, begin: float, pace: float = 5.0, loss: float = 2.0) -> Iterator[Line]:
    dice = random.Random(rank * 1000 + first)
    for step in range(first, last):
        took = 0.4 * (0.98 + 0.04 * dice.random())
        value = loss * (1 + 0.02 * dice.random())
        text = f"step {step} | loss {value:.4f} | grad_norm 0.91 | data_time 0.012 | iter_time {took:.3f}"
        yield begin + (step - first) * pace, f"[rank{rank}]: {text}"


def healthy(rank: int) -> Iterator[Line]:
    yield from _steps(rank, 1, 1800, 0)
    yield 9001, f"[rank{rank}]: Training completed"


def exploded(rank: int) -> Iterator[Line]:
    yield from _steps(rank, 1, 1000, 0)
    yield from _steps(rank, 1000, 1800, 5000, loss=900.0)


def stalled(rank: int) -> Iterator[Line]:
    yield from _steps(rank, 1, 1000, 0)
    yield from _steps(rank, 1000, 1200, 5900)
    if rank == 1:
        yield 6901, "[rank1]: Traceback (most recent call last):"
        yield 6901, '[rank1]:   File "/app/train.py", line 12, in <module>'
        yield 6901, "[rank1]:     step()"
        yield 6901, "[rank1]: KeyError: 'input_ids'"


def survived(rank: int) -> Iterator[Line]:
    yield from _steps(rank, 1, 800, 0)
    if rank == 0:
        size = "GPU 0 has a total capacity of 79.11 GiB of which 1.10 GiB is free"
        oom = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {size}"
        yield 4000.5, f"[rank0]: WARNING caught {oom}; skipping this batch"
    yield from _steps(rank, 800, 1800, 4001)
    yield 9002, f"[rank{rank}]: Training completed"


def resumed(rank: int) -> Iterator[Line]:
    yield from _steps(rank, 1, 800, 0)
    yield 4010, f"[rank{rank}]: Resuming from checkpoint at step 700"
    yield from _steps(rank, 700, 1600, 4100)
    yield 8700, f"[rank{rank}]: Training completed"


def slow(rank: int) -> Iterator[Line]:
    if rank != 2:
        yield from _steps(rank, 1, 1600, 0)
        return
    yield from _steps(rank, 1, 1500, 0)
    for at, text in _steps(rank, 1500, 1600, 7495):
        yield at, text.replace("data_time 0.012", "data_time 3.500").replace("iter_time 0", "iter_time 4")


def _write(folder: Path, story: Callable[[int], Iterator[Line]]) -> None:
    for rank in range(4):
        pod = folder / f"ml_train-{rank}_{rank:08x}-0000-4000-8000-000000000000" / "train"
        pod.mkdir(parents=True)
        with open(pod / "0.log", "w") as file:
            for at, text in story(rank):
                when = datetime.fromtimestamp(START + at, UTC)
                file.write(f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond:06d}000Z stdout F {text}\n")


def _conclusions(folder: Path) -> list[Any]:
    document = diagnose([folder]).document()
    return [
        (one["status"], (one["root_cause"] or {}).get("pattern"), one["suspects"], one["failure"].get("class"))
        for one in document["incidents"]
    ]


@pytest.mark.parametrize(
    "story", [healthy, exploded, stalled, survived, resumed, slow], ids=lambda story: story.__name__
)
def test_sampling_changes_no_diagnosis(
    story: Callable[[int], Iterator[Line]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, story)
    monkeypatch.setattr(reading, "SMALL", 1 << 40)
    whole = _conclusions(tmp_path)
    monkeypatch.setattr(reading, "SMALL", 0)
    assert _conclusions(tmp_path) == whole
    patterns = {"exploded": "training_divergence", "stalled": "worker_crash", "slow": "straggler"}
    assert [root for _, root, _, _ in whole][:1] == ([patterns[story.__name__]] if story.__name__ in patterns else [])


@pytest.mark.parametrize(
    "name", ["exploding", "slow_rank", "oom_survived", "nan_loss", "stopped_rank", "elastic_gives_up"]
)
def test_sampling_changes_no_diagnosis_of_a_recording(
    name: str, incidents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = incidents / name
    whole = _conclusions(folder)
    monkeypatch.setattr(reading, "SMALL", 0)
    assert _conclusions(folder) == whole
