"""docs/scale.md says what the cost model prints, and its arithmetic holds."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.cost_model import FLEETS, INPUTS, Inputs, jobs, need, tables  # noqa: E402

MEASURED = msgspec.json.decode(INPUTS.read_bytes(), type=Inputs)


def test_the_page_quotes_what_the_command_prints() -> None:
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    assert tables(MEASURED) in page


def test_twice_the_cost_of_a_fact_is_twice_the_work() -> None:
    one = need(16_384, MEASURED)
    costs = {"topic_fact": 2 * MEASURED.topic_fact, "worker_facts": MEASURED.worker_facts / 2}
    twice = need(16_384, msgspec.structs.replace(MEASURED, **costs))
    assert twice.mb_s == pytest.approx(2 * one.mb_s)
    assert 2 * one.workers - 1 <= twice.workers <= 2 * one.workers
    assert one.incidents == pytest.approx(466 * 30 / 54)


def test_the_jobs_of_a_fleet_use_all_of_it() -> None:
    for gpus in FLEETS:
        assert sum(jobs(gpus)) == gpus // 8 * 8
