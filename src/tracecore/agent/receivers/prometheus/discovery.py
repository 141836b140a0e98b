"""Where targets come from: written down, in files, or known to the Kubernetes API."""

from __future__ import annotations

import glob
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tracecore.agent.component import Setting
from tracecore.agent.receivers.prometheus.options import FileSd, ScrapeConfig, StaticConfig

log = logging.getLogger("tracecore.agent.prometheus")

#: Bytes of one file, files of one pattern, and targets of one file.
MOST_BYTES: Final = 16 << 20
MOST_FILES: Final = 1000
MOST_TARGETS: Final = 10_000


class Discovery(Protocol):
    """Gives the labels of targets, which may change."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def version(self) -> int:
        """Changes when the targets may have."""

    def labels(self) -> Iterator[dict[str, str]]:
        """Of each target, `__address__` among them."""

    def wrong(self) -> str:
        """Why targets are not known; empty when they are."""


def discoveries(job: ScrapeConfig, setting: Setting) -> list[Discovery]:
    """All that a job has."""
    made: list[Discovery] = [Static(job.static_configs)] if job.static_configs else []
    made += [Files(one, setting.base) for one in job.file_sd_configs]
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


class Files:
    """Targets in files that somebody else writes. A file that cannot be read leaves its targets as they were."""

    def __init__(self, config: FileSd, base: Path) -> None:
        self._config = config
        self._base = base
        self._next = 0.0
        self._version = 0
        self._known: dict[str, list[dict[str, str]]] = {}
        self._wrong: dict[str, str] = {}

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def version(self) -> int:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._config.refresh_interval / 1e9
            self._refresh()
        return self._version

    def labels(self) -> Iterator[dict[str, str]]:
        for many in self._known.values():
            yield from many

    def wrong(self) -> str:
        return next(iter(self._wrong.values()), "")

    def _refresh(self) -> None:
        paths = [
            path for pattern in self._config.files for path in sorted(glob.glob(str(self._base / pattern)))[:MOST_FILES]
        ]
        found: dict[str, list[dict[str, str]]] = {}
        self._wrong = {}
        for path in paths:
            try:
                found[path] = list(read_targets(Path(path)))
            except (OSError, ValueError) as error:
                self._wrong[path] = f"{path}: {error}"
                log.warning("%s: %s", path, error)
                if path in self._known:
                    found[path] = self._known[path]
        if found != self._known:
            self._known = found
            self._version += 1


def read_targets(path: Path) -> Iterator[dict[str, str]]:
    """Labels of the targets in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has something else.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES} bytes")
    raw = path.read_bytes()
    count = 0
    for group in _document(raw, path.suffix):
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise ValueError("expected a list of {targets, labels}")
        shared = group.get("labels") or {}
        if not isinstance(shared, dict):
            raise ValueError("expected labels by name")
        for address in group["targets"]:
            if not isinstance(address, str):
                raise ValueError("a target is a text")
            count += 1
            if count > MOST_TARGETS:
                raise ValueError(f"more than {MOST_TARGETS} targets")
            labels = {str(name): str(value) for name, value in shared.items()}
            yield {**labels, "__address__": address, "__meta_filepath": str(path)}


def _document(raw: bytes, suffix: str) -> list[Any]:
    try:
        if suffix == ".json":
            found = msgspec.json.decode(raw)
        else:
            from ruamel.yaml import YAML
            from ruamel.yaml.error import YAMLError

            try:
                found = YAML(typ="safe", pure=True).load(raw.decode())
            except (YAMLError, RecursionError) as error:
                raise ValueError(f"no YAML: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, list):
        raise ValueError("expected a list of {targets, labels}")
    return found
