"""Facts as OTLP log records: every kind survives the journey, hostile records do no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.diagnose.offline import diagnose
from tracecore.facts import wire
from tracecore.facts.catalog import TYPES, build, fields_of, snake
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.training import Progress
from tracecore.signals.otlp.decoding import decode
from tracecore.signals.otlp.encoding import encode
from tracecore.signals.record import Source

T0 = 1_790_000_000 * 10**9
DOCS = Path(__file__).resolve().parents[2] / "docs" / "facts.md"


def sample(kind: type[Fact]) -> Fact:
    values = {int: 3, float: 0.5, bool: True, str: "a", tuple[int, ...]: [3]}
    fields: dict[str, Any] = {
        field.name: values[field.type]
        for field in msgspec.structs.fields(kind)
        if field.required and field.name in fields_of(kind)
    }
    return build(kind.__name__, {**fields, "node": "n1", "count": 2, "last_time": T0 + 1}, time=T0, uid="u")


def sent(facts: list[Fact], **options: Any) -> dict[str, Any]:
    """A payload as it arrives: encoded and decoded as OTLP."""
    return decode("logs", encode("logs", wire.payload(facts, T0 + 5, **options)))


def own(fact: Fact) -> dict[str, Any]:
    """All that a fact says, but for where it was read."""
    return {name: value for name, value in msgspec.to_builtins(fact).items() if name != "source"}


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_kind_survives_the_journey(kind: type[Fact]) -> None:
    fact = sample(kind)
    received = wire.read(sent([fact]))
    assert [own(found) for found in received.facts] == [own(fact)]
    assert type(received.facts[0]) is kind
    assert not received.skipped


@pytest.mark.parametrize("scenario", ["nccl_hang_one_rank_missing", "torchrun_exception", "oom", "host_oom"])
def test_the_facts_of_a_real_incident_survive_the_journey(scenario: str, incidents: Path) -> None:
    facts = diagnose([incidents / scenario]).facts
    assert facts
    received = wire.read(sent(facts))
    assert sorted(map(repr, map(own, received.facts))) == sorted(map(repr, map(own, facts)))


def test_a_live_record_keeps_its_name_and_its_file() -> None:
    source = Source("/var/log/a.log", ident=f"record:{T0:019d}-{12:09d}")
    for fact in (Xid(time=T0, source=source, node="n1", code=79), Progress(time=T0, source=source, node="n1", step=3)):
        (found,) = wire.read(sent([fact])).facts
        assert (found.source.path, found.uid) == ("n1:/var/log/a.log", f"n1:{source.ident}")


def test_a_report_of_progress_is_small() -> None:
    path = "/var/log/pods/team-a_llm-7b-worker-0_4c4bd0a3-2f3c-4f0e-9a6e-7a3f8f4f0d11/trainer/0.log"
    facts: list[Fact] = [
        Progress(
            time=T0 + n, source=Source(path, ident=f"record:{T0 + n:019d}-{n:09d}"), node="n1", rank=n, job="a/llm",
            pod="a/llm-0", step=1000, phase="train", loss=2.3927, grad_norm=1.196, learning_rate=0.00025,
        )
        for n in range(8)
    ]  # fmt: skip
    size = len(encode("logs", wire.payload(facts, T0 + 5)))
    alone = len(encode("logs", wire.payload(facts[:1], T0 + 5)))
    assert (size - alone) / 7 < 190
    assert alone < 500


def test_the_same_fact_is_named_the_same_and_another_is_not() -> None:
    fact = Xid(time=T0, source=Source("/var/log/kern.log", 10, 1, 80), node="n1", code=79)
    assert wire.uid(fact) == wire.uid(msgspec.structs.replace(fact, count=9, last_time=T0 + 7))
    for other in ({"node": "n2"}, {"time": T0 + 1}, {"source": Source("/var/log/kern.log", 90, 2, 80)}):
        assert wire.uid(msgspec.structs.replace(fact, **other)) != wire.uid(fact)


def test_one_path_on_two_nodes_is_two_places() -> None:
    source = Source("/var/log/kern.log", 10, 1, 80)
    facts: list[Fact] = [Xid(time=T0, source=source, node=node, code=79) for node in ("n1", "n2")]
    one, other = wire.read(sent(facts)).facts
    assert (one.source.place, other.source.place) == ("n1:/var/log/kern.log:1", "n2:/var/log/kern.log:1")
    assert one.uid != other.uid
    # A second hop changes nothing.
    assert wire.read(sent([one])).facts == [one]


def test_the_resource_says_whom_a_fact_is_about_not_its_text() -> None:
    payload = wire.payload([Xid(time=T0, source=Source("a"), node="victim", job="theirs", code=79)], T0)
    record = payload["resource_logs"][0]["scope_logs"][0]["log_records"][0]
    fields = json.loads(record["attributes"]["tracecore.fact.json"])
    record["attributes"]["tracecore.fact.json"] = json.dumps({**fields, "node": "victim", "job": "theirs"})
    payload["resource_logs"][0]["resource"]["attributes"] = {
        "k8s.node.name": "mine", "k8s.namespace.name": "team", "k8s.pod.name": "p", "gen_ai.training.job_id": "my-job",
    }  # fmt: skip
    (fact,) = wire.read(payload).facts
    assert (fact.node, fact.pod, fact.job) == ("mine", "team/p", "team/my-job")


def test_text_is_redacted_before_it_leaves_and_the_fact_is_still_one() -> None:
    fact = build("exception_raised", {"type": "ValueError", "message": 'token "s3cret"', "rank": 1}, time=T0, uid="u")
    payload = wire.payload([fact], T0, lambda fact: ["a s3cret line"], lambda text: text.replace("s3cret", '"***"'))
    assert "s3cret" not in json.dumps(payload)
    received = wire.read(payload)
    assert received.facts[0].message == 'token ""***""'  # type: ignore[attr-defined]
    assert received.lines == {received.facts[0].uid: ('a "***" line',)}


def test_quoted_lines_are_bounded() -> None:
    lines = ["x" * (wire.MAX_LINE + 1)] * (wire.MAX_LINES + 1)
    received = wire.read(sent([sample(TYPES[0])], lines=lambda fact: lines))
    assert [*received.lines.values()] == [("x" * wire.MAX_LINE,) * wire.MAX_LINES]


def changed(**attributes: Any) -> dict[str, Any]:
    payload = wire.payload([sample(TYPES[0])], T0)
    record = payload["resource_logs"][0]["scope_logs"][0]["log_records"][0]
    record["attributes"] |= {name.replace("__", "."): value for name, value in attributes.items()}
    return payload


def of_version(version: object) -> dict[str, Any]:
    payload = changed()
    payload["resource_logs"][0]["scope_logs"][0]["scope"]["version"] = version
    return payload


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (of_version(str(wire.VERSION + 1)), "newer_version"),
        (changed(tracecore__fact__kind="of_the_future"), "unknown_kind"),
        (changed(tracecore__fact__json=" " * (wire.MAX_FACT + 1)), "too_large"),
        (changed(tracecore__fact__json="[" * 50_000), "malformed"),
        (changed(tracecore__fact__json="{}"), "malformed"),
        (changed(tracecore__fact__kind="cuda_oom"), "malformed"),
        (of_version("one"), "malformed"),
        (of_version(None), "malformed"),
    ],
)
def test_what_cannot_be_used_is_counted_and_the_rest_is_read(payload: dict[str, Any], reason: str) -> None:
    good = wire.payload([sample(TYPES[1])], T0)["resource_logs"]
    received = wire.read({"resource_logs": [*payload["resource_logs"], *good]})
    assert dict(received.skipped) == {reason: 1}
    assert [type(fact) for fact in received.facts] == [TYPES[1]]


def test_records_that_are_no_facts_are_left_to_others() -> None:
    line = {"resource_logs": [{"scope_logs": [{"log_records": [{"body": "a line", "attributes": {}}]}]}]}
    received = wire.read(line)
    assert (received.facts, received.others, dict(received.skipped)) == ([], True, {})
    assert not wire.read(sent([sample(TYPES[0])])).others


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"tracecore.fact.kind": VALUES},
        optional={f"tracecore.fact.{name}": VALUES for name in ("version", "json", "uid", "lines")},
    ),
    st.dictionaries(st.sampled_from(["k8s.node.name", "k8s.pod.name", "gen_ai.training.job_id"]), VALUES),
)
def test_forged_records_never_raise(attributes: dict[str, Any], resource: dict[str, Any]) -> None:
    record = {"attributes": attributes}
    payload = {"resource_logs": [{"resource": {"attributes": resource}, "scope_logs": [{"log_records": [record]}]}]}
    assert wire.read(payload).skipped.total() == 1


def test_the_docs_name_every_kind_and_the_version() -> None:
    text = DOCS.read_text()
    assert f"version {wire.VERSION}" in text
    assert [snake(kind.__name__) for kind in TYPES if f"`{snake(kind.__name__)}`" not in text] == []
