"""Taking secrets out of text before it is shown, stored or sent.

Secrets are known by shape (keys of known services, tokens, credentials in URLs, private keys) and by name (`…_token=`,
`"password":`, the environment of a pod). A replacement is visible, and counted.

What is evidence stays: ranks, paths, commit hashes, addresses and ids of NCCL. So a name that ends like a secret's is
not enough before a word of prose (`invalid token: unexpected`), and settings of a tokenizer (`eos_token=…`) are none.
All expressions are RE2's: time is linear in the length of the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import re2

if TYPE_CHECKING:
    from tracecore.signals.record import LogSignal

MASK: Final = "[redacted]"
_MASK: Final = MASK.encode()
#: One byte of a secret in text whose offsets must not move: valid in JSON and UTF-8, and in no log.
HIDDEN: Final = b"\x7f"
_HIDDEN: Final = re2.compile(HIDDEN + b"+")
#: A JSON document larger than this is redacted as text only.
MAX_JSON: Final = 64 << 20

_NAME: Final = (
    r"(?:token|secret|passwd|password|passphrase|pwd|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|secret[_-]?key"
    r"|private[_-]?key|account[_-]?key|auth[_-]?key|shared[_-]?access[_-]?signature|credentials?|client[_-]?secret"
    r"|connection[_-]?string)"
)
#: (what it is, expression, which group is the secret, whether the value has to look like one).
SHAPES: Final = (
    ("url password", r"(?i)[a-z][a-z0-9+.-]{1,20}://([^\s/@:\"']{0,256}:[^\s/@\"']{1,512})@", 1, False),
    ("url token", r"(?i)[a-z][a-z0-9+.-]{1,20}://([^\s/@:\"']{16,256})@", 1, True),
    ("authorization", r"(?i)\b(?:bearer|basic|token|apikey)[\s:=]+\"?([a-z0-9._~+/-]{12,}=*)", 1, True),
    ("cookie", r"(?i)\bcookie[\"']?\s{0,3}[:=]\s{0,3}[\"']?([^\s\"'][^\r\n\"']{11,})", 1, False),
    ("aws key id", r"\b((?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16})\b", 1, False),
    ("hugging face token", r"\b(hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,})", 1, True),
    ("github token", r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})", 1, False),
    ("gitlab token", r"\b(gl(?:pat|dt|rt|cbt|ptt|soat)-[A-Za-z0-9_-]{16,})", 1, False),
    ("openai style key", r"\b(sk-(?:[a-z]{2,10}-)?[A-Za-z0-9_-]{20,})", 1, True),
    ("stripe key", r"\b([srp]k_(?:live|test)_[A-Za-z0-9]{16,})", 1, False),
    ("nvidia key", r"\b(nvapi-[A-Za-z0-9_-]{20,})", 1, False),
    ("package token", r"\b(npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|dckr_pat_[A-Za-z0-9_-]{16,})", 1, True),
    ("cloud token", r"\b(dapi[0-9a-f]{32}|dop_v1_[0-9a-f]{32,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,})", 1, False),
    ("slack token", r"\b(xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,})", 1, False),
    ("google key", r"\b(AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})", 1, False),
    ("age key", r"\b(AGE-SECRET-KEY-1[A-Z0-9]{20,})", 1, False),
    ("json web token", r"\b(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{4,})?)", 1, False),
    ("signed url", r"(?i)[?&](?:x-amz-[a-z-]+|x-goog-[a-z-]+|sig|signature|access_token|se|sv)=([^&\s\"'<>]{4,})", 1,
     False),
    ("webhook", r"(https://(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks"
     r"|[a-z0-9-]{1,63}\.webhook\.office\.com)/[A-Za-z0-9/_@.-]{10,})", 1, False),
)  # fmt: skip
_SHAPES: Final = tuple((re2.compile(text.encode()), group, random) for _, text, group, random in SHAPES)
_ASSIGNED: Final = re2.compile(
    rf"(?i)([a-z0-9_.-]{{0,64}}{_NAME})([\\]?[\"']?\]?\s{{0,3}}(?:=|:|\s--?)\s{{0,3}}[\\]?[\"']?)"
    rf"([^\s\"',;&)}}\]\\]{{6,}})".encode()
)
_FLAG: Final = re2.compile(rf"(?i)(--?[a-z0-9-]{{0,32}}{_NAME})([ =]+)([^\s\"']{{6,}})".encode())
#: Text with none of the names and marks holds no secret that is known here; without marks, only those with a name.
_NAMES: Final = (
    rb"token|secret|passw|passphrase|pwd|key|signature|credential|connection[_-]?string|bearer|basic|cookie|PRIVATE KEY"
)
_MARKS: Final = (
    rb"://|A(?:KIA|SIA|ROA|IDA)|hf_|api_org_|gh[pousr]_|github_pat|gl[a-z]{2,4}-|sk-|[srp]k_|nvapi-|npm_|pypi-|dckr_|dapi"
    rb"|dop_|sg\.|xox|xapp-|AIza|ya29|GOCSPX|eyJ|[?&](?:x-|si|se=|sv=|acc)|hooks\.|AGE-SECRET"
)
_ANY: Final = re2.compile(rb"(?i)" + _NAMES + rb"|" + _MARKS)
_MARKED: Final = re2.compile(rb"(?i)" + _MARKS)
_NAMED: Final = tuple(
    shape for (what, *_), shape in zip(SHAPES, _SHAPES, strict=True) if what in ("authorization", "cookie")
)
#: Names of settings that end in `token` and are no secret.
_HARMLESS: Final = re2.compile(
    rb"(?i)(?:pad|eos|bos|unk|sep|cls|mask|special|next|first|last|prompt|stop|per|num|max|min|image|new|added|n|bad"
    rb"|invalid|unexpected|unknown|expected|missing)[_ -]?(?:id[_-]?)?token$"
)
_BEGIN: Final = re2.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END: Final = re2.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_SECRET_NAME: Final = re2.compile(rf"(?i){_NAME}$".encode())
_SECRET_VARIABLE: Final = re2.compile(rf"(?i){_NAME}$|(?:^|_)(?:key|pat|pass|auth|cookie)$".encode())
_EXPRESSION: Final = re2.compile(rb"^[A-Za-z_][A-Za-z_.]*[(\[]|^[A-Za-z_]+(?:\.[A-Za-z_]+)+$")
_WORDS: Final = (
    b"none", b"null", b"true", b"false", b"invalid", b"expired", b"missing", b"required", b"redacted", b"undefined",
)  # fmt: skip


def redacted(text: str) -> str:
    """The text without secrets; the same text where there are none."""
    raw = text.encode("utf-8", "surrogatepass")
    if _ANY.search(raw) is None:
        return text
    redactor = Redactor()
    redactor.inside_key = _begins_inside_key(raw)
    clean = b"".join(redactor.line(line) for line in raw.splitlines(keepends=True))
    if not redactor.count:
        return text
    try:
        return clean.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return clean.decode("utf-8", "replace")


def hidden(raw: bytes) -> bytes:
    """Text in which every byte of a secret is `HIDDEN`: offsets and line breaks stay where they are."""
    if _ANY.search(raw) is None:
        return raw
    redactor = Redactor(keep_length=True, filler=HIDDEN)
    redactor.inside_key = _begins_inside_key(raw)
    lines = raw.splitlines(keepends=True)
    return b"".join(redactor.line(line) if redactor.inside_key or _ANY.search(line) else line for line in lines)


def _begins_inside_key(raw: bytes) -> bool:
    end, begin = _END.search(raw), _BEGIN.search(raw)
    return end is not None and (begin is None or begin.start() > end.start())


def unhidden(raw: bytes) -> bytes:
    """Text in which secrets were filled with `HIDDEN`, as it is shown."""
    return cast("bytes", _HIDDEN.sub(_MASK, raw)) if HIDDEN in raw else raw


def redacted_record(signal: LogSignal) -> LogSignal:
    """The record without secrets in its body and attributes; the same record where there are none."""
    log = signal.get("log")
    if not isinstance(log, dict):
        return signal
    body = log.get("body")
    changed: dict[str, Any] = {}
    if isinstance(body, str) and (clean := redacted(body)) is not body:
        changed["body"] = clean
    attributes: object = log.get("attributes")
    new = (
        {}
        if not isinstance(attributes, dict)
        else {
            name: clean
            for name, value in attributes.items()
            if isinstance(value, str) and len(value) > 8 and (clean := redacted(value)) is not value
        }
    )
    if new:
        changed["attributes"] = {**cast("dict[str, Any]", attributes), **new}
    return cast("LogSignal", {**signal, "log": {**log, **changed}}) if changed else signal


def redacted_command(words: list[str] | tuple[str, ...]) -> list[str]:
    """A command line without secrets, those that follow their flag as a word of its own included."""
    clean = [redacted(word) for word in words]
    for number, word in enumerate(words[1:], 1):
        before = words[number - 1]
        if before.startswith("-") and "=" not in before and is_secret_name(before) and not word.startswith("-"):
            clean[number] = MASK
    return clean


def redacted_document(value: Any, depth: int = 0) -> Any:
    """A document of plain data (a verdict, a diagnosis) without secrets in its texts."""
    if isinstance(value, str):
        return redacted(value)
    if depth > 100:
        return MASK
    if isinstance(value, dict):
        return {name: redacted_document(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_document(item, depth + 1) for item in value]
    return value


def is_secret_name(name: str) -> bool:
    """Return whether the value of a setting or an environment variable of this name is a secret."""
    raw = name.encode("utf-8", "replace")
    return _SECRET_VARIABLE.search(raw) is not None and not _HARMLESS.search(raw)


#: Lines that were searched and have no secret: the frames of a traceback come again and again. All are forgotten when
#: there are so many; longer lines are not remembered.
MAX_CLEAN: Final = 8192
MAX_CLEAN_LINE: Final = 256
_CLEAN: Final[set[bytes]] = set()


class Redactor:
    """Takes secrets out of lines, and remembers how many.

    Args:
        keep_length: put as many bytes back as were taken out, for files whose offsets matter (a pickle).
        filler: the byte that is put back then.
    """

    def __init__(self, *, keep_length: bool = False, filler: bytes = b"x") -> None:
        self.count = 0
        #: The lines are those of a private key.
        self.inside_key = False
        self._keep_length = keep_length
        self._filler = filler

    def line(self, line: bytes) -> bytes:
        """One line, its end included. Lines of a private key are emptied until it ends."""
        if self.inside_key:
            self.inside_key = (end := _END.search(line)) is None
            self.count += 1
            text = line.rstrip(b"\r\n") if end is None else line[: end.end()]
            return self._mask(text) + line[len(text) :]
        if line in _CLEAN or _ANY.search(line) is None:
            return line
        whole = line
        if b"-----BEGIN " in line and (begin := _BEGIN.search(line)) is not None:
            self.count += 1
            end = _END.search(line)
            self.inside_key = end is None
            stop = end.end() if end is not None else len(line.rstrip(b"\r\n"))
            line = line[: begin.start()] + self._mask(line[begin.start() : stop]) + line[stop:]
        for pattern, group, random in _NAMED if _MARKED.search(line) is None else _SHAPES:
            line = self._replace(pattern, group, line, random=random)
        if b"=" in line or b":" in line or b"--" in line:
            line = self._replace(_ASSIGNED, 3, line, named=True)
            line = self._replace(_FLAG, 3, line, named=True)
        if line is whole and len(line) <= MAX_CLEAN_LINE:
            if len(_CLEAN) >= MAX_CLEAN:
                _CLEAN.clear()
            _CLEAN.add(line)
        return line

    def _replace(self, pattern: Any, group: int, line: bytes, *, random: bool = False, named: bool = False) -> bytes:
        parts: list[bytes] = []
        at = 0
        for match in pattern.finditer(line):
            value = match.group(group)
            if _MASK in value or value == b"redacted" or set(value) <= {ord("x")} or set(value) <= {ord("*")}:
                continue
            if random and not _looks_random(value):
                continue
            if named and not _is_secret(match.group(1), value, quoted=_assigns(match.group(2))):
                continue
            start, stop = match.span(group)
            parts += [line[at:start], self._mask(value)]
            at = stop
            self.count += 1
        return b"".join((*parts, line[at:])) if parts else line

    def _mask(self, value: bytes) -> bytes:
        return self._filler * len(value) if self._keep_length else _MASK

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
        if (
            isinstance(name, str)
            and isinstance(value.get("value"), str)
            and _SECRET_NAME.search(name.encode("utf-8", "replace"))
        ):
            self.count += 1
            value = {**value, "value": MASK}
        return {key: self._member(str(key), item, depth) for key, item in value.items()}

    def _member(self, key: str, item: Any, depth: int) -> Any:
        name = key.encode("utf-8", "replace")
        secret = (
            isinstance(item, str) and item != MASK and _is_secret(name, item.encode("utf-8", "replace"), quoted=True)
        )
        if secret and _SECRET_NAME.search(name):
            self.count += 1
            return MASK
        return self._walk(item, depth + 1)


def _assigns(between: bytes) -> bool:
    """Return whether this stands between a name and its value in code and configuration; `: ` alone may be prose."""
    return b"=" in between or b"-" in between or b'"' in between or b"'" in between


def _looks_random(value: bytes) -> bool:
    """Words of a language and names of modules have no digits among letters and no capitals inside."""
    text = value.rstrip(b"=")
    digits = sum(48 <= byte <= 57 for byte in text)
    letters = sum(65 <= byte <= 90 or 97 <= byte <= 122 for byte in text)
    capitals = sum(65 <= byte <= 90 for byte in text[1:])
    if digits and letters:
        return digits + capitals >= 3
    return capitals >= 3 and letters - capitals >= 3


def _is_secret(name: bytes, value: bytes, *, quoted: bool) -> bool:
    """A name that ends like a secret's may be a number or a tokenizer's setting all the same."""
    if _HARMLESS.search(name) or value.startswith((b"<", b"$", b"%", b"[", b"{", b"(")):
        return False
    plain = value.replace(b".", b"").replace(b"_", b"")
    if plain.isdigit() or value.lower().rstrip(b".!") in _WORDS:
        return False
    if value.startswith((b"/", b"./", b"~/")) or _EXPRESSION.search(value):
        # Where a secret is kept is no secret, and code is none.
        return False
    return quoted or name.lower().endswith((b"word", b"passwd", b"pwd", b"phrase")) or _looks_random(value)
