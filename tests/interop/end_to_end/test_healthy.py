"""An hour in which nothing is wrong, in two minutes: nobody is woken. And then something breaks, and somebody is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from stage import hour
from stage.agents import RUN
from stage.play import Local
from stage.webhook import until

pytestmark = pytest.mark.interop

#: So many seconds pass in one, for the agents as for what they watch.
SPEED = 30.0
BUSY = float(os.environ.get("TRACECORE_END_TO_END_SLACK", "60"))
#: The agents' clock. Nothing else of them is changed: thresholds are those of production.
FASTER = f"""
import os, time
origin, speed = int(os.environ["CLOCK_ORIGIN"]), float(os.environ["CLOCK_SPEED"])
real = time.time_ns
time.time_ns = lambda: origin + int((real() - origin) * speed)
{RUN}
"""
#: What takes a moment on its way takes a moment of the faster clock.
AGENT = """
receivers:
  filelog/pods: {poll_interval: 50ms}
  filelog/kernel: {poll_interval: 50ms}
processors:
  batch: {timeout: 20ms}
"""
CLUSTER = """
processors:
  patterndetector: {block_timeout: 8s, evaluation_interval: 3s}
"""


def test_a_healthy_hour_gives_no_verdict(tmp_path: Path, timing: Callable[[str], None]) -> None:
    origin = time.time_ns()

    def clock() -> float:
        return (origin + (time.time_ns() - origin) * SPEED) / 1e9

    more = {}
    for name, text in (("agent", AGENT), ("cluster", CLUSTER)):
        more[name] = tmp_path / f"{name}-faster.yaml"
        more[name].write_text(text)
    environment = {"CLOCK_ORIGIN": str(origin), "CLOCK_SPEED": str(SPEED)}
    place = tmp_path / "stage"
    place.mkdir()
    with Local(place, fast=False, clock=clock, code=FASTER, more=more, environment=environment) as stage:
        agent, cluster = stage.agent, stage.cluster
        assert agent is not None
        assert cluster is not None
        stage.start_job(rotate=40_000)
        began = clock()
        for rank in range(len(stage.ranks)):
            stage.ready(rank)
        hour.live(stage, began)
        time.sleep(5)
        told = [(one.document["pattern"], one.document["headline"]) for one in stage.webhook.deliveries]
        assert told == [], cluster.log
        assert "Traceback" not in cluster.log + agent.log, cluster.log + agent.log
        # Somebody has looked: every line was read and its time was followed, and most samples came in time.
        lines = sum(rank.lines for rank in stage.ranks)
        assert lines > 4000
        assert sum(rank.rotations for rank in stage.ranks) >= 4
        assert until(lambda: agent.emitted("filelog/pods") >= lines, BUSY), agent.log
        stage.read_kernel()
        assert stage.dcgm.scrapes > 60
        own = 'kind="processor",component="patterndetector"'
        dropped = cluster.number(f"tracecore_component_dropped_total{{{own}")
        seen = cluster.number(f"tracecore_component_received_total{{{own}")
        late = cluster.number(f"tracecore_component_events_total{{{own}", 'event="facts_late"')
        expired = cluster.number(f"tracecore_component_events_total{{{own}", 'event="facts_expired"')
        timing(f"a healthy hour: {lines} lines, {stage.dcgm.scrapes} scrapes; {dropped:.0f} of {seen:.0f} samples and "
               f"{late:.0f} facts too late, {expired:.0f} grown old")  # fmt: skip
        assert dropped < seen / 10
        assert late < lines / 10
        # The same agents, and now a GPU has an error that nothing could correct.
        began = time.time()
        stage.gpus[3].double_bit = 1
        stage.kernel.say(
            f"NVRM: Xid (PCI:{stage.gpus[3].bus[:-2]}): 48, pid=2214, name=python3, DBE (double bit error) ECC Error"
        )
        assert until(lambda: bool(stage.webhook.of("hbm_ecc")), BUSY), cluster.log
        assert {one.document["pattern"] for one in stage.webhook.deliveries} <= {"hbm_ecc", "gpu_fault"}
