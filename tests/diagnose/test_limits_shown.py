"""A limit that was reached is shown: in the text, on the page and in the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.engine.bounds import EngineStats
from tracecore.incidents.coverage import limits_reached
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.incidents.page import page
from tracecore.incidents.text import report
from tracecore.recipes.sampling import Sampler
from tracecore.signals.logs.tail.counters import TailCounters as TailCounters
from tracecore.signals.stream import Counters

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "diagnosis.schema.json").read_text())
SAID = b"RuntimeError: CUDA error: an illegal memory access was encountered"


def everywhere(found: Diagnosis) -> tuple[dict[str, int], str, str]:
    """The JSON's limits, the text on one line, the page."""
    document = json.loads(msgspec.json.encode(found.document()))
    jsonschema.validate(document, SCHEMA)
    return document["coverage"]["limits_reached"], " ".join(report(found).split()), page(found)


@pytest.mark.parametrize("size", [2 << 20, 6 << 20, 30 << 20])
def test_an_error_at_the_end_of_a_line_that_is_too_long_is_found_and_the_limit_shown(size: int, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(b"step 1 loss 2\n" + b"x " * (size // 2) + SAID + b"\nbye\n")
    found = diagnose([tmp_path])
    (incident,) = found.incidents
    assert "CUDA error" in incident.headline
    counts, text, shown = everywhere(found)
    assert counts["lines_capped"] == 1
    assert counts["bytes_dropped"] > size - (3 << 19)
    assert "an illegal memory access was encountered" in text
    for said in (text, shown):
        assert "1 line was too long to be read whole" in said
        assert "in the middle of long lines" in said


def test_lines_that_could_not_be_parsed_are_counted(tmp_path: Path) -> None:
    rows = "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}"}} 40\n' for n in range(20))
    (tmp_path / "dcgm.prom").write_text("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" + rows + 'x{y="\n' * 3)
    counts, text, _ = everywhere(diagnose([tmp_path]))
    assert counts == {"lines_unparsed": 3}
    assert "3 lines of metrics, journals or exports could not be parsed" in text


def test_a_file_that_becomes_shorter_while_it_is_read_is_said(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(b"step 1 loss 2.0\n" * 400_000)
    found = diagnose([tmp_path], progress=lambda done, total: log.write_bytes(b""))
    assert "Read in part: " in " ".join(report(found).split())


def test_nothing_is_said_where_no_limit_was_reached(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(b"step 1 loss 2.0\n")
    counts, text, shown = everywhere(diagnose([tmp_path]))
    assert counts == {}
    assert "imit" not in text
    assert "Limits were reached" not in shown


def test_every_counter_of_a_limit_is_either_shown_or_known_to_be_none() -> None:
    plain = {"bytes_read", "records"}
    given = Counters(**dict.fromkeys(Counters.__struct_fields__, 7)).limits_reached()
    assert set(given) == set(Counters.__struct_fields__) - plain
    # Counted for information: nothing is lost by them, or they are said elsewhere.
    about = {
        "facts",
        "unneeded",
        "duplicates",
        "late",
        "expired",
        "evaluations",
        "emitted",
        "cleared",
        "held",
        "windows",
    }
    stats = EngineStats(**{name: 7 for name in EngineStats.__struct_fields__ if name != "errors"}).limits_reached()
    assert set(stats) == set(EngineStats.__struct_fields__) - about - {"errors"}
    said = limits_reached(
        {"files_read": 1, "bytes_read": 1, "layers": {}, "skipped": [], "limits_reached": given | stats}
    )
    assert all("_" not in sentence for sentence in said)
    # Those of files that are followed live are the agent's to show.
    assert set(TailCounters.__struct_fields__).isdisjoint(stats)


def test_kinds_of_lines_that_were_misread_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = "".join(f"[2026-11-15 02:{n // 60:02}:{n % 60:02}] step {n} loss 2.0\n" for n in range(1800))
    (tmp_path / "rank0.log").write_text(log * 30)
    counts = iter([3, 5])
    monkeypatch.setattr(Sampler, "refused", property(lambda self: next(counts)))
    counted, text, shown = everywhere(diagnose([tmp_path]))
    assert counted == {"kinds_refused": 2}
    assert "2 kinds of progress lines had to be read line by line" in " ".join(text.split())
    assert "2 kinds of progress lines" in shown
