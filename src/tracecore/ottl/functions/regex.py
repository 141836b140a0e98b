"""Regular expressions as Go's `regexp` has them, run by RE2. Bytes that are no UTF-8 match as U+FFFD."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import re2

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.signature import StringGetter, prepared
from tracecore.ottl.values import quote

#: Longer patterns are refused: compiling costs time and memory in proportion, and patterns may come from the record.
MAX_PATTERN = 64 * 1024

#: Bytes that the automaton of several expressions may take.
MAX_SET = 1 << 20

_ANYWHERE = re2._re2.RE2.Anchor.UNANCHORED
_NOWHERE = (-1, -1)
_SURROGATES = dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")


def _options(*, capture: bool = True, memory: int = 0) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not capture
    if memory:
        options.max_mem = memory
    return options


def _compile(text: str) -> Any:
    try:
        return re2.compile(text, options=_options())
    except re2.error as error:
        raise ValueError(_reason(error)) from None
    except UnicodeEncodeError:
        raise ValueError("invalid UTF-8") from None


class CompiledRegex:
    """A compiled expression. Texts may hold undecodable bytes as lone surrogates (`surrogateescape`)."""

    __slots__ = ("_find", "_regex", "_test", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_PATTERN:
            raise ValueError(f"pattern is longer than {MAX_PATTERN} characters")
        if (message := _only_in_cpp(text)) is not None:
            raise ValueError(message)
        self._regex: Any = _compile(text)
        # The layer of Python around RE2 costs more than most matches, so what is asked often goes past it.
        self._find = self._regex._regexp.Match
        #: The name of each group, by number; empty for a group without one. Index 0 is the whole match.
        self.names: tuple[str, ...] = ("", *group_names(text))
        self._test: Callable[[bytes], object] | None = None

    def matches(self, text: str) -> bool:
        """Whether the expression matches anywhere in the text."""
        test = self._test
        return bool((self.test if test is None else test)(_data(text)))

    @property
    def test(self) -> Callable[[bytes], object]:
        """Return a function that is true for a UTF-8 text in which the expression matches anywhere."""
        if self._test is None:
            # A set, be it of one expression, finds out whether it matches and not where.
            alone = re2._re2.Set(_ANYWHERE, _options(capture=False))
            alone.Add(self.text.encode())
            # Its automaton is all it has: where there is too little memory for that it must not be asked.
            self._test = alone.Match if alone.Compile() else self._found
        return self._test

    def _found(self, data: bytes) -> bool:
        return bool(self._find(_ANYWHERE, data, 0, len(data))[0] != _NOWHERE)

    def search(self, text: str) -> list[tuple[int, int]] | None:
        """The spans of the first match and of its groups; (-1, -1) for a group that took no part."""
        if text.isascii():
            data = text.encode()
            spans: list[tuple[int, int]] = self._find(_ANYWHERE, data, 0, len(data))
            return None if spans[0] == _NOWHERE else spans
        found = self._regex.search(_valid(text))
        return None if found is None else _spans(found)

    def captures(self, text: str) -> dict[str, str]:
        """Return the captures of the named groups of the first match; nothing if there is no match.

        Of two groups of one name the later one counts. A group that took no part captured the empty text.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError:
            found = self.search(text) or ()
            return {name: text[start:end] for name, (start, end) in zip(self.names, found, strict=False) if name}
        spans = self._find(_ANYWHERE, data, 0, len(data))
        if spans[0] == _NOWHERE:
            return {}
        # The empty text is also what lies between -1 and -1.
        return {name: data[start:end].decode() for name, (start, end) in zip(self.names, spans, strict=True) if name}

    def all(self, text: str) -> Iterator[list[tuple[int, int]]]:
        """Every match, without the empty ones that abut the match before them."""
        previous = -1
        for match in self._regex.finditer(_valid(text)):
            start, end = match.span()
            if start == end == previous:
                continue
            previous = end
            yield _spans(match)

    def replace_all(self, text: str, template: str) -> str:
        """Go's `ReplaceAllString`."""
        plain = "$" not in template
        pieces: list[str] = []
        last = 0
        for spans in self.all(text):
            start, end = spans[0]
            pieces.append(text[last:start])
            pieces.append(template if plain else self.expand(template, text, spans))
            last = end
        if not pieces:
            return text
        pieces.append(text[last:])
        return "".join(pieces)

    def expand(self, template: str, text: str, spans: list[tuple[int, int]]) -> str:
        """A replacement with `$1`, `$name`, `${name}` and `$$` filled in, by the rules of Go's `Regexp.Expand`."""
        pieces: list[str] = []
        position = 0
        while (dollar := template.find("$", position)) >= 0:
            pieces.append(template[position:dollar])
            if template.startswith("$", dollar + 1):
                pieces.append("$")
                position = dollar + 2
                continue
            name, end = _variable(template, dollar)
            if not name:
                pieces.append("$")
                position = dollar + 1
                continue
            position = end
            pieces.append(self._group(name, text, spans))
        pieces.append(template[position:])
        return "".join(pieces)

    def _group(self, name: str, text: str, spans: list[tuple[int, int]]) -> str:
        if name.isascii() and name.isdigit() and len(name) <= 8 and (name == "0" or name[0] != "0"):
            start, end = spans[int(name)] if int(name) < len(spans) else (-1, -1)
            return text[start:end] if start >= 0 else ""
        for index, known in enumerate(self.names):
            if known == name and spans[index][0] >= 0:
                return text[slice(*spans[index])]
        return ""


def _data(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.translate(_SURROGATES).encode()


def _valid(text: str) -> str:
    """A text with U+FFFD in the place of undecodable bytes; its characters are where they were."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.translate(_SURROGATES)
    return text


def _spans(match: Any) -> list[tuple[int, int]]:
    return [match.span(index) for index in range(match.re.groups + 1)]


def _variable(template: str, dollar: int) -> tuple[str, int]:
    start = dollar + 1
    brace = template.startswith("{", start)
    start += brace
    end = start
    while end < len(template) and (template[end] == "_" or template[end].isalpha() or template[end].isdecimal()):
        end += 1
    if end == start or (brace and not template.startswith("}", end)):
        return "", dollar
    return template[start:end], end + brace


def _reason(error: re2.error) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """(offset, what) for each escape (`\\`) and group opening (`(`) that is not inside a class or a quotation."""
    position, size = 0, len(text)
    while position < size:
        char = text[position]
        if char == "\\":
            if text.startswith("\\Q", position):
                end = text.find("\\E", position)
                position = size if end < 0 else end + 2
                continue
            yield position, "\\"
            position += 2
        elif char == "[":
            position = _class_end(text, position)
        else:
            if char == "(":
                yield position, "("
            position += 1


def _class_end(text: str, position: int) -> int:
    position += 1
    position += text.startswith("^", position)
    position += text.startswith("]", position)
    while position < len(text) and text[position] != "]":
        if text.startswith("[:", position) and (end := text.find(":]", position + 2)) >= 0:
            position = end + 2
        else:
            position += 2 if text[position] == "\\" else 1
    return position + 1


def group_names(text: str) -> list[str]:
    """The names of an expression's capture groups in their order. A name may occur twice, as Go allows."""
    names: list[str] = []
    for offset, what in _tokens(text):
        if what != "(":
            continue
        for opening in ("(?P<", "(?<"):
            if text.startswith(opening, offset):
                names.append(text[offset + len(opening) : text.find(">", offset)])
                break
        else:
            if not text.startswith("(?", offset):
                names.append("")
    return names


def _only_in_cpp(text: str) -> str | None:
    # \C (one byte) exists in RE2's C++ and not in Go; a recipe that uses it would not load in the Collector.
    for offset, what in _tokens(text):
        if what == "\\" and text.startswith("\\C", offset):
            return "error parsing regexp: invalid escape sequence: `\\C`"
    return None


@lru_cache(maxsize=512)
def compiled(text: str) -> CompiledRegex:
    """A compiled pattern, from a small cache: patterns that come from records repeat."""
    return CompiledRegex(text)


def compile_for(function: str, text: str) -> CompiledRegex:
    """A compiled pattern, or an error that names the function it was given to."""
    try:
        return compiled(text)
    except ValueError as error:
        raise OttlRuntimeError(
            f"the regex pattern supplied to {function} '{quote(text)}' is not a valid pattern: {error}"
        ) from error


def together(function: str, texts: Sequence[str]) -> Callable[[bytes], list[int]]:
    """Return a function that gives the places of those expressions that match a UTF-8 text.

    Args:
        function: what they were given to, for messages.
        texts: the expressions.
    """
    several = re2._re2.Set(_ANYWHERE, _options(capture=False, memory=MAX_SET))
    if all(_only_in_cpp(text) is None and several.Add(text.encode()) >= 0 for text in texts) and several.Compile():
        return several.Match  # type: ignore[no-any-return]
    tests = [compile_for(function, text).test for text in texts]
    return lambda data: [place for place, test in enumerate(tests) if test(data)]


def dynamic(function: str, getter: StringGetter) -> Callable[[Context], CompiledRegex]:
    """Return a function that gives the pattern of an argument."""
    return prepared(getter, lambda text: compile_for(function, text))
