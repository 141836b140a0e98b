"""The series of one target: its answers become metrics, with start times, and with marks where series end.

What a line says about its series (labels, resource, type) is worked out once and remembered for as long as the series
is there, so that a scrape like the one before costs a look-up and a number for each line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from tracecore.agent.receivers.prometheus.families import Family, HistogramParts, Metadata, SeriesScope, named
from tracecore.signals.metrics.exposition import Exemplar, ExpositionError, about, amount, number, written

#: Samples of one answer, where a configuration does not say less.
MOST_SAMPLES: Final = 200_000
_MILLISECOND: Final = 1_000_000
_RESERVED: Final = frozenset({"__name__", "job", "instance", "__scheme__", "__metrics_path__"})

# What a line is, seen from its metric.
_NUMBER, _BUCKET, _SUM, _COUNT, _CREATED, _INFO, _DROPPED, _TWIN = range(8)
_SUFFIXES: Final = {"_sum": _SUM, "_count": _COUNT, "_created": _CREATED}

Labels: TypeAlias = dict[str, str]


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


class SeriesLine:
    """One line of a target, as it comes again with every scrape."""

    __slots__ = (
        "attributes", "bound", "counts", "created", "family", "group", "key", "last", "point", "role", "scrape",
        "start", "timed",
    )  # fmt: skip

    def __init__(self, key: str, role: int, family: Family | None = None) -> None:
        self.key = key
        self.role = role
        self.family: Family = family  # type: ignore[assignment]
        self.attributes: Labels = {}
        self.group: HistogramParts | None = None
        self.bound = 0.0
        self.counts = False
        self.created = 0
        self.start = 0
        self.last = 0.0
        self.point: dict[str, Any] = {}
        self.scrape = 0
        self.timed = False


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


class SeriesMemory:
    """State of a target's series.

    Args:
        labels: of the target; every series gets them.
        place: where a series belongs: its resource and scope, by its labels.
        rules: for series; None drops one.
        honor_labels: the target's own labels win.
        honor_timestamps: its own times win.
        track_timed: series with times of their own end as others do.
    """

    def __init__(
        self,
        labels: Labels,
        place: Callable[[Labels], SeriesScope],
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
        self._external = dict(external or {})
        self._place = place
        self._rules = rules
        self._honor_labels = honor_labels
        self._honor_timestamps = honor_timestamps
        self._track_timed = track_timed
        self._trim = trim
        self._limits = limits or ScrapeLimits()
        self._known: dict[str, SeriesLine] = {}
        self._metadata: dict[str, Metadata] = {}
        self._comments: dict[str, str] = {}
        self._families: dict[tuple[Any, ...], Family] = {}
        self._groups: dict[tuple[Any, ...], HistogramParts] = {}
        self._numbers: dict[tuple[Any, ...], SeriesLine] = {}
        self._live: list[SeriesLine] = []
        #: Lines that the answer at hand is the first to have.
        self._new: list[SeriesLine] = []
        #: Lines that are known and are no series.
        self._aside = 0
        self._scrape = 0
        self._touched: list[Family] = []
        self.tally = ScrapeCounts()

    # -- one answer --------------------------------------------------------------------------------------------------

    def read(self, text: str, time: int, open_metrics: bool) -> tuple[list[Family], ScrapeCounts]:
        """The metrics of an answer, and of series that are no longer in it a mark each.

        Args:
            time: of the scrape, in nanoseconds since the epoch.

        Raises:
            ExpositionError: it is none, or has too much; nothing of it counts.
        """
        self._begin()
        #: Of an answer that fails half-way, what was read until then.
        tally = self.tally = ScrapeCounts()
        live: list[SeriesLine] = []
        known, scrape, touched = self._known, self._scrape, self._touched
        most = self._limits.samples or MOST_SAMPLES
        ended = False
        for line in text.split("\n"):
            if not line:
                continue
            if ended:
                raise ExpositionError("text behind # EOF")
            if line[0] == "#":
                ended = self._comment(line, open_metrics)
                continue
            end = line.rfind("}") + 1 or line.find(" ")
            entry = known.get(line[:end]) if end > 0 else None
            if entry is None:
                entry, end = self._learn(line, open_metrics, tally)
            tally.scraped += 1
            at, exemplar = time, None
            try:
                value = float(line[end:])
            except ValueError:
                value, own, exemplar = amount(line[end:], open_metrics)
                if own is not None and self._honor_timestamps:
                    at, entry.timed = own * _MILLISECOND, True
            role = entry.role
            if role >= _INFO:
                if role == _INFO:
                    self._inform(entry, tally)
                elif role == _TWIN:
                    tally.repeated += 1
                continue
            if entry.scrape == scrape:
                tally.repeated += 1
                continue
            if not entry.scrape:
                tally.added += 1
            entry.scrape = scrape
            tally.kept += 1
            if tally.kept > most:
                raise ExpositionError(f"more than {most} samples")
            live.append(entry)
            if role != _NUMBER:
                self._part(entry, value, at, exemplar, tally)
                continue
            family = entry.family
            if family.scrape != scrape:
                family.begin(scrape)
                touched.append(family)
            point: dict[str, Any] = {"attributes": dict(entry.attributes), "time_unix_nano": at, "as_double": value}
            if entry.counts:
                if value < entry.last or not entry.start:
                    entry.start = at
                entry.last = value
                point["start_time_unix_nano"] = entry.created or entry.start
                entry.point = point
            if exemplar is not None:
                point["exemplars"] = [_exemplar(exemplar, at)]
            family.points.append(point)
        if open_metrics and not ended:
            raise ExpositionError("the answer is cut off: no # EOF")
        self._end(live, time)
        return touched, tally

    def fail(self, time: int) -> list[Family]:
        """Marks for all series: there was no answer. They are remembered, so that a counter goes on where it was.

        What only an answer had that was none is forgotten.
        """
        self._unlearn()
        self._begin()
        for entry in self._live:
            self._mark(entry, time)
        self._live = []
        return self._touched

    def places(self) -> set[SeriesScope]:
        """Resources and scopes of the series there are."""
        return {family.place for family in self._families.values()}

    def _begin(self) -> None:
        self._scrape += 1
        self._touched = []

    def _end(self, live: list[SeriesLine], time: int) -> None:
        scrape = self._scrape
        for entry in self._live:
            if entry.scrape != scrape:
                self._mark(entry, time)
        if len(self._known) - self._aside > len(live) or self._aside > MOST_SAMPLES:
            self._forget()
        self._live = [entry for entry in live if not entry.timed or self._track_timed]
        self._new = []

    def _unlearn(self) -> None:
        """Forget what was learned from an answer that failed half-way."""
        if not self._new:
            return
        for entry in self._new:
            if self._known.pop(entry.key, None) is not None:
                self._aside -= entry.role >= _INFO
        self._new = []
        families = {entry.family for entry in self._known.values()}
        groups = {entry.group for entry in self._known.values()}
        self._families = {key: family for key, family in self._families.items() if family in families}
        self._groups = {key: group for key, group in self._groups.items() if group in groups}
        self._numbers = {key: entry for key, entry in self._numbers.items() if self._known.get(entry.key) is entry}

    def _forget(self) -> None:
        """Series that were not in this answer."""
        scrape = self._scrape
        # A line that made the same series as another one is looked at again: the other may be gone.
        gone = [k for k, e in self._known.items() if e.role == _TWIN or (e.scrape != scrape and e.role < _INFO)]
        for key in gone:
            self._aside -= self._known.pop(key).role >= _INFO
        self._numbers = {key: entry for key, entry in self._numbers.items() if entry.scrape == scrape}
        self._groups = {key: group for key, group in self._groups.items() if group.scrape == scrape}
        self._families = {
            key: family for key, family in self._families.items() if family.scrape == scrape or not family.idle
        }
        if self._aside > MOST_SAMPLES:  # what rules drop is remembered too, in a bound of its own
            self._known = {key: entry for key, entry in self._known.items() if entry.role < _INFO}
            self._aside = 0

    def _mark(self, entry: SeriesLine, time: int) -> None:
        """The series is no more, or not known for now."""
        group, family = entry.group, entry.family
        if entry.role == _CREATED or (group is not None and (group.scrape == self._scrape or not group.shown)):
            return
        if family.scrape != self._scrape:
            family.begin(self._scrape)
            self._touched.append(family)
        if group is not None:
            group.scrape = self._scrape
            family.points.append(group.mark(time))
        else:
            family.points.append({"attributes": dict(entry.attributes), "time_unix_nano": time, "flags": 1})

    # -- parts of histograms and summaries ---------------------------------------------------------------------------

    def _part(self, entry: SeriesLine, value: float, at: int, exemplar: Exemplar | None, tally: ScrapeCounts) -> None:
        group = entry.group
        if group is None:  # when a counter began
            peer = self._numbers.get((entry.family, *sorted(entry.attributes.items())))
            if peer is not None and 0 < value < 1e11:
                peer.created = int(value * 1000) * _MILLISECOND
                if peer.scrape == self._scrape:
                    peer.point["start_time_unix_nano"] = peer.created
            return
        if group.scrape != self._scrape:
            family = entry.family
            if family.scrape != self._scrape:
                family.begin(self._scrape)
                self._touched.append(family)
            group.begin(self._scrape, at)
            family.groups.append(group)
        if group.time != at:
            tally.unfit += 1
            return
        if entry.role == _BUCKET:
            group.parts.append((entry.bound, value))
        elif entry.role == _SUM:
            group.sum = value
        elif entry.role == _COUNT:
            group.count = value
        elif 0 < value < 1e11:
            group.created = int(value * 1000) * _MILLISECOND
        if exemplar is not None:
            group.exemplars.append(_exemplar(exemplar, at))

    # -- what lines mean ---------------------------------------------------------------------------------------------

    def _comment(self, line: str, open_metrics: bool) -> bool:
        """Note what it says; whether it says that the answer ends."""
        if line in self._comments:
            return line == "# EOF" and open_metrics
        found = about(line)
        if found is None:
            return line.rstrip() == "# EOF" and open_metrics
        if len(self._comments) >= 4 * MOST_SAMPLES:
            raise ExpositionError("too many comments")
        known = self._metadata.get(found.name) or Metadata(found.name)
        self._metadata[found.name] = known.told(found.what, found.text)
        place = f"{found.what} {found.name}"
        if (old := self._comments.get(place)) is not None:
            self._comments.pop(old, None)
            if found.what != "HELP":
                self._relearn()
        self._comments[place] = line
        self._comments[line] = place
        return False

    def _relearn(self) -> None:
        """A metric is described anew: series are looked at again, and go on as they were."""
        self._known.clear()
        self._families.clear()
        self._groups.clear()
        self._numbers.clear()
        self._live, self._new = [], []
        self._aside = 0

    def _learn(self, line: str, open_metrics: bool, tally: ScrapeCounts) -> tuple[SeriesLine, int]:
        """Return what a line that is not known yet is."""
        found = written(line)
        key = line[: found.end]
        entry = self._known.get(key)
        if entry is None:
            entry = self._entry(key, found.name, found.labels, tally)
            self._known[key] = entry
            self._new.append(entry)
            self._aside += entry.role >= _INFO
        return entry, found.end

    def _entry(self, key: str, name: str, own: Labels, tally: ScrapeCounts) -> SeriesLine:
        labels = self._merged(name, own)
        kept = self._rules(labels)
        if kept is None:
            return SeriesLine(key, _DROPPED)
        kept = {label: value for label, value in kept.items() if value}
        if wrong := self._limits.wrong(kept):
            raise ExpositionError(wrong)
        name = kept.get("__name__", "")
        if not name:
            raise ExpositionError("a series without a name")
        kept |= self._external
        place = self._place(kept)
        attributes = {k: v for k, v in kept.items() if k not in _RESERVED and not k.startswith("otel_scope_")}
        if name == "target_info":
            entry = SeriesLine(key, _INFO)
            entry.attributes, entry.family = attributes, Family(name, Metadata(name), place, self._trim)
            return entry
        return self._of_metric(key, name, attributes, place, tally)

    def _of_metric(
        self, key: str, name: str, attributes: Labels, place: SeriesScope, tally: ScrapeCounts
    ) -> SeriesLine:
        metadata, title = named(name, self._metadata)
        at = (place, title)
        family = self._families.get(at)
        if family is None:
            family = self._families[at] = Family(title, metadata, place, self._trim)
        entry = SeriesLine(key, _NUMBER, family)
        entry.attributes = attributes
        suffix = "_" + name.rpartition("_")[2]
        if family.kind in ("histogram", "summary"):
            entry.role = _SUFFIXES.get(suffix, _BUCKET) if name != title else _BUCKET
            entry.attributes = {k: v for k, v in attributes.items() if k != family.bound}
            if entry.role == _BUCKET:
                try:
                    entry.bound = number(attributes.get(family.bound, ""))
                except ExpositionError:
                    tally.unfit += 1
                    return SeriesLine(key, _DROPPED)
            whose = (family, *sorted(entry.attributes.items()))
            group = self._groups.get(whose)
            if group is None:
                group = self._groups[whose] = HistogramParts(entry.attributes, family.kind)
            entry.group = group
        elif family.kind == "sum" and suffix == "_created" and name == f"{metadata.name}_created":
            entry.role = _CREATED
        else:
            entry.counts = family.monotonic
            whose = (family, *sorted(attributes.items()))
            other = self._numbers.setdefault(whose, entry)
            if other is not entry and self._known.get(other.key) is other:
                return SeriesLine(key, _TWIN)  # rules have made the same of two
            self._numbers[whose] = entry
        return entry

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

    def _inform(self, entry: SeriesLine, tally: ScrapeCounts) -> None:
        """`target_info` is no series: its labels are its resource's."""
        tally.kept += 1
        tally.added += not entry.scrape
        entry.scrape = self._scrape
        entry.family.place.information = entry.attributes


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


def payload(families: Sequence[Family]) -> tuple[dict[str, Any], int]:
    """OTLP metrics of what was touched by a scrape, and how many points they are."""
    resources: dict[int, tuple[SeriesScope, dict[int, tuple[SeriesScope, list[Any]]]]] = {}
    count = 0
    for family, metric in _metrics(families):
        count += metric[1]
        scopes = resources.setdefault(family.place.resource_key, (family.place, {}))[1]
        scopes.setdefault(id(family.place), (family.place, []))[1].append(metric[0])
    made = [
        {
            "resource": {"attributes": place.attributes()},
            "scope_metrics": [one.scope_metrics(metrics) for one, metrics in scopes.values()],
        }
        for place, scopes in resources.values()
    ]
    return {"resource_metrics": made}, count


def _metrics(families: Sequence[Family]) -> Iterator[tuple[Family, tuple[dict[str, Any], int]]]:
    for family in families:
        metric, count = family.metric()
        if count:
            yield family, (metric, count)
