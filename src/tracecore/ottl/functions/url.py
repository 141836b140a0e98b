"""URLs, taken apart and put together by the rules of Go's `net/url`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.signature import String, value_converter
from tracecore.ottl.values import Value, quote

_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)
_HOST_ESCAPE = re.compile(r"%(?!25)[0-7][0-9a-fA-F]")  # in a host only bytes of other scripts may be escaped
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_USERINFO = re.compile(r"[a-zA-Z0-9\-._:~!$&'()*+,;=%@]*")
_PORT = re.compile(r":[0-9]*")

# What each part may hold unescaped, letters, digits and `-_.~` apart.
_PATH = "$&+,/:;=@"
_FRAGMENT = "$&+,/:;=?@!()*"
_USER = "$&+,;="
_HOST = "!$&'()*+,;=:[]<>\""
_PATH_AS_GIVEN = re.compile(r"[a-zA-Z0-9\-_.~$&+,/:;=@!'()*%\[\]]*")


@value_converter("URL")
def url(uri: String) -> dict[str, Value]:
    """The parts of a URL as a map of `url.*` attributes."""
    if not uri:
        raise OttlRuntimeError("url cannot be empty")
    return _query(uri[1:]) if uri.startswith("?") else _attributes(parse(uri))


@dataclass(slots=True)
class Url:
    """A parsed URL. `path` and `fragment` are unescaped; `raw_path` is the given one where escaping would differ."""

    scheme: str = ""
    opaque: str = ""
    user: str | None = None
    password: str | None = None
    host: str = ""
    path: str = ""
    raw_path: str = ""
    query: str = ""
    force_query: bool = False
    omit_host: bool = False
    fragment: str = ""
    raw_fragment: str = ""

    def userinfo(self) -> str:
        """`user:password`, escaped."""
        text = _escape(self.user or "", _USER)
        return text if self.password is None else f"{text}:{_escape(self.password, _USER)}"

    def __str__(self) -> str:
        text = f"{self.scheme}:" if self.scheme else ""
        if self.opaque:
            text += self.opaque
        else:
            user = self.user is not None
            if (self.scheme or self.host or user) and not (self.omit_host and not self.host and not user):
                text += "//" if self.host or self.path or user else ""
                text += f"{self.userinfo()}@" if user else ""
                text += _escape(self.host, _HOST)
            path = self._escaped_path()
            if path and path[0] != "/" and self.host:
                text += "/"
            if not text and ":" in path.partition("/")[0]:
                text += "./"
            text += path
        if self.force_query or self.query:
            text += f"?{self.query}"
        if self.fragment:
            text += f"#{self.raw_fragment or _escape(self.fragment, _FRAGMENT)}"
        return text

    def _escaped_path(self) -> str:
        if self.raw_path and _PATH_AS_GIVEN.fullmatch(self.raw_path):
            return self.raw_path
        return "*" if self.path == "*" else _escape(self.path, _PATH)


def parse(text: str) -> Url:
    """A URL or a reference to one."""
    body, _, fragment = text.partition("#")
    if any(char < " " or char == "\x7f" for char in text):
        raise _failed(text, "net/url: invalid control character in URL")
    parsed = Url()
    if body == "*":
        parsed.path = "*"
        return parsed
    if body.startswith(":"):
        raise _failed(text, "missing protocol scheme")
    scheme = _SCHEME.match(body)
    if scheme:
        parsed.scheme = scheme[0][:-1].lower()
    rest = body[scheme.end() :] if scheme else body
    if rest.endswith("?") and rest.count("?") == 1:
        parsed.force_query, rest = True, rest[:-1]
    else:
        rest, _, parsed.query = rest.partition("?")
    if not rest.startswith("/") and parsed.scheme:
        parsed.opaque = rest
    else:
        if not rest.startswith("/") and ":" in rest.partition("/")[0]:
            raise _failed(text, "first path segment in URL cannot contain colon")
        if rest.startswith("//") and (parsed.scheme or not rest.startswith("///")):
            authority, slash, tail = rest[2:].partition("/")
            rest = slash + tail
            _authority(parsed, authority, text)
        elif parsed.scheme and rest.startswith("/"):
            parsed.omit_host = True
        parsed.path = _unescape(rest, text)
        parsed.raw_path = "" if _escape(parsed.path, _PATH) == rest else rest
    if fragment:
        parsed.fragment = _unescape(fragment, text)
        parsed.raw_fragment = "" if _escape(parsed.fragment, _FRAGMENT) == fragment else fragment
    return parsed


def _authority(parsed: Url, authority: str, text: str) -> None:
    userinfo, at, host = authority.rpartition("@")
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            raise _failed(text, "missing ']' in host")
        _check_port(host[end + 1 :], text)
    elif ":" in host:
        _check_port(host[host.rindex(":") :], text)
    for char in host:
        if char.isascii() and not char.isalnum() and char not in _HOST + "-_.~%":
            raise _failed(text, f"invalid character {quote(char)} in host name")
    for escape in _HOST_ESCAPE.findall(host):
        raise _failed(text, f"invalid URL escape {quote(escape)}")
    parsed.host = _unescape(host, text)
    if at:
        if not _USERINFO.fullmatch(userinfo):
            raise _failed(text, "net/url: invalid userinfo")
        name, colon, password = userinfo.partition(":")
        parsed.user = _unescape(name, text)
        parsed.password = _unescape(password, text) if colon else None


def _check_port(port: str, text: str) -> None:
    if port and not _PORT.fullmatch(port):
        raise _failed(text, f"invalid port {quote(port)} after host")


def _unescape(part: str, text: str) -> str:
    if "%" not in part:
        return part
    if bad := _BAD_ESCAPE.search(part):
        raise _failed(text, f"invalid URL escape {quote(bad[0])}")
    return unquote_to_bytes(part.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _escape(part: str, safe: str) -> str:
    return quote_from_bytes(part.encode("utf-8", "surrogateescape"), safe)


def _failed(text: str, reason: str) -> OttlRuntimeError:
    return OttlRuntimeError(f"parse {quote(text)}: {reason}")


def _attributes(parsed: Url) -> dict[str, Value]:
    host, port = _split_port(parsed.host)
    found: dict[str, Value] = {
        "url.original": str(parsed),
        "url.domain": host,
        "url.scheme": parsed.scheme,
        "url.path": parsed.path,
    }
    if port:
        if len(port.lstrip("0")) > 18:
            raise OttlRuntimeError(f"strconv.Atoi: parsing {quote(port)}: value out of range")
        found["url.port"] = int(port)
    if parsed.fragment:
        found["url.fragment"] = parsed.fragment
    if parsed.user is not None:
        found["url.user_info"] = parsed.userinfo()
        if parsed.user:
            found["url.username"] = parsed.user
        if parsed.password is not None:
            found["url.password"] = parsed.password
    if parsed.query:
        found["url.query"] = parsed.query
    _, dot, extension = parsed.path.rpartition(".")
    if dot and extension:
        found["url.extension"] = extension
    return found


def _split_port(host: str) -> tuple[str, str]:
    if host.startswith("["):
        end = host.rfind("]")
        return host[1:end], host[end + 2 :]
    name, colon, port = host.rpartition(":")
    return (name, port) if colon else (host, "")


def _query(text: str) -> dict[str, Value]:
    """A query alone: under `query`, a list of the values of each of its keys."""
    found: dict[str, Value] = {}
    for pair in text.split("&"):
        if ";" in pair:
            raise OttlRuntimeError("invalid semicolon separator in query")
        if not pair:
            continue
        key, _, value = pair.partition("=")
        for part in (key, value):
            if bad := _BAD_ESCAPE.search(part):
                raise OttlRuntimeError(f"invalid URL escape {quote(bad[0])}")
        values = found.setdefault(_unescape(key.replace("+", " "), text), [])
        values.append(_unescape(value.replace("+", " "), text))
    return {"query": found} if found else {}
