"""Fingerprints: the same for the same kind of failure, whatever job, node, step or process it struck.

Numbers, addresses, paths, identifiers and quoted values are taken out of what an incident says before it is hashed.
The version is part of a fingerprint: when the rules change, old and new incidents are not mixed up.
"""

from __future__ import annotations

import hashlib
from typing import Final

import re2

VERSION: Final = 1
#: More than any headline has; the rest says nothing new.
LONGEST: Final = 2_000

#: In this order: what is taken out, and what stands in its place.
_RULES: Final = tuple(
    (re2.compile(expression), word)
    for expression, word in (
        # These numbers are names.
        (r"\b(S?Xid|exit status|exit code|[Ee]rrno|HTTP|status) (\d+)\b", r"\1_\2"),
        (r"https?://\S+|\b(?:s3|gs|hf|file)://\S+", "<url>"),
        (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b", "<id>"),
        (r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b", "<gpu>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?:<\d+>)?", "<address>"),
        (r"(?:~|\.{1,2})?(?:/[\w.+@:-]+){2,}/?", "<path>"),
        (r"\b0x[0-9a-fA-F]+\b", "<number>"),
        (r"\b[0-9a-f]{12,64}\b", "<id>"),
        (r'"[^"\n]{0,200}"|\x27[^\x27\n]{0,200}\x27|`[^`\n]{0,200}`', "<value>"),
        (r"\b[Rr]anks? \d+(?:(?:, | and )\d+)*", "<ranks>"),
        (r"\b[\w.]*[a-zA-Z][\w]*-\d[\w-]*\b", "<name>"),
        (r"[-+]?\b\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?(?: ?(?:[kKMGT]i?)?B| ?m?s| ?h| ?%)?\b", "<number>"),
        (r"\s+", " "),
    )
)


def normalised(reason: str) -> str:
    """Return what was said without what differs between two cases of the same thing."""
    text = reason[:LONGEST]
    for expression, word in _RULES:
        text = expression.sub(word, text)
    return text.strip()


def fingerprint(pattern: str, reason: str) -> str:
    """Return the fingerprint of a failure.

    Args:
        pattern: the name of the root cause; empty where none was found.
        reason: what is said about it, in words.
    """
    digest = hashlib.blake2b(f"{pattern}\x00{normalised(reason)}".encode("utf-8", "replace"), digest_size=6)
    return f"v{VERSION}-{pattern or 'unexplained'}-{digest.hexdigest()}"
