"""Bounds against hostile input. Reaching a bound is an error of the statement, never a silent cut."""

from __future__ import annotations

#: Characters of a text that a function makes out of smaller ones.
MAX_TEXT = 64 * 1024 * 1024

#: How deep a parsed document may nest. Upstream stops at 10,000; Python's own stack is smaller.
MAX_DEPTH = 200

#: Elements of a parsed XML document. An XPath may look at all of them for each of them.
MAX_NODES = 50_000

#: Bytes a pad, width or precision of `Format` may ask for.
MAX_WIDTH = 1_000_000
