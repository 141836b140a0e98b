"""Crashes, storage, GPUs and planned stops over every recorded incident: the first failure, and nobody else."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.facts import gather
from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.facts.fold import fold
from tracecore.patterns.contract import Verdict
from tracecore.patterns.gpu_app_fault.detector import GpuAppFault
from tracecore.patterns.gpu_fault.detector import GpuFault
from tracecore.patterns.planned_stop.detector import PlannedStopPattern
from tracecore.patterns.storage_failure.detector import StorageFailure
from tracecore.patterns.worker_crash.detector import WorkerCrash
from tracecore.signals.bundle.discovery import discover

INCIDENTS = Path(__file__).parents[3] / "examples" / "incidents"
NAMES = sorted(path.parent.name for path in INCIDENTS.glob("*/truth.json"))
PATTERNS = (GpuFault, GpuAppFault, StorageFailure, WorkerCrash, PlannedStopPattern)
OURS = {pattern.name for pattern in PATTERNS}
#: Patterns of which a crash of the same process is part: both are said, and an incident prefers the other.
SAME_EVENT = {"cuda_oom", "host_oom", "training_divergence", "storage_failure", "gpu_app_fault", "dataloader_hang"}


@cache
def facts_of(name: str) -> list[Fact]:
    return fold(gather(discover([INCIDENTS / name])).facts)


@cache
def verdicts(name: str) -> tuple[Verdict, ...]:
    said = Engine([pattern() for pattern in PATTERNS]).replay(facts_of(name))
    return tuple(emission.verdict for emission in standing(said))


def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((INCIDENTS / name / "truth.json").read_text())
    return found


def test_there_are_recordings() -> None:
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_root_is_named(name: str) -> None:
    roots = set(truth(name)["root_patterns"])
    found = {verdict.pattern_name for verdict in verdicts(name)}
    if roots and roots <= OURS:
        assert found & roots
    assert found <= roots | ({"worker_crash"} if roots & SAME_EVENT else set())


@pytest.mark.parametrize("name", NAMES)
def test_culprits_are_named_and_nobody_else(name: str) -> None:
    culprits = truth(name)["culprit_ranks"]
    # Where the label blames nobody, a verdict may still name all ranks there are: they all failed alike.
    everybody = sorted({fact.rank for fact in facts_of(name) if fact.rank is not None})
    last = max((fact.attempt for fact in facts_of(name)), default=0)
    for verdict in verdicts(name):
        if max((fact.attempt for fact in verdict.evidence()), default=last) < last:
            continue  # the label is about the attempt that ended the job
        named = list(verdict.suspects().ranks)
        assert named == culprits or (not culprits and named == everybody)
