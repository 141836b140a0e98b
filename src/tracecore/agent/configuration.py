"""The whole configuration of an agent: what components there are, and how they are wired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import re2

from tracecore.agent import elsewhere
from tracecore.agent.batch import SIGNALS, Signal
from tracecore.agent.catalogue import factories
from tracecore.agent.component import SECTIONS, Factory, Kind
from tracecore.agent.document import ConfigProblem, ConfigReport, Node, load
from tracecore.agent.option_schema import schema
from tracecore.agent.options import address, decode, extensions

_ID = re2.compile(r"^([a-zA-Z][0-9a-zA-Z_]{0,62})(?:/([^\s/][^/]{0,254}))?$")
SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class MetricsAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address at which the agent's own metrics are served.

    Args:
        host: the address to listen on; every other than loopback is reachable by others.
        port: 0 takes any free one.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "with_resource_constant_labels",
        "without_target_info",
        "translation_strategy",
    )

    host: str = "127.0.0.1"
    port: Port = 8888
    without_scope_info: bool = False
    without_type_suffix: bool = False
    without_units: bool = False


class PullExporter(msgspec.Struct, frozen=True, kw_only=True):
    prometheus: MetricsAddress = MetricsAddress()


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    exporter: PullExporter = PullExporter()


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    IGNORED: ClassVar[tuple[str, ...]] = ("periodic",)

    pull: Pull = Pull()


class OwnMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own numbers, at `/metrics`, `/healthz` and `/readyz`.

    Args:
        level: `none` serves nothing.
        address: `host:port`, as older configurations have it.
        readers: where they are served; the first counts.
    """

    IGNORED: ClassVar[tuple[str, ...]] = ("views",)

    level: Literal["none", "basic", "normal", "detailed"] = "normal"
    address: Annotated[str, msgspec.Meta(extra={"address": "127.0.0.1:8888"})] | None = None
    readers: list[Reader] = []

    def warn(self) -> Any:
        if len(self.readers) > 1:
            yield ("readers", 1), "one reader is served, the first"

    def listen(self) -> tuple[str, int] | None:
        """Host and port; None where nothing is served."""
        if self.level == "none":
            return None
        if self.readers:
            found = self.readers[0].pull.exporter.prometheus
            return found.host, found.port
        return address(self.address) if self.address is not None else ("127.0.0.1", 8888)


class OwnLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own log, on standard error.

    Args:
        level: the least that is written.
        encoding: `console` for people, `json` for machines.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "development",
        "disable_caller",
        "disable_stacktrace",
        "initial_fields",
        "output_paths",
        "error_output_paths",
        "sampling",
        "processors",
    )

    level: Literal["debug", "info", "warn", "error", "DEBUG", "INFO", "WARN", "ERROR"] = "info"
    encoding: Literal["console", "json"] = "console"


class OwnTelemetry(msgspec.Struct, frozen=True, kw_only=True):
    IGNORED: ClassVar[tuple[str, ...]] = ("traces",)

    logs: OwnLogs = OwnLogs()
    metrics: OwnMetrics = OwnMetrics()
    resource: dict[str, Any] = {}


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One way from receivers to exporters.

    Args:
        receivers: ids; whatever they receive enters.
        processors: ids, in the order in which they work.
        exporters: ids; everything that comes out goes to each of them.
    """

    receivers: list[str]
    processors: list[str] = []
    exporters: list[str]


class Service(msgspec.Struct, frozen=True, kw_only=True):
    pipelines: dict[str, PipelineSettings]
    extensions: list[str] = []
    telemetry: OwnTelemetry = OwnTelemetry()


class Component(msgspec.Struct, frozen=True):
    """A configured component.

    Args:
        id: `type/name`.
        source: its options as plain data, which tell whether it changed.
    """

    id: str
    factory: Factory
    options: Any
    source: Any


class Configuration(msgspec.Struct, frozen=True):
    """A configuration without mistakes.

    Args:
        components: those in use, by kind and id.
        service: how they are wired.
        paths: the files it came from.
    """

    components: dict[tuple[Kind, str], Component]
    service: Service
    paths: tuple[Path, ...]

    def of(self, kind: Kind) -> dict[str, Component]:
        """The components of a kind, by id."""
        return {id: component for (k, id), component in self.components.items() if k == kind}


class ConfigurationError(Exception):
    """A configuration that cannot be used: `problems` has every mistake."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def read(
    paths: Sequence[Path | str], env: Mapping[str, str] | None = None
) -> tuple[Configuration, tuple[ConfigProblem, ...]]:
    """The configuration of one file, or of several where a later one overrides; and warnings.

    Raises:
        ConfigurationError: with everything that is wrong, in the order of the file.
    """
    report = ConfigReport()
    tree = load(paths, report, env)
    made = None
    if tree is not None:
        made = _Reading(tree, report).configuration(tuple(Path(path) for path in paths))
    if report.problems or made is None:
        order = {str(path): number for number, path in enumerate(paths)}
        problems = sorted(set(report.problems), key=lambda p: (order.get(p.file, 0), p.line, p.column, p.message))
        raise ConfigurationError(problems)
    return made, tuple(report.warnings)


class _Reading:
    def __init__(self, tree: Node, report: ConfigReport) -> None:
        self._tree = tree
        self._report = report
        self._components: dict[tuple[Kind, str], Component | None] = {}
        #: Something of the Collector is not here: what is wrong with pipelines is told when that is gone.
        self._unsupported = False

    def configuration(self, paths: tuple[Path, ...]) -> Configuration | None:
        tree, report = self._tree, self._report
        if not tree.is_map:
            report.error(tree, "expected receivers, processors, exporters, extensions and service")
            return None
        for name in tree.value:
            if name == "connectors":
                self._connectors(tree.value[name])
            elif name not in (*SECTIONS, "service"):
                report.unknown(tree.key(name), "no such section", name, [*SECTIONS, "service"])
        for section, kind in SECTIONS.items():
            self._section(section, kind)
        at = tree.get("service")
        if at is None:
            report.error(tree, '"service" is missing: without pipelines nothing runs')
            return None
        service = decode(at, Service, report, tree)
        if service is None:
            return None
        if self._unsupported:
            for name in service.pipelines:
                if name.partition("/")[0] == "profiles":
                    report.error(at.near("pipelines").key(name), elsewhere.PROFILES)
            return None
        used = self._wired(at, service)
        if report.problems:
            return None
        found = {key: component for key in used if (component := self._components[key]) is not None}
        return Configuration(found, service, paths)

    def _section(self, section: str, kind: Kind) -> None:
        node = self._tree.get(section)
        if node is None or node.value is None:
            return
        if not node.is_map:
            self._report.error(node, f"expected {section} by id")
            return
        known = {name: factory for factory in factories() if factory.kind == kind for name in factory.names}
        for name, child in node.value.items():
            self._components[kind, name] = None
            match = _ID.match(name)
            if match is None:
                self._report.error(node.key(name), f'"{name}" is no id; write it like type or type/name')
                continue
            factory = known.get(match.group(1))
            if factory is None and (why := elsewhere.remedy(kind, match.group(1))):
                self._unsupported = True
                self._report.error(node.key(name), why)
                continue
            if factory is None:
                self._report.unknown(
                    node.key(name), f"there is no {kind}", match.group(1), sorted({f.type for f in known.values()})
                )
                continue
            self._components[kind, name] = self._component(name, factory, child, node.key(name))

    def _connectors(self, node: Node) -> None:
        """A line for each; pipelines may name them, which is no second mistake."""
        for name in node.value if node.is_map else ():
            self._unsupported = True
            self._report.error(node.key(name), elsewhere.remedy("connector", name.partition("/")[0]))
            self._components["receiver", name] = self._components["exporter", name] = None

    def _component(self, name: str, factory: Factory, node: Node, key: Node) -> Component | None:
        at = node if node.value is not None else Node({}, key.file, key.line, key.column)
        options = decode(at, factory.options, self._report, key)
        if options is None:
            return None
        for use, extension, place in extensions(options, at):
            self._extension(use, extension, place)
        if factory.check is not None:
            factory.check(options, at, self._report)
        return Component(name, factory, options, node.plain())

    def _extension(self, use: str, id: str, place: Node) -> None:
        enabled = self._tree.get("service", "extensions")
        ids = [node.value for node in enabled.value] if enabled is not None and enabled.is_list else []
        if ("extension", id) not in self._components and self._tree.get("extensions", id) is None:
            known = self._tree.get("extensions")
            self._report.unknown(
                place, "there is no extension", id, list(known.value) if known and known.is_map else []
            )
        elif use == "auth" and self._provides(id) not in ("", use):
            self._report.error(place, f'the extension "{id}" authenticates nobody')
        elif id not in ids:
            self._report.error(place, f'the extension "{id}" is not in service.extensions, so it would not run')

    def _provides(self, id: str) -> str:
        """Return what an extension is for, by its type; nothing where it is none of ours."""
        type = id.partition("/")[0]
        return next((f.provides or "-" for f in factories() if f.kind == "extension" and type in f.names), "")

    def _wired(self, at: Node, service: Service) -> list[tuple[Kind, str]]:
        used: dict[tuple[Kind, str], None] = {}
        places: dict[tuple[Kind, str], dict[str, Node]] = {}
        for number, id in enumerate(service.extensions):
            if self._exists("extension", id, at.near("extensions", number)):
                used["extension", id] = None
        pipelines = at.near("pipelines")
        if not service.pipelines:
            self._report.error(pipelines, "at least one pipeline is needed")
        for name, pipeline in service.pipelines.items():
            signal = name.partition("/")[0]
            if signal == "profiles":
                self._report.error(pipelines.key(name), elsewhere.PROFILES)
                continue
            if _ID.match(name) is None or signal not in SIGNALS:
                self._report.unknown(pipelines.key(name), "no such pipeline", name, SIGNALS)
                continue
            here = pipelines.near(name)
            for section, kind in SECTIONS.items():
                if kind != "extension":
                    for id in self._stage(here, name, section, kind, getattr(pipeline, section)):
                        used[kind, id] = None
                        place = here.near(section, getattr(pipeline, section).index(id))
                        places.setdefault((kind, id), {}).setdefault(signal, place)
        for key, signals in places.items():
            component = self._components[key]
            speaks = component.factory.speaks if component is not None else None
            if speaks is not None and speaks not in signals:
                self._report.error(
                    next(iter(signals.values())),
                    f'what "{key[1]}" finds leaves as {speaks}: name it in a {speaks} pipeline too',
                )
        return list(used)

    def _stage(self, here: Node, pipeline: str, section: str, kind: Kind, ids: Sequence[str]) -> list[str]:
        if not ids and kind != "processor":
            self._report.error(here.near(section), f"the pipeline {pipeline} has no {section}")
        found = []
        for number, id in enumerate(ids):
            place = here.near(section, number)
            if id in ids[:number]:
                self._report.error(place, f'"{id}" stands twice in this list')
            elif self._exists(kind, id, place):
                component = self._components[kind, id]
                signal = pipeline.partition("/")[0]
                if component is not None and signal not in component.factory.signals:
                    can = ", ".join(component.factory.signals)
                    self._report.error(place, f'the {kind} "{id}" works on {can}, not on {signal}')
                found.append(id)
        return found

    def _exists(self, kind: Kind, id: str, place: Node) -> bool:
        if (kind, id) in self._components:
            return True
        names = [name for k, name in self._components if k == kind]
        self._report.unknown(place, f"there is no {kind}", id, names)
        return False


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a whole configuration, for editors."""
    definitions: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        patterns = {}
        for factory in factories():
            if factory.kind == kind:
                name = f"{kind}.{factory.type}"
                definitions[name] = {**schema(factory.options), "description": factory.summary}
                patterns[f"^({'|'.join(factory.names)})(/.+)?$"] = {
                    "anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]
                }
        sections[section] = {
            "anyOf": [
                {"type": "object", "patternProperties": patterns, "additionalProperties": False},
                {"type": "null"},
            ]
        }
    return {
        "$schema": SCHEMA_ID,
        "title": "tracecore agent",
        "type": "object",
        "properties": {**sections, "service": schema(Service)},
        "required": ["service"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def signal_of(pipeline: str) -> Signal:
    """`logs` for `logs/container`."""
    name = pipeline.partition("/")[0]
    return next(signal for signal in SIGNALS if signal == name)
