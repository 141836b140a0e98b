"""Facts, verdicts and incidents of an agent go to one OTLP endpoint, also through another detector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tracecore.incidents import wire

Start = Callable[[str], Any]
Wait = Callable[..., Any]

ENDPOINT = """\
receivers:
  otlp: {protocols: {http: {endpoint: "localhost:0"}}}
processors:
  patterndetector: {forward: verdicts, patterns: {worker_crash: {enabled: false}}}
exporters:
  file: {path: out.json}
service:
  telemetry: {metrics: {address: "127.0.0.1:0"}}
  pipelines:
    logs: {receivers: [otlp], processors: [PROCESSORS], exporters: [file]}
"""

SENDER = """\
receivers:
  otlp: {protocols: {http: {endpoint: "localhost:0"}}}
processors:
  patterndetector/facts: {forward: facts}
  patterndetector: {forward: verdicts, tell: both, incidents: {settle: 1s}}
exporters:
  otlphttp: {endpoint: "http://127.0.0.1:PORT", compression: none}
service:
  telemetry: {metrics: {address: "127.0.0.1:0"}}
  pipelines:
    logs/facts: {receivers: [otlp], processors: [patterndetector/facts], exporters: [otlphttp]}
    logs: {receivers: [otlp], processors: [patterndetector], exporters: [otlphttp]}
"""

CRASH = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/app/train.py", line 10, in <module>',
    "[rank1]:     main()",
    "[rank1]: ValueError: the batch is empty",
]
RESOURCE = {"host.name": "node-1", "gen_ai.training.job_id": "job-7"}


def kinds(records: list[dict[str, Any]]) -> set[str]:
    names = {"tracecore.fact.kind": "fact", "verdict.id": "verdict", "incident.id": "incident"}
    return {kind for record in records for name, kind in names.items() if name in record["attributes"]}


def test_one_endpoint_gets_facts_verdicts_and_incidents(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    endpoint = agent(ENDPOINT.replace("PROCESSORS", ""))
    sender = agent(SENDER.replace("PORT", str(endpoint.port("http"))))
    assert sender.send(CRASH, resource=RESOURCE)[0] == 200
    wait_for(lambda: kinds(endpoint.written()) == {"fact", "verdict", "incident"})
    (incident,) = (r for r in endpoint.written() if "incident.id" in r["attributes"])
    attributes = incident["attributes"]
    document = msgspec.json.decode(attributes["incident.json"])
    assert (document["state"], document["root_cause"]["pattern"]) == ("diagnosed", "worker_crash")
    assert document["job"] == incident["resource"]["gen_ai.training.job_id"] == "job-7"
    assert {record["body"] for record in endpoint.written()}.isdisjoint(CRASH)


def test_a_detector_passes_incidents_on_and_reads_none_of_them(agent: Start, wait_for: Wait) -> None:
    endpoint = agent(ENDPOINT.replace("PROCESSORS", "patterndetector"))
    sender = agent(SENDER.replace("PORT", str(endpoint.port("http"))))
    assert sender.send(CRASH, resource=RESOURCE)[0] == 200
    wait_for(lambda: kinds(endpoint.written()) == {"verdict", "incident"})
    # The detector of the endpoint joined the fact and found nothing: its only pattern for it is disabled.
    assert sender.stop() == 0
    assert endpoint.stop() == 0
    told = [r["attributes"] for r in endpoint.written()]
    assert len({one["verdict.id"] for one in told if "verdict.id" in one}) == 1
    assert len({one["incident.id"] for one in told if "incident.id" in one}) == 1
    assert all(one.get("incident.version", "1") == str(wire.VERSION) for one in told)
