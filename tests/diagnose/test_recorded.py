"""Every recorded incident against its truth: root pattern, culprit ranks, failure class, silence on healthy runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.patterns import types

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: Folders of recordings by name: those that everything is tested on, and a second round of other layouts and loggers.
RECORDED = {path.parent.name: path.parent for path in EXAMPLES.glob("incidents*/*/truth.json")}
SCENARIOS = sorted(RECORDED)
KNOWN = {kind.name for kind in types()}


def truth_of(scenario: str) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((RECORDED[scenario] / "truth.json").read_text())
    return truth


def test_every_shared_recording_is_judged_here(shared_data: Path) -> None:
    shared = {path.parent.name for path in (shared_data / "recorded").glob("*/truth.json")}
    assert shared
    assert shared <= set(SCENARIOS)


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    """Each bundle is diagnosed once for all tests of this module."""
    return {}


def document_of(scenario: str, documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if scenario not in documents:
        documents[scenario] = diagnose([RECORDED[scenario]]).document()
    return documents[scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_root_pattern(scenario: str, documents: dict[str, dict[str, Any]]) -> None:
    acceptable = truth_of(scenario)["root_patterns"]
    if acceptable and not KNOWN & set(acceptable):
        pytest.skip(f"no pattern of {', '.join(acceptable)} is installed")
    incidents = document_of(scenario, documents)["incidents"]
    roots = [incident["root_cause"]["pattern"] for incident in incidents if incident["root_cause"]]
    if acceptable:
        assert roots, "nothing was found"
        assert incidents[0]["root_cause"] is not None
        assert roots[0] in acceptable
    else:
        assert roots == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_culprit_ranks(scenario: str, documents: dict[str, dict[str, Any]]) -> None:
    truth = truth_of(scenario)
    if truth["root_patterns"] and not KNOWN & set(truth["root_patterns"]):
        pytest.skip(f"no pattern of {', '.join(truth['root_patterns'])} is installed")
    incidents = document_of(scenario, documents)["incidents"]
    assert (incidents[0]["suspects"]["ranks"] if incidents else []) == truth["culprit_ranks"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_failure_class(scenario: str, documents: dict[str, dict[str, Any]]) -> None:
    truth = truth_of(scenario)
    if truth["root_patterns"] and not KNOWN & set(truth["root_patterns"]):
        pytest.skip(f"no pattern of {', '.join(truth['root_patterns'])} is installed")
    incidents = document_of(scenario, documents)["incidents"]
    assert (incidents[0]["failure"]["class"] if incidents else "none") in truth["failure_classes"]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if truth_of(name)["failure_classes"] == ["none"]])
def test_nothing_is_called_a_failure_where_nothing_failed(scenario: str, documents: dict[str, dict[str, Any]]) -> None:
    document = document_of(scenario, documents)
    assert {incident["failure"]["class"] for incident in document["incidents"]} <= {"none"}
    if not truth_of(scenario)["root_patterns"]:
        assert document["incidents"] == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_symptoms_never_outrank_their_cause(scenario: str, documents: dict[str, dict[str, Any]]) -> None:
    document = document_of(scenario, documents)
    verdicts = {verdict["verdict.id"]: verdict for verdict in document["verdicts"]}
    for incident in document["incidents"]:
        explained = {edge["effect"] for edge in incident["edges"]}
        assert explained == set(incident["explains"])
        assert all(edge["reason"] for edge in incident["edges"])
        if incident["root_cause"] is not None:
            root = incident["root_cause"]["verdict"]
            assert root in verdicts
            assert root not in explained
        assert explained | {other["verdict"] for other in incident["alternatives"]} <= verdicts.keys()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_document_follows_its_published_schema(scenario: str, documents: dict[str, dict[str, Any]]) -> None:
    schema = json.loads((EXAMPLES.parent / "docs" / "diagnosis.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    # As it is printed, not as it is in memory.
    document = json.loads(msgspec.json.encode(document_of(scenario, documents)))
    assert [error.message for error in validator.iter_errors(document)] == []
