"""The `prometheus` receiver: finds targets, and keeps a scraper for each."""

from __future__ import annotations

import logging
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tracecore.agent.component import Consumer, Setting
from tracecore.agent.receivers.prometheus.options import Options, ScrapeConfig
from tracecore.agent.receivers.prometheus.target import Scraper, Target, target

if TYPE_CHECKING:
    from tracecore.agent.receivers.prometheus.kubernetes import Kubernetes

log = logging.getLogger("tracecore.agent.prometheus")

#: Seconds between two looks at targets.
PULSE: Final = 0.25
#: Targets of one receiver.
MOST_TARGETS: Final = 4096
#: Seconds that scrapers have to end.
PATIENCE: Final = 5.0


class Prometheus:
    """Scrapes until it is told to stop. Every target has a thread of its own: a slow one delays no other."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._jobs = options.jobs()
        self._scrapers: dict[tuple[Any, ...], Scraper] = {}
        self._told: dict[str, str] = {}

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        found = {job.job_name: self._discoveries(job) for job in self._jobs}
        everything = [one for many in found.values() for one in many]
        try:
            for one in everything:
                one.start()
            seen: tuple[int, ...] | None = None
            while not stop.is_set():
                versions = tuple(one.version() for one in everything)
                if versions != seen:
                    seen = versions
                    self._change(found, consume)
                self._state(everything)
                stop.wait(PULSE)
        finally:
            for one in everything:
                one.stop()
            self._end(list(self._scrapers.values()))
            self._scrapers = {}

    def _discoveries(self, job: ScrapeConfig) -> list[Kubernetes]:
        if not job.kubernetes_sd_configs:
            return []
        from tracecore.agent.receivers.prometheus.kubernetes import Kubernetes

        return [Kubernetes(one) for one in job.kubernetes_sd_configs]

    def _change(self, found: dict[str, list[Kubernetes]], consume: Consumer) -> None:
        """Start what is new, end what is gone."""
        wanted: dict[tuple[Any, ...], Target] = {}
        for job in self._jobs:
            made = self._targets(job, found[job.job_name])
            if job.target_limit and len(made) > job.target_limit:
                self._tell(f"{job.job_name} limit", f"{len(made)} targets, of which {job.target_limit} are allowed")
                continue
            self._tell(f"{job.job_name} limit", "")
            wanted |= made
        if len(wanted) > MOST_TARGETS:
            self._setting.meter.drop("too_many_targets", len(wanted) - MOST_TARGETS)
            self._tell("targets", f"{len(wanted)} targets, of which {MOST_TARGETS} are scraped")
            wanted = dict(list(wanted.items())[:MOST_TARGETS])
        gone = [self._scrapers.pop(key) for key in list(self._scrapers) if key not in wanted]
        for key, one in wanted.items():
            if key not in self._scrapers:
                scraper = self._scrapers[key] = Scraper(
                    one,
                    self._options.config.global_.external_labels,
                    consume,
                    self._setting.meter,
                    self._setting.clock,
                    trim=self._options.trim_metric_suffixes,
                    extra=self._options.report_extra_scrape_metrics,
                )
                scraper.start()
        self._end(gone)
        for scraper in gone:
            scraper.end()
        log.info("%s: %d targets", self._setting.id, len(self._scrapers))

    def _targets(self, job: ScrapeConfig, found: list[Kubernetes]) -> dict[tuple[Any, ...], Target]:
        made: dict[tuple[Any, ...], Target] = {}
        wrong = ""
        static = (one.addresses() for one in job.static_configs)
        for labels in chain(*static, *(one.labels() for one in found)):
            try:
                if (new := target(job, labels)) is not None:
                    made[new.key] = new
            except ValueError as error:
                wrong = f"{labels.get('__address__', '')[:120]}: {error}"
        self._tell(f"{job.job_name} targets", wrong)
        return made

    def _tell(self, what: str, wrong: str) -> None:
        if wrong and self._told.get(what) != wrong:
            log.warning("%s: job %s: %s", self._setting.id, what, wrong)
        self._told[what] = wrong

    def _state(self, found: list[Kubernetes]) -> None:
        """One target that is down is what `up` is for; none at all, or none to be found, is a failure."""
        wrong = next((text for one in found if (text := one.wrong())), "")
        if not wrong and self._scrapers:
            states = [scraper.wrong for scraper in self._scrapers.values()]
            if all(states):
                wrong = f"none of {len(states)} targets answers; the first: {states[0]}"
            elif None in states:
                return
        self._setting.report(wrong)

    def _end(self, scrapers: list[Scraper]) -> None:
        for scraper in scrapers:
            scraper.hang_up()
        until = time.monotonic() + PATIENCE
        for scraper in scrapers:
            scraper.join(max(until - time.monotonic(), 0.0))
