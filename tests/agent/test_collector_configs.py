"""Configurations that people have for the Collector: they run, or each thing that is not here is named once."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from tracecore.agent.batch import Batch
from tracecore.agent.catalogue import factories
from tracecore.agent.component import SECTIONS, Setting
from tracecore.agent.configuration import ConfigurationError, json_schema, read
from tracecore.agent.processors import resourcedetection
from tracecore.agent.processors.k8sattributes_options import Association, AssociationSource, key_kind
from tracecore.agent.processors.podfields import Extract, Extraction
from tracecore.agent.processors.resourcedetection import ResourceDetection
from tracecore.agent.telemetry import Meter

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TRACECORE_SHARED_DATA") or ROOT.parent / "shared" / "data")
RENDERED = sorted((DATA / "peers" / "otel_chart_configs").glob("*.yaml"))
VARIATIONS = sorted((Path(__file__).parent / "chart_variations").glob("*.yaml"))
HERE = {(kind, name) for kind in SECTIONS.values() for f in factories() if f.kind == kind for name in f.names}


def problems(path: Path) -> list[str]:
    try:
        read([path], {})
    except ConfigurationError as error:
        return [problem.message for problem in error.problems]
    return []


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


@pytest.mark.skipif(not RENDERED, reason="no shared data beside the repository")
@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_rendered_examples_of_the_official_charts(path: Path) -> None:
    config = YAML(typ="safe").load(path.read_text())
    absent = [
        (kind, name.partition("/")[0])
        for section, kind in SECTIONS.items()
        for name in config.get(section) or {}
        if (kind, name.partition("/")[0]) not in HERE
    ]
    scraped = ((config.get("receivers") or {}).get("prometheus") or {}).get("config") or {}
    roles = [
        discovery["role"]
        for job in scraped.get("scrape_configs") or ()
        for discovery in job.get("kubernetes_sd_configs") or ()
        if discovery["role"] != "pod"
    ]
    found = problems(path)
    assert len(found) == len(absent) + len(roles)
    for role in roles:
        assert any(text.startswith(f'the role "{role}" is not supported here; ') for text in found)
    for kind, name in absent:
        assert any(text.startswith(f'the {kind} "{name}" is not supported here; ') for text in found)


@pytest.mark.parametrize("path", VARIATIONS, ids=lambda path: path.stem)
def test_variations_of_the_charts_are_read_or_refused_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets of the collector, operator and kube-stack charts, with the options that their users add."""
    for name in re.findall(r"\$\{env:(\w+)\}", path.read_text()):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("MY_POD_IP", "0.0.0.0")
    found = problems(path)
    assert [text for text in found if " not supported here; " not in text] == []
    refused = {"01": 0, "02": 4, "03": 5, "04": 7, "05": 9, "06": 13}
    assert len(found) == len(set(found)) == refused[path.name[:2]]


def test_both_names_of_a_component_are_understood(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
receivers:
  file_log/pods: {include: [/var/log/pods/*/*/*.log], operators: [{type: container}]}
  k8s_objects: {objects: [{name: events, mode: watch}]}
processors:
  k8s_attributes: {auth_type: none}
  resource_detection: {detectors: [env, system, k8s_node]}
exporters:
  otlp_http: {endpoint: "http://localhost:4318"}
  otlp_grpc/x: {endpoint: "localhost:4317"}
service:
  pipelines:
    logs:
      receivers: [file_log/pods, k8s_objects]
      processors: [k8s_attributes, resource_detection]
      exporters: [otlp_http, otlp_grpc/x]
""",
    )
    configuration, warnings = read([path], {})
    assert not warnings
    assert configuration.of("receiver")["file_log/pods"].factory.type == "filelog"
    assert configuration.of("exporter")["otlp_grpc/x"].factory.type == "otlp"


def test_what_belongs_into_a_collector_is_said_by_name_and_nothing_else(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
receivers: {otlp: {protocols: {grpc: }}, syslog: {tcp: {listen_address: "0.0.0.0:54526"}}}
processors: {tail_sampling: {policies: []}}
exporters: {prometheusremotewrite: {endpoint: "http://x"}, debug: }
connectors: {routing/a: {table: []}}
extensions: {zpages: {}}
service:
  extensions: [zpages]
  pipelines:
    logs: {receivers: [otlp, syslog], processors: [tail_sampling], exporters: [routing/a]}
    logs/two: {receivers: [routing/a], exporters: [debug]}
    profiles: {receivers: [otlp], exporters: [debug]}
""",
    )
    found = problems(path)
    assert all("not supported here; " in text for text in found)
    assert [re.findall(r'"(\w+)"', text)[:1] for text in found] == [
        ["syslog"], ["tail_sampling"], ["prometheusremotewrite"], ["routing"], ["zpages"], [],
    ]  # fmt: skip


def test_a_name_that_nobody_knows_is_a_mistake(tmp_path: Path) -> None:
    text = "receivers: {fielog: {include: [a]}}\nexporters: {debug: }\n"
    path = written(tmp_path, text + "service: {pipelines: {logs: {receivers: [fielog], exporters: [debug]}}}\n")
    assert problems(path) == ['there is no receiver "fielog"; did you mean "filelog"?']


def test_prometheus_takes_what_prometheus_takes(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: nothing
        - job_name: pods
          kubernetes_sd_configs: [{role: pod, follow_redirects: true, enable_http2: true}]
          tls_config: {ca_file: /no/such/ca.crt}
          relabel_configs:
            - {source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_scrape], regex: true, action: keep}
            - {target_label: tier, replacement: 1}
exporters: {nop: }
service: {pipelines: {metrics: {receivers: [prometheus], exporters: [nop]}}}
""",
    )
    configuration, warnings = read([path], {})
    jobs = configuration.of("receiver")["prometheus"].options.config.scrape_configs
    assert [rule.regex for rule in jobs[1].relabel_configs] == ["true", "(.*)"]
    assert [warning.message for warning in warnings] == ["there is no file /no/such/ca.crt here"]


def detected(environment: dict[str, str], **options: Any) -> dict[str, Any]:
    return resourcedetection.detect(resourcedetection.Options(**options), environment)


def test_resources_are_detected() -> None:
    env = {"OTEL_RESOURCE_ATTRIBUTES": "team=vision, note=a%2Cb,broken,=x", "NODE": "n7", "K8S_NODE_NAME": "n8"}
    assert detected(env) == {"team": "vision", "note": "a,b"}
    assert detected(env, detectors=("k8s_api",)) == {"k8s.node.name": "n8"}
    named = resourcedetection.NodeDetector(node_from_env_var="NODE")
    assert detected(env, detectors=("k8snode",), k8snode=named) == {"k8s.node.name": "n7"}
    system = detected({}, detectors=("system",))
    assert set(system) == {"host.name", "os.type"}
    wanted = {"os.type": resourcedetection.Enabled(enabled=False), "host.arch": resourcedetection.Enabled(enabled=True)}
    system = detected({}, detectors=("system",), system=resourcedetection.System(resource_attributes=wanted))
    assert set(system) == {"host.name", "host.arch"}
    # What a cloud would say is left out, and an earlier detector goes before a later one.
    assert detected({**env, "OTEL_RESOURCE_ATTRIBUTES": "host.name=mine"}, detectors=("env", "eks", "system")) == {
        "host.name": "mine",
        "os.type": "linux",
    }


@pytest.mark.parametrize(("override", "team"), [(True, "vision"), (False, "own")])
def test_what_is_detected_replaces_or_not(override: bool, team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=vision,zone=a")
    setting = Setting("r", Meter("processor", "r"), lambda: 0, {}.__getitem__, Path(), lambda: (True, {}))
    processor = ResourceDetection(resourcedetection.Options(override=override), setting)
    batch = Batch("logs", {"resource_logs": [{"resource": {"attributes": {"team": "own"}}, "scope_logs": []}, {}]})
    (out,) = processor.process(batch)
    assert [entry["resource"]["attributes"] for entry in out.payload["resource_logs"]] == [
        {"team": team, "zone": "a"},
        {"team": "vision", "zone": "a"},
    ]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["k8s.pod.name", "k8s.namespace.name", "k8s.node.name"], "name"),
        (["container.id"], "container"),
        (["host.name"], "ip"),
        (["k8s.node.name"], "node"),
        (["container.id", "k8s.pod.uid"], None),
    ],
)
def test_ways_to_a_pod(names: list[Any], kind: str | None) -> None:
    sources = [AssociationSource(from_="resource_attribute", name=name) for name in names]
    assert key_kind(sources) == kind
    assert bool(list(Association(sources=sources).check())) is (kind is None)


def test_services_are_named_by_the_conventions() -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "web-5d4-x", "namespace": "shop", "uid": "u", "labels": {"pod-template-hash": "5d4"},
                     "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d4", "uid": "r"}]},
        "spec": {"containers": [{"name": "main", "image": "reg/web:1.2"}]},
    }  # fmt: skip
    wanted = ("service.name", "service.namespace", "service.version", "service.instance.id")
    take = Extraction(Extract(metadata=wanted, training=False))

    def found() -> list[Any]:
        made = take(pod)
        assert made is not None
        return [made[0].get(name) for name in wanted]

    assert found() == ["web", "shop", "1.2", "shop.web-5d4-x.main"]
    pod["metadata"]["labels"] |= {"app.kubernetes.io/name": "storefront", "app.kubernetes.io/version": "7"}
    assert found() == ["storefront", "shop", "7", "shop.web-5d4-x.main"]
    pod["metadata"]["annotations"] = {"resource.opentelemetry.io/service.name": "mine"}
    assert found()[0] == "mine"


def test_settings_that_only_tune_the_collector_are_warned_about(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
receivers:
  otlp:
    protocols:
      grpc: {keepalive: {server_parameters: {max_connection_age: 10s}}, read_buffer_size: 1, include_metadata: true}
processors:
  memory_limiter: {limit_mib: 100, min_gc_interval_when_soft_limited: 10s}
  k8s_attributes: {extract: {metadata: [k8s.pod.name, k8s.deployment.uid], deployment_name_from_replicaset: true}}
exporters:
  otlp: {endpoint: "x:4317", compression: zstd, balancer_name: round_robin}
extensions:
  health_check: {check_collector_pipeline: {enabled: true}}
service:
  extensions: [health_check]
  telemetry:
    logs: {sampling: {enabled: true}, initial_fields: {a: b}}
    metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: 0}}}}, {periodic: {interval: 1000}}]}
    traces: {level: none}
  pipelines: {logs: {receivers: [otlp], processors: [memory_limiter, k8s_attributes], exporters: [otlp]}}
""",
    )
    configuration, warnings = read([path], {})
    assert configuration.service.telemetry.metrics.listen() == ("127.0.0.1", 0)
    said = [warning.message for warning in warnings]
    for name in (
        "read_buffer_size", "include_metadata", "min_gc_interval_when_soft_limited", "balancer_name", "periodic",
        "traces", "deployment_name_from_replicaset", "check_collector_pipeline", "sampling", "initial_fields",
    ):  # fmt: skip
        assert f"{name} has no effect here" in said
    assert "k8s.deployment.uid is not known here, and left out" in said
    assert "zstd is not there for gRPC: gzip is used" in said
    document = YAML(typ="safe").load(path.read_text())
    jsonschema.Draft202012Validator(json_schema()).validate(document)


def test_a_setting_that_nobody_knows_is_still_a_mistake(tmp_path: Path) -> None:
    text = "receivers: {otlp: {protocols: {grpc: {read_bufer_size: 1}}}}\nexporters: {nop: }\n"
    path = written(tmp_path, text + "service: {pipelines: {logs: {receivers: [otlp], exporters: [nop]}}}\n")
    (problem,) = problems(path)
    assert problem.startswith('no such setting "read_bufer_size"')


def test_prometheus_discoveries_and_tokens(tmp_path: Path) -> None:
    job = "{job_name: a, bearer_token_file: /t, scheme: https, static_configs: [{targets: ['x:1']}]}"
    more = "service: {pipelines: {metrics: {receivers: [prometheus], exporters: [nop]}}}\nexporters: {nop: }\n"
    path = written(tmp_path, f"receivers: {{prometheus: {{config: {{scrape_configs: [{job}]}}}}}}\n{more}")
    configuration, _ = read([path], {})
    (made,) = configuration.of("receiver")["prometheus"].options.jobs()
    assert made.authorization.credentials_file == "/t"
    other = "{job_name: a, consul_sd_configs: [{server: x}]}"
    text = f"receivers: {{prometheus: {{target_allocator: {{endpoint: x}}, config: {{scrape_configs: [{other}]}}}}}}\n"
    found = problems(written(tmp_path, text + more))
    assert len(found) == 2
    assert all("is not supported here; run it in a Collector in front and send OTLP" in text for text in found)
