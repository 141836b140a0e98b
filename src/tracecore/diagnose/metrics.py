"""Turn metric points into facts: rename, bridge, type."""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.diagnose.facts import processors
from tracecore.facts.ordinals import Holdings, Ordinals, named, reasons
from tracecore.facts.projection import project
from tracecore.signals.bundle import archive
from tracecore.signals.bundle.reading import points, read
from tracecore.signals.logs.selector import SelectLiterals
from tracecore.signals.metrics.bridge import LATENESS, BridgeLimits
from tracecore.signals.metrics.bridges import BRIDGES, all_bridges
from tracecore.signals.metrics.names import GpuNames
from tracecore.signals.metrics.point import Point, Sample, Series
from tracecore.signals.metrics.prometheus import BLANK
from tracecore.signals.record import Attributes, attribute
from tracecore.signals.stream import Counters

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.ottl.processor import Processor
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.stream import Clock, Stream

#: Samples that one diagnosis holds, and series that a bridge remembers.
MOST_SAMPLES: Final = 4_000_000
MOST_SERIES: Final = 1 << 20
#: Spellings of series that are remembered.
_MOST_KNOWN: Final = 1 << 18

_USED: Final = frozenset(name for bridge in BRIDGES for name in bridge.names)
_LABELS: Final = (
    "gen_ai.training.rank", "gen_ai.training.job_id", "gpu.id", "gpu.uuid", "hw.gpu.index", "hw.gpu.sdc.kind",
    "hw.gpu.nvlink.link", "hw.gpu.throttle.reason", "network.io.direction", "error.type", "error.subtype",
    "error.persistence", "host.name", "k8s.node.name", "k8s.pod.name", "k8s.namespace.name",
)  # fmt: skip
#: Our own names as Prometheus spells them, without dots.
_OWN_NAMES: Final = {
    written: name for name in _USED for written in (name.replace(".", "_"), name.replace(".", "_") + "_total")
}
_OWN_LABELS: Final = {
    **{name.replace(".", "_"): name for name in _LABELS},
    "rank": "gen_ai.training.rank",
    "job_id": "gen_ai.training.job_id",
    "pod": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
}
#: Labels that name the machine and come from the scrape's configuration, the most explicit first.
_HOST_LABELS: Final = ("node", "nodename", "kubernetes_node", "Hostname", "hostname", "instance", "service.instance.id")
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


class Scale(msgspec.Struct, frozen=True):
    """A series after the recipes, and how they change its values: `factor * value + offset`.

    Args:
        each: the change depends on the value, so recipes have to run on every point.
    """

    series: Series
    factor: float = 1.0
    offset: float = 0.0
    each: bool = False


class Stamper:
    """Gives points their `hw.*` names with the recipes of the metrics layer.

    Recipes treat all points of a series alike, so they run once for each spelling of a series, on two values. If the
    results are not linear, the recipes run on every point.

    Args:
        recipes: compiled recipes; by default those that ship with tracecore.
        host: the name of `localhost`; empty if not known.
    """

    def __init__(self, recipes: Sequence[Processor] | None = None, host: str = "") -> None:
        self._recipes = recipes
        self._host = host
        self._known: dict[tuple[object, ...], Scale | None] = {}
        #: Names that no recipe uses. Recipes rename a metric for all its points, whatever their labels.
        self._useless: set[str] = set()
        #: Points that no bridge reads, and points without a measured value.
        self.unused = 0
        self.blank = 0

    def sample(self, point: Point) -> Sample | None:
        """Return a point under its `hw.*` name; None if no bridge reads it or it was not measured."""
        if point.name in self._useless:
            self.unused += 1
            return None
        if float(point.value) in BLANK and point.name.startswith(("DCGM_", "dcgm_")):
            self.blank += 1
            return None
        key = (point.name, point.declared, *point.labels.items())
        try:
            scale = self._known[key]
        except KeyError:
            scale = self._probe(point)
            if len(self._known) < _MOST_KNOWN:
                self._known[key] = scale
        if scale is not None and scale.each:
            scale = self._stamp(point, (point.value,))[0]
        if scale is None:
            self.unused += 1
            return None
        value = scale.factor * point.value + scale.offset
        return Sample(scale.series, value, point.time, point.source, point.inferred)

    def _probe(self, point: Point) -> Scale | None:
        """Return how recipes change the points of a series, from two values."""
        one, three = self._stamp(point, (1.0, 3.0))
        if one is None and three is None:
            return None
        if one is None or three is None or one.series.attributes != three.series.attributes:
            return Scale((one or three).series, each=True)  # type: ignore[union-attr]
        if math.isclose(three.offset, 3 * one.offset, rel_tol=1e-12):
            return Scale(one.series, one.offset)  # another unit: 0 stays exactly 0
        factor = (three.offset - one.offset) / 2
        return Scale(one.series, factor, one.offset - factor)

    def _stamp(self, point: Point, values: Sequence[float]) -> list[Scale | None]:
        """Return what recipes make of some values of a series: each as an offset, or None if no recipe reads it."""
        name = _OWN_NAMES.get(point.name, point.name)
        if name in _USED:
            own: Attributes = {_OWN_LABELS.get(label, label): value for label, value in point.labels.items()}
            series = Series.of(name, point.name, self._with_host(own), point.declared)
            return [Scale(series, 0.0, value) for value in values]
        data = [{"attributes": dict(point.labels), "value_double": value} for value in values]
        metric: dict[str, Any] = {"name": point.name, "unit": "", "gauge": {"data_points": data}}
        payload = {"resource_metrics": [{"resource": {}, "scope_metrics": [{"scope": {}, "metrics": [metric]}]}]}
        for processor in processors("metrics") if self._recipes is None else self._recipes:
            processor.process_metrics(payload)
        if metric["name"] not in _USED:
            if len(self._useless) < _MOST_KNOWN:
                self._useless.add(point.name)
            return [None] * len(values)
        made: list[Scale | None] = []
        for item in data:
            attributes, value = item["attributes"], item["value_double"]
            assert isinstance(attributes, dict)
            if attributes.get("tracecore.metric.blank") is True:
                made.append(None)
                continue
            series = Series.of(metric["name"], point.name, self._with_host(attributes), point.declared)
            made.append(Scale(series, 0.0, float(value)))  # type: ignore[arg-type]
        return made

    def _with_host(self, attributes: Attributes) -> Attributes:
        """Add the machine's name from the labels of the scrape if no other attribute has it."""
        if attributes.get("host.name") or attributes.get("k8s.node.name"):
            return attributes
        for label in _HOST_LABELS:
            host = attributes.get(label)
            if isinstance(host, str) and host:
                address = label in ("instance", "service.instance.id") and ":" in host
                name = host.rpartition(":")[0] if address else host
                if name in _LOCAL:
                    name = self._host
                if name:
                    return {**attributes, "host.name": name}
        return attributes


class MetricFacts:
    """Turns points into facts as they arrive, for the agent.

    Args:
        recipes: see `Stamper`.
        lateness: how long after its time a point may arrive.
        host: the name of this machine and of targets at `localhost`; the system's host name by default.
    """

    def __init__(
        self, recipes: Sequence[Processor] | None = None, *, lateness: int = LATENESS, host: str | None = None
    ) -> None:
        self._stamper = Stamper(recipes, socket.gethostname() if host is None else host)
        self._bridges = all_bridges(lateness=lateness)
        #: The GPUs of pods and nodes.
        self.holdings = Holdings()

    @property
    def dropped(self) -> dict[str, int]:
        """Return how many samples were left out, by reason."""
        return self._bridges.dropped

    def observe(self, point: Point) -> None:
        """Take a point. `advance` returns the facts."""
        sample = self._stamper.sample(point)
        if sample is not None:
            self._bridges.observe(sample)
            self.holdings.learn(sample.series, sample.time)

    def advance(self, now: int) -> list[Fact]:
        """Return the facts of all points that are old enough at `now`."""
        return [fact for signal in self._bridges.advance(now) for fact in project(signal)]


class Scrapes(msgspec.Struct):
    """The metrics of a bundle.

    Args:
        samples: of series that bridges read.
        end: the latest time that a file gives for a value; 0 without any.
        latest: the end of the bundle from which other times were inferred.
        counters: what was read.
        skipped: (path, reason) of files that could not be read to the end or not be used.
    """

    samples: list[Sample] = []
    end: int = 0
    latest: int = 0
    counters: Counters = msgspec.field(default_factory=Counters)
    skipped: list[tuple[str, str]] = []


def gather(bundle: Bundle) -> Scrapes:
    """Read the points of all metrics files of a bundle."""
    found = Scrapes(latest=bundle.clock.latest)
    stamper = Stamper()
    full: Counter[str] = Counter()
    for stream, stream_points in points(bundle, found.counters):
        try:
            for point in _with_host_names(stream_points):
                sample = stamper.sample(point)
                if sample is None:
                    continue
                if not point.inferred:
                    found.end = max(found.end, point.time)
                if len(found.samples) < MOST_SAMPLES:
                    found.samples.append(sample)
                else:
                    full[stream.path] += 1
        except archive.ERRORS as error:
            found.skipped.append((stream.path, f"read in part: {archive.reason(error)}"))
    found.skipped += [(path, f"{count} points more than can be held") for path, count in sorted(full.items())]
    return found


def _with_host_names(points_of_file: Iterable[Point]) -> Iterator[Point]:
    """Add the machine's name to node_exporter's points: only one of its series has the name."""
    host = ""
    waiting: list[Point] = []
    for point in points_of_file:
        if point.name == "node_uname_info":
            host = point.labels.get("nodename", "")
        elif point.name.startswith("node_") and "host.name" not in point.labels:
            # Only the InfiniBand series of node_exporter are used.
            if point.name.startswith("node_infiniband_") and len(waiting) < MOST_SAMPLES:
                waiting.append(point)
        else:
            yield point
    for point in waiting:
        if host and "instance" not in point.labels:
            point = msgspec.structs.replace(point, labels={**point.labels, "host.name": host})
        yield point


def facts(scrapes: Scrapes, bundle: Bundle) -> list[Fact]:
    """Return the facts from the metrics of a bundle. Reasons for missing ones are added to `scrapes.skipped`.

    Inferred times depend on the end of the bundle and move with it if it became known after the metrics were read.
    """
    shift = bundle.clock.latest - scrapes.latest
    bridges = all_bridges(_names(scrapes, bundle), limits=BridgeLimits(waiting=MOST_SAMPLES, series=MOST_SERIES))
    for sample in scrapes.samples:
        if shift and sample.inferred:
            sample = msgspec.structs.replace(sample, time=sample.time + shift)
        bridges.observe(sample)
    found = [fact for signal in bridges.finish() for fact in project(signal)]
    path = min((sample.source.path for sample in scrapes.samples), default="")
    for reason, count in bridges.dropped.items():
        scrapes.skipped.append((path, f"{count} metric samples left out: {reason}"))
    unnamed: dict[tuple[str, str], str] = {}
    for sample in scrapes.samples:
        series = sample.series
        if series.gpu is None and series.unit[1] and _needs_bus_id(series):
            unnamed[series.unit] = min(sample.source.path, unnamed.get(series.unit, sample.source.path))
    if unnamed:
        reason = f"{len(unnamed)} GPUs are known by index or UUID only: no bus id tells which of the node's they are"
        scrapes.skipped.append((min(unnamed.values()), reason))
    return found


def _needs_bus_id(series: Series) -> bool:
    """Whether facts of a series need the GPU's bus id. Links are reported with the index."""
    is_link = series.name == "hw.gpu.nvlink.inactive"
    return not (is_link or {"hw.network.ib.device", "gen_ai.training.rank"} & series.attributes.keys())


def _names(scrapes: Scrapes, bundle: Bundle) -> GpuNames:
    """Return the names of GPUs from the metrics, and from the kernel's log if these are not enough."""
    names = GpuNames()
    series = list({id(sample.series): sample.series for sample in scrapes.samples}.values())
    for one in series:
        names.learn_from(one)
    if all(one.gpu is not None or "gpu.uuid" not in one.attributes or names.name(one) for one in series):
        return names
    for stream in bundle.streams:
        if stream.layer == "kernel":
            try:
                for gpu, uuid in _kernel_names(stream, bundle.clock):
                    names.learn(gpu, uuid)
            except archive.ERRORS:
                continue  # the error is reported where the stream is read for facts
    return names


def _kernel_names(stream: Stream, clock: Clock) -> Iterator[tuple[str, str]]:
    for signal in read(stream, SelectLiterals((b"GPU-",)), clock, Counters()):
        for processor in processors("kernel"):
            processor.process_signals([signal])
        gpu, uuid = attribute(signal, "gpu.id"), attribute(signal, "gpu.uuid")
        if isinstance(gpu, str) and isinstance(uuid, str):
            yield gpu, uuid


def name_gpus(found: Sequence[Fact], scrapes: Scrapes, ordinals: Ordinals = "never") -> list[Fact]:
    """Add the bus ids of GPUs to facts of processes that ran out of GPU memory, where they are certain.

    Unless `ordinals` is "never", the reasons for missing bus ids are added to `scrapes.skipped`.
    """
    holdings = Holdings()
    for sample in scrapes.samples:
        holdings.learn(sample.series, sample.time)
    holdings.settle(found)
    refused: list[tuple[Fact, str]] = []
    facts = named(found, holdings, ordinals, refused)
    if ordinals != "never" and refused:
        where = refused[0][0].source.path
        scrapes.skipped += [(where, reason) for reason in reasons(refused)]
    return facts
