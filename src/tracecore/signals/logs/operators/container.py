"""The `container` operator: lines as Docker, containerd and CRI-O store them."""

from __future__ import annotations

import calendar
import datetime
from functools import lru_cache
from typing import Any, Final

import re2

from tracecore.signals.logs.operators.base import Failures
from tracecore.signals.logs.operators.entry import MAX_TIME, Entry, Field, OperatorError
from tracecore.signals.logs.operators.options import Options
from tracecore.signals.logs.operators.parsers import Parser, json_object
from tracecore.signals.logs.operators.recombine import LOG_PATH, Joiner, Joining, identified
from tracecore.signals.record import Attributes

FORMATS: Final = ("", "auto", "docker", "crio", "containerd")
MAX_LOG_SIZE: Final = 1 << 20
_STREAMS: Final = ("stdout", "stderr")

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


@lru_cache(4096)
def pod_of(path: str) -> Attributes | None:
    """Return what the path of a container's log says about it; None where it is no such path."""
    match = _PATH.match(path)
    if match is None:
        return None
    return {_NAMES[name]: value for name, value in match.groupdict().items()}


def runtime_time(text: str) -> int | None:
    """Nanoseconds of a runtime's time stamp; None where it is none."""
    if len(text) == 30 and text[19] == "." and text[29] == "Z" and (digits := text[20:29]).isdigit() and text.isascii():
        # As nearly all stamps are; many share their second.
        second = _whole_second(text[:19])
        return None if second is None else second + int(digits)
    return _parsed_time(text)


@lru_cache(4096)
def _whole_second(text: str) -> int | None:
    return _parsed_time(f"{text}Z")


def _parsed_time(text: str) -> int | None:
    match = _TIME.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime.datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    except ValueError:
        return None
    seconds = calendar.timegm(moment.timetuple())
    if zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= -offset if zone[0] == "-" else offset
    # OTLP has 64 bits for it and no sign: years far away wrap around, here as in the Collector.
    return (seconds * 1_000_000_000 + int((fraction or "0")[:9].ljust(9, "0"))) & MAX_TIME


def _runtime_of(time: str) -> str:
    """The runtime that writes times so; empty for none."""
    mark = time.find("Z")
    if mark < 0:
        return "crio" if time else ""
    return "containerd" if 0 < mark == len(time) - 1 and "^" not in time else ""


class Container(Joining, Parser):
    """`container`: unwraps lines, joins those that the runtime cut, and takes the pod's identity from the path."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self.format = options.one_of("format", FORMATS, "").replace("auto", "")
        self.add_metadata = options.flag("add_metadata_from_filepath", True)
        self.max_log_size = options.size("max_log_size", MAX_LOG_SIZE)
        self._joiner = Joiner(
            field=Field("body"),
            separator="",
            is_edge=lambda entry: entry.attributes.get("logtag") == "F",
            first=False,
            write=self.write,
            identify=identified(Field(LOG_PATH)),
            most_bytes=self.max_log_size,
        )

    def join(self, entry: Entry, done: list[Entry], now: int) -> None:
        self.transform(entry, now)
        self._unwrap(entry)
        # As a rule no line waits for the rest of it, and needs none itself.
        if self._kind == "docker" or (not self._joiner.waiting and entry.attributes.get("logtag") == "F"):
            done.append(entry)
        else:
            self._joiner.add(entry, done)

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise OperatorError(f"{type(value).__name__} cannot be parsed as a container's log")
        if self.format == "docker" or (not self.format and value[:1] == "{"):
            self._kind = "docker"
            return json_object(value)
        words = value.split(" ", 3)
        if len(words) > 2 and words[1] in _STREAMS:
            time, stream, tag = words[:3]
            log = words[3] if len(words) > 3 else ""
            self._kind = _runtime_of(time)
            if self._kind and self.format in ("", self._kind) and "\n" not in log:
                return {"time": time, "stream": stream, "logtag": tag, "log": log}
        raise OperatorError("this is no line of a container runtime")

    def _unwrap(self, entry: Entry) -> None:
        """Move what the runtime wrote around a line to where records have it."""
        attributes = entry.attributes
        stamp = attributes.get("time")
        if not isinstance(stamp, str):
            raise OperatorError("the line has no time")
        time = runtime_time(stamp)
        if time is None or (self._kind != "crio" and stamp[-1] != "Z"):
            raise OperatorError("the line has no time that can be read")
        entry.time = time
        del attributes["time"]
        if "log" not in attributes:
            raise OperatorError("the line has no log")
        entry.body = attributes.pop("log")
        if "stream" not in attributes:
            raise OperatorError("the line has no stream")
        attributes["log.iostream"] = attributes.pop("stream")
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
