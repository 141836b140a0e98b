"""Text of others on our standard error: nothing in it moves a cursor, turns around, or passes for a line of ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MASK: Final = "[redacted]"
#: A shorter word of a header is taken to be no secret (`Bearer`, `Basic`).
MIN_SECRET: Final = 8

#: Control characters, marks that change the direction of text, separators of lines and paragraphs.
_CODES: Final = (
    *(code for code in range(0x20) if code != 0x09),
    *range(0x7F, 0xA0),
    0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
)  # fmt: skip
_TEXT: Final = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CODES}
_JSON: Final = {code: f"\\u{code:04x}" for code in _CODES if code >= 0x20}


def visible(text: str) -> str:
    """Each control character written out, line breaks too."""
    return text.translate(_TEXT)


def indented(text: str) -> str:
    """The same, but lines stay lines: only the first begins where a line of a log begins."""
    return "\n    ".join(visible(line) for line in text.split("\n"))


def visible_json(text: str) -> str:
    """The same for a JSON document on one line, which says the same afterwards."""
    return text.translate(_JSON)


def discreet(text: str, headers: Iterable[str]) -> str:
    """The text without what headers say: a server may repeat in its error what it was sent.

    Args:
        headers: values; each word of them counts.
    """
    words = {word for value in headers for word in value.split() if len(word) >= MIN_SECRET}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, MASK)
    return text
