"""The pressure that a kubelet's note speaks of."""

from __future__ import annotations

import pytest

from tracecore.patterns.pod_evicted.detector import ANCHORS, pressure_of


@pytest.mark.parametrize("anchor", ANCHORS)
def test_a_note_may_begin_with_a_pressure_or_end_with_it(anchor: str) -> None:
    assert pressure_of(anchor) == pressure_of(f"The node has {anchor.upper()}") == ANCHORS[anchor]


def test_the_first_pressure_of_a_note_counts_and_what_was_low_before_what_was_used() -> None:
    assert pressure_of("Container x was using memory. The node was low on resource: nodefs") == "disk"
    assert pressure_of("The node was low on resource: memory. Container x was using nodefs") == "memory"
    assert pressure_of("nodefs before memory") == "disk"
    assert pressure_of("The node was drained") == "unknown"
