"""Taking secrets out of text before it is handed to somebody else.

It is done by shape (keys of known services, tokens, credentials in URLs, private keys) and by name (`…_token=`,
`"password":`, the environment of a pod). What looks like a setting of a tokenizer is left alone: a bundle that says
`eos_token=…` is still readable. Replacement is visible, and counted.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import re2

MASK: Final = "[redacted]"
#: A JSON document larger than this is redacted as text only.
MAX_JSON: Final = 64 << 20

_NAME: Final = (
    r"(?:token|secret|passwd|password|passphrase|pwd|api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key"
    r"|private[_-]?key|account[_-]?key|auth[_-]?key|credentials?|client[_-]?secret|connection[_-]?string)"
)
#: (what it is, expression, which group is the secret).
SHAPES: Final = (
    ("url credentials", r"(?i)[a-z][a-z0-9+.-]{1,20}://([^\s/@:\"']{1,256}(?::[^\s/@\"']{0,512})?)@", 1),
    ("authorization header", r"(?i)\b(?:bearer|basic|token)\s+([a-z0-9._~+/-]{12,}=*)", 1),
    ("aws key id", r"\b((?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16})\b", 1),
    ("hugging face token", r"\b(hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,})", 1),
    ("github token", r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})", 1),
    ("gitlab token", r"\b(glpat-[A-Za-z0-9_-]{16,})", 1),
    ("openai style key", r"\b((?:sk|pk|rk)-(?:[a-z]{2,10}-)?[A-Za-z0-9_-]{20,})", 1),
    ("slack token", r"\b(xox[abeoprs]-[A-Za-z0-9-]{10,})", 1),
    ("google key", r"\b(AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,})", 1),
    ("json web token", r"\b(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,})", 1),
    ("signed url", r"(?i)[?&](?:x-amz-[a-z-]+|x-goog-[a-z-]+|sig|signature|access_token|se|sv)=([^&\s\"'<>]{4,})", 1),
    ("webhook", r"(https://hooks\.slack\.com/services/[A-Za-z0-9/]{10,})", 1),
)
_SHAPES: Final = tuple((re2.compile(text.encode()), group) for _, text, group in SHAPES)
_ASSIGNED: Final = re2.compile(
    rf"(?i)([a-z0-9_.-]{{0,64}}{_NAME})[\"']?\s{{0,3}}(?:=|:|\s--?)\s{{0,3}}[\"']?([^\s\"',;&)}}\]]{{6,}})".encode()
)
_FLAG: Final = re2.compile(rf"(?i)(--?[a-z0-9-]{{0,32}}{_NAME})[ =]+([^\s\"']{{6,}})".encode())
#: Names of settings that end in `token` and are no secret.
_HARMLESS: Final = re2.compile(
    rb"(?i)(?:pad|eos|bos|unk|sep|cls|mask|special|next|first|last|prompt|stop|per|num|max|min|image|new|added|n)[_-]?"
    rb"(?:id[_-]?)?token$"
)
_BEGIN: Final = re2.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_END: Final = re2.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_SECRET_NAME: Final = re2.compile(rf"(?i){_NAME}$")


class Redactor:
    """Takes secrets out of lines, and remembers how many.

    Args:
        keep_length: put as many bytes back as were taken out, for files whose offsets matter (a pickle).
    """

    def __init__(self, *, keep_length: bool = False) -> None:
        self.count = 0
        self._keep_length = keep_length
        self._inside_key = False

    def line(self, line: bytes) -> bytes:
        """One line, its end included. Lines of a private key are emptied until it ends."""
        if self._inside_key:
            self._inside_key = _END.search(line) is None
            return self._mask(line.rstrip(b"\r\n")) + line[len(line.rstrip(b"\r\n")) :]
        if b"-----BEGIN " in line and (begin := _BEGIN.search(line)) is not None:
            self.count += 1
            end = _END.search(line)
            self._inside_key = end is None
            stop = end.end() if end is not None else len(line.rstrip(b"\r\n"))
            line = line[: begin.start()] + self._mask(line[begin.start() : stop]) + line[stop:]
        for pattern, group in _SHAPES:
            line = self._replace(pattern, group, line)
        if b"=" in line or b":" in line or b"--" in line:
            line = self._replace(_ASSIGNED, 2, line, named=True)
            line = self._replace(_FLAG, 2, line, named=True)
        return line

    def _replace(self, pattern: Any, group: int, line: bytes, named: bool = False) -> bytes:
        parts: list[bytes] = []
        at = 0
        for match in pattern.finditer(line):
            value = match.group(group)
            if MASK.encode() in value or set(value) <= {ord("x")} or (named and not _is_secret(match.group(1), value)):
                continue
            start, stop = match.span(group)
            parts += [line[at:start], self._mask(value)]
            at = stop
            self.count += 1
        return b"".join((*parts, line[at:])) if parts else line

    def _mask(self, value: bytes) -> bytes:
        return b"x" * len(value) if self._keep_length else MASK.encode()

    def document(self, raw: bytes) -> bytes:
        """A JSON document: values by the names of their keys, environment variables by theirs; else as text."""
        try:
            found = msgspec.json.decode(raw) if len(raw) <= MAX_JSON else None
        except (msgspec.DecodeError, RecursionError):
            found = None
        if isinstance(found, dict | list):
            raw = msgspec.json.format(msgspec.json.encode(self._walk(found, 0)), indent=1) + b"\n"
        return b"".join(self.line(line) for line in raw.splitlines(keepends=True))

    def _walk(self, value: Any, depth: int) -> Any:
        if depth > 200:
            return MASK
        if isinstance(value, list):
            return [self._walk(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        name = value.get("name")
        if isinstance(name, str) and isinstance(value.get("value"), str) and _SECRET_NAME.search(name):
            self.count += 1
            value = {**value, "value": MASK}
        return {key: self._member(str(key), item, depth) for key, item in value.items()}

    def _member(self, key: str, item: Any, depth: int) -> Any:
        secret = isinstance(item, str) and item != MASK and _is_secret(key.encode(), item.encode())
        if secret and _SECRET_NAME.search(key):
            self.count += 1
            return MASK
        return self._walk(item, depth + 1)


def _is_secret(name: bytes, value: bytes) -> bool:
    """A name that ends like a secret's may be a number or a tokenizer's setting all the same."""
    if _HARMLESS.search(name) or value.startswith((b"<", b"$", b"%", b"[", b"{", b"(")):
        return False
    plain = value.replace(b".", b"").replace(b"_", b"")
    return not plain.isdigit() and value.lower() not in (b"none", b"null", b"true", b"false", b"invalid", b"expired")
