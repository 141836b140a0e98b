"""Guards are tight: on ordinary logs hardly a line is parsed for nothing."""

from __future__ import annotations

import pytest

from bench import guards, mixed_logs


@pytest.mark.parametrize("mixture", sorted(mixed_logs.MIXTURES))
def test_hardly_a_line_of_an_ordinary_log_is_a_false_candidate(mixture: str) -> None:
    lines = mixed_logs.bodies(mixture, 0, 5, 6000)
    loose = [use for use in guards.uses(lines) if use.false > len(lines) // 500]
    assert not loose, guards.table(loose, len(lines))
