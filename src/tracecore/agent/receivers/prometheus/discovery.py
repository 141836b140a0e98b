"""Discovery of targets: its interface, and those that are written down. `kubernetes` finds pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tracecore.agent.receivers.prometheus.options import ScrapeConfig, StaticConfig


class Discovery(Protocol):
    """Gives the labels of targets, which may change."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def version(self) -> int:
        """Changes when the targets may have."""

    def labels(self) -> Iterator[dict[str, str]]:
        """Return the labels of each target, `__address__` among them."""

    def wrong(self) -> str:
        """Return why targets are not known; empty when they are."""


def discoveries(job: ScrapeConfig) -> list[Discovery]:
    """Return the discoveries of a job."""
    made: list[Discovery] = [Static(job.static_configs)] if job.static_configs else []
    if job.kubernetes_sd_configs:
        from tracecore.agent.receivers.prometheus.kubernetes import Kubernetes

        made += [Kubernetes(one) for one in job.kubernetes_sd_configs]
    return made


class Static:
    """Targets that are written down."""

    def __init__(self, configs: list[StaticConfig]) -> None:
        self._configs = configs

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def version(self) -> int:
        return 0

    def labels(self) -> Iterator[dict[str, str]]:
        for config in self._configs:
            for address in config.targets:
                yield {**config.labels, "__address__": address}

    def wrong(self) -> str:
        return ""
