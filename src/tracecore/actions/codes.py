"""Expressions for codes that every program prints in the same few forms: errno, HTTP status, gRPC status.

A rule names the code once; the number, the name and the text that libraries print for it are found here.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Linux numbers and texts: a log is read on another system than the one that wrote it.
_ERRNO: Final = {
    "EPERM": (1, "Operation not permitted"),
    "ENOENT": (2, "No such file or directory"),
    "EIO": (5, "Input/output error"),
    "ENXIO": (6, "No such device or address"),
    "EAGAIN": (11, "Resource temporarily unavailable"),
    "ENOMEM": (12, "Cannot allocate memory"),
    "EACCES": (13, "Permission denied"),
    "ENODEV": (19, "No such device"),
    "ENFILE": (23, "Too many open files in system"),
    "EMFILE": (24, "Too many open files"),
    "EFBIG": (27, "File too large"),
    "ENOSPC": (28, "No space left on device"),
    "EROFS": (30, "Read-only file system"),
    "EPIPE": (32, "Broken pipe"),
    "EPROTO": (71, "Protocol error"),
    "EADDRINUSE": (98, "Address already in use"),
    "EADDRNOTAVAIL": (99, "Cannot assign requested address"),
    "ENETDOWN": (100, "Network is down"),
    "ENETUNREACH": (101, "Network is unreachable"),
    "ENETRESET": (102, "Network dropped connection on reset"),
    "ECONNABORTED": (103, "Software caused connection abort"),
    "ECONNRESET": (104, "Connection reset by peer"),
    "ENOBUFS": (105, "No buffer space available"),
    "ENOTCONN": (107, "Transport endpoint is not connected"),
    "ESHUTDOWN": (108, "Cannot send after transport endpoint shutdown"),
    "ETIMEDOUT": (110, "Connection timed out"),
    "ECONNREFUSED": (111, "Connection refused"),
    "EHOSTDOWN": (112, "Host is down"),
    "EHOSTUNREACH": (113, "No route to host"),
    "ESTALE": (116, "Stale file handle"),
    "EUCLEAN": (117, "Structure needs cleaning"),
    "EREMOTEIO": (121, "Remote I/O error"),
    "EDQUOT": (122, "Disk quota exceeded"),
}
#: Windows has numbers of its own for some of them.
_WINDOWS: Final = {
    "ENOMEM": (8, 14, 1450, 1455),
    "ENOSPC": (39, 112),
    "ECONNABORTED": (10053,),
    "ECONNRESET": (10054,),
    "ETIMEDOUT": (10060,),
    "ECONNREFUSED": (10061,),
    "EHOSTUNREACH": (10065,),
    "EADDRINUSE": (10048,),
}
_GRPC: Final = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}


def errno(names: Iterable[str]) -> str:
    """Return the expression for error numbers of the system, by their names."""
    known = _known(names, _ERRNO)
    numbers = _alternatives(str(_ERRNO[name][0]) for name in known)
    words = _alternatives(re.escape(_ERRNO[name][1]).replace("\\ ", " ") for name in known)
    forms = [
        rf"\[Errno {numbers}\]",
        rf"(?i:\berrno)[ :=(]{{1,3}}{numbers}\b",
        rf"\(os error {numbers}\)",
        rf"\b{_alternatives(known)}\b",
        rf"(?i:\b{words}\b)",
    ]
    if windows := [str(number) for name in known for number in _WINDOWS.get(name, ())]:
        forms.append(rf"\[WinError {_alternatives(windows)}\]")
    return "|".join(forms)


def http(codes: Iterable[str]) -> str:
    """Return the expression for status codes of HTTP."""
    known = _known(codes, {str(int(status)): status for status in HTTPStatus})
    numbers = _alternatives(known)
    named = _alternatives(
        rf"{code} {re.escape(HTTPStatus(int(code)).phrase)}".replace("\\ ", "[ _-]") for code in known
    )
    return "|".join(
        (
            rf"\b{numbers} (?:Client|Server) Error\b",
            rf"(?i:\b{named}\b)",
            rf"\bHTTP(?:/[\d.]+)?(?: ?Error| ?status(?: ?code)?| response(?: status)?| code)?[ :=(]{{1,3}}{numbers}\b",
            rf"(?i:\bstatus(?:[ _-]?code)?)[\"']?[ :=(]{{1,3}}{numbers}\b",
            rf"(?i:\bresponse (?:code|status))[ :=(]{{1,3}}{numbers}\b",
            rf"(?i:\breturned (?:error|status|code)):? {numbers}\b",
        )
    )


def grpc(names: Iterable[str]) -> str:
    """Return the expression for status codes of gRPC, which TensorFlow and XLA use too."""
    known = _known(names, _GRPC)
    upper = _alternatives(known)
    numbers = _alternatives(str(_GRPC[name]) for name in known)
    return rf"(?:^|[\s:('\"=]){upper}: |\bStatusCode\.{upper}\b|\"grpc_status\": ?{numbers}\b"


#: Kinds of conditions that name codes.
KINDS: Final[Mapping[str, Callable[[Iterable[str]], str]]] = {"errno": errno, "http": http, "grpc": grpc}


def _alternatives(parts: Iterable[str]) -> str:
    return f"(?:{'|'.join(parts)})"


def _known(names: Iterable[str], table: Mapping[str, object]) -> list[str]:
    listed = list(names)
    if unknown := [name for name in listed if name not in table]:
        raise ValueError(f"{unknown[0]!r} is not a known code")
    return listed
