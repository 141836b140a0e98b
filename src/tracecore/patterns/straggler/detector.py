"""Detection of a rank that is always last, by the times it reports or by its arrival at collectives."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import Arrival, CollectiveEntry
from tracecore.facts.training import Progress, SlowRanks
from tracecore.patterns.config import HOUR, MILLISECOND, SECOND, Count, Duration, Factor, Fraction, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.scope import job_keys
from tracecore.patterns.spread import Spread, bucket, close
from tracecore.patterns.straggler.meetings import Meetings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Part: TypeAlias = Literal["data", "compute", "unknown"]
#: Attempt, epoch and number.
Step: TypeAlias = tuple[int, float, int]

#: A report that names more slow ranks than this does not point at any of them.
MOST = 8
#: Phases whose steps count.
TRAINS = frozenset({None, "train"})


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the decisive steps of all ranks lie within this time.
        factor: a slow rank takes at least this many times the median of its cohort (the ranks that report one step).
        cohort: number of ranks that must report a step; with fewer the step is skipped.
        steps: number of consecutive steps in which the rank must be slow.
        crowd: if more than this share of the cohort is slow, no rank is named.
        warmup: steps with a lower number do not count.
        share: a wait for data, or a late arrival, counts if it takes at least this share of the step.
        late: an arrival this late counts for any length of the step. It is more than clocks may differ by.
        least_ms: differences below this many milliseconds do not count.
        reports: number of reports of an external detector that must name a rank.
    """

    window: Duration = HOUR
    factor: Factor = 1.5
    cohort: Count = 4
    steps: Count = 5
    crowd: Fraction = 0.25
    warmup: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 2
    share: Fraction = 0.2
    late: Duration = 2 * SECOND
    least_ms: Annotated[float, msgspec.Meta(ge=0.0, le=3_600_000.0)] = 5.0
    reports: Count = 3


class RankLag(msgspec.Struct, frozen=True):
    """The report of a step in which a rank was slow, and the report of the median rank for comparison."""

    report: Progress
    peer: Progress
    took: float
    usual: float
    part: Part
    ranks: int


class StragglerVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        rank: the straggler.
        lags: the decisive steps, if its own times decide; else empty.
        arrivals: the collectives it came last to, if arrivals decide; else empty.
        reports: the reports of an external detector, if only those decide; else empty.
        machine: the machine of the rank according to such reports.
    """

    pattern_id: ClassVar[str] = "6"
    pattern_name: ClassVar[str] = "straggler"
    role: ClassVar[Role] = "symptom"
    ends: ClassVar[bool] = False

    rank: int
    lags: tuple[RankLag, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    reports: tuple[SlowRanks, ...] = ()
    machine: str | None = None

    @property
    def part(self) -> Part:
        parts = [lag.part for lag in self.lags] or ["unknown"]
        return max(("data", "compute", "unknown"), key=parts.count)

    @property
    def ratio(self) -> float | None:
        """Return the ratio to the middle rank's time, the median over the decisive steps."""
        ratios = sorted(lag.took / lag.usual for lag in self.lags if lag.usual > 0)
        ratios = ratios or sorted(
            report.ratio for report in self.reports if report.ratio is not None and report.ratio >= 1
        )
        return round(ratios[len(ratios) // 2], 2) if ratios else None

    @property
    def _reporter(self) -> str:
        return self.reports[0].reporter or "a detector"

    @property
    def _fact(self) -> Fact | None:
        """Return the last fact that the rank itself wrote. Reports are written by a detector."""
        return self.lags[-1].report if self.lags else self.arrivals[-1] if self.arrivals else None

    @property
    def _node(self) -> str | None:
        if self._fact is not None:
            return self._fact.node
        return self.machine

    @property
    def _place(self) -> str:
        pod = self._fact.pod if self._fact is not None else None
        return f" on {self._node}" if self._node else f" in {pod}" if pod else ""

    def headline(self) -> str:
        who = f"Rank {self.rank}{self._place}"
        if self.arrivals:
            first, late = self.arrivals[0], min(arrival.lateness for arrival in self.arrivals) / MILLISECOND
            return (
                f"{who} comes last to {len(self.arrivals)} steps in a row of group {first.pg_desc or first.pg}, "
                f"from seq {first.seq}, at least {late:.0f} ms after the middle rank"
            )
        if self.reports:
            count = sum(report.count for report in self.reports)
            times = f", {self.ratio:g} times the fastest" if self.ratio is not None else ""
            return f"{who} is slower than the others: {count} reports of {self._reporter} name it{times}"
        first_step, last = self.lags[0].report.step, self.lags[-1]
        what = {"data": "waits for data", "compute": "computes", "unknown": "works"}[self.part]
        times = f"{self.ratio:g} times as long as" if self.ratio is not None else "longer than"
        return (
            f"{who} {what} {times} the median of {last.ranks} ranks, in {len(self.lags)} steps in a row "
            f"from step {first_step}"
        )

    def remediation(self) -> str:
        node = self._node
        on = f"On {node}" if node else f"Where rank {self.rank} runs"
        gpu = f" -i {self._fact.gpu}" if self._fact is not None and self._fact.gpu else ""
        stack = f"`py-spy dump --pid PID` of rank {self.rank}"
        loader = (
            f"look at its input: {stack} and of its DataLoader workers shows where they wait; `iostat -x 5 3`, "
            f"`nfsiostat 5 3` and `top` show a slow mount or a CPU that others use. Compare its number of workers and "
            f"its shard with another rank's"
        )
        device = (
            f"look at its GPU: `nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER{gpu}` (throttled, lower clocks, a "
            f"power cap), `nvidia-smi` (a second process on it), and `top -H` for its CPU"
        )
        cordon = f"keep work off {node} (`kubectl cordon {node}`)" if node else "keep work off that node"
        then = (
            f" Then start rank {self.rank} on another node: if it stays slow its share of the work is larger, if it "
            f"does not, {cordon}."
        )
        if self.part == "data":
            return f"{on}, {loader}.{then}"
        if self.part == "compute":
            return f"{on}, {device}.{then}"
        return f"{on}, first {stack} in the middle of a step: in the loader, {loader}; in the model, {device}.{then}"

    def evidence(self) -> Sequence[Fact]:
        if self.arrivals or self.reports:
            return self.arrivals or self.reports
        reports: list[Progress] = [lag.report for lag in self.lags]
        return sorted([*reports, self.lags[-1].peer], key=lambda report: (report.time, report.step or 0, report.uid))

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"gen_ai.training.rank": self.rank, "part": self.part, "ratio": self.ratio}
        if self.lags:
            fields |= {"steps": [lag.report.step for lag in self.lags], "cohort": self.lags[-1].ranks}
        elif self.arrivals:
            fields |= {"sequences": [arrival.seq for arrival in self.arrivals], "cohort": self.arrivals[-1].ranks}
        else:
            fields |= {"reporter": self._reporter, "reports": sum(report.count for report in self.reports)}
        return filled({**fields, "k8s.node.name": self._node})

    def promoted(self) -> dict[str, Any]:
        return {
            "gen_ai.training.rank": self.rank,
            "k8s.node.name": self._node,
            "tracecore.alert.straggler.part": self.part,
            "tracecore.alert.straggler.ratio": self.ratio,
        }

    def suspects(self) -> Suspects:
        if self.reports:
            return Suspects(ranks=(self.rank,), nodes=(self._node,) if self._node else ())
        return Suspects.of([lag.report for lag in self.lags] or self.arrivals)


def _by_step(reports: Iterable[Progress]) -> dict[Step, dict[int, Progress]]:
    """Return the last report of each rank, by step."""
    steps: dict[Step, dict[int, Progress]] = {}
    for report in reports:
        assert report.rank is not None  # keys() drops reports without rank or step
        assert report.step is not None
        step = (report.attempt, -1.0 if report.epoch is None else report.epoch, report.step)
        if step in steps:
            steps[step][report.rank] = report
        else:
            steps[step] = {report.rank: report}
    return steps


class Straggler(Pattern[Config]):
    """The same rank is slow in several consecutive steps, or comes last to them, and few other ranks are.

    In data-parallel training collectives make all ranks as slow as the slowest, so equal step times prove nothing.
    The difference is the time that a rank spends by itself (waiting for data, computing), or when it arrives.
    """

    id = "6"
    name = "straggler"
    role = "symptom"
    maturity = "stable"
    needs = (Progress, Arrival, CollectiveEntry, SlowRanks)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is SlowRanks:
            return job_keys(fact)
        return job_keys(fact) if fact.rank is not None and self._counts(fact) else ()

    def _counts(self, fact: Fact) -> bool:
        """Return whether a fact counts: not the first steps, evaluation, or collectives of few ranks."""
        if type(fact) is Progress:
            timed = fact.iter_time_s is not None or fact.data_time_s is not None
            return timed and fact.step is not None and fact.step >= self.config.warmup and fact.phase in TRAINS
        if type(fact) is CollectiveEntry:
            # Dumps give separate facts for arrivals.
            return fact.created is not None and not fact.final and not fact.is_p2p
        return type(fact) is Arrival and fact.ranks >= self.config.cohort

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        named: dict[int, StragglerVerdict] = {}
        # The rank's own times show which part is slow, so they come first. Arrivals only show that it is slow.
        for verdict in (*self._by_times(window), *self._by_arrivals(window), *self._by_reports(window)):
            named.setdefault(verdict.rank, verdict)
        return [named[rank] for rank in sorted(named, key=lambda rank: (named[rank].time, rank))]

    # -- by the times that ranks report ---------------------------------------------------------------------------

    def _by_times(self, window: Window) -> Iterator[StragglerVerdict]:
        if not self._apart(window):
            return
        steps = _by_step(window.of(Progress))
        runs: dict[int, list[RankLag]] = {}
        named: set[int] = set()
        attempt = None
        for step in sorted(steps):
            cohort = steps[step]
            if step[0] != attempt:
                attempt, runs = step[0], {}
            if len(cohort) < self.config.cohort:
                continue
            slow = self._slow(cohort)
            if len(slow) > self.config.crowd * len(cohort):
                slow = {}
            for rank in [rank for rank in cohort if rank in runs and rank not in slow] if runs else ():
                del runs[rank]
            latest: int | None = None
            for rank in slow:
                if rank in named:
                    continue
                run = runs.setdefault(rank, [])
                run.append(slow[rank])
                del run[: -self.config.steps]
                if len(run) == self.config.steps:
                    latest = max(report.time for report in cohort.values()) if latest is None else latest
                    if latest - min(lag.report.time for lag in run) <= self.config.window:
                        named.add(rank)
                        yield StragglerVerdict(
                            key=window.key,
                            episode=f"rank {rank}",
                            time=max(lag.report.time for lag in run),
                            rank=rank,
                            lags=tuple(run),
                        )

    def _apart(self, window: Window) -> bool:
        """Return whether times differ enough for one to be far above a median. Usually they do not, which saves the
        work of sorting the steps."""
        factor = self.config.factor
        for measure, size in ((_iter_time, _iter_size), (_data_time, _data_size)):
            if close(window.distinct(Progress, size), factor):
                continue
            spread = Spread([time for time in map(measure, window.of(Progress)) if time is not None])
            near = spread.high - spread.low < self.config.least_ms / 1000
            alike = spread.low > 0 and spread.high < factor * spread.low
            if spread.odd or not (near or alike):
                return True
        return False

    def _slow(self, cohort: Mapping[int, Progress]) -> dict[int, RankLag]:
        """Return the ranks that are slow in this step, by its total time or by the wait for data."""
        steps = self._ahead(cohort, [(r.iter_time_s, rank) for rank, r in cohort.items() if r.iter_time_s is not None])
        waits = self._ahead(cohort, [(r.data_time_s, rank) for rank, r in cohort.items() if r.data_time_s is not None])
        slow: dict[int, RankLag] = {}
        for rank, (took, usual, peer) in steps.items():
            wait = waits.get(rank)
            part: Part = "unknown" if cohort[rank].data_time_s is None else "compute"
            if wait is not None and wait[0] - wait[1] >= (took - usual) / 2:
                part, (took, usual, peer) = "data", wait
            slow[rank] = RankLag(cohort[rank], cohort[peer], took, usual, part, len(cohort))
        for rank, (took, usual, peer) in waits.items():
            whole = cohort[rank].iter_time_s
            if rank not in slow and (whole is None or took - usual >= self.config.share * whole):
                slow[rank] = RankLag(cohort[rank], cohort[peer], took, usual, "data", len(cohort))
        return slow

    def _ahead(
        self, cohort: Mapping[int, Progress], values: list[tuple[float, int]]
    ) -> dict[int, tuple[float, float, int]]:
        """Return for ranks with a value far above the median: (value, median, the median rank)."""
        if len(values) < self.config.cohort:
            return {}
        values.sort()
        middle = values[(len(values) - 1) // 2]
        usual = (middle[0] + values[len(values) // 2][0]) / 2
        least = self.config.least_ms / 1000
        return {
            rank: (value, usual, middle[1])
            for value, rank in values
            if value >= self.config.factor * usual and value - usual >= least and rank != middle[1]
        }

    # -- by the reports of an external detector ---------------------------------------------------------------------

    def _by_reports(self, window: Window) -> Iterator[StragglerVerdict]:
        """Yield a verdict for each rank that most reports of one detector name."""
        names: dict[int, set[str]] = {}
        for report in window.of(SlowRanks):
            if report.machine is not None and len(report.slow) == 1:
                names.setdefault(report.slow[0], set()).add(report.machine)
        machines = {rank: found.pop() for rank, found in names.items() if len(found) == 1}
        for reporter, own in sorted(window.grouped(SlowRanks, attrgetter("reporter")).items()):
            named: dict[int, list[SlowRanks]] = {}
            for report in own:
                for rank in sorted(set(report.slow)) if len(report.slow) <= MOST else ():
                    named.setdefault(rank, []).append(report)
            total = sum(report.count for report in own)
            for rank, reports in sorted(named.items()):
                count = sum(report.count for report in reports)
                needed = self.config.steps if reports[-1].each else self.config.reports
                if count >= needed and 2 * count > total:
                    yield StragglerVerdict(
                        key=window.key,
                        episode=f"rank {rank} by {reporter}",
                        time=reports[-1].end,
                        rank=rank,
                        reports=tuple(reports[-self.config.steps :]),
                        machine=machines.get(rank),
                    )

    # -- by the arrivals at collectives ---------------------------------------------------------------------------

    def _by_arrivals(self, window: Window) -> Iterator[StragglerVerdict]:
        arrivals: Sequence[Arrival] = window.of(Arrival)
        if window.of(CollectiveEntry):
            arrivals = [*arrivals, *Meetings(window.of(CollectiveEntry)).arrivals(self.config.cohort)]
        elif not any(arrival.lateness >= self.config.least_ms * MILLISECOND for arrival in arrivals):
            return
        groups: dict[tuple[int, str], list[Arrival]] = {}
        for arrival in arrivals:
            groups.setdefault((arrival.attempt, arrival.pg), []).append(arrival)
        for group in sorted(groups):
            run: list[Arrival] = []
            for arrival, took in _steps(sorted(groups[group], key=lambda arrival: (arrival.seq, arrival.time))):
                least = max(self.config.least_ms * MILLISECOND, min(self.config.share * took, self.config.late))
                if arrival.lateness < least:
                    run = []
                    continue
                run = [*run[1 - self.config.steps :], arrival] if run and run[-1].rank == arrival.rank else [arrival]
                last = len(run) == self.config.steps and arrival.time - run[0].time <= self.config.window
                if last and arrival.rank is not None:
                    yield StragglerVerdict(
                        key=window.key,
                        episode=f"rank {arrival.rank}",
                        time=arrival.time,
                        rank=arrival.rank,
                        arrivals=tuple(run),
                    )


_iter_time = attrgetter("iter_time_s")
_data_time = attrgetter("data_time_s")


def _iter_size(report: Progress) -> float | None:
    return bucket(report.iter_time_s)


def _data_size(report: Progress) -> float | None:
    return bucket(report.data_time_s)


def _steps(arrivals: Sequence[Arrival]) -> Iterator[tuple[Arrival, int]]:
    """Yield the first collective of each step, and the time from the end of the previous step to its last arrival.

    Collectives come in bursts, and a rank that is late to the first of a burst is late to all. A new step begins when
    the median rank arrives after all ranks had arrived at the collective before. The first collective is skipped.
    """
    released: int | None = None
    for arrival in arrivals:
        if released is not None and arrival.time - arrival.lateness > released:
            yield arrival, arrival.time - released
        released = arrival.time if released is None else max(released, arrival.time)
