"""Text of others on a page: nothing in it may hide, turn around or pretend to be something else."""

from __future__ import annotations

from typing import Final

import re2
from markupsafe import Markup

#: Colours of a terminal say nothing on a page.
_COLOURS: Final = re2.compile(r"\x1b\[[0-9;]{0,32}m")
#: Characters that show nothing, or change how others are shown.
_HIDDEN: Final = (
    0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x3164, 0xFEFF, 0xFFA0,
    *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)  # fmt: skip
_VISIBLE: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: "␡",
    **{code: f"⟨U+{code:04X}⟩" for code in (*range(0x80, 0xA0), *_HIDDEN)},
}


def visible(text: str) -> str:
    """Text in which control characters are seen and bidirectional marks do nothing; tabs and line ends stay."""
    if text.isascii() and text.isprintable():
        return text
    return str(_COLOURS.sub("", text.replace("\r\n", "\n"))).translate(_VISIBLE)


def finalize(value: object) -> object:
    """Applied by Jinja to everything a template writes, before it escapes it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return "" if value is None else value
    return visible(value)
