"""Reports of NVSentinel and Alertmanager become facts, once each, and everything else is skipped and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.facts.gpu import GpuLost, Sxid, Xid
from tracecore.facts.kubernetes import NodePressure, NodeReadiness
from tracecore.server.webhooks.report import mapped
from tracecore.server.webhooks.senders import BadPayload, alertmanager, nvsentinel

HERE = Path(__file__).parent
NOW = 1_800_000_000_000_000_000


def cloud_event(**more: Any) -> dict[str, Any]:
    """A CloudEvent with the members that NVSentinel's exporter writes."""
    return {
        "specversion": "1.0",
        "type": "com.nvidia.nvsentinel.health.v1",
        "source": "nvsentinel://east/healthevents",
        "id": "6a1b2c3d-0000-4000-8000-000000000001",
        "time": "2026-11-16T05:00:00.5Z",
        "data": {
            "metadata": {"cluster": "east"},
            "healthEvent": {
                "version": 1,
                "agent": "syslog-health-monitor",
                "componentClass": "GPU",
                "checkName": "SysLogsXIDError",
                "isFatal": True,
                "isHealthy": False,
                "message": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
                "recommendedAction": 15,
                "errorCode": ["79"],
                "entitiesImpacted": [
                    {"entityType": "PCI", "entityValue": "0000:3b:00.0"},
                    {"entityType": "GPU_UUID", "entityValue": "GPU-455d8f70-2051-db6c-0430-ffc457bff834"},
                ],
                "generatedTimestamp": "2026-11-16T05:00:00.5Z",
                "nodeName": "gpu-node-17",
                **more,
            },
        },
    }


def alert(name: str, status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{alertname="x"}',
        "status": status,
        "receiver": "tracecore",
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": name, "node": "gpu-node-17", **labels},
                "annotations": {"description": "gpu-node-17 has been unready for more than 15 minutes."},
                "startsAt": "2026-11-16T05:00:00Z",
                "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-11-16T05:10:00Z",
                "fingerprint": "9f1b2c3d4e5f6071",
            }
        ],
    }


def test_an_xid_of_nvsentinel() -> None:
    fact, lost = mapped(nvsentinel(cloud_event(), NOW)).facts
    assert isinstance(fact, Xid)
    assert isinstance(lost, GpuLost), "79 means that the GPU is gone"
    assert (fact.code, fact.gpu, fact.node) == (79, "0000:3b:00.0", "gpu-node-17")
    assert fact.time == 1_794_805_200_500_000_000
    assert fact.uid.startswith("nvsentinel:nvsentinel://east/healthevents/")


def test_an_event_that_is_exported_again_under_another_id_is_the_same_fact() -> None:
    first, again, other = cloud_event(), cloud_event() | {"id": "another"}, cloud_event(nodeName="gpu-node-18")
    uids = [mapped(nvsentinel(event, NOW)).facts[0].uid for event in (first, again, other)]
    assert uids[0] == uids[1] != uids[2]


@pytest.mark.parametrize("code", [["79"], ["XID_79"], [79], ["DCGM_FR_X", "79"]])
def test_a_code_is_written_in_several_ways(code: list[object]) -> None:
    fact = mapped(nvsentinel(cloud_event(checkName="XID_ERROR_79", errorCode=code), NOW)).facts[0]
    assert isinstance(fact, Xid)
    assert fact.code == 79


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"checkName": "SysLogsSXIDError", "errorCode": ["22013"]}, Sxid),
        ({"checkName": "SysLogsGPUFallenOff", "errorCode": []}, GpuLost),
        ({"checkName": "NodeNotReady", "errorCode": [], "message": "kubelet stopped posting"}, NodeReadiness),
    ],
)
def test_other_checks_of_nvsentinel(more: dict[str, Any], kind: type) -> None:
    (fact,) = mapped(nvsentinel(cloud_event(**more), NOW)).facts
    assert type(fact) is kind


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"isHealthy": True}, "healthy"),
        ({"nodeName": ""}, "no_node"),
        ({"errorCode": []}, "incomplete"),
        ({"checkName": "GpuPowerWatch", "errorCode": [], "message": "power is fine"}, "no_fact"),
    ],
)
def test_what_says_nothing_is_skipped_and_counted(more: dict[str, Any], why: str) -> None:
    found = mapped(nvsentinel(cloud_event(**more), NOW))
    assert (found.facts, found.skipped) == ([], {why: 1})


def test_alerts() -> None:
    (fact,) = mapped(alertmanager(alert("KubeNodeNotReady"), NOW)).facts
    assert isinstance(fact, NodeReadiness)
    assert (fact.ready, fact.node) == (False, "gpu-node-17")
    (over,) = mapped(alertmanager(alert("KubeNodeNotReady", "resolved"), NOW)).facts
    assert isinstance(over, NodeReadiness)
    assert over.ready
    assert over.uid != fact.uid
    (xid,) = mapped(alertmanager(alert("GPUXidError", xid="48", pci_bus_id="00000000:3B:00.0"), NOW)).facts
    assert isinstance(xid, Xid)
    assert (xid.code, xid.gpu) == (48, "0000:3b:00.0")
    (pressure,) = mapped(alertmanager(alert("NodeMemoryPressure"), NOW)).facts
    assert isinstance(pressure, NodePressure)
    assert mapped(alertmanager(alert("Watchdog"), NOW)).skipped == {"no_mapping": 1}


def test_what_a_real_alertmanager_sent() -> None:
    """Requests of Alertmanager 0.25: a node that is not ready, an Xid in dcgm-exporter's labels, the node is back."""
    sent = [json.loads(line) for line in (HERE / "recorded/alertmanager-0.25.jsonl").read_text().splitlines()]
    (down,), (xid, lost), (up,) = (mapped(alertmanager(one, NOW)).facts for one in sent)
    assert isinstance(down, NodeReadiness)
    assert isinstance(up, NodeReadiness)
    assert (down.node, down.ready, up.node, up.ready) == ("gpu-node-17", False, "gpu-node-17", True)
    assert down.uid != up.uid
    assert isinstance(xid, Xid)
    assert isinstance(lost, GpuLost)
    assert (xid.code, xid.gpu, xid.node) == (79, "0000:3b:00.0", "gpu-node-17")


@pytest.mark.parametrize(
    ("instance", "node"),
    [("10.0.0.7:9100", "10.0.0.7"), ("[2001:db8::1]:9100", "2001:db8::1"), ("gpu-node-17:9400", "gpu-node-17")],
)
def test_a_node_that_is_named_by_its_address(instance: str, node: str) -> None:
    (fact,) = mapped(alertmanager(alert("KubeNodeNotReady", node="", instance=instance), NOW)).facts
    assert isinstance(fact, NodeReadiness)
    assert fact.node == node


def test_a_number_that_is_too_long_is_no_code() -> None:
    assert mapped(nvsentinel(cloud_event(errorCode=["7900000"]), NOW)).skipped == {"incomplete": 1}
    assert mapped(alertmanager(alert("GPUXidError", xid="7900000"), NOW)).skipped == {"incomplete": 1}


def test_the_same_alert_sent_again_is_the_same_fact() -> None:
    first, again = (mapped(alertmanager(alert("KubeNodeNotReady"), now)).facts[0] for now in (NOW, NOW + 10**12))
    assert (first.uid, first.time) == (again.uid, again.time)


@pytest.mark.parametrize("payload", [None, 1, "x", {}, {"specversion": "0.3"}, {"specversion": "1.0", "id": "1"}])
def test_what_is_no_cloud_event_is_refused(payload: object) -> None:
    with pytest.raises(BadPayload):
        nvsentinel(payload, NOW)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(value=JSON, field=st.sampled_from(["message", "errorCode", "entitiesImpacted", "nodeName", "checkName",
                                          "generatedTimestamp", "isHealthy"]))  # fmt: skip
def test_no_value_of_a_field_breaks_it(value: Any, field: str) -> None:
    found = mapped(nvsentinel(cloud_event(**{field: value}), NOW))
    assert len(found.facts) + sum(found.skipped.values()) >= 1


def test_a_cloud_event_in_binary_mode(client: httpx.Client) -> None:
    event = cloud_event()
    headers = {f"ce-{name}": event[name] for name in ("specversion", "id", "source", "time", "type")}
    answer = client.post("/api/v1/webhooks/nvsentinel", json=event["data"], headers=headers)
    assert (answer.status_code, answer.json()["new"]) == (200, 2)
    again = client.post("/api/v1/webhooks/nvsentinel", json=event)
    assert again.json()["known"] == 2, "the same event, whichever way it comes"
    del headers["ce-id"]
    assert client.post("/api/v1/webhooks/nvsentinel", json=event["data"], headers=headers).status_code == 422


def test_over_the_api(client: httpx.Client) -> None:
    answer = client.post("/api/v1/webhooks/nvsentinel", json=[cloud_event(), cloud_event(isHealthy=True)])
    assert (answer.status_code, answer.json()) == (200, {"facts": 2, "new": 2, "known": 0, "skipped": {"healthy": 1}})
    again = client.post("/api/v1/webhooks/nvsentinel", json=cloud_event())
    assert again.json() == {"facts": 2, "new": 0, "known": 2, "skipped": {}}
    assert client.post("/api/v1/webhooks/nvsentinel", content=b"{").status_code == 400
    refused = client.post("/api/v1/webhooks/alertmanager", json={"alerts": 1})
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "expected Alertmanager's webhook payload, with `alerts`",
    )
    other = client.post("/api/v1/webhooks/alertmanager", json=alert("KubeNodeNotReady") | {"version": "3"})
    assert (other.status_code, other.json()["detail"]) == (
        422,
        "expected version 4 of Alertmanager's webhook payload, not '3'",
    )
    taken = client.post("/api/v1/webhooks/alertmanager", json=alert("KubeNodeNotReady"))
    assert taken.json()["facts"] == 1
