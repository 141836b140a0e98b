"""Plays as facts: the lines go through a node agent, and what it sends is stamped with other ranks and nodes.

Ranks that print the same line need not be read one by one: a node agent reads the line of one of them, and the facts
it sends are repeated under the identity of each of the others.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.telemetry import Meter
from tracecore.facts import wire
from tracecore.facts.catalog import BY_NAME
from tracecore.facts.fact import Fact
from tracecore.facts.network import PortState
from tracecore.patterns.contract import rfc3339
from tracecore.signals.record import Source
from tracecore.simulation.fleet import BUSES, GPUS, SECOND, START, RankEvent, SimulatedJob
from tracecore.simulation.plays import PlayedSample, PrintedLine, Scheduler, catalogue

_NAME: Final = re.compile(r"\{([a-z_]+)\}")
#: An agent has sent what a line says after this long at most.
_WHOLE: Final = 3 * SECOND


class SetClock:
    """A clock that somebody sets."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def detector(clock: SetClock, **options: Any) -> PatternDetector:
    """Make a detector on a simulated clock."""
    no_extensions: dict[str, Any] = {}
    setting = Setting(
        "patterndetector", Meter("processor", "simulated"), clock, no_extensions.__getitem__, Path(), lambda: (True, {})
    )
    return PatternDetector(Options(**options), setting)


def gpu_of(rank: int) -> str:
    """Return the bus id of a rank's GPU."""
    return f"0000:{BUSES[rank % GPUS]}:00.0"


def culprit(event: RankEvent, job: SimulatedJob) -> int:
    """Return the rank that an event happens to."""
    return min(int(event.rank_share * job.ranks), job.ranks - 1)


def facts_of(event: RankEvent, job: SimulatedJob) -> list[Fact]:
    """Return the facts that node agents send about an event, by the time they happened."""
    rank = culprit(event, job)
    found: list[Fact] = []
    if event.noise:
        found += [_of_rank(fact, event, job, rank) for fact in _noise(event.play.play, job.scheduler)]
    else:
        lines = [*event.play.lines, *catalogue().ends.get(event.end, ())]
        agent = NodeAgent()
        for line in sorted(lines, key=lambda line: _seconds(line, job)):
            if line.of in (None, job.scheduler):
                found += _read(agent, event, job, rank, line)
    for sample in event.play.facts:
        found += _sampled(event, job, rank, sample)
    return sorted(found, key=lambda fact: fact.time)


def lines_of(event: RankEvent, job: SimulatedJob) -> list[tuple[str, str, list[str]]]:
    """Return who tells of an event, where, and the lines, in the order of time. Of several that print it, the first."""
    rank = culprit(event, job)
    found: dict[tuple[str, str], list[str]] = {}
    lines = [*event.play.lines, *catalogue().ends.get(event.end, ())]
    for line in sorted(lines, key=lambda line: _seconds(line, job)):
        writers = _writers(line.on, job, rank, event)
        if not writers or line.of not in (None, job.scheduler):
            continue
        writer = writers[0]
        known = {
            "node": (f"Kernel log of {job.node(writer)}", "dmesg"),
            "kubernetes": ("Events of the cluster", "kubectl get events"),
        }
        place = known.get(line.on, (f"Output of rank {writer}", log_of(job, writer)))
        found.setdefault(place, []).extend(_text(line.text, event, job, rank, writer).split("\n"))
    return [(who, where, lines) for (who, where), lines in found.items()]


class NodeAgent:
    """A node agent that sends facts, on a clock that follows the lines it is given."""

    def __init__(self) -> None:
        self._clock = SetClock()
        self._detector = detector(self._clock, forward="facts")

    def read(self, bodies: Sequence[str | dict[str, Any]], at: int, resource: dict[str, Any]) -> list[Fact]:
        """Return what it sends about these lines."""
        records = [
            {"body": body, "attributes": {}, "time_unix_nano": at + number * 1000} for number, body in enumerate(bodies)
        ]
        entry = {"resource": {"attributes": resource}, "scope_logs": [{"scope": {}, "log_records": records}]}
        self._clock.now = max(self._clock.now, at)
        sent = [*self._detector.process(Batch("logs", {"resource_logs": [entry]}))]
        for _ in range(4):
            self._clock.now += _WHOLE // 4
            sent += self._detector.tick(self._clock.now)
        found = [fact for batch in sent for fact in wire.read(batch.view()).facts]
        return [fact for fact in found if fact.kind != "heartbeat"]


def _seconds(line: PrintedLine, job: SimulatedJob) -> float:
    return float(job.timeout_s) if line.at == "timeout" else line.at


def _read(agent: NodeAgent, event: RankEvent, job: SimulatedJob, rank: int, line: PrintedLine) -> Iterator[Fact]:
    """Yield the facts of one line, for every rank that prints it."""
    at = event.at + int(_seconds(line, job) * SECOND)
    writers = _writers(line.on, job, rank, event)
    if not writers:
        return
    first = writers[0]
    text = _text(line.text, event, job, rank, first)
    bodies = text.split("\n") if not line.reason else [_kubernetes_event(line, text, event, job, rank)]
    read = agent.read(bodies, at, _resource(line, job, first))
    for writer in writers:
        for fact in read:
            yield fact if len(writers) == 1 else _of_rank(fact, event, job, writer)


@cache
def _noise(name: str, scheduler: Scheduler) -> tuple[Fact, ...]:
    """Return the facts of noise as an agent sends them, of some node at some time."""
    play = next(one for one in catalogue().noise if one.play == name)
    job = SimulatedJob(
        name="ml/any" if scheduler == "kubernetes" else "1", id=1, numbered=1, scheduler=scheduler, nodes=["any"],
        begins=0, ends=1, step_s=1.0, timeout_s=600,
    )  # fmt: skip
    event = RankEvent(number=0, at=START, slot=0, cause="", play=play, rank_share=0.0, noise=True)
    agent = NodeAgent()
    return tuple(
        fact for line in play.lines if line.of in (None, scheduler) for fact in _read(agent, event, job, 0, line)
    )


def _writers(on: str, job: SimulatedJob, rank: int, event: RankEvent) -> list[int]:
    if on in ("node", "rank", "kubernetes", "gpu"):
        return [rank]
    if on == "first":
        return [0]
    others = [other for other in range(job.ranks) if other != rank]
    if on == "others":
        # A node that is gone does not speak.
        return [o for o in others if o // GPUS != rank // GPUS] if event.end == "dark" else others
    if on == "peers":
        dice = random.Random(f"peers {event.number}")
        return sorted(dice.sample(others, 2))
    if on in ("neighbours", "other_gpus"):
        return [other for other in others if other // GPUS == rank // GPUS]
    return [*range(job.ranks)]


def _text(text: str, event: RankEvent, job: SimulatedJob, rank: int, writer: int) -> str:
    """Fill in names; braces that hold no known name stay."""
    names: dict[str, object] = {
        "node": job.node(writer), "rank": writer, "local": writer % GPUS, "pid": job.pid(writer),
        "tid": job.pid(writer) + 900, "gpu": gpu_of(writer), "bus": gpu_of(writer)[:-2], "jobid": job.id,
        "seq": job.step * 7 + 11, "before_seq": job.step * 7 + 10, "timeout_ms": job.timeout_s * 1000,
        "ran_ms": job.timeout_s * 1000 + 21, "step": job.step, "culprit_node": job.node(rank),
        "culprit_rank": rank, "stamp": rfc3339(event.at)[:19],
    }  # fmt: skip
    return _NAME.sub(lambda found: str(names.get(found.group(1), found.group())), text)


def _resource(line: PrintedLine, job: SimulatedJob, writer: int) -> dict[str, Any]:
    if line.on == "node":
        return {"host.name": job.node(writer), "tracecore.layer": "kernel"}
    if line.on == "kubernetes":
        return {"tracecore.layer": "kubernetes"}
    found: dict[str, Any] = {
        "gen_ai.training.job_id": job.name.rpartition("/")[2], "gen_ai.training.rank": writer,
        "log.file.path": log_of(job, writer),
    }  # fmt: skip
    if job.attempt:
        found["tracecore.attempt"] = job.attempt
    pod = job.pod(writer)
    if pod is None:
        return found | {"host.name": job.node(writer)}
    return found | {
        "k8s.node.name": job.node(writer), "k8s.namespace.name": "ml", "k8s.pod.name": pod.partition("/")[2]
    }  # fmt: skip


def log_of(job: SimulatedJob, rank: int) -> str:
    """Return the path of a rank's log."""
    pod = job.pod(rank)
    return f"/scratch/logs/{job.id}_{rank}.out" if pod is None else f"/var/log/pods/{pod}/trainer/{rank}.log"


def _kubernetes_event(line: PrintedLine, text: str, event: RankEvent, job: SimulatedJob, rank: int) -> dict[str, Any]:
    """Return an event as `k8sobjects` gives it."""
    name = {"node": job.node(rank), "stranger": f"web-{event.number}", "pod": (job.pod(rank) or "").partition("/")[2]}
    about = {"kind": "Node" if line.about == "node" else "Pod", "name": name[line.about]}
    if line.about != "node":
        about["namespace"] = "web" if line.about == "stranger" else "ml"
    return {
        "type": "ADDED",
        "object": {
            "kind": "Event", "reason": line.reason, "message": text, "metadata": {"uid": f"event-{event.number}"},
            "involvedObject": about, "source": {"component": "kubelet", "host": job.node(rank)},
        },
    }  # fmt: skip


def _of_rank(fact: Fact, event: RankEvent, job: SimulatedJob, rank: int) -> Fact:
    """Return the same fact of another rank, node or GPU, at about the same time after the event's beginning."""
    shift = random.Random(f"{event.number} {rank}").randrange(SECOND // 2)
    if event.noise:
        shift += event.at - START
    worker = fact.rank is not None
    place = fact.source
    path = log_of(job, rank) if worker else place.path
    changes: dict[str, Any] = {
        "source": Source(path, place.offset, place.line, place.length, f"{event.number}:{rank}:{fact.uid}"[:120]),
        "time": fact.time + shift, "last_time": None if fact.last_time is None else fact.last_time + shift,
    }  # fmt: skip
    if fact.node is not None:
        changes["node"] = job.node(rank)
    if fact.gpu is not None:
        changes["gpu"] = gpu_of(rank)
    if isinstance(fact, PortState):
        changes["device"] = f"mlx5_{rank % GPUS}"
    if worker:
        changes |= {"rank": rank, "job": job.name, "pod": job.pod(rank), "attempt": job.attempt}
    return msgspec.structs.replace(fact, **changes)


def _sampled(event: RankEvent, job: SimulatedJob, rank: int, sample: PlayedSample) -> Iterator[Fact]:
    kind = BY_NAME[sample.fact]
    for writer in _writers(sample.on, job, rank, event):
        of_gpu = sample.on in ("gpu", "other_gpus")
        identity: dict[str, Any] = {"node": job.node(writer)}
        if of_gpu:
            identity["gpu"] = gpu_of(writer)
        else:
            identity |= {"job": job.name, "rank": writer, "attempt": job.attempt, "pod": job.pod(writer)}
        for number in range(sample.times):
            at = event.at + int((sample.at + number * sample.every) * SECOND)
            source = Source("otlp", ident=f"sample:{event.number}:{sample.fact}:{writer}:{number}")
            yield kind(time=at, source=source, **identity, **sample.fields)
