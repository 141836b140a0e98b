"""The series of one target: its answers become metrics, with start times, and with marks where series end.

An answer is read as a whole before anything of it counts. What is remembered of a series until the next answer is when
it began and whether its end has to be marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from tracecore.agent.receivers.prometheus.families import Family, Metadata, SeriesScope, named
from tracecore.signals.metrics.exposition import Exemplar, ExpositionError, about, amount, number, written

#: Samples of one answer, where a configuration does not say less.
MOST_SAMPLES: Final = 200_000
#: Resources and scopes of one target: what it federates.
MOST_PLACES: Final = 10_000
_MILLISECOND: Final = 1_000_000
_RESERVED: Final = frozenset({"__name__", "job", "instance", "__scheme__", "__metrics_path__"})
_SCOPE: Final = "otel_scope_"

Labels: TypeAlias = dict[str, str]
Key: TypeAlias = tuple[Any, ...]
#: Attributes of a series in the order of their names.
Attributes: TypeAlias = tuple[tuple[str, str], ...]
#: Name, attributes and place of a series.
Described: TypeAlias = tuple[str, Attributes, SeriesScope]


class ScrapeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a scrape; 0 for no limit but that of the format.

    Args:
        samples: of one answer, after rules have dropped some.
        labels: of one series.
        name: characters of a label's name.
        value: characters of a label's value.
    """

    samples: int = MOST_SAMPLES
    labels: int = 0
    name: int = 0
    value: int = 0

    def wrong(self, labels: Mapping[str, str]) -> str:
        """Return which of them a series breaks."""
        if self.labels and len(labels) > self.labels:
            return f"a series of more than {self.labels} labels"
        if self.name and any(len(name) > self.name for name in labels):
            return f"a label whose name is longer than {self.name}"
        if self.value and any(len(value) > self.value for value in labels.values()):
            return f"a label whose value is longer than {self.value}"
        return ""


class ScrapeCounts(msgspec.Struct):
    """Counts of one answer.

    Args:
        scraped: samples in it.
        kept: those left by rules.
        added: series that were not in the answer before.
        repeated: samples of a series that had one already.
        unfit: samples that their metric has no place for: a bucket without a bound, another time than its neighbours.
    """

    scraped: int = 0
    kept: int = 0
    added: int = 0
    repeated: int = 0
    unfit: int = 0


class Sample(NamedTuple):
    """A line of an answer, after the rules; `timed` where the target gave its time."""

    name: str
    attributes: Attributes
    place: SeriesScope
    value: float
    time: int
    timed: bool
    exemplars: list[dict[str, Any]]


class Series:
    """A series, or the lines that are one histogram or summary.

    Args:
        name: of its metric.
        metadata: of its metric.
        place: where it belongs.
        attributes: of its points.
    """

    def __init__(self, name: str, metadata: Metadata, place: SeriesScope, attributes: Attributes) -> None:
        self.name = name
        self.metadata = metadata
        self.place = place
        self.attributes = attributes
        self.lines = 0
        #: What the answer says: one value, or by the ends of names (`_sum`, `_count`, `_created`) and by bounds.
        self.value: float | None = None
        self.parts: dict[str | float, float] = {}
        self.exemplars: list[dict[str, Any]] = []
        self.time = 0
        #: Since when it counts, and how far it has come.
        self.start = 0
        self.last = 0.0
        #: Its end has to be marked.
        self.shown = False

    @property
    def bounds(self) -> list[float]:
        return sorted(part for part in self.parts if isinstance(part, float) and part != math.inf)

    def follow(self, before: Series) -> None:
        """Go on where the same series was in the answer before."""
        self.start, self.last = before.start, before.last

    def point(self) -> dict[str, Any] | None:
        """Return what the answer says; None where a distribution does not say it all."""
        made: dict[str, Any] = {"attributes": dict(self.attributes), "time_unix_nano": self.time}
        if self.exemplars:
            made["exemplars"] = self.exemplars
        if self.metadata.kind in ("histogram", "summary"):
            return self._distribution(made)
        if self.value is None:
            return None
        if self.metadata.counts:
            made["start_time_unix_nano"] = self._began(self.value)
        return {**made, "as_double": self.value}

    def _began(self, count: float) -> int:
        """When counting began: as the target says, else when it was first seen, or when it fell."""
        if count < self.last or not self.start:
            self.start = self.time
        self.last = count
        created = self.parts.get("_created", 0.0)
        return int(created * 1000) * _MILLISECOND if 0 < created < 1e11 else self.start

    def _distribution(self, made: dict[str, Any]) -> dict[str, Any] | None:
        count = self.parts.get("_count")
        if count is None or not 0 <= count < 2**64:
            return None
        made |= {"start_time_unix_nano": self._began(count), "count": int(count)}
        if (total := self.parts.get("_sum")) is not None:
            made["sum"] = total
        if self.metadata.kind == "summary":
            bounds = sorted(part for part in self.parts if isinstance(part, float))
            made["quantile_values"] = [{"quantile": bound, "value": self.parts[bound]} for bound in bounds]
            return made
        heights = [*(self.parts[bound] for bound in self.bounds), count]
        steps = [height - before for before, height in zip([0.0, *heights], heights, strict=False)]
        if not all(0 <= step < 2**64 for step in steps):
            return None  # buckets that fall are none
        return {**made, "explicit_bounds": self.bounds, "bucket_counts": [int(step) for step in steps]}

    def mark(self, time: int) -> dict[str, Any]:
        """Return a point that marks the end of the series, or that it is not known for now."""
        made: dict[str, Any] = {"attributes": dict(self.attributes), "time_unix_nano": time, "flags": 1}
        if self.metadata.kind == "summary":
            made["quantile_values"] = [{"quantile": bound, "value": 0.0} for bound in self.bounds]
        elif self.metadata.kind == "histogram":
            made |= {"explicit_bounds": self.bounds, "bucket_counts": [0] * (len(self.bounds) + 1)}
        return made


class SeriesMemory:
    """State of a target's series.

    Args:
        labels: of the target; every series gets them.
        discovered: the target's labels before any rule.
        rules: for series; None drops one.
        external: labels of all series of all targets.
        honor_labels: the target's own labels win.
        honor_timestamps: its own times win.
        track_timed: series with times of their own end as others do.
        trim: names without `_total` and unit.
    """

    def __init__(
        self,
        labels: Labels,
        discovered: Mapping[str, str],
        rules: Callable[[Labels], Labels | None],
        *,
        external: Mapping[str, str] | None = None,
        honor_labels: bool = False,
        honor_timestamps: bool = True,
        track_timed: bool = False,
        trim: bool = False,
        limits: ScrapeLimits | None = None,
    ) -> None:
        self._labels = labels
        self._discovered = discovered
        self._external = dict(external or {})
        self._rules = rules
        self._honor_labels = honor_labels
        self._honor_timestamps = honor_timestamps
        self._track_timed = track_timed
        self._trim = trim
        self._limits = limits or ScrapeLimits()
        self._known: dict[Key, Series] = {}
        #: Series of the last answer by their text: an answer is mostly like the one before.
        self._described: dict[str, Described | tuple[()]] = {}
        self._places: dict[Key, SeriesScope] = {}
        #: Where what is said about the target itself belongs.
        self.own = self._place({**labels, **self._external})
        self.tally = ScrapeCounts()

    def read(self, text: str, time: int, open_metrics: bool) -> tuple[list[Family], ScrapeCounts]:
        """The metrics of an answer, and of series that are no longer in it a mark each.

        Args:
            time: of the scrape, in nanoseconds since the epoch.

        Raises:
            ExpositionError: it is none, or has too much; nothing of it counts.
        """
        #: Of an answer that fails half-way, what was read until then.
        self.tally = ScrapeCounts()
        known = self._gathered(*self._samples(text, time, open_metrics))
        families: dict[Key, Family] = {}
        for key, series in known.items():
            before = self._known.get(key)
            if before is None:
                self.tally.added += series.lines
            else:
                series.follow(before)
            if (point := series.point()) is not None:
                series.shown = series.shown or self._track_timed
                self._family(series, families).points.append(point)
            else:
                series.shown = False
        self._mark((series for key, series in self._known.items() if key not in known), time, families)
        self._known = known
        self._forget_places()
        return list(families.values()), self.tally

    def fail(self, time: int) -> list[Family]:
        """Marks for all series: there was no answer. They are remembered, so that a counter goes on where it was."""
        families: dict[Key, Family] = {}
        self._mark(self._known.values(), time, families)
        self._forget_places()
        return list(families.values())

    def _mark(self, gone: Iterable[Series], time: int, families: dict[Key, Family]) -> None:
        for series in gone:
            if series.shown:
                series.shown = False
                self._family(series, families).points.append(series.mark(time))

    def _family(self, series: Series, families: dict[Key, Family]) -> Family:
        key = (series.place, series.name, series.metadata.type)
        if key not in families:
            families[key] = Family(series.name, series.metadata, series.place, self._trim)
        return families[key]

    # -- lines -------------------------------------------------------------------------------------------------------

    def _samples(self, text: str, time: int, open_metrics: bool) -> tuple[list[Sample], dict[str, Metadata]]:
        """Samples that rules leave, and what the answer says about metrics."""
        samples: list[Sample] = []
        described: dict[str, Described | tuple[()]] = {}
        known: dict[str, Metadata] = {}
        ended = False
        for line in filter(None, text.split("\n")):
            if ended:
                raise ExpositionError("text behind # EOF")
            if line[0] == "#":
                if (comment := about(line)) is not None:
                    metadata = known.get(comment.name) or Metadata(comment.name)
                    known[comment.name] = metadata.told(comment.what, comment.text)
                ended = open_metrics and line.rstrip() == "# EOF"
                continue
            self.tally.scraped += 1
            end = line.rfind("}") + 1 or line.find(" ")
            if (series := self._described.get(line[:end])) is None:
                found = written(line)
                end, series = found.end, self._kept(found.name, found.labels)
            described[line[:end]] = series
            value, own, exemplar = amount(line[end:], open_metrics)
            if not series:
                continue
            self.tally.kept += 1
            if self.tally.kept > (self._limits.samples or MOST_SAMPLES):
                raise ExpositionError(f"more than {self._limits.samples or MOST_SAMPLES} samples")
            timed = own is not None and self._honor_timestamps
            at = own * _MILLISECOND if own is not None and timed else time
            exemplars = [] if exemplar is None else [_exemplar(exemplar, at)]
            samples.append(Sample(*series, value, at, timed, exemplars))
        if open_metrics and not ended:
            raise ExpositionError("the answer is cut off: no # EOF")
        self._described = described
        return samples, known

    def _kept(self, name: str, own: Labels) -> Described | tuple[()]:
        """Name, attributes and place of a series; nothing where rules drop it."""
        found = self._rules(self._merged(name, own))
        if found is None:
            return ()
        kept = {label: value for label, value in found.items() if value}
        if wrong := self._limits.wrong(kept):
            raise ExpositionError(wrong)
        if not kept.get("__name__"):
            raise ExpositionError("a series without a name")
        kept |= self._external
        attributes = sorted(
            pair for pair in kept.items() if pair[0] not in _RESERVED and not pair[0].startswith(_SCOPE)
        )
        return kept["__name__"], tuple(attributes), self._place(kept)

    def _merged(self, name: str, own: Labels) -> Labels:
        """Labels of the series and of the target; where both have one, who wins is a matter of configuration."""
        if self._honor_labels:
            return {"__name__": name, **self._labels, **own}
        labels = {"__name__": name, **own}
        for label, value in self._labels.items():
            if (mine := labels.get(label)) is not None:
                free = f"exported_{label}"
                while free in labels or free in self._labels:
                    free = f"exported_{free}"
                if mine:
                    labels[free] = mine
            labels[label] = value
        return labels

    # -- series ------------------------------------------------------------------------------------------------------

    def _gathered(self, samples: list[Sample], told: Mapping[str, Metadata]) -> dict[Key, Series]:
        """Series by their metric, place and attributes."""
        found: dict[Key, Series] = {}
        for sample in samples:
            if sample.name == "target_info":
                # No series: its labels are its resource's.
                sample.place.information = dict(sample.attributes)
                continue
            metadata, name = named(sample.name, told)
            part = _part(sample, metadata, name)
            if part is None:
                self.tally.unfit += 1
                continue
            attributes = sample.attributes
            if (bound := _BOUNDS.get(metadata.kind)) is not None:
                attributes = tuple(pair for pair in attributes if pair[0] != bound)
            key = (sample.place, name, attributes)
            if (series := found.get(key)) is None:
                series = found[key] = Series(name, metadata, sample.place, attributes)
                series.time, series.shown = sample.time, not sample.timed
            if series.value is not None if part == "" else part in series.parts:
                self.tally.repeated += 1
                self.tally.kept -= 1
            elif part != "_created" and series.time != sample.time:
                self.tally.unfit += 1
            else:
                series.lines += 1
                series.exemplars += sample.exemplars
                if part == "":
                    series.value = sample.value
                else:
                    series.parts[part] = sample.value
        return found

    # -- places ------------------------------------------------------------------------------------------------------

    def _place(self, labels: Labels) -> SeriesScope:
        """Return where series with these labels belong."""
        job, instance = (labels.get(name) or self._labels[name] for name in ("job", "instance"))
        scope = {name.removeprefix(_SCOPE): value for name, value in labels.items() if name.startswith(_SCOPE)}
        key = (job, instance, *sorted(scope.items()))
        found = self._places.get(key)
        if found is None:
            if len(self._places) >= MOST_PLACES:
                raise ExpositionError(f"series of more than {MOST_PLACES} targets")
            found = self._places[key] = SeriesScope(job, instance, self._discovered, scope)
        return found

    def _forget_places(self) -> None:
        used = {self.own, *(series.place for series in self._known.values())}
        self._places = {key: place for key, place in self._places.items() if place in used}


#: The label that tells lines of a distribution apart.
_BOUNDS: Final = {"histogram": "le", "summary": "quantile"}
_ENDS: Final = ("_sum", "_count", "_created")


def _part(sample: Sample, metadata: Metadata, name: str) -> str | float | None:
    """Return which part of its series a sample is: a bound, the end of its name, or all of it; None for no part."""
    bound = _BOUNDS.get(metadata.kind)
    end = "_" + sample.name.rpartition("_")[2]
    if bound is None:
        return end if metadata.kind == "sum" and sample.name == f"{metadata.name}_created" else ""
    if sample.name != name and end in _ENDS:
        return end
    try:
        return number(dict(sample.attributes).get(bound, ""))
    except ExpositionError:
        return None


def _exemplar(given: Exemplar, at: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "time_unix_nano": at if given.time is None else given.time * _MILLISECOND,
        "as_double": given.value,
        "filtered_attributes": {},
    }
    for name, value in given.labels.items():
        size = {"trace_id": 32, "span_id": 16}.get(name.lower(), 0)
        if size and len(value) <= size and len(value) % 2 == 0 and all(c in "0123456789abcdefABCDEF" for c in value):
            made[name.lower()] = value.lower().rjust(size, "0")
        else:
            made["filtered_attributes"][name] = value
    return made
