"""A launcher asks after a failure: the incident decides, else its exit status and log."""

from __future__ import annotations

from typing import Any

import httpx
from made import T0, incident

from tracecore.store.store import Store


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/decisions", json={"job": "llama-7b", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_incident_decides_and_names_nodes_to_avoid(client: httpx.Client, sqlite_store: Store) -> None:
    stored = sqlite_store.put_incident(incident(), T0)
    said = ask(client, attempt=0, exit_codes={"3": 1})
    assert (said["decision"], said["incident"], said["avoid_nodes"]) == ("retry", stored.id, ["gpu-node-17"])
    assert said["failure_class"] == "infrastructure"


def test_without_an_incident_the_log_decides(client: httpx.Client) -> None:
    tail = "Traceback (most recent call last):\n  File 'train.py', line 3\nKeyError: 'lr'\n"
    said = ask(client, exit_codes={"0": 1}, log_tail=tail)
    assert (said["decision"], said["failure_class"], said["avoid_nodes"]) == ("stop", "code", [])


def test_retries_are_counted_over_attempts_and_the_same_question_is_counted_once(client: httpx.Client) -> None:
    tail = "NCCL WARN Call to ibv_reg_mr failed\nncclSystemError: System call failed"
    first = ask(client, attempt=0, exit_codes={"0": 1}, log_tail=tail)
    assert ask(client, attempt=0, exit_codes={"0": 1}, log_tail=tail) == first
    decisions = [ask(client, attempt=n, exit_codes={"0": 1}, log_tail=tail)["decision"] for n in range(1, 8)]
    assert first["decision"] == "retry"
    assert decisions[-1] == "stop"


def test_a_good_end_is_no_failure(client: httpx.Client) -> None:
    assert ask(client, exit_codes={"0": 0, "1": 0})["decision"] == "none"
