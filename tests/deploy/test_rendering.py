"""The chart, rendered by a real helm with many values: configurations are valid, objects within the policy."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracecore.agent.configuration import Configuration, ConfigurationError, read
from tracecore.agent.document import ConfigReport, load
from tracecore.signals.logs.operators.chain import Chain
from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.tail.counters import TailCounters

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tracecore"
#: Names and keys that look like numbers are text all the same.
ENVIRONMENT = {"K8S_NODE_NAME": "1234", "KEY": "5678"}
ALERTS = {"alertmanager": {"enabled": True, "url": "http://alertmanager.monitoring:9093/api/v2/alerts"}}
OTLP = {"otlphttp": {"enabled": True, "endpoint": "https://otlp.example.com", "headers": {"x-key": "${env:KEY}"}}}

#: Every toggle and what it may be.
TOGGLES: dict[str, list[dict[str, Any]]] = {
    "logs": [
        {"logs": {"enabled": True}},
        {"logs": {"enabled": False}},
        {"logs": {"namespaces": ["train", "eval"], "exclude": ["/var/log/pods/kube-system_*/*/*.log"]}},
        {"logs": {"dockerHostPath": "/var/lib/docker/containers", "startAt": "beginning"}},
        {"logs": {"containerLogMaxSize": "50Mi"}},
    ],
    "kernel": [
        {"kernel": {"enabled": True}},
        {"kernel": {"enabled": False}},
        {"kernel": {"source": "file"}},
        {"kernel": {"source": "kmsg", "kmsg": {"resource": "smarter-devices/kmsg"}}},
        {"kernel": {"journald": {"hostPath": "/run/log/journal", "units": ["kubelet.service"]}}},
        {"kernel": {"journald": {"mayBeAbsent": True}}},
    ],
    "dumps": [{"dumps": {"enabled": on}} for on in (True, False)],
    "metrics": [
        {},
        {"metrics": {"scrape": {"enabled": True}}},
        {"metrics": {"nvml": {"enabled": True}}},
        {"metrics": {"scrape": {"enabled": True, "interval": "5s"}, "nvml": {"enabled": True}}},
    ],
    "otlp": [{"otlp": {"enabled": on}} for on in (True, False)],
    "objects": [
        {},
        {"objects": {"enabled": False}},
        {"objects": {"namespaces": ["train"], "nodes": False}},
        {"objects": {"events": False, "pods": False}},
    ],
    "identity": [
        {"identity": {"enabled": False}},
        {
            "identity": {
                "labels": [{"tag_name": "team", "key": "team"}],
                "annotations": [{"key_regex": "nvidia.com/.*"}],
            }
        },
    ],
    "scope": [
        {"detection": {"scope": "cluster"}},
        {"detection": {"scope": "node", "gpuByOrdinal": "pci_bus_id"}},
    ],
    "outputs": [
        {},
        {"outputs": ALERTS},
        {"outputs": OTLP},
        {"outputs": {"otlphttp": {**OTLP["otlphttp"], "send": "all"}, "log": {"enabled": False}}},
        {"outputs": {"webhook": {"enabled": True, "url": "https://hooks.example.com/x"}, **ALERTS}},
    ],
    "state": [{}, {"agent": {"state": {"ephemeral": True}}}, {"agent": {"state": {"prepare": False}}}],
    "around": [
        {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}},
        {"networkPolicy": {"enabled": False}, "priorityClass": {"create": False}, "clusterName": "one"},
        {"serviceMonitor": {"enabled": True}, "probes": {"liveness": {"periodSeconds": 60}}},
    ],
    "tls": [{}, {"tls": {"secretName": "agents-tls"}}],
    "cluster": [
        {},
        {"cluster": {"persistence": {"enabled": True}, "podDisruptionBudget": {"enabled": True}}},
        {"cluster": {"existingClaim": "mine", "persistence": {"enabled": True}}},
    ],
}


def _pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def rows() -> Iterator[dict[str, Any]]:
    """Values so that every choice of a toggle meets every choice of every other one, in few renderings."""
    sizes = [len(choices) for choices in TOGGLES.values()]
    open_ = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(sizes)), 2)
        for a in range(sizes[i])
        for b in range(sizes[j])
    }
    while open_:
        i, a, j, b = min(open_)
        row = {i: a, j: b}
        for k in range(len(sizes)):
            if k not in row:
                row[k] = max(
                    range(sizes[k]),
                    key=lambda c, k=k, row=row: sum((*sorted(((k, c), one)),) in _nested(open_) for one in row.items()),
                )
        chosen = tuple(row[k] for k in range(len(sizes)))
        open_ -= _pairs(chosen)
        merged: dict[str, Any] = {}
        for choices, number in zip(TOGGLES.values(), chosen, strict=True):
            _merge(merged, choices[number])
        yield merged


def _nested(pairs: set[tuple[int, int, int, int]]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return {((i, a), (j, b)) for i, a, j, b in pairs}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value.copy() if isinstance(value, dict) else value


def configurations(objects: list[dict[str, Any]]) -> dict[str, str]:
    """The agents' configurations, by file name."""
    return {
        name: text
        for one in objects
        if one["kind"] == "ConfigMap"
        for name, text in one["data"].items()
        if name in ("agent.yaml", "cluster.yaml")
    }


def valid(text: str, place: Path) -> Configuration:
    """What `tracecore validate` makes of it; every mistake when there is one."""
    place.write_text(text)
    try:
        configuration, warnings = read([place], ENVIRONMENT)
    except ConfigurationError as error:
        pytest.fail("\n".join(map(str, error.problems)) + "\n" + text)
    # Certificates are in the pod, not here.
    assert all("there is no file /etc/tracecore-tls/" in str(warning) for warning in warnings)
    return configuration


def test_helm_finds_nothing_to_complain_of(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_helm_refuses_what_the_schema_does_not_know(helm: Path, generate: Any) -> None:
    for setting in ("agent.privileged=true", "agent.hostNetwork=true", "outputs.webhook.enabled=true"):
        command = [helm, "template", "x", CHART, "--set", setting, "--kube-version", generate.KUBERNETES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "values don't meet the specifications of the schema" in done.stderr


@pytest.mark.parametrize("number", range(4))
def test_toggles_meet(number: int, render: Any, policy: Any, tmp_path: Path) -> None:
    """A few of the renderings; `make interop` does all."""
    check_row(list(rows())[number * 7], render, policy, tmp_path)


def test_every_choice_meets_every_other() -> None:
    found = list(rows())
    assert 20 < len(found) < 60
    for choices in TOGGLES.values():
        for choice in choices:
            assert any(_within(choice, values) for values in found)


def _within(choice: Any, values: Any) -> bool:
    if not isinstance(choice, dict):
        return bool(choice == values)
    return isinstance(values, dict) and all(key in values and _within(one, values[key]) for key, one in choice.items())


def check_row(values: dict[str, Any], render: Any, policy: Any, place: Path) -> None:
    """Everything that must hold of a rendering."""
    objects = render(values)
    assert policy.violations(objects) == [], values
    texts = configurations(objects)
    workloads = {one["kind"]: one for one in objects if one["kind"] in ("DaemonSet", "Deployment")}
    assert set(texts) == {
        file for file, kind in (("agent.yaml", "DaemonSet"), ("cluster.yaml", "Deployment")) if kind in workloads
    }
    for name, text in texts.items():
        configuration = valid(text, place / name)
        pod = workloads["DaemonSet" if name == "agent.yaml" else "Deployment"]["spec"]["template"]["spec"]
        _fits(configuration, pod)
        _tells(configuration)
    _wired(objects)


def _tells(configuration: Configuration) -> None:
    """Verdicts leave by a pipeline of logs that detects; what is read is either judged here or sent to where it is."""
    pipelines = configuration.service.pipelines
    detecting = [name for name, one in pipelines.items() if "patterndetector" in one.processors]
    outputs = {"debug", "webhook", "webhook/alertmanager", "otlphttp"} & set(configuration.of("exporter"))
    if detecting:
        assert any(name.startswith("logs") and outputs <= set(pipelines[name].exporters) for name in detecting)
    for name, one in pipelines.items():
        if not name.endswith("/records"):
            assert name in detecting or one.exporters == ["otlp/cluster"]
    used = {id for one in pipelines.values() for id in (*one.receivers, *one.processors, *one.exporters)}
    assert used == {id for (kind, id) in configuration.components if kind != "extension"}


def _fits(configuration: Configuration, pod: dict[str, Any]) -> None:
    """The pod gives the configuration what it needs."""
    (container,) = pod["containers"]
    drain = int(container["args"][container["args"].index("--drain") + 1])
    assert pod["terminationGracePeriodSeconds"] > drain
    limiter = configuration.of("processor")["memory_limiter"].options
    limit = container["resources"]["limits"]["memory"]
    mebibytes = int(limit[:-2]) * (1024 if limit.endswith("Gi") else 1)
    assert mebibytes * 0.7 <= limiter.limit_mib < mebibytes
    assert 0 < limiter.spike_limit_mib < limiter.limit_mib
    health = configuration.of("extension")["health_check"].options
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert health.endpoint.endswith(f":{ports['health']}")
    assert configuration.service.telemetry.metrics.listen() == ("0.0.0.0", ports["metrics"])
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    storage = configuration.of("extension")["file_storage"].options
    state = [path for path in mounts if storage.directory.startswith(path + "/")]
    assert state
    assert not mounts[state[0]].get("readOnly")
    for id, component in configuration.of("receiver").items():
        if id.startswith("filelog"):
            assert component.source["include"]
            for pattern in component.source["include"]:
                assert any(pattern.startswith(path + "/") for path in mounts), pattern
        if id in ("journald", "ncclfr"):
            directory = component.options.directory
            assert directory in mounts or str(Path(directory).parent) in mounts
        if id in ("k8sobjects", "prometheus"):
            assert pod["automountServiceAccountToken"] is True
    if "k8sattributes" in configuration.of("processor"):
        assert pod["automountServiceAccountToken"] is True
        assert any(one["name"] == "K8S_NODE_NAME" for one in container["env"])


def _wired(objects: list[dict[str, Any]]) -> None:
    """Names meet: selectors and labels, services and ports, accounts, maps, classes, what agents send and where."""
    by_kind: dict[str, dict[str, Any]] = {}
    for one in objects:
        by_kind.setdefault(one["kind"], {})[one["metadata"]["name"]] = one
    for kind in ("DaemonSet", "Deployment"):
        for one in by_kind.get(kind, {}).values():
            template = one["spec"]["template"]
            labels = template["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert template["spec"]["serviceAccountName"] in by_kind["ServiceAccount"]
            for volume in template["spec"]["volumes"]:
                if "configMap" in volume:
                    assert volume["configMap"]["name"] in by_kind["ConfigMap"]
            if name := template["spec"].get("priorityClassName"):
                assert name in by_kind["PriorityClass"]
            assert len(one["metadata"]["name"]) <= 52
    templates = [
        one["spec"]["template"] for kind in ("DaemonSet", "Deployment") for one in by_kind.get(kind, {}).values()
    ]
    for service in by_kind.get("Service", {}).values():
        (pod,) = [one for one in templates if service["spec"]["selector"].items() <= one["metadata"]["labels"].items()]
        names = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for text in configurations(objects).values():
        target = (yaml.safe_load(text)["exporters"].get("otlp/cluster") or {}).get("endpoint", "").partition(":")[0]
        assert not target or target in by_kind["Service"]


def of(objects: list[dict[str, Any]], kind: str, end: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends like this."""
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(end)]
    return found


def test_agents_speak_tls_to_each_other(render: Any, tmp_path: Path) -> None:
    objects = render({"tls": {"secretName": "agents-tls"}})
    texts = configurations(objects)
    node, cluster = (valid(texts[name], tmp_path / name) for name in ("agent.yaml", "cluster.yaml"))
    tls = node.of("exporter")["otlp/cluster"].options.tls
    assert not tls.insecure
    assert tls.ca_file == "/etc/tracecore-tls/ca.crt"
    assert cluster.of("receiver")["otlp"].options.protocols.grpc.tls.client_ca_file == tls.ca_file
    for kind in ("DaemonSet", "Deployment"):
        pod = of(objects, kind)["spec"]["template"]["spec"]
        assert {"name": "agents-tls", "secret": {"secretName": "agents-tls", "defaultMode": 0o440}} in pod["volumes"]
    # Nothing is sent to the cluster's agent where every node judges for itself.
    alone = render({"tls": {"secretName": "agents-tls"}, "detection": {"scope": "node"}})
    assert "agents-tls" not in json.dumps(alone)


def test_the_cluster_agent_keeps_its_state_and_its_place(render: Any) -> None:
    values = {"persistence": {"enabled": True, "size": "5Gi", "storageClass": "fast"}}
    objects = render({"cluster": {**values, "podDisruptionBudget": {"enabled": True, "maxUnavailable": 0}}})
    claim = of(objects, "PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    deployment = of(objects, "Deployment")
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    budget = of(objects, "PodDisruptionBudget")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["maxUnavailable"] == 0
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    mine = render({"cluster": {**values, "existingClaim": "mine"}})
    assert not [one for one in mine if one["kind"] == "PersistentVolumeClaim"]


def test_more_containers_objects_probes_and_monitors(render: Any) -> None:
    side = {"name": "side", "image": "proxy:1"}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    own = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}}
    text = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: '{{ .Release.Name }}-made'\n"
    objects = render(
        {
            "agent": {"extraContainers": [side]},
            "cluster": {"extraContainers": [side], "topologySpreadConstraints": [spread]},
            "probes": {"liveness": {"periodSeconds": 60}},
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "extraManifests": [own, text],
        }
    )
    for kind in ("DaemonSet", "Deployment"):
        pod = of(objects, kind)["spec"]["template"]["spec"]
        assert [one["name"] for one in pod["containers"]] == ["tracecore", "side"]
        assert pod["containers"][0]["livenessProbe"]["periodSeconds"] == 60
        assert pod["containers"][0]["livenessProbe"]["failureThreshold"] == 6
    assert of(objects, "Deployment")["spec"]["template"]["spec"]["topologySpreadConstraints"] == [spread]
    assert {one["metadata"]["name"] for one in objects if one["kind"] == "Secret"} == {"own", "probe-made"}
    monitor, service = of(objects, "ServiceMonitor"), of(objects, "Service", "-metrics")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]
    template = of(objects, "DaemonSet")["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()


def test_a_node_without_a_journal_still_gets_its_pod(render: Any) -> None:
    def journal(values: dict[str, Any]) -> str:
        pod = of(render({"kernel": {"journald": values}}), "DaemonSet")["spec"]["template"]["spec"]
        (path,) = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "kernel"]
        return str(path)

    assert journal({}) == "/var/log/journal"
    assert journal({"mayBeAbsent": True}) == "/var/log"


def test_the_detector_is_told_how_jobs_count_gpus(render: Any, tmp_path: Path) -> None:
    for said in ("never", "pci_bus_id"):
        text = configurations(render({"detection": {"gpuByOrdinal": said}}))["cluster.yaml"]
        detector = valid(text, tmp_path / "cluster.yaml").of("processor")["patterndetector"]
        assert detector.options.gpu_by_ordinal == said


def test_outputs_may_have_certificates_of_their_own(render: Any, tmp_path: Path) -> None:
    tls = {"ca_file": "/etc/tracecore-tls/own-ca.crt"}
    outputs = {"otlphttp": {**OTLP["otlphttp"], "tls": tls}, "alertmanager": {**ALERTS["alertmanager"], "tls": tls}}
    configuration = valid(configurations(render({"outputs": outputs}))["cluster.yaml"], tmp_path / "cluster.yaml")
    for id in ("otlphttp", "webhook/alertmanager"):
        assert configuration.of("exporter")[id].options.tls.ca_file == tls["ca_file"]


def test_a_changed_configuration_is_a_new_pod(render: Any) -> None:
    def checksums(values: dict[str, Any]) -> list[str]:
        return [
            one["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for one in render(values)
            if one["kind"] in ("DaemonSet", "Deployment")
        ]

    first, again = checksums({}), checksums({"agent": {"podLabels": {"a": "b"}}})
    changed = checksums({"agent": {"config": {"processors": {"batch": {"timeout": "1s"}}}}})
    assert first == again
    assert first[0] != changed[0]
    assert first[1] == changed[1]


def test_the_operators_own_configuration_goes_last_as_a_second_file_would(render: Any, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "receivers": {
            "otlp": {"protocols": {"grpc": None}},
            "filelog/pods": {"poll_interval": "1s", "exclude": ["/var/log/pods/a_*/*/*.log"]},
            "journald": None,
        },
        "processors": {
            "batch": {"timeout": "1s"},
            "filter/quiet": {"logs": {"log_record": ['IsMatch(body, "^DEBUG")']}},
        },
        "exporters": {"otlp/cluster": {"sending_queue": {"queue_size": 5000}}},
        "service": {
            "pipelines": {
                "logs": {
                    "receivers": ["filelog/pods", "otlp"],
                    "processors": ["memory_limiter", "filter/quiet", "batch"],
                }
            }
        },
    }
    merged = configurations(render({"agent": {"config": own}}))["agent.yaml"]
    plain = configurations(render({}))["agent.yaml"]
    for name, text in (("merged", merged), ("plain", plain), ("own", yaml.safe_dump(own))):
        (tmp_path / f"{name}.yaml").write_text(text)
    report = ConfigReport()
    by_agent = load([tmp_path / "plain.yaml", tmp_path / "own.yaml"], report, ENVIRONMENT)
    by_chart = load([tmp_path / "merged.yaml"], report, ENVIRONMENT)
    assert not report.problems
    assert by_agent is not None
    assert by_chart is not None
    assert by_chart.plain() == by_agent.plain()
    assert by_chart.plain()["receivers"]["filelog/pods"]["start_at"] == "end"
    assert by_chart.plain()["receivers"]["filelog/pods"]["exclude"] == ["/var/log/pods/a_*/*/*.log"]
    configuration = valid(merged, tmp_path / "merged.yaml")
    assert list(configuration.service.pipelines["logs"].processors) == ["memory_limiter", "filter/quiet", "batch"]


def test_outputs_are_reachable_through_the_network_policy(render: Any) -> None:
    objects = render({"outputs": {**ALERTS, **OTLP, "webhook": {"enabled": True, "url": "http://[fd00::1]/hook"}}})
    (policy,) = [
        one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"].endswith("-cluster")
    ]
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"] if "to" not in rule}
    assert ports >= {9093, 443, 80}


def test_rights_are_those_of_what_is_read(render: Any) -> None:
    def rights(values: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
        return {
            f"{one['kind']} {one['metadata'].get('namespace', '')}".strip(): {
                (resource, verb) for rule in one["rules"] for resource in rule["resources"] for verb in rule["verbs"]
            }
            for one in render(values)
            if one["kind"] in ("ClusterRole", "Role") and one["metadata"]["name"].endswith("-cluster")
        }

    reading = {"get", "list", "watch"}
    assert rights({}) == {"ClusterRole": {(what, verb) for what in ("events", "pods", "nodes") for verb in reading}}
    assert rights({"objects": {"pods": False, "nodes": False}}) == {
        "ClusterRole": {("events", verb) for verb in reading}
    }
    assert rights({"objects": {"enabled": False}}) == {}
    scoped = rights({"objects": {"namespaces": ["train"]}})
    assert scoped == {
        "ClusterRole": {("nodes", verb) for verb in reading},
        "Role train": {(what, verb) for what in ("events", "pods") for verb in reading},
    }


def test_an_agent_may_read_namespaces_and_nodes_where_it_takes_something_of_them(render: Any) -> None:
    def rights(identity: dict[str, Any]) -> set[str]:
        (role,) = (
            one
            for one in render({"identity": identity})
            if one["kind"] == "ClusterRole" and one["metadata"]["name"].endswith("-agent")
        )
        assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])
        return {resource for rule in role["rules"] for resource in rule["resources"]}

    assert rights({"labels": [{"key": "team"}, {"key": "x", "from": "pod"}]}) == {"pods"}
    assert rights({"labels": [{"key": "team", "from": "namespace"}]}) == {"pods", "namespaces"}
    assert rights({"annotations": [{"key": "rack", "from": "node"}, {"key": "row", "from": "node"}]}) == {
        "pods",
        "nodes",
    }
    both = {"labels": [{"key": "team", "from": "namespace"}], "annotations": [{"key": "rack", "from": "node"}]}
    assert rights(both) == {"pods", "namespaces", "nodes"}


def test_lines_of_a_kernel_log_in_a_file_have_the_times_they_were_written_at(render: Any) -> None:
    """A time without a zone is a time only for those who know the node's."""
    now = 1_767_323_106_000_000_000  # 2026-01-02T03:05:06Z
    lines = [
        "2026-01-02T04:04:05.678901+01:00 gpu-7 kernel: one",
        "2026-01-02T03:04:05Z gpu-7 kernel: two",
        "Jan  2 04:04:05 gpu-7 kernel: [ 12.5] three",
        "2026 is no time",
    ]

    def times(file: dict[str, str]) -> list[int | None]:
        agent = configurations(render({"kernel": {"source": "file", "file": file}}))["agent.yaml"]
        operators = yaml.safe_load(agent)["receivers"]["filelog/kernel"]["operators"]
        failures = TailCounters()
        found = Chain(operators, failures).process([Entry(line) for line in lines], now)
        assert [(entry.body, entry.attributes) for entry in found] == [(line, {}) for line in lines]
        assert failures.entries_failed == 0
        return [entry.time and entry.time - 1_767_323_045_000_000_000 for entry in found]

    assert times({}) == [678_901_000, 0, None, None]
    assert times({"location": "Europe/Berlin"}) == [678_901_000, 0, 0, None]


def test_rules_and_dashboards_arrive_as_they_are(render: Any) -> None:
    values = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    objects = {one["kind"]: one for one in render(values) if "agent.yaml" not in one.get("data", {})}
    (rules,) = (ROOT / "deploy" / "alerts").glob("*.yaml")
    assert objects["PrometheusRule"]["spec"]["groups"] == yaml.safe_load(rules.read_text())["groups"]
    boards = next(one["data"] for one in render(values) if one["metadata"]["name"].endswith("-dashboards"))
    originals = {path.name: path.read_text() for path in (ROOT / "deploy" / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in boards.items()} == {
        name: json.loads(text) for name, text in originals.items()
    }
    (endpoint,) = objects["PodMonitor"]["spec"]["podMetricsEndpoints"]
    # The rules ask for a job of this name.
    assert {"targetLabel": "job", "replacement": "tracecore"} in endpoint["relabelings"]


def test_long_and_given_names(render: Any, policy: Any) -> None:
    for values in ({"fullnameOverride": "x" * 80}, {"nameOverride": "other"}):
        objects = render(values)
        _wired(objects)
        assert policy.violations(objects) == []


def test_root_is_possible_on_purpose_and_then_is_the_only_violation(render: Any, policy: Any) -> None:
    objects = render({"agent": {"runAsUser": 0}})
    assert [text.partition(": ")[2] for text in policy.violations(objects)] == ["container tracecore: runs as root"]
    (daemon,) = [one for one in objects if one["kind"] == "DaemonSet"]
    assert "initContainers" not in daemon["spec"]["template"]["spec"]
