"""Kubernetes objects and kubectl's text become records."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tracecore.patterns.contract import rfc3339
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.recognition import recognise
from tracecore.signals.kubernetes import objects, plain_yaml, printed
from tracecore.signals.record import LogSignal
from tracecore.signals.stamps import SECOND, parse
from tracecore.signals.stream import Clock, Stream

Make = Callable[..., Stream]
T = 1_794_706_624 * SECOND  # 2026-11-15T01:37:04Z
CLOCK = Clock(T, True)

EVENT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "a.1", "namespace": "ml", "uid": "e-1", "creationTimestamp": "2026-11-15T01:00:00Z"},
    "involvedObject": {"kind": "Pod", "name": "trainer-3", "namespace": "ml", "uid": "p-3"},
    "reason": "FailedMount",
    "message": 'MountVolume.SetUp failed for volume "data": rpc error: code = 4',
    "type": "Warning",
    "count": 12,
    "firstTimestamp": "2026-11-15T01:30:00Z",
    "lastTimestamp": "2026-11-15T01:36:04Z",
    "source": {"component": "kubelet", "host": "node-7"},
}
NEW_EVENT: dict[str, Any] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "b", "namespace": "ml", "uid": "e-2"},
    "regarding": {"kind": "Node", "name": "node-7"},
    "reason": "NodeNotReady",
    "note": "Node node-7 status is now: NodeNotReady",
    "eventTime": "2026-11-15T01:35:04.500000Z",
    "series": {"count": 3, "lastObservedTime": "2026-11-15T01:36:04.250000Z"},
    "reportingController": "node-controller",
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "trainer-3",
        "namespace": "ml",
        "uid": "p-3",
        "labels": {"training.kubeflow.org/job-name": "llama", "gen_ai.training.io/rank": "3"},
        "ownerReferences": [{"kind": "StatefulSet", "name": "trainer"}],
    },
    "spec": {"nodeName": "node-7", "containers": [{"name": "main", "env": [{"name": "LOCAL_RANK", "value": "0"}]}]},
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: ephemeral-storage.",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T01:00:04Z"}],
        "containerStatuses": [
            {
                "name": "main",
                "restartCount": 2,
                "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": "2026-11-15T01:10:00Z"}},
                "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-15T01:37:00Z"}},
            }
        ],
    },
}
NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-7", "uid": "n-7"},
    "status": {
        "conditions": [
            {"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure", "message": "disk",
             "lastTransitionTime": "2026-11-15T01:20:00Z"},
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-15T01:21:00Z"},
        ]
    },
}  # fmt: skip
LIST = {"apiVersion": "v1", "kind": "List", "items": [EVENT, NEW_EVENT, POD, NODE]}


def to_yaml(document: object) -> str:
    yaml, out = YAML(typ="safe"), io.StringIO()
    yaml.default_flow_style = False
    yaml.width = 60  # long messages are folded, as kubectl does
    yaml.dump(document, out)
    return out.getvalue()


def check(found: list[LogSignal]) -> None:
    mount, node_down, ready, evicted, failed, killed, pressure, unknown = found
    assert mount["resource"]["attributes"] == {
        "k8s.namespace.name": "ml",
        "k8s.pod.name": "trainer-3",
        "k8s.pod.uid": "p-3",
        "k8s.node.name": "node-7",
        "tracecore.layer": "kubernetes",
    }
    assert mount["log"]["attributes"]["k8s.event.reason"] == "FailedMount"
    assert mount["log"]["attributes"]["k8s.event.note"] == EVENT["message"]
    assert mount["log"]["attributes"]["k8s.event.count"] == 12
    assert mount["log"]["attributes"]["k8s.event.uid"] == mount["source"].uid == "e-1"
    assert mount["log"]["time_unix_nano"] == parse("2026-11-15T01:36:04Z")
    assert node_down["log"]["attributes"]["k8s.event.note"] == NEW_EVENT["note"]
    assert node_down["log"]["attributes"]["k8s.object.kind"] == "Node"
    assert node_down["resource"]["attributes"]["k8s.node.name"] == "node-7"
    assert node_down["log"]["time_unix_nano"] == parse("2026-11-15T01:36:04.25Z")
    assert ready["log"]["attributes"]["k8s.pod.ready_time"] == "2026-11-15T01:00:04Z"
    assert ready["resource"]["attributes"]["gen_ai.training.rank"] == 3
    assert ready["resource"]["attributes"]["gen_ai.training.job_id"] == "llama"
    assert ready["resource"]["attributes"]["k8s.statefulset.name"] == "trainer"
    assert evicted["log"]["attributes"]["k8s.event.reason"] == "Evicted"
    assert failed["log"]["attributes"]["tracecore.attempt"] == 1
    assert killed["log"]["attributes"]["k8s.container.terminated.reason"] == "OOMKilled"
    assert killed["log"]["attributes"]["k8s.container.terminated.exit_code"] == 137
    assert killed["log"]["time_unix_nano"] == parse("2026-11-15T01:37:00Z")
    assert pressure["log"]["attributes"]["k8s.node.condition"] == "DiskPressure"
    assert pressure["log"]["attributes"]["k8s.node.condition.status"] == "True"
    assert unknown["log"]["attributes"]["k8s.node.condition.status"] == "Unknown"
    assert len({r["source"].uid for r in found}) == len(found)


def test_a_list_in_json(make: Make) -> None:
    check(list(objects.read_json(make(json.dumps(LIST, indent=4), "kubernetes_json", layer="kubernetes"), CLOCK)))


def test_a_list_in_yaml(make: Make) -> None:
    check(list(objects.read_yaml(make(to_yaml(LIST), "kubernetes_yaml", layer="kubernetes"), CLOCK)))


def test_documents_one_after_another(make: Make) -> None:
    together = "\n".join(json.dumps(item) for item in LIST["items"])
    check(list(objects.read_json(make(together, "kubernetes_json", layer="kubernetes"), CLOCK)))
    several = "---\n".join(to_yaml(item) for item in LIST["items"])
    check(list(objects.read_yaml(make(several, "kubernetes_yaml", layer="kubernetes"), CLOCK)))


def test_events_of_which_some_fields_were_kept_are_events(tmp_path: Path) -> None:
    lines = [
        {
            "reason": "Evicted",
            "involvedObject": {"kind": "Pod", "name": "t-2", "namespace": "ml"},
            "message": "The node was low on resource: memory.",
            "lastTimestamp": "2026-11-16T23:41:19Z",
        },
        {"reason": "Started", "regarding": {"kind": "Pod", "name": "t-1"}, "note": "Started container {x}"},
    ]
    (tmp_path / "events.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (stream,) = discover([tmp_path]).streams
    assert stream.format == "kubernetes_json"
    found = [record["log"]["attributes"] for record in objects.read_json(stream, Clock())]
    assert [(event["k8s.event.reason"], event["k8s.object.name"]) for event in found] == [
        ("Evicted", "t-2"),
        ("Started", "t-1"),
    ]


def test_a_list_that_was_cut_off_gives_its_whole_items(make: Make) -> None:
    text = json.dumps(LIST)
    cut = text[: text.index('"kind": "Pod", "metadata"')]
    found = list(objects.read_json(make(cut, "kubernetes_json"), CLOCK))
    assert [r["log"]["attributes"]["k8s.event.uid"] for r in found] == ["e-1", "e-2"]


def test_a_typed_list_leaves_the_kind_to_its_items(make: Make) -> None:
    item = {k: v for k, v in EVENT.items() if k not in ("kind", "apiVersion")}
    text = json.dumps({"kind": "EventList", "apiVersion": "v1", "items": [item]})
    assert len(list(objects.read_json(make(text, "kubernetes_json"), CLOCK))) == 1


def test_what_is_no_json_says_so(make: Make) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        list(objects.read_json(make('{"apiVersion": ', "kubernetes_json"), CLOCK))


def test_an_alias_bomb_costs_nothing(make: Make) -> None:
    levels = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"] + [
        f"a{i}: &a{i} [{','.join(['*a' + str(i - 1)] * 9)}]" for i in range(1, 12)
    ]
    text = "apiVersion: v1\nkind: Event\nreason: R\n" + "\n".join(levels) + "\nmessage: *a11\n"
    (record,) = objects.read_yaml(make(text, "kubernetes_yaml"), CLOCK)
    assert record["log"]["attributes"]["k8s.event.note"] == ""


def test_wrong_types_everywhere_are_survived(make: Make) -> None:
    odd = [{"kind": "Pod", "metadata": 3, "status": {"containerStatuses": [None, {"state": []}], "conditions": "x"}},
           {"kind": "Event", "metadata": [], "count": "many", "involvedObject": 1, "message": {"a": 1}},
           {"kind": "Node", "status": {"conditions": [1, {"type": {}}]}}, 7, None]  # fmt: skip
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": odd})
    assert len(list(objects.read_json(make(text, "kubernetes_json"), CLOCK))) >= 1


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(st.characters(codec="utf-8"), max_size=40),
    st.sampled_from(["a: b", "- x", "it's", 'say "hi"', "line\nbreak\n", "# no comment", "x #y", "{a}", "*star", ""]),
)  # fmt: skip
KEYS = st.one_of(
    st.sampled_from(["name", "f:metadata", 'k:{"type":"Ready"}', "a.b/c", "."]),
    st.text("abcxyz", min_size=1, max_size=5),
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=5))
def test_plain_yaml_agrees_with_the_general_parser_or_refuses(document: Any) -> None:
    text = to_yaml(document)
    try:
        (found,) = plain_yaml.load_all(text)
    except plain_yaml.Unsupported:
        return
    assert _loose(found) == _loose(document)


def _loose(node: Any) -> Any:
    """Strings without the details of line breaks and spaces, which no reader here depends on."""
    if isinstance(node, dict):
        return {key: _loose(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_loose(value) for value in node]
    return " ".join(node.split()) if isinstance(node, str) else node


def test_plain_yaml_reads_what_kubectl_prints_without_help() -> None:
    (found,) = plain_yaml.load_all(to_yaml(LIST))
    assert _loose(found) == _loose(LIST)


TABLE = """\
NAMESPACE   LAST SEEN              TYPE      REASON             OBJECT                 MESSAGE
ml          4m12s                  Warning   FailedScheduling   pod/trainer-3          0/4 nodes are available
ml          2m (x7 over 10m)       Warning   BackOff            pod/trainer-4          Back-off restarting
default     60m                    Normal    NodeNotReady       node/node-7            Node is not ready
"""


def test_the_table_of_events(make: Make) -> None:
    found = list(printed.read_table(make(TABLE, "kubernetes_table", layer="kubernetes"), CLOCK))
    assert [r["log"]["attributes"]["k8s.event.reason"] for r in found] == [
        "FailedScheduling",
        "BackOff",
        "NodeNotReady",
    ]
    assert [T - r["log"]["time_unix_nano"] for r in found] == [252 * SECOND, 120 * SECOND, 3600 * SECOND]
    assert found[1]["log"]["attributes"]["k8s.event.count"] == 7
    assert found[0]["resource"]["attributes"]["k8s.pod.name"] == "trainer-3"
    assert found[0]["resource"]["attributes"]["k8s.namespace.name"] == "ml"
    assert found[2]["resource"]["attributes"]["k8s.node.name"] == "node-7"
    assert all(r["log"]["attributes"]["tracecore.time.inferred"] for r in found)


CUSTOM = """\
TIME                   NS      KIND  NAME       NODE    REASON    TYPE     NOTE
2026-11-15T01:30:00Z   ml      Pod   trainer-3  node-7  Evicted   Warning  The node was low on resource: memory
2026-11-15T01:31:00Z   <none>  Node  node-7     <none>  Rebooted  Warning  Node node-7 has been rebooted
"""
FLAT = """\
{"ts": "2026-11-15T01:30:00Z", "type": "Warning", "reason": "Evicted", "kind": "Pod", "namespace": "ml", \
"name": "trainer-3", "node": "node-7", "message": "The node was low on resource: memory"}
{"ts": "2026-11-15T01:31:00Z", "type": "Warning", "reason": "Rebooted", "object": "node/node-7", "message": "back"}
{"broken
"""


@pytest.mark.parametrize("text", [CUSTOM, FLAT, "[" + FLAT.replace("}\n", "},\n")])
def test_events_with_columns_or_keys_of_ones_own(make: Make, text: str) -> None:
    assert recognise(text.encode(), b"", "out.txt", True).format == "kubernetes_table"
    pod, node = printed.read_table(make(text, "kubernetes_table", layer="kubernetes"), CLOCK)
    assert pod["resource"]["attributes"].items() >= {
        "k8s.pod.name": "trainer-3", "k8s.namespace.name": "ml", "k8s.node.name": "node-7",
    }.items()  # fmt: skip
    assert node["resource"]["attributes"]["k8s.node.name"] == "node-7"
    assert "k8s.namespace.name" not in node["resource"]["attributes"]
    assert T - pod["log"]["time_unix_nano"] == 424 * SECOND
    assert "tracecore.time.inferred" not in pod["log"]["attributes"]


@pytest.mark.parametrize(
    "line",
    [
        "NAME        STATUS   REASON   MESSAGE",
        "REASON               USER      TIMESTAMP           NODELIST",
        '{"type": "Warning", "reason": "loss is high", "kind": "train", "name": "run-3", "message": "step 4"}',
        '{"type": "Normal", "reason": "Started", "message": "no object"}',
        '{"level": "Warning", "reason": "Evicted", "object": "cache/block-3", "message": "the cache is full"}',
    ],
)
def test_lines_that_only_look_like_events(line: str) -> None:
    assert recognise(f"{line}\n{line}\n".encode(), b"", "out.txt", True).format != "kubernetes_table"


DESCRIBE = """\
Name:             trainer-3
Namespace:        ml
Node:             node-7/10.0.0.7
Labels:           app=x
Status:           Failed
Reason:           Evicted
Message:          The node was low on resource: memory.
Containers:
  main:
    Container ID:  containerd://abc
    Last State:     Terminated
      Reason:       Error
      Exit Code:    1
      Started:      Sun, 15 Nov 2026 01:00:04 +0000
      Finished:     Sun, 15 Nov 2026 01:10:04 +0000
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Finished:     Sun, 15 Nov 2026 02:37:04 +0100
    Ready:          False
Conditions:
  Type              Status
  Ready             False
Events:
  Type     Reason   Age                 From     Message
  ----     ------   ----                ----     -------
  Warning  BackOff  3m (x5 over 12m)    kubelet  Back-off restarting failed container main
"""

NODES = """\
Name:               node-7
Roles:              <none>
Labels:             a=b
Conditions:
  Type             Status    LastHeartbeatTime                 LastTransitionTime                Reason      Message
  ----             ------    -----------------                 ------------------                ------      -------
  MemoryPressure   False     Sun, 15 Nov 2026 01:37:04 +0000   Sun, 15 Nov 2026 00:37:04 +0000   Sufficient  fine
  Ready            Unknown   Sun, 15 Nov 2026 01:30:00 +0000   Sun, 15 Nov 2026 01:31:00 +0000   Unknown     stopped
Events:              <none>
"""


def test_described_pods_and_nodes(make: Make) -> None:
    found = list(printed.read_describe(make(DESCRIBE + "\n\n" + NODES, "kubernetes_describe"), CLOCK))
    failed, killed, evicted, back_off, pressure, ready = found
    assert failed["log"]["attributes"]["k8s.container.terminated.exit_code"] == 1
    assert killed["log"]["attributes"]["k8s.container.terminated.reason"] == "OOMKilled"
    assert killed["log"]["time_unix_nano"] == T
    assert killed["resource"]["attributes"]["k8s.node.name"] == "node-7"
    assert evicted["log"]["attributes"]["k8s.event.note"] == "The node was low on resource: memory."
    assert back_off["log"]["attributes"]["k8s.event.count"] == 5
    assert back_off["resource"]["attributes"]["k8s.node.name"] == "node-7"
    assert T - back_off["log"]["time_unix_nano"] == 180 * SECOND
    assert pressure["log"]["attributes"]["k8s.node.condition.status"] == "False"
    assert ready["log"]["attributes"]["k8s.node.condition.status"] == "Unknown"
    assert ready["log"]["time_unix_nano"] == parse("2026-11-15T01:31:00Z")


@given(st.text(max_size=300))
def test_any_text(make: Make, text: str) -> None:
    assert len(list(printed.read_table(make(TABLE + text, "t"), CLOCK))) >= 3
    described = list(printed.read_describe(make(DESCRIBE + text, "t"), CLOCK))
    assert described[0]["log"]["attributes"]["k8s.container.terminated.exit_code"] == 1


def test_a_recorded_watch_says_what_its_objects_say_but_not_that_events_are_forgotten(make: Make) -> None:
    changes = [{"type": "ADDED", "object": EVENT}, {"type": "MODIFIED", "object": POD}]
    changes.append({"type": "DELETED", "object": {**NEW_EVENT, "kind": "Event"}})
    text = "\n".join(json.dumps({"apiVersion": "v1", **change}) for change in changes)
    found = list(objects.read_json(make(text, "kubernetes_json"), CLOCK))
    assert [r["log"]["attributes"].get("k8s.event.reason") for r in found[:1]] == ["FailedMount"]
    assert len(found) == 5
    assert not any(r["log"]["attributes"].get("k8s.event.uid") == "e-2" for r in found)


@pytest.mark.parametrize(
    ("reason", "code", "second", "told"),
    [
        ("Error", 137, 30, False),  # it did not listen, and was killed when its grace period was over
        ("Error", 143, 1, False),
        ("Error", 137, -5, True),  # it had died before anybody asked
        ("OOMKilled", 137, 30, True),
        ("Error", 1, 1, True),
    ],
)
def test_a_container_that_ends_because_its_pod_is_deleted_has_not_failed(
    make: Make, reason: str, code: int, second: int, told: bool
) -> None:
    asked = parse("2026-11-15T01:30:00Z") or 0
    ended = {"reason": reason, "exitCode": code, "finishedAt": rfc3339(asked + second * SECOND)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "notebook-0", "namespace": "ml", "uid": "p-9",
            "deletionTimestamp": "2026-11-15T01:30:30Z", "deletionGracePeriodSeconds": 30,
        },
        "status": {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {"terminated": ended}}]},
    }  # fmt: skip
    assert len(list(objects.read_json(make(json.dumps(pod), "kubernetes_json"), CLOCK))) == told


PODS = """\
NAMESPACE   NAME             READY   STATUS             RESTARTS      AGE   IP       NODE
ml          train-worker-0   1/1     Running            0             3h    10.0.0.1 gpu07
ml          train-worker-1   0/1     Evicted            0             3h    <none>   gpu08
ml          train-worker-2   0/1     OOMKilled          1 (3m ago)    3h    10.0.0.3 <none>
ml          train-worker-3   0/1     Completed          0             3h    10.0.0.4 gpu09
"""


def test_pods_that_failed_are_read_from_a_table_of_pods(make: Make) -> None:
    found = list(printed.read_pods(make(PODS, "kubernetes_pods", layer="kubernetes"), CLOCK))
    pods = [r["resource"]["attributes"] for r in found]
    assert [(pod["k8s.pod.name"], pod.get("k8s.node.name")) for pod in pods] == [
        ("train-worker-1", "gpu08"),
        ("train-worker-2", None),
        ("train-worker-3", "gpu09"),
    ]
    assert found[0]["log"]["attributes"]["k8s.event.reason"] == "Evicted"
    assert found[1]["log"]["attributes"]["k8s.container.terminated.reason"] == "OOMKilled"


def test_rows_of_pods_are_read_without_their_header(make: Make) -> None:
    rows = PODS.partition("\n")[2]
    found = list(printed.read_pods(make(rows, "kubernetes_pods", layer="kubernetes"), CLOCK))
    assert [r["resource"]["attributes"]["k8s.pod.name"] for r in found] == [
        "train-worker-1", "train-worker-2", "train-worker-3",
    ]  # fmt: skip
    assert {r["resource"]["attributes"]["k8s.namespace.name"] for r in found} == {"ml"}


def test_events_of_a_described_pod_are_read_without_the_pod(make: Make) -> None:
    rows = """\
  Warning  Evicted              109s               kubelet            Pod ephemeral local storage usage exceeds 5Gi.
  Normal   Killing              109s (x2 over 3m)  kubelet, node-7    Stopping container model
"""
    found = list(printed.read_table(make(rows, "kubernetes_table", layer="kubernetes"), CLOCK))
    told = [(r["log"]["attributes"]["k8s.event.reason"], r["log"]["attributes"]["k8s.event.count"]) for r in found]
    assert told == [("Evicted", 1), ("Killing", 2)]


def test_lines_in_which_a_message_goes_on_are_read_up_to_a_length() -> None:
    lines = [
        (0, "5m  Warning  FailedMount  pod/w-0  mount failed"),
        *((n, "Output: mount.nfs: x") for n in range(1, 9999)),
    ]
    found = list(printed._joined([*lines, (9999, "6m  Normal  Pulled  pod/w-0")]))
    assert [offset for offset, _ in found] == [0, 9999]
    assert found[0][1].startswith("5m  Warning  FailedMount  pod/w-0  mount failed Output: mount.nfs: x")
    assert len(found[0][1]) < 2 * printed.MESSAGE
