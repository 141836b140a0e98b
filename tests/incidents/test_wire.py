"""Incidents as OTLP log records: every revision survives the journey, hostile records do no harm."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.diagnose.offline import diagnose
from tracecore.incidents import wire
from tracecore.incidents.live import LiveIncidents, Update
from tracecore.patterns.contract import rfc3339
from tracecore.signals.otlp.decoding import decode
from tracecore.signals.otlp.encoding import encode

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, ended, seen, steps, verdict


class Received(msgspec.Struct):
    """The incidents of a payload, and the records that could not be used, by reason."""

    documents: list[dict[str, Any]]
    skipped: Counter[str]


def from_record(record: Mapping[str, Any]) -> dict[str, Any] | None:
    found = wire.decoded(record.get("log") or {}, (record.get("resource") or {}).get("attributes") or {})
    return None if isinstance(found, str) else found


def read(payload: Mapping[str, Any]) -> Received:
    """Read a payload as the server does: records that are no incidents are passed over."""
    found = Received([], Counter())
    for entry in payload["resource_logs"]:
        resource = (entry.get("resource") or {}).get("attributes") or {}
        for log in (log for held in entry["scope_logs"] for log in held["log_records"]):
            if wire.is_incident(log):
                document = wire.decoded(log, resource)
                if isinstance(document, str):
                    found.skipped[document] += 1
                else:
                    found.documents.append(document)
    return found


ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text())


def updates() -> list[Update]:
    """An incident that opens without a cause, learns it, and is resolved."""
    live = LiveIncidents()
    told: list[Update] = []
    crash = verdict("worker_crash", 90, seen(90, rank=3, job="a", node="n1"), ranks=[3])
    named = [msgspec.structs.replace(fact, job="a", node="n1") for fact in (*steps(1, 2), *ended({0: 1, 3: 1}))]
    later = [msgspec.structs.replace(fact, job="a", node="n1", attempt=1) for fact in steps(200, 300)]
    for second, facts, said in ((100, named, []), (110, [], []), (115, [], [crash]), (300, later, [])):
        now = T0 + second * SECOND
        live.take(facts)
        live.hear(said)
        told += live.advance(now)
    return told


def document(**changes: Any) -> dict[str, Any]:
    return {**updates()[1].document(), **changes}


def payload(*documents: dict[str, Any]) -> dict[str, Any]:
    records = [wire.to_record(one) for one in documents]
    return {
        "resource_logs": [
            {"resource": r["resource"], "scope_logs": [{"scope": r["scope"], "log_records": [r["log"]]}]}
            for r in records
        ]
    }


def sent(*documents: dict[str, Any]) -> dict[str, Any]:
    """A payload as it arrives: encoded and decoded as OTLP."""
    return decode("logs", encode("logs", payload(*documents)))


def test_every_revision_survives_the_journey() -> None:
    told = [update.document() for update in updates()]
    assert [one["state"] for one in told] == ["open", "diagnosed", "resolved"]
    received = read(sent(*told))
    assert received.documents == told
    assert not received.skipped


def test_a_record_alone_gives_its_document_and_others_give_none() -> None:
    record = wire.to_record(document())
    assert from_record(record) == document()
    assert from_record({"resource": {"attributes": {}}, "log": {"body": "step 1", "attributes": {}}}) is None
    assert from_record({"resource": {}, "log": {}}) is None


@pytest.mark.parametrize(
    ("job", "taken"), [("a", True), ("x" * 1024, True), ("x" * 1025, False), ("", False), (7, False)]
)
def test_the_name_of_a_job_is_a_text_within_bounds(job: object, taken: bool) -> None:
    record = wire.to_record(document())
    found = from_record({"resource": {"attributes": {"gen_ai.training.job_id": job}}, "log": record["log"]})
    assert (found is not None) is taken
    assert found is None or found["job"] == job


def test_the_document_follows_the_published_schema() -> None:
    schema = {**SCHEMA["$defs"]["incident"], "$defs": SCHEMA["$defs"]}
    for update in updates():
        jsonschema.validate(update.document(), schema)


@pytest.mark.parametrize("scenario", ["nccl_hang_one_rank_missing", "torchrun_exception", "chained"])
def test_an_offline_incident_can_be_sent_too(scenario: str, incidents: Path) -> None:
    for incident in diagnose([incidents / scenario]).incidents:
        one = {**incident.document(), "state": "diagnosed", "revision": 1, "updated_at": rfc3339(T0)}
        assert read(sent(one)).documents == [one]


def test_the_job_is_the_one_that_the_resource_names() -> None:
    payload = sent(document())
    (entry,) = payload["resource_logs"]
    entry["resource"]["attributes"]["gen_ai.training.job_id"] = "b"
    (found,) = read(payload).documents
    assert found["job"] == "b"
    del entry["resource"]["attributes"]["gen_ai.training.job_id"]
    (found,) = read(payload).documents
    assert "job" not in found


def test_a_newer_version_is_skipped_and_counted_and_a_new_field_is_kept() -> None:
    newer, plain = sent(document()), sent(document(priority="high"))
    newer["resource_logs"][0]["scope_logs"][0]["log_records"][0]["attributes"]["incident.version"] = wire.VERSION + 1
    newer["resource_logs"] += plain["resource_logs"]
    received = read(newer)
    assert received.skipped == {"newer_version": 1}
    assert [one["priority"] for one in received.documents] == ["high"]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "incident-x"}, {"id": 7}, {"state": "gone"}, {"revision": 0}, {"revision": True}, {"suspects": []},
        {"first_seen": "yesterday"}, {"updated_at": None}, {"headline": ""}, {"failure": {}}, {"root_cause": "x"},
        {"attempt": -1}, {"verdicts": [1]},
    ],
)  # fmt: skip
def test_a_malformed_document_is_skipped_and_counted(change: dict[str, Any]) -> None:
    received = sent(document())
    log = received["resource_logs"][0]["scope_logs"][0]["log_records"][0]
    log["attributes"]["incident.json"] = json.dumps(document(**change))
    for name, field in (("incident.id", "id"), ("incident.revision", "revision"), ("incident.state", "state")):
        log["attributes"][name] = document(**change)[field]
    found = read(received)
    assert (found.documents, found.skipped) == ([], {"malformed": 1})


def test_attributes_that_contradict_the_document_are_refused() -> None:
    received = sent(document())
    log = received["resource_logs"][0]["scope_logs"][0]["log_records"][0]
    log["attributes"]["incident.revision"] = 99
    assert read(received).skipped == {"malformed": 1}


def test_a_large_incident_leaves_out_verdicts_and_says_how_many() -> None:
    many = document(verdicts=[{"pattern.name": f"p{n}", "text": "x" * 50_000} for n in range(8)])
    (found,) = read(sent(many)).documents
    assert [one["pattern.name"] for one in found["verdicts"]] == ["p0", "p1", "p2", "p3", "p4"]
    assert found["verdicts_left_out"] == 3
    huge = sent(document())
    log = huge["resource_logs"][0]["scope_logs"][0]["log_records"][0]
    log["attributes"]["incident.json"] = json.dumps(document(more="x" * 3_000_000))
    assert read(huge).skipped == {"too_large": 1}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = ["incident.id", "incident.revision", "incident.state", "incident.version", "incident.json"]


@given(changes=st.dictionaries(st.sampled_from(NAMES), values), resource=st.dictionaries(st.text(), values, max_size=3))
def test_no_record_breaks_the_reader(changes: dict[str, Any], resource: dict[str, Any]) -> None:
    record = wire.to_record(document())
    log = {**record["log"], "attributes": {**record["log"]["attributes"], **changes}}
    found = from_record({"resource": {"attributes": resource}, "log": log})
    assert found is None or found["id"] == document()["id"]


@given(field=st.sampled_from(sorted(document())), value=values)
def test_no_document_breaks_the_reader(field: str, value: Any) -> None:
    record = wire.to_record(document())
    try:
        text = msgspec.json.encode({**document(), field: value}).decode()
    except (msgspec.EncodeError, OverflowError, UnicodeError, TypeError):
        return
    log = {**record["log"], "attributes": {**record["log"]["attributes"], "incident.json": text}}
    found = from_record({"resource": record["resource"], "log": log})
    if found is not None:
        assert wire.to_record(found)["log"]["event_name"] == wire.EVENT


def test_the_documentation_names_every_attribute() -> None:
    text = (ROOT / "docs" / "incidents.md").read_text()
    record = wire.to_record(document())
    for name in (*record["log"]["attributes"], *record["resource"]["attributes"], wire.EVENT, wire.SCOPE, *wire.STATES):
        assert f"`{name}`" in text, name


def test_a_document_of_the_greatest_size_is_read_and_a_larger_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = {wire._VERSION: wire.VERSION, wire._JSON: "{}" + " " * 98}
    monkeypatch.setattr(wire, "MAX_READ", 100)
    assert wire.decoded({"attributes": attributes}, {}) == "malformed"
    monkeypatch.setattr(wire, "MAX_READ", 99)
    assert wire.decoded({"attributes": attributes}, {}) == "too_large"
