"""Nodes, jobs and what happens to them, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from tracecore.simulation.plays import Play, PublishedCause, Scheduler, catalogue

SECOND: Final = 1_000_000_000
DAY: Final = 86_400 * SECOND
GPUS: Final = 8
START: Final = 1_790_000_000 * SECOND
#: The published table counts interruptions in so many days on so many GPUs.
TABLE_DAYS: Final = 54
TABLE_GPUS: Final = 16_384
#: Share of a cluster's GPUs in jobs of each size, the largest first: most GPUs are in few jobs, most jobs are small.
SIZES: Final = ((1 / 2, 1 / 2), (1 / 8, 1 / 4), (1 / 32, 1 / 8), (1 / 256, 1 / 16))
#: Health events that need no action, for each that does.
NOISE: Final = 99
#: Noise outside of failures is played in windows this far apart, because the clock jumps between windows.
QUIET: Final = 12 * 3600 * SECOND
BUSES: Final = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_NAMES: Final = (
    "llama-405b", "moe-8x22b", "vision-encoder", "whisper-large", "code-34b", "reward-13b", "diffusion-xl",
    "longctx-13b", "speech-2b", "embed-3b", "eval-nightly", "protein-6b",
)  # fmt: skip


class SimulatedJob(msgspec.Struct, kw_only=True):
    """A job on its nodes, eight ranks on each.

    Args:
        attempt: which start of it runs.
        step: last step it made.
        timeout_s: after which its collectives give up.
        numbered: its place in the fleet.
    """

    name: str
    id: int
    numbered: int
    scheduler: Scheduler
    nodes: list[str]
    begins: int
    ends: int
    step_s: float
    timeout_s: int
    attempt: int = 0
    step: int = 0
    reported: int = 0

    @property
    def ranks(self) -> int:
        return len(self.nodes) * GPUS

    def node(self, rank: int) -> str:
        return self.nodes[rank // GPUS]

    def pod(self, rank: int) -> str | None:
        """Return the pod of a rank; Slurm has none."""
        return f"{self.name}-{rank // GPUS}-a{self.attempt}" if self.scheduler == "kubernetes" else None

    def pid(self, rank: int) -> int:
        return 20_000 + 97 * self.numbered % 9_000 + 40 * self.attempt + rank % GPUS


class RankEvent(msgspec.Struct, kw_only=True, frozen=True):
    """Something that happens to a rank of a job.

    Args:
        number: its place in the schedule.
        cause: empty for noise.
        end: how the other ranks end.
    """

    number: int
    at: int
    slot: int
    cause: str
    play: Play
    rank_share: float
    planned: bool = False
    noise: bool = False
    end: str = ""


class Fleet(msgspec.Struct, kw_only=True):
    """The jobs of a fleet, by slots: when a job ends, another one takes its nodes.

    Args:
        spares: nodes that replace those that failed.
    """

    nodes: int
    days: float
    slots: list[list[SimulatedJob]]
    spares: list[str]
    events: list[RankEvent]

    @property
    def end(self) -> int:
        return START + int(self.days * DAY)

    def job_at(self, slot: int, time: int) -> SimulatedJob:
        """Return the job that runs in a slot."""
        return next((job for job in self.slots[slot] if job.begins <= time < job.ends), self.slots[slot][-1])


def draw(
    nodes: int,
    days: float,
    seed: int,
    *,
    rate: float = 1.0,
    noise: int = NOISE,
    quiet: int = 0,
    names: Sequence[str] = (),
) -> Fleet:
    """Draw a fleet and what happens to it.

    Args:
        rate: how many times as often as published it fails.
        noise: health events that need no action, for each failure.
        quiet: further ones, away from failures.
        names: of the nodes.
    """
    dice = random.Random(f"fleet {seed}")
    names = [*names] or [f"gpu-r{number // 16:03d}-n{number % 16:02d}" for number in range(nodes)]
    slots = _slots(dice, names, days)
    fleet = Fleet(nodes=nodes, days=days, slots=slots, spares=[f"gpu-s{number:03d}" for number in range(64)], events=[])
    fleet.events = _events(dice, fleet, rate, noise, quiet)
    return fleet


def _slots(dice: random.Random, names: list[str], days: float) -> list[list[SimulatedJob]]:
    """Divide the nodes among jobs, and each part among jobs that follow each other."""
    nodes = len(names)
    sizes: list[int] = []
    for size, share in SIZES:
        each = max(1, int(nodes * size))
        sizes += [each] * int(nodes * share / each)
    sizes += [1] * (nodes - sum(sizes))
    slots: list[list[SimulatedJob]] = []
    numbered = 0
    end = START + int(days * DAY)
    for slot, size in enumerate(sizes):
        mine, names = names[:size], names[size:]
        jobs: list[SimulatedJob] = []
        at = START
        while at < end:
            # Large jobs run for weeks, small ones for hours to days.
            mean = 60.0 if size >= 256 else 20.0 if size >= 32 else 4.0 if size >= 4 else 1.5
            lasts = int(max(0.1, dice.lognormvariate(0, 0.6)) * mean * DAY)
            numbered += 1
            scheduler: Scheduler = "slurm" if slot % 2 == 0 else "kubernetes"
            name = _NAMES[dice.randrange(len(_NAMES))]
            jobs.append(
                SimulatedJob(
                    name=str(480_000 + numbered) if scheduler == "slurm" else f"ml/{name}-{numbered}",
                    id=480_000 + numbered, numbered=numbered, scheduler=scheduler, nodes=[*mine], begins=at,
                    ends=at + lasts, step_s=dice.uniform(0.8, 6.0), timeout_s=dice.choice((600, 300, 180)),
                    reported=at,
                )
            )  # fmt: skip
            at += lasts
        slots.append(jobs)
    return slots


def _events(dice: random.Random, fleet: Fleet, rate: float, noise: int, quiet: int) -> list[RankEvent]:
    """Draw when something happens, and to whom: a job fails in proportion to its GPUs."""
    weights = [len(jobs[0].nodes) for jobs in fleet.slots]
    scale = rate * fleet.days / TABLE_DAYS * fleet.nodes * GPUS / TABLE_GPUS
    length = int(fleet.days * DAY)
    drawn: list[RankEvent] = []

    def event(cause: PublishedCause | None, play: Play, slot: int, at: int) -> RankEvent:
        number = len(drawn)
        job = fleet.job_at(slot, at)
        # A single node has nobody to wait for it in another collective of the fabric; it still has eight ranks.
        ends = [end for end in play.ends if end != "cancelled" or job.scheduler == "slurm"]
        return RankEvent(
            number=number, at=at, slot=slot, cause=cause.cause if cause else "", play=play,
            rank_share=dice.random(), planned=bool(cause and cause.planned), noise=cause is None,
            end=dice.choice(ends or ["watchdog"]),
        )  # fmt: skip

    for cause in catalogue().causes:
        count = cause.count * scale
        whole = int(count) + (dice.random() < count - int(count))
        for _ in range(whole):
            (play,) = dice.choices(cause.plays, [one.weight for one in cause.plays])
            (slot,) = dice.choices(range(len(weights)), weights)
            at = START + 3600 * SECOND + dice.randrange(max(1, length - 2 * 3600 * SECOND))
            drawn.append(event(cause, play, slot, at))
    failures = [one for one in drawn if not one.planned]
    _apart(drawn)
    plays = catalogue().noise
    around = noise * len(failures)
    for number in range(around + quiet):
        (play,) = dice.choices(plays, [one.weight for one in plays])
        (slot,) = dice.choices(range(len(weights)), weights)
        # Half of the noise falls into the minutes around failures, where it is the most misleading.
        near = dice.choice(failures) if number < around and dice.random() < 0.5 else None
        within = dice.randrange(-40, 120) if near else dice.randrange(100)
        at = (near.at if near else _quiet_window(dice, length)) + within * SECOND
        if near and weights[near.slot] >= 8 and dice.random() < 0.5:
            slot = near.slot
        drawn.append(event(None, play, slot, min(at, fleet.end)))
    return sorted(drawn, key=lambda one: (one.at, one.number))


def _quiet_window(dice: random.Random, length: int) -> int:
    """Draw one of the moments, twice a day, at which noise outside of failures is played."""
    return START + 3600 * SECOND + dice.randrange(max(1, length // QUIET)) * QUIET


def _apart(events: list[RankEvent]) -> None:
    """Move failures of one job apart: while a job restarts it cannot fail in another way."""
    last: dict[int, int] = {}
    for number, one in sorted(enumerate(events), key=lambda pair: pair[1].at):
        at = max(one.at, last.get(one.slot, 0) + 2700 * SECOND)
        last[one.slot] = at
        events[number] = msgspec.structs.replace(one, at=at)
