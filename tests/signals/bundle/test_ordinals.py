"""Which rank a container of compose is, by the number in its name."""

from __future__ import annotations

import pytest

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
