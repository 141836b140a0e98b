"""The shape of a signal, and where it was read.

A signal is a plain dictionary in the shape of one OTLP record with its resource and scope, the same that
`tracecore.ottl` transforms. Records of one stream share their resource dictionary.
"""

from __future__ import annotations

from typing import NotRequired, TypeAlias, TypedDict

import msgspec

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[str, Value] | None"
Attributes: TypeAlias = dict[str, Value]

#: The kinds of evidence a diagnosis may or may not have had. "Not measured" is said in these words.
LAYERS = ("stdout", "kernel", "kubernetes", "metrics", "flight_recorder", "scheduler")


class Source(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The place of a statement: enough to cite it and to find it again.

    Args:
        path: the file as the user would name it (inside an archive: `bundle.tar.gz!/rank0.log`), or the origin
            of a live signal (`k8s:events`, `otlp`).
        offset: byte offset of the first byte, or a sequence number where there are no bytes.
        line: 1-based line number; 0 where lines mean nothing.
        length: bytes quoted.
        ident: an identity given by the origin itself (a Kubernetes uid), which then is the uid.
    """

    path: str
    offset: int = 0
    line: int = 0
    length: int = 0
    ident: str = ""

    @property
    def uid(self) -> str:
        """A string that names this place and no other."""
        return self.ident or f"{self.path}@{self.offset}"

    @property
    def place(self) -> str:
        """`file:line`, for people."""
        return f"{self.path}:{self.line}" if self.line else self.path


class Resource(TypedDict, total=False):
    attributes: Attributes
    schema_url: str


class Scope(TypedDict, total=False):
    name: str
    version: str
    attributes: Attributes


class Log(TypedDict, total=False):
    body: Value
    attributes: Attributes
    time_unix_nano: int
    observed_time_unix_nano: int
    severity_number: int
    severity_text: str
    event_name: str
    flags: int
    trace_id: str
    span_id: str
    dropped_attributes_count: int


class LogSignal(TypedDict):
    """One log record (or event) with what it came from."""

    resource: Resource
    scope: NotRequired[Scope]
    log: Log
    source: NotRequired[Source]


def attribute(signal: LogSignal, name: str) -> Value:
    """The record's own attribute, else its resource's, else None."""
    value = signal["log"]["attributes"].get(name)
    return signal["resource"]["attributes"].get(name) if value is None else value
