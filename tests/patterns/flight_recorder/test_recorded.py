"""Recorded dumps against what is known to have happened."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tracecore.diagnose.case_runner import render
from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import Engine
from tracecore.facts.collective_dumps import facts_of
from tracecore.patterns.collective_mismatch.detector import CollectiveMismatch, CollectiveMismatchVerdict
from tracecore.patterns.nccl_hang.detector import NcclHang, NcclHangVerdict
from tracecore.signals.flight_recorder.join import join
from tracecore.signals.flight_recorder.reading import entry_at, find, load

ROOT = Path(__file__).resolve().parents[3]
GLOO = ROOT / "tests" / "data" / "fr_gloo"
INCIDENTS = ROOT / "examples" / "incidents"


def judged(folder: Path, *, pattern: str = "*", shuffle: int | None = None) -> list[Emission]:
    files = [f for f in find([folder]) if Path(f).match(pattern)]
    facts = facts_of(join(load(files).dumps), entry_at)
    if shuffle is not None:
        random.Random(shuffle).shuffle(facts)
    return standing(Engine([NcclHang(), CollectiveMismatch()]).replay(facts))


def hangs(emissions: list[Emission]) -> list[NcclHangVerdict]:
    return [e.verdict for e in emissions if isinstance(e.verdict, NcclHangVerdict)]


def mismatches(emissions: list[Emission]) -> list[CollectiveMismatchVerdict]:
    return [e.verdict for e in emissions if isinstance(e.verdict, CollectiveMismatchVerdict)]


@pytest.mark.parametrize("pattern", ["fr_dump_*", "fr_json_dump_*"])
class TestGloo:
    def test_hang_one_rank(self, pattern: str) -> None:
        (verdict,) = hangs(judged(GLOO / "hang_one_rank", pattern=pattern))
        assert (verdict.pg, verdict.seq, verdict.op) == ("0", 21, "all_reduce")
        assert verdict.hanging_ranks == [0, 1, 3]
        assert verdict.suspects().ranks == (2,)

    def test_subgroup_hang_is_followed_to_where_it_began(self, pattern: str) -> None:
        (verdict,) = hangs(judged(GLOO / "subgroup_hang", pattern=pattern))
        assert verdict.hanging_ranks == [0, 2]
        assert verdict.suspects().ranks == (3,)
        assert verdict.origin == ("odd_group", 6)

    def test_op_mismatch(self, pattern: str) -> None:
        emissions = judged(GLOO / "op_mismatch", pattern=pattern)
        (mismatch,) = mismatches(emissions)
        assert (mismatch.seq, mismatch.differs, mismatch.odd_ranks) == (21, "operation", [1])
        (hang,) = hangs(emissions)
        assert hang.suspects().ranks == (1,)

    @pytest.mark.parametrize("name", ["healthy", "ring_wrap", "p2p_hang", "crash_one_rank"])
    def test_silence(self, pattern: str, name: str) -> None:
        # gloo records no point-to-point work; in the crash one rank alone is left waiting, the others' work failed.
        assert judged(GLOO / name, pattern=pattern) == []


def test_crash_shows_who_left_no_dump() -> None:
    assert join(load(find([GLOO / "crash_one_rank"])).dumps).unseen == (2,)


def test_frames_of_culprit_and_waiters() -> None:
    (verdict,) = hangs(judged(GLOO / "hang_one_rank", pattern="fr_dump_*"))
    assert verdict.culprits[0].frame == "/workspace/fr/fr/gen.py:25 in worker"
    (frame,) = verdict.fields()["waiting_frames"]
    assert frame.startswith("/workspace/fr/fr/gen.py:")
    assert not frame.endswith("in all_reduce")


RECORDED = sorted(p.parent for p in INCIDENTS.glob("*/fr"))
#: Two left, and only their logs tell who was first.
BOTH_LEFT = {"two_at_odds": {0, 3}}


@pytest.mark.parametrize("folder", RECORDED, ids=lambda p: p.name)
def test_recorded_incidents_name_the_culprit(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    emissions = judged(folder / "fr")
    dumps = len(list((folder / "fr").iterdir()))
    if dumps < 2:
        assert emissions == []  # one rank alone proves nothing
        return
    found = hangs(emissions)
    assert found
    culprits = BOTH_LEFT.get(folder.name, set(truth["culprit_ranks"]))
    assert {rank for verdict in found for rank in verdict.suspects().ranks} == culprits
    if truth["root_patterns"] == ["collective_mismatch"]:
        assert mismatches(emissions)
    for mismatch in mismatches(emissions):
        assert "collective_mismatch" in truth["root_patterns"]
        assert mismatch.odd_ranks == truth["culprit_ranks"]
        assert sum(bool(side.get("frame")) for side in mismatch.fields()["sides"]) == 2


def test_a_rank_without_a_dump_is_not_called_a_culprit() -> None:
    (verdict,) = hangs(judged(INCIDENTS / "nccl_rank_exception" / "fr"))
    assert (verdict.culprits, verdict.unmeasured, verdict.confidence) == ((), (3,), "partial")


@pytest.mark.parametrize(
    "folder", [GLOO / "subgroup_hang", INCIDENTS / "pipeline_hang" / "fr", INCIDENTS / "mesh_hang" / "fr"]
)
def test_order_of_facts_does_not_matter(folder: Path) -> None:
    expected = render(judged(folder))
    assert expected != "[]\n"
    for seed in range(5):
        assert render(judged(folder, shuffle=seed)) == expected
