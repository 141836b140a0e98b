"""Converters that read security and web server log formats: CEF, LEEF, CLF and ELF."""

from __future__ import annotations

import re
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import regex
from tracecore.ottl.functions.strings import SPACE
from tracecore.ottl.signature import Getter, String, StringGetter, converter, value_converter
from tracecore.ottl.values import Value, parse_int, quote

_LOG = ("log",)


def _filled(text: str, name: str) -> str:
    if not text:
        raise OttlRuntimeError(f"cannot parse empty {name} message")
    return text


_CEF_FIELDS = ("device_vendor", "device_product", "device_version", "device_event_class_id", "name", "severity")
_CEF_HEADER = re.compile(r"(?:\\[|\\]|[^|])*")
_CEF_KEY = re.compile(r"(?:^| )([A-Za-z0-9_]+)=")


@value_converter("ParseCEF", contexts=_LOG)
def parse_cef(target: String) -> dict[str, Value]:
    """A Common Event Format message as a map of `cef.*` entries."""
    message = _filled(target, "CEF")
    start = message.find("CEF:")
    if start < 0:
        raise OttlRuntimeError("invalid CEF message: 'CEF:' not found")
    fields: list[str] = []
    at = start
    while len(fields) < 7:
        found = _CEF_HEADER.match(message, at)
        assert found is not None  # it matches the empty text too
        fields.append(found[0])
        at = found.end() + 1
        if found.end() == len(message):
            break
    if len(fields) < 7:
        raise OttlRuntimeError(
            "invalid CEF header: expected at least 7 pipe-delimited fields (CEF:Version, Device Vendor, Device "
            f"Product, Device Version, Device Event Class ID, Name, Severity), got {len(fields)}"
        )
    version = fields[0].removeprefix("CEF:")
    if not version:
        raise OttlRuntimeError("invalid CEF message: missing version")
    result: dict[str, Value] = {"cef.version": version}
    for name, text in zip(_CEF_FIELDS, fields[1:], strict=True):
        result[f"cef.{name}"] = unescape(text, {"|": "|", "\\": "\\"})
    result["cef.extensions"] = cef_extensions(message[at:])
    return result


def cef_extensions(text: str) -> dict[str, str]:
    """`key=value` pairs whose values may hold spaces: a value ends where the next key begins."""
    found = list(_CEF_KEY.finditer(text))
    ends = [key.start() for key in found[1:]] + [len(text)] * bool(found)
    return {
        key[1]: unescape(text[key.end() : end].rstrip(" "), {"\\": "\\", "=": "=", "n": "\n", "r": "\r"})
        for key, end in zip(found, ends, strict=True)
    }


def unescape(text: str, escapes: dict[str, str]) -> str:
    """Replace a backslash and a known character by what they stand for; others stay."""
    if "\\" not in text:
        return text
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[0]), text, flags=re.DOTALL)


@value_converter("ParseLEEF", contexts=_LOG)
def parse_leef(target: String) -> dict[str, Value]:
    """A Log Event Extended Format message (1.0 or 2.0) as a map of `leef.*` entries."""
    message = _filled(target, "LEEF")
    start = message.find("LEEF:")
    if start < 0:
        raise OttlRuntimeError("invalid LEEF message: 'LEEF:' not found")
    head, found, rest = message[start:].partition("|")
    if not found:
        raise OttlRuntimeError("invalid LEEF message: missing pipe delimiter in header")
    version = head.removeprefix("LEEF:")
    if version not in ("1.0", "2.0"):
        raise OttlRuntimeError(f"unsupported LEEF version: {version} (supported: 1.0, 2.0)")
    parts = rest.split("|", 4)
    if len(parts) < 4:
        raise OttlRuntimeError(
            f"invalid LEEF {version} header: expected at least 4 fields (vendor, product, version, eventID), got "
            f"{len(parts)}"
        )
    attributes = parts[4] if len(parts) > 4 else ""
    delimiter = "\t"
    if version == "2.0" and len(parts) > 4:
        spec, _, after = attributes.partition("|")
        # The delimiter may be left out; then the first attribute, which has a =, stands in its place.
        if "=" not in spec:
            delimiter, attributes = leef_delimiter(spec), after
    names = ("vendor", "product.name", "product.version", "event.id")
    result: dict[str, Value] = {"leef.version": version}
    result |= {f"leef.{name}": part for name, part in zip(names, parts, strict=False)}
    result["leef.attributes"] = leef_attributes(attributes, delimiter)
    return result


def leef_delimiter(spec: str) -> str:
    """The character that a LEEF header names as its delimiter: itself or `0x` and its hexadecimal number."""
    if not spec:
        return "\t"
    if spec[:2] in ("0x", "0X"):
        digits = spec[2:]
        if not digits:
            raise OttlRuntimeError("invalid LEEF 2.0 delimiter: empty hex value")
        try:
            data = bytes.fromhex(digits) if re.fullmatch(r"(?:[0-9a-fA-F]{2})+", digits) else None
        except ValueError:
            data = None
        if data is None:
            raise OttlRuntimeError(f"invalid LEEF 2.0 delimiter: invalid hex delimiter {quote(spec)}")
        if len(data) != 1:
            raise OttlRuntimeError(
                f"invalid LEEF 2.0 delimiter: hex delimiter must decode to a single byte, got {len(data)} bytes"
            )
        return data.decode("utf-8", "surrogateescape")
    if len(spec.encode("utf-8", "surrogateescape")) != 1:
        raise OttlRuntimeError(
            "invalid LEEF 2.0 delimiter: delimiter must be a single character or 0x-prefixed hex value, got "
            f"{quote(spec)}"
        )
    return spec


def leef_attributes(text: str, delimiter: str) -> dict[str, str]:
    """`key=value` pairs; a part without a key is left out."""
    pairs = (pair.partition("=") for pair in text.split(delimiter))
    return {key: value for key, found, value in pairs if found and key}


@converter("ParseCLF", contexts=_LOG)
def parse_clf(target: StringGetter, format: str = "clf") -> Getter:
    """A line of the Common Log Format (`clf`) or the combined one (`combined`) as a map of `clf.*` entries."""
    if format not in _CLF:
        raise OttlCompileError(f'invalid format {quote(format)}: must be "clf" or "combined"')

    def run(ctx: Context) -> dict[str, Value]:
        return _access_line(_filled(target(ctx), "CLF"), format)

    return run


_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_COMMON = rf"^(\S+) (\S+) (\S+) \[([^\]]+)\] {_QUOTED} (\S+) (\S+)"
_CLF = {"clf": rf"{_COMMON}$", "combined": rf"{_COMMON} {_QUOTED} {_QUOTED}$"}


def _access_line(message: str, form: str) -> dict[str, Value]:
    """The fields of one access log line."""
    text = message.strip(SPACE)
    spans = regex.compiled(_CLF[form]).search(text)
    if spans is None:
        raise OttlRuntimeError(f"invalid CLF message: does not match expected {quote(form)} format")
    host, ident, user, when, request, status, size, *more = (text[start:end] for start, end in spans[1:])
    request = unescape_clf(request)
    result: dict[str, Value] = {
        "clf.remote_host": host,
        "clf.rfc931": ident,
        "clf.auth_user": user,
        "clf.timestamp": when,
        "clf.request": request,
    }
    parts = request.split(" ", 2)
    if len(parts) == 3:
        result |= zip(("clf.method", "clf.request_uri", "clf.protocol"), parts, strict=True)
    result["clf.status"] = _clf_number(status, "status code")
    if size != "-":
        result["clf.bytes"] = _clf_number(size, "bytes value")
    for name, text in zip(("clf.referer", "clf.user_agent"), more, strict=False):
        result[name] = unescape_clf(text)
    return result


def _clf_number(text: str, what: str) -> int:
    try:
        return parse_int(text)
    except OttlRuntimeError as error:
        raise OttlRuntimeError(f"invalid {what} {quote(text)}: {error.message}") from error


_CLF_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "b": b"\b", "f": b"\f", "v": b"\v", "\\": b"\\", '"': b'"'}


def unescape_clf(text: str) -> str:
    """Undo the escapes that Apache and nginx write into quoted fields."""
    if "\\" not in text:
        return text

    def undo(found: re.Match[str]) -> bytes:
        if found[1] is not None:
            return bytes((int(found[1], 16),))
        return _CLF_ESCAPES.get(found[2], found[0].encode("utf-8", "surrogateescape"))

    pieces: list[bytes] = []
    last = 0
    for found in re.finditer(r"\\(?:x([0-9a-fA-F]{2})|(.))", text, re.DOTALL):
        pieces += (text[last : found.start()].encode("utf-8", "surrogateescape"), undo(found))
        last = found.end()
    pieces.append(text[last:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces).decode("utf-8", "surrogateescape")


_ELF_TEXTS = {
    "version": "elf.version",
    "software": "elf.software",
    "date": "elf.date",
    "start-date": "elf.start_date",
    "end-date": "elf.end_date",
    "remark": "elf.remark",
}


@value_converter("ParseELF", contexts=_LOG)
def parse_elf(target: String) -> dict[str, Value]:
    """A block of the W3C Extended Log Format as a map of `elf.*` entries."""
    text = _filled(target, "ELF")
    entries: list[Any] = []
    result: dict[str, Value] = {"elf.entries": entries}
    fields: list[str] = []
    for raw in re.split(r"\r\n?|\n", text):
        line = raw.strip(SPACE)
        if not line:
            continue
        if not line.startswith("#"):
            if not fields:
                raise OttlRuntimeError("invalid ELF: data entry found before #Fields directive")
            values = elf_values(line)
            # A field without a value is "-"; values without a field are dropped.
            entries.append({name: values[index] if index < len(values) else "-" for index, name in enumerate(fields)})
            continue
        key, found, value = line[1:].partition(":")
        name = key.strip(SPACE).lower()
        if not found:
            if line[1:].strip(SPACE)[:6].lower() == "fields":
                raise OttlRuntimeError(
                    f"invalid ELF: malformed #Fields directive {quote(line)}: directive {quote(line)} has no colon "
                    "separator"
                )
        elif name == "fields":
            fields = value.split()
        elif name in _ELF_TEXTS:
            result[_ELF_TEXTS[name]] = value.strip(SPACE)
    if "elf.version" not in result:
        raise OttlRuntimeError("invalid ELF: missing #Version directive")
    result["elf.fields"] = list(fields)
    return result


_ELF_VALUE = re.compile(r'[ \t]*(?:"((?:[^"]|"")*)"|([^" \t][^ \t]*)|(".*))')


def elf_values(line: str) -> list[str]:
    """The values of an ELF data line: words, or text in quotes with its own quotes doubled."""
    values: list[str] = []
    for found in _ELF_VALUE.finditer(line):
        if found[3] is not None:
            raise OttlRuntimeError(f"invalid ELF: unterminated quoted value in data line: {quote(line)}")
        values.append(found[2] if found[1] is None else found[1].replace('""', '"'))
    return values
