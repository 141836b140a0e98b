"""A bundle diagnosed again from what was kept of it gives the same document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.archive.record import decode, encode, keep, rediagnose
from tracecore.diagnose import facts as reading
from tracecore.diagnose.offline import diagnose, join, survey

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = sorted(path.parent for path in EXAMPLES.glob("incidents*/*/truth.json"))


@pytest.mark.parametrize("bundle", RECORDED, ids=lambda path: path.name)
def test_stored_facts_give_the_same_diagnosis(bundle: Path) -> None:
    found = survey([bundle])
    facts, counters = join(found, reading.gather(found.bundle))
    record = decode(encode(keep(found.bundle, facts, counters)))
    expected = diagnose([bundle]).document()
    assert record.document == expected
    assert rediagnose(record).document() == expected
