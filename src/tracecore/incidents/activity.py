"""Activity of a rank before it stopped coming, where its own last lines tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import re2

if TYPE_CHECKING:
    from collections.abc import Sequence

_RETRYING: Final = re2.compile(r"(?i)\bretr(?:y|ying|ies)\b|\battempt \d+ ?(?:/|of) ?\d+")
#: Tried in this order on the last line, then on the one before it.
_ACTIVITIES: Final = (
    (re2.compile(r"(?i)\b(?:validat|evaluat)(?:e|ing|ion)\b|\b(?:eval|val)\b[ :|]"), "was in validation"),
    (re2.compile(r"(?i)\b(?:sav(?:e|ing)|writ(?:e|ing)|upload(?:ing)?)\b.*\b(?:checkpoint|ckpt|state)"), "was saving"),
    (re2.compile(r"(?i)\bcheckpoint(?:ing)?\b.*\b(?:sav(?:e|ing)|writ(?:e|ing)|begin|start)"), "was saving"),
    (re2.compile(r"(?i)\b(?:download|fetch|pull)(?:ing)?\b|\bGET\b|\b(?:s3|gs|hf|https?)://"), "was downloading"),
    (re2.compile(r"(?i)\b(?:tokeniz|preprocess|load)ing\b|\b(?:data ?loader|dataset|shard)\b"), "was loading data"),
    (re2.compile(r"(?i)\bcompil(?:e|ing|ation)\b|\b(?:autotun|inductor|triton)"), "was compiling"),
    (re2.compile(r"(?i)\bwaiting (?:for|on)\b|\block(?:ed|file)?\b"), "was waiting for something of its own"),
)


def activity(lines: Sequence[str]) -> str | None:
    """`was downloading, with retries`; None where the lines are steps like any other."""
    for line in reversed(lines):
        for words, doing in _ACTIVITIES:
            if words.search(line):
                return f"{doing}, with retries" if _RETRYING.search(line) else doing
        if _RETRYING.search(line):
            return "was trying something again and again"
    return None
