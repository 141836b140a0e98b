"""One target: who it is, and a thread that scrapes it."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tracecore.agent.batch import Batch, Refused
from tracecore.agent.component import Consumer
from tracecore.agent.receivers.prometheus.families import Family, Metadata, payload
from tracecore.agent.receivers.prometheus.fetching import Fetcher, ScrapeError, TargetAnswer, target_url
from tracecore.agent.receivers.prometheus.options import ScrapeConfig
from tracecore.agent.receivers.prometheus.relabel import rules
from tracecore.agent.receivers.prometheus.series import MOST_SAMPLES, ScrapeCounts, ScrapeLimits, SeriesMemory
from tracecore.agent.telemetry import Meter
from tracecore.durations import parse_duration
from tracecore.signals.metrics.exposition import ExpositionError

log = logging.getLogger("tracecore.agent.prometheus")

_SECOND: Final = 1_000_000_000
#: Seconds within which targets that are new begin: not all at once.
SPREAD: Final = 2.0
#: Seconds between two attempts to hand a scrape on.
AGAIN: Final = 0.1
_ABOUT: Final = {
    "up": Metadata("up", "gauge", "The scraping was successful"),
    "scrape_duration_seconds": Metadata("scrape_duration_seconds", "gauge", "Duration of the scrape", "seconds"),
    "scrape_samples_scraped": Metadata("scrape_samples_scraped", "gauge", "The number of samples the target exposed"),
    "scrape_samples_post_metric_relabeling": Metadata(
        "scrape_samples_post_metric_relabeling",
        "gauge",
        "The number of samples remaining after metric relabeling was applied",
    ),
    "scrape_series_added": Metadata(
        "scrape_series_added", "gauge", "The approximate number of new series in this scrape"
    ),
}
_EXTRA: Final = ("scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes")


class Target(msgspec.Struct, frozen=True):
    """A target: address, labels and job.

    Args:
        config: its job.
        url: where.
        labels: what its series have, `job` and `instance` among them.
        discovered: its labels before any rule, as far as the resource has them.
        interval: nanoseconds between two scrapes.
        timeout: nanoseconds that one may take.
    """

    config: ScrapeConfig
    url: str
    labels: dict[str, str]
    discovered: dict[str, str]
    interval: int
    timeout: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Names it among all."""
        told = tuple(sorted((k, v) for k, v in self.discovered.items() if k in _KEPT))
        return self.config.job_name, self.url, self.interval, self.timeout, tuple(sorted(self.labels.items())), told


_KEPT: Final = frozenset(
    f"__meta_kubernetes_{name}"
    for name in (
        "pod_name", "pod_uid", "pod_container_name", "namespace", "pod_node_name", "node_name", "endpoint_node_name",
        "pod_controller_kind", "pod_controller_name",
    )
)  # fmt: skip


def target(config: ScrapeConfig, given: Mapping[str, str]) -> Target | None:
    """The target that has been discovered with these labels; None where rules drop it.

    Raises:
        ValueError: its labels make no target.
    """
    assert config.scrape_interval is not None
    assert config.scrape_timeout is not None
    discovered = {
        "job": config.job_name,
        "__scheme__": config.scheme,
        "__metrics_path__": config.metrics_path,
        "__scrape_interval__": f"{config.scrape_interval}ns",
        "__scrape_timeout__": f"{config.scrape_timeout}ns",
        **{f"__param_{name}": values[0] for name, values in config.params.items() if values},
        **given,
    }
    labels = rules(config.relabel_configs)(discovered)
    if labels is None:
        return None
    address = labels.get("__address__", "")
    if not address or "/" in address or any(c.isspace() for c in address):
        raise ValueError(f"no address: {address[:80]!r}")
    scheme, path = labels.get("__scheme__") or "http", labels.get("__metrics_path__") or "/metrics"
    if scheme not in ("http", "https"):
        raise ValueError(f"no scheme: {scheme[:80]!r}")
    params = {name: list(values) for name, values in config.params.items()}
    for name, value in labels.items():
        if name.startswith("__param_"):
            params[name.removeprefix("__param_")] = [value, *params.get(name.removeprefix("__param_"), [])[1:]]
    interval = parse_duration(labels.get("__scrape_interval__", ""))
    timeout = parse_duration(labels.get("__scrape_timeout__", ""))
    if not 0 < timeout <= interval:
        raise ValueError("the timeout is longer than the interval")
    public = {name: value for name, value in labels.items() if not name.startswith("__") and value}
    public.setdefault("instance", address)
    url = target_url(scheme, address, path if path.startswith("/") else f"/{path}", params)
    return Target(config, url, public, {**discovered, "__scheme__": scheme}, interval, timeout)


class Scraper:
    """Scrapes one target until it is stopped.

    Args:
        one: the target.
        external: labels of all series.
        consume: where metrics go.
        meter: counts what is lost.
        clock: nanoseconds since the epoch.
    """

    def __init__(
        self,
        one: Target,
        external: Mapping[str, str],
        consume: Consumer,
        meter: Meter,
        clock: Callable[[], int],
        *,
        trim: bool = False,
        extra: bool = False,
    ) -> None:
        self.target = one
        config = one.config
        self._consume = consume
        self._meter = meter
        self._clock = clock
        self._extra = extra
        limits = ScrapeLimits(
            samples=min(config.sample_limit or MOST_SAMPLES, MOST_SAMPLES),
            labels=config.label_limit,
            name=config.label_name_length_limit,
            value=config.label_value_length_limit,
        )
        self._memory = SeriesMemory(
            one.labels,
            one.discovered,
            rules(config.metric_relabel_configs),
            external=external,
            honor_labels=config.honor_labels,
            honor_timestamps=config.honor_timestamps,
            track_timed=config.track_timestamps_staleness,
            trim=trim,
            limits=limits,
        )
        labels = {**one.labels, **external}
        self._attributes = {name: value for name, value in labels.items() if name not in ("job", "instance")}
        self._fetcher = Fetcher(config, one.url, one.timeout / _SECOND)
        self._stop = threading.Event()
        #: What is wrong with it; empty when nothing is, None before the first scrape.
        self.wrong: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"scrape {one.labels['instance']}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def hang_up(self) -> None:
        """End what it waits for, too."""
        self.stop()
        if self._thread.is_alive():
            self._fetcher.cut()  # the thread closes what it has
        else:
            self._fetcher.close()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        interval = self.target.interval / _SECOND
        digest = hashlib.md5(repr(self.target.key).encode(), usedforsecurity=False).digest()
        due = time.monotonic() + min(interval, SPREAD) * int.from_bytes(digest[:4], "big") / 2**32
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            try:
                self.scrape(due + interval)
            except Exception as error:
                # Whatever it is, it is this target's: the next scrape may be fine.
                log.exception("%s: a scrape failed", self.target.labels["instance"])
                self.wrong = f"{type(error).__name__}: {error}"
                self._meter.failures += 1
            # However long that took, the next one is when it would have been.
            due += interval
            if (behind := time.monotonic() - due) > 0:
                missed = int(behind / interval) + 1
                self._meter.drop("scrape_missed", missed)
                due += missed * interval
        self._fetcher.close()

    def scrape(self, until: float | None = None) -> None:
        """One scrape: ask, read, hand on.

        Args:
            until: for how long to try to hand it on, by the monotonic clock; only once when not given.
        """
        now = self._clock() // 1_000_000 * 1_000_000
        begin = time.monotonic()
        tally, size, wrong = ScrapeCounts(), 0, ""
        try:
            answer: TargetAnswer = self._fetcher.get()
            size = answer.size
            families, tally = self._memory.read(answer.text, now, answer.open_metrics)
        except (ScrapeError, ExpositionError) as error:
            if self._stop.is_set():
                return
            wrong = str(error)
            if isinstance(error, ExpositionError):
                tally = self._memory.tally
            families = self._memory.fail(now)
        self._say(wrong)
        for reason, count in (("repeated_sample", tally.repeated), ("unfit_sample", tally.unfit)):
            self._meter.drop(reason, count)
        values: dict[str, float] = {
            "up": 0 if wrong else 1,
            "scrape_duration_seconds": time.monotonic() - begin,
            "scrape_samples_scraped": tally.scraped,
            "scrape_samples_post_metric_relabeling": tally.kept,
            "scrape_series_added": tally.added,
        }
        if self._extra:
            extra = (self.target.timeout / _SECOND, self.target.config.sample_limit, size)
            values |= dict(zip(_EXTRA, extra, strict=True))
        report = self._report(values, now)
        for family in families:
            # What a target says of itself under these names is not what was asked.
            if family.name in values and family.place is self._memory.own:
                family.points = [point for point in family.points if point["attributes"] != self._attributes]
        self._hand_on(families + report, until)

    def end(self) -> None:
        """It is no longer a target: its series are marked as ended, and so are those about it."""
        now = self._clock() // 1_000_000 * 1_000_000
        if self.wrong is None:
            return
        names = [*_ABOUT, *(_EXTRA if self._extra else ())]
        self._hand_on(self._memory.fail(now) + self._report(dict.fromkeys(names), now), None)

    def _report(self, values: Mapping[str, float | None], now: int) -> list[Family]:
        made = []
        for name, value in values.items():
            family = Family(name, _ABOUT.get(name, Metadata(name)), self._memory.own)
            point: dict[str, Any] = {"attributes": dict(self._attributes), "time_unix_nano": now}
            family.points.append({**point, "flags": 1} if value is None else {**point, "as_double": float(value)})
            made.append(family)
        return made

    def _hand_on(self, families: list[Family], until: float | None) -> None:
        made, count = payload(families)
        while count:
            try:
                self._consume(Batch("metrics", made, count=count))
                return
            except Refused:
                # Old samples are worth little: once new ones are due, these are dropped.
                if until is None or time.monotonic() > until or self._stop.wait(AGAIN):
                    self._meter.drop("refused_scrape", count)
                    return

    def _say(self, wrong: str) -> None:
        where = f"{self.target.labels['job']} at {self.target.labels['instance']}"
        if wrong:
            self._meter.failures += 1
            if wrong != self.wrong:
                log.warning("%s: %s", where, wrong)
        elif self.wrong:
            log.info("%s: answers again", where)
        self.wrong = wrong
