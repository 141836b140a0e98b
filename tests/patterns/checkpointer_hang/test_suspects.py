"""Which of the ranks that began to save and did not end are to be looked at first."""

from __future__ import annotations

import pytest

from tracecore.facts.training import CheckpointPhase
from tracecore.patterns.checkpointer_hang.detector import CheckpointerHangVerdict
from tracecore.signals.record import Source


def begun(rank: int | None) -> CheckpointPhase:
    source = Source(path=f"rank{rank}.log")
    return CheckpointPhase(time=1, source=source, rank=rank, node=f"n{rank}", phase="write", event="begin", step=1)


@pytest.mark.parametrize(
    ("ranks", "everyone", "awaited", "suspects", "nodes"),
    [
        ((0, 1, 2), True, (), (0,), ("n0",)),
        ((0, 1, 2), False, (), (0, 1, 2), ("n0", "n1", "n2")),
        ((1, 2), True, (), (1, 2), ("n1", "n2")),
        ((0, None), True, (), (0,), ("n0", "nNone")),
        ((3,), True, (), (3,), ("n3",)),
        ((0, 1, 2), True, (2,), (2,), ("n2",)),
    ],
)
def test_suspects(
    ranks: tuple[int | None, ...],
    everyone: bool,
    awaited: tuple[int, ...],
    suspects: tuple[int, ...],
    nodes: tuple[str, ...],
) -> None:
    found = CheckpointerHangVerdict(
        key=("j", ""), episode="e", time=1, begun=tuple(map(begun, ranks)), everyone=everyone, awaited=awaited
    ).suspects()
    assert (found.ranks, found.nodes) == (suspects, nodes)
