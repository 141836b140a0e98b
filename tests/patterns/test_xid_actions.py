"""Actions for Xids: NVIDIA's bucket for each code, and for a link's error its row of the catalogue."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts import xid_catalog
from tracecore.facts.gpu import GpuDriverError, GpuLost, Xid
from tracecore.patterns.gpu_fault.action import LINK_UNITS, action_of, drastic
from tracecore.signals.record import Source

ROWS = xid_catalog._catalog().nvlink


def xid(code: int, **more: Any) -> Xid:
    return Xid(time=1, source=Source("kern.log", 1), node="n1", code=code, **more)


def test_the_row_of_a_links_error_says_what_to_do() -> None:
    assert {row.code for row in ROWS} <= LINK_UNITS
    differing = 0
    for row in ROWS:
        unit, info, status = row.unit.split("/")[0], row.v1[1], row.status[0] if row.status else 0
        found = xid_catalog.nvlink_entry(row.code, unit, info, status)
        assert found is not None
        assert action_of(xid(row.code, unit=unit, intr_info=info, error_status=status)) == found.action
        known = xid_catalog.entry(row.code)
        plain = None if known is None else known.action
        for missing in ("unit", "intr_info", "error_status"):
            words = {"unit": unit, "intr_info": info, "error_status": status, missing: None}
            assert action_of(xid(row.code, **words)) == plain
        differing += found.action != plain
    assert differing


def test_other_codes_have_the_action_of_the_catalogue_whatever_else_is_printed() -> None:
    for code in (13, 31, 48, 63, 79, 95, 119, 154):
        known = xid_catalog.entry(code)
        if code != 154:
            row = ROWS[0]
            words: Any = {"unit": row.unit.split("/")[0], "intr_info": row.v1[1], "error_status": 0}
            assert action_of(xid(code, **words)) == (None if known is None else known.action)
    assert action_of(xid(9999)) is None


@pytest.mark.parametrize(("error", "action"), [("uvm_fatal", "RESTART_BM"), ("init_failed", "RESET_GPU")])
def test_errors_of_the_driver(error: str, action: str) -> None:
    assert action_of(GpuDriverError(time=1, source=Source("kern.log", 1), error=error)) == action
    assert action_of(GpuLost(time=1, source=Source("kern.log", 1))) == "RESTART_BM"


def test_a_more_drastic_action_ranks_higher() -> None:
    assert drastic(xid(79)) > drastic(xid(31))
    assert drastic(xid(79)) == drastic(GpuLost(time=1, source=Source("kern.log", 1)))
