"""A runbook's text as HTML: paragraphs, lists, tables and code."""

from __future__ import annotations

import pytest

from tracecore.incidents.prose import paragraphs

TABLE = '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr>'


@pytest.mark.parametrize(
    ("body", "html"),
    [
        ("", []),
        ("one\ntwo", ["<p>one two</p>"]),
        ("one\n\ntwo", ["<p>one</p>", "<p>two</p>"]),
        ("a < b & *c* **d** `e*f`", ["<p>a &lt; b &amp; <em>c</em> <strong>d</strong> <code>e*f</code></p>"]),
        # Lists, with lines that go on, and after an introduction.
        ("- one\n  more\n- two", ["<ul><li>one more</li><li>two</li></ul>"]),
        ("1. one\n2. two", ["<ol><li>one</li><li>two</li></ol>"]),
        ("Do:\n- one\n- two", ["<p>Do:</p>", "<ul><li>one</li><li>two</li></ul>"]),
        ("Do\nthis:\n- one", ["<p>Do this:</p>", "<ul><li>one</li></ul>"]),
        # Tables without the line below their head.
        (
            "| a | b |\n|---|:--|\n| 1 | `2` |",
            [TABLE, "<th>a</th><th>b</th></tr></thead><tbody>", "<tr><td>1</td><td><code>2</code></td></tr>",
             "</tbody></table></div>"],
        ),
        ("All:\n| a |", ["<p>All:</p>", TABLE, "<th>a</th></tr></thead><tbody>", "</tbody></table></div>"]),
        # Code is indented, all of it.
        ("x\n\n    one\n      two", ["<p>x</p>", "<pre>one\n  two</pre>"]),
        ("x\n\n    one\ntwo", ["<p>x</p>", "<p>    one two</p>"]),
    ],
)  # fmt: skip
def test_text_becomes_html(body: str, html: list[str]) -> None:
    assert list(paragraphs(body)) == html
