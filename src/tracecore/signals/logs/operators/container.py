"""The `container` operator: lines as Docker, containerd and CRI-O store them."""

from __future__ import annotations

import calendar
from typing import Any, Final

import re2

from tracecore.signals.logs.operators.base import FAILURES, Failures
from tracecore.signals.logs.operators.entry import MAX_TIME, Entry, Field, OperatorError
from tracecore.signals.logs.operators.options import Options
from tracecore.signals.logs.operators.parsers import Parser, json_object
from tracecore.signals.logs.operators.recombine import Joiner, Joining
from tracecore.signals.record import Attributes

FORMATS: Final = ("", "auto", "docker", "crio", "containerd")
MAX_LOG_SIZE: Final = 1 << 20

_CRIO = re2.compile(r"^(?P<time>[^ Z]+) (?P<stream>stdout|stderr) (?P<logtag>[^ ]*) ?(?P<log>.*)$")
_CONTAINERD = re2.compile(r"^(?P<time>[^ ^Z]+Z) (?P<stream>stdout|stderr) (?P<logtag>[^ ]*) ?(?P<log>.*)$")
_PATH = re2.compile(
    r"^.*[/\\](?P<namespace>[^_]+)_(?P<pod>[^_]+)_(?P<uid>[a-f0-9\-]+)[/\\](?P<container>[^\._]+)[/\\]"
    r"(?P<restarts>\d+)\.log(?:\.\d{8}-\d{6})?$"
)
_TIME = re2.compile(r"^(\d{4})-(\d{2})-(\d{2})T(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?(Z|[+-]\d{2}:\d{2})$")
_NAMES: Final = {
    "container": "k8s.container.name",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "restarts": "k8s.container.restart_count",
    "uid": "k8s.pod.uid",
}


def pod_of(path: str) -> Attributes | None:
    """Return what the path of a container's log says about it; None where it is no such path."""
    match = _PATH.match(path)
    if match is None:
        return None
    return {_NAMES[name]: value for name, value in match.groupdict().items()}


def runtime_time(text: str) -> int | None:
    """Nanoseconds of a runtime's time stamp; None where it is none."""
    match = _TIME.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    parts = (int(year), int(month), int(day), int(hour), int(minute), int(second))
    if not (1 <= parts[1] <= 12 and 1 <= parts[2] <= calendar.monthrange(max(parts[0], 1), parts[1])[1]):
        return None
    if parts[3] > 23 or parts[4] > 59 or parts[5] > 59 or not parts[0]:
        return None
    seconds = calendar.timegm(parts)
    if zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= -offset if zone[0] == "-" else offset
    # OTLP has 64 bits for it and no sign: years far away wrap around, here as in the Collector.
    return (seconds * 1_000_000_000 + int((fraction or "0")[:9].ljust(9, "0"))) & MAX_TIME


class Container(Joining, Parser):
    """`container`: unwraps lines, joins those that the runtime cut, and takes the pod's identity from the path."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self.format = options.one_of("format", FORMATS, "").replace("auto", "")
        self.add_metadata = options.flag("add_metadata_from_filepath", True)
        self.max_log_size = options.size("max_log_size", MAX_LOG_SIZE)
        path = Field('attributes["log.file.path"]')

        def identify(entry: Entry) -> Any:
            value = path.get(entry)
            return value if isinstance(value, str) and value else id(entry.source)

        self._joiner = Joiner(
            field=Field("body"),
            separator="",
            is_edge=lambda entry: entry.attributes.get("logtag") == "F",
            first=False,
            write=self.write,
            identify=identify,
            most_bytes=self.max_log_size,
        )

    def process(self, entries: list[Entry], now: int) -> None:
        done: list[Entry] = []
        for entry in entries:
            try:
                if self.condition is not None and not self.condition(entry):
                    done.append(entry)
                    continue
                kind = self.format or self._detected(entry)
                self._kind = kind
                self.transform(entry, now)
                self._unwrap(entry, kind)
                if kind == "docker":
                    done.append(entry)
                else:
                    self._joiner.add(entry, done)
            except FAILURES as error:
                self.failed(entry, done, error)
        self.write(done, now)

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise OperatorError(f"{type(value).__name__} cannot be parsed as a container's log")
        if self._kind == "docker":
            return json_object(value)
        match = (_CRIO if self._kind == "crio" else _CONTAINERD).match(value)
        if match is None:
            raise OperatorError("this is no line of the container runtime")
        return match.groupdict()

    def _detected(self, entry: Entry) -> str:
        value = self.parse_from.get(entry)
        if isinstance(value, str):
            if value.startswith("{"):
                return "docker"
            if _CRIO.match(value):
                return "crio"
            if _CONTAINERD.match(value):
                return "containerd"
        raise OperatorError("this is no line of a container runtime")

    def _unwrap(self, entry: Entry, kind: str) -> None:
        attributes = entry.attributes
        if not isinstance(attributes.get("time"), str):
            raise OperatorError("the line has no time")
        time = runtime_time(attributes["time"])
        if time is None or (kind != "crio" and not attributes["time"].endswith("Z")):
            raise OperatorError("the line has no time that can be read")
        entry.time = time
        del attributes["time"]
        for name in ("log", "stream"):
            if name not in attributes:
                raise OperatorError(f"the line has no {name}")
            value = attributes.pop(name)
            if name == "log":
                entry.body = value
            else:
                attributes["log.iostream"] = value
        if self.add_metadata:
            entry.resource.update(self.pod(attributes.get("log.file.path")))

    def pod(self, path: Any) -> Attributes:
        """Return what the path of a log says about its pod.

        Raises:
            OperatorError: the path is missing, or is not that of a container's log.
        """
        if not isinstance(path, str):
            raise OperatorError("there is no log.file.path; set include_file_path: true")
        pod = pod_of(path)
        if pod is None:
            raise OperatorError("log.file.path is not the path of a container's log (…/namespace_pod_uid/name/0.log)")
        return pod
