"""Bounds on the memory that a request needs once it is decoded.

A record of two bytes takes a hundred when it is decoded and a thousand as a dictionary: a request of the usual size
limit, a few kilobytes when compressed, would take gigabytes. Lengths are counted first, level by level, without
decoding what is inside.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from tracecore.signals.otlp.messages import OtlpError

#: Log records, spans or data points of one request; the Collector sends 8,192 by default.
MAX_RECORDS: Final = 200_000
#: Resources and scopes of one request; empty ones cost processor time too, and 13 s of it were two megabytes.
MAX_GROUPS: Final = 50_000
#: Attributes of all records of a request.
MAX_ATTRIBUTES: Final = 4_000_000
#: The least that a record or an attribute takes: a request of fewer bytes than so many of them has fewer.
_LEAST: Final = 2

#: The field of a record that has its attributes.
_ATTRIBUTES: Final = {"logs": "f6", "traces": "f9"}
#: The fields of a metric that may have points: gauge, sum, histogram, exponential histogram, summary.
_KINDS: Final = ("f5", "f7", "f9", "f10", "f11")


def check(signal: str, raw: bytes) -> None:
    """Refuse a request that is small on the wire and large in memory.

    Raises:
        OtlpError: it is one, or no request at all.
    """
    if len(raw) <= _LEAST * MAX_GROUPS:
        return
    resources = _fields(raw).f1
    groups = len(resources)
    many = len(raw) > _LEAST * MAX_ATTRIBUTES
    records = attributes = 0
    for resource in resources:
        scopes = _fields(resource).f2 if groups <= MAX_GROUPS else ()
        groups += len(scopes)
        if groups > MAX_GROUPS:
            raise OtlpError(f"more than {MAX_GROUPS} resources and scopes in one request")
        for scope in scopes if len(raw) > _LEAST * MAX_RECORDS else ():
            held = _fields(scope).f2
            records += len(held)
            if records > MAX_RECORDS:
                raise OtlpError(f"more than {MAX_RECORDS} {signal} in one request")
            for one in held if many or signal == "metrics" else ():
                if signal == "metrics":
                    found = _fields(one)
                    records += sum(len(_fields(kind).f1) for name in _KINDS for kind in getattr(found, name))
                elif many:
                    attributes += len(getattr(_fields(one), _ATTRIBUTES[signal]))
            if records > MAX_RECORDS or attributes > MAX_ATTRIBUTES:
                raise OtlpError(f"too much in one request: {records} {signal}, {attributes} attributes")


def _fields(raw: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = _type()()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise OtlpError(f"not an OTLP request: {error}") from None
    return message


@cache
def _type() -> Any:
    """A message whose every field is taken as bytes that are not looked into."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="tracecore/bounds.proto", package="tracecore")
    message = file.message_type.add(name="Fields")
    for number in range(1, 13):
        message.field.add(name=f"f{number}", number=number, label=3, type=12)  # repeated bytes
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tracecore.Fields"))
