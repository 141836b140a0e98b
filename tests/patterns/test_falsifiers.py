"""Changes of a document that its schema must refuse, and how they are made."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.patterns.schema import Falsifier, falsified

DOCUMENT = {"a": 1, "b": {"c~/d": 2, "e": [1, {"f": 3}]}, "g": []}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({}, DOCUMENT),
        ({"remove": ["/a"]}, {"b": DOCUMENT["b"], "g": []}),
        ({"remove": ["/b/e/0"]}, {**DOCUMENT, "b": {"c~/d": 2, "e": [{"f": 3}]}}),
        ({"remove": ["/b/c~0~1d", "/g"]}, {"a": 1, "b": {"e": [1, {"f": 3}]}}),
        ({"set": {"/a": 7, "/h": 8}}, {**DOCUMENT, "a": 7, "h": 8}),
        ({"set": {"/b/e/0": 7}}, {**DOCUMENT, "b": {"c~/d": 2, "e": [7, {"f": 3}]}}),
        ({"set": {"/b/e/1/f": 7}}, {**DOCUMENT, "b": {"c~/d": 2, "e": [1, {"f": 7}]}}),
        ({"set": {"/b/e/2": 7}}, {**DOCUMENT, "b": {"c~/d": 2, "e": [1, {"f": 3}, 7]}}),
        ({"set": {"/b/e/-": 7}}, {**DOCUMENT, "b": {"c~/d": 2, "e": [1, {"f": 3}, 7]}}),
        ({"set": {"/g/-": 7, "/g/1": 8}}, {**DOCUMENT, "g": [7, 8]}),
    ],
)
def test_a_document_is_falsified(change: dict[str, Any], changed: dict[str, Any]) -> None:
    before = repr(DOCUMENT)
    assert falsified(Falsifier(**{"golden": "x", "name": "y", **change}), DOCUMENT) == changed
    assert repr(DOCUMENT) == before


@pytest.mark.parametrize(
    ("pointer", "error"), [("a", ValueError), ("/x/y", KeyError), ("/b/e/9/f", IndexError), ("/b/e/x", ValueError)]
)
def test_a_pointer_that_leads_nowhere(pointer: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        falsified(Falsifier(golden="x", name="y", set={pointer: 1}), DOCUMENT)
