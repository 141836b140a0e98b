"""What begins like a table of DCGM's fields and is none."""

from __future__ import annotations

import pytest

from tracecore.signals.nvidia.smi_csv import begins_with_fields


@pytest.mark.parametrize("first", [b"step 1\rstep 2, loss\r, 3", b"a," + b"x" * 200_000])
def test_a_line_that_no_table_has_is_read_without_an_error(first: bytes) -> None:
    assert not begins_with_fields(first + b"\nb,c\n", first)
