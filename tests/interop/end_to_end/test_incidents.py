"""Incidents as raw signals before the agents of the chart: one incident, once, in time, about the right thing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from stage.incidents import INCIDENTS, Incident, kernel_kills, kubelet_tells
from stage.play import Stage
from stage.webhook import until

from tracecore.incidents.precedence import RULES

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[3]
#: Seconds that a slow, busy machine may take beyond the documented time.
BUSY = float(os.environ.get("TRACECORE_END_TO_END_SLACK", "60"))
#: Seconds after a verdict in which whatever else there is to say would be said: bridges wait 5 s for late samples.
SETTLED = 10.0
#: With the thresholds of production some of them take minutes.
SLOW = os.environ.get("TRACECORE_END_TO_END_SLOW", "") not in ("", "0")

Opening = Callable[..., AbstractContextManager[Stage]]
each = pytest.mark.parametrize("incident", INCIDENTS, ids=[one.name for one in INCIDENTS])


@each
def test_an_incident_gives_its_verdict(incident: Incident, opening: Opening, timing: Callable[[str], None]) -> None:
    watch(incident, opening, timing, fast=True)


@pytest.mark.skipif(not SLOW, reason="takes half an hour: TRACECORE_END_TO_END_SLOW=1")
@each
def test_and_so_it_does_with_the_thresholds_of_production(
    incident: Incident, opening: Opening, timing: Callable[[str], None]
) -> None:
    watch(incident, opening, timing, fast=False)


def watch(incident: Incident, opening: Opening, timing: Callable[[str], None], *, fast: bool) -> None:
    """Play an incident, and look at everything that is told about it."""
    bound = incident.within if fast else incident.unscaled
    node = f"{incident.name}{'' if fast else '-slow'}"
    with opening(node, f"job-{incident.name}", fast=fast) as stage:
        assert stage.cluster is not None
        assert stage.agent is not None
        began = incident.play(stage)

        def whole() -> bool:
            return any(_is_whole(one.document, incident) for one in stage.webhook.of(incident.pattern))

        came = until(whole, bound + BUSY)
        logs = f"{stage.webhook.deliveries}\n{stage.agent.log}\n{stage.cluster.log}"
        assert came, logs
        time.sleep(SETTLED)
        deliveries = list(stage.webhook.deliveries)
        says = incident.says(stage)
        rotations = sum(rank.rotations for rank in stage.ranks)
        assert rotations > 0 or stage.training is None
        assert "Traceback" not in stage.agent.log + stage.cluster.log, logs
    first = stage.webhook.of(incident.pattern)[0]
    full = next(d for d in deliveries if _is_whole(d.document, incident))
    timing(
        f"{incident.name:<14} {incident.pattern:<20} {first.time - began:6.1f} s, {incident.confidence} "
        f"{full.time - began:6.1f} s (bound {bound:g} s{'' if fast else ', production'})"
    )
    # Once: one id, whose revisions rise; not taken back.
    by_id: dict[str, list[dict[str, object]]] = {}
    for delivery in deliveries:
        by_id.setdefault(delivery.document["id"], []).append(delivery.document)
    assert len(by_id) == 1, logs
    for documents in by_id.values():
        assert [one["revision"] for one in documents] == list(range(1, len(documents) + 1)), documents
        assert documents[-1]["status"] == "diagnosed", documents
    # It names who it is about, once everything is known.
    last = stage.webhook.of(incident.pattern)[-1].document
    verdict = _verdict(last, incident.pattern)
    assert verdict is not None
    assert {name: verdict.get(name) for name in says} == dict(says)
    # Nothing else is told but what belongs to it.
    assert set(last["patterns"]) - {incident.pattern} <= set(incident.others), logs
    assert full.time - began <= bound + BUSY


def _verdict(document: dict[str, Any], pattern: str) -> dict[str, Any] | None:
    found = (one for one in document["incident"]["verdicts"] if one["pattern.name"] == pattern)
    return next(found, None)


def _is_whole(document: dict[str, Any], incident: Incident) -> bool:
    verdict = _verdict(document, incident.pattern)
    return verdict is not None and verdict["confidence"] == incident.confidence


def test_a_kill_that_the_api_tells_before_the_kernel_is_one_in_the_end(opening: Opening) -> None:
    """What was said of it first may be taken back for what says more."""
    with opening("api-first", "job-api-first") as stage:
        stage.begin()
        stage.halt()
        kubelet_tells(stage, 1)
        assert until(lambda: bool(stage.webhook.of("host_oom")), BUSY), stage.webhook.deliveries
        kernel_kills(stage, 1)

        def standing() -> list[dict[str, Any]]:
            last = [one for one in stage.webhook.standing().values() if one["status"] == "diagnosed"]
            return [found for one in last if (found := _verdict(one, "host_oom")) is not None]

        def whole() -> bool:
            return any(one.get("kernelevents.oom.victim_pid") == 48211 for one in standing())

        assert until(whole, BUSY), stage.webhook.deliveries
        time.sleep(SETTLED)
        (verdict,) = standing()
        assert verdict["k8s.pod.name"] == stage.pods[1]["metadata"]["name"]
        assert verdict["kernelevents.oom.limit_kb"] == 67_108_864


@each
def test_what_may_come_with_it_is_explained_by_arbitration(incident: Incident) -> None:
    """By a rule of the table that arbitration reads: the one is the cause of the other."""
    for other in incident.others:
        assert any(
            (incident.pattern in rule.causes and other in rule.effects)
            or (other in rule.causes and incident.pattern in rule.effects)
            for rule in RULES
        ), f"no rule puts {incident.pattern} and {other} together"


def test_a_newcomer_runs_the_example(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "end-to-end" / "play.py"),
        "memory-error",
        "--keep",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"incident-[0-9a-f]{12} \(hbm_ecc, diagnosed.*\) after \d+\.\d s\n +GPU 0000:5d:00\.0 on node-7 has",
        done.stdout,
    )
    listed = subprocess.run([*command[:2], "--list"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert [line.split()[0] for line in listed.splitlines()] == [one.name for one in INCIDENTS]
