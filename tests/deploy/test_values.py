"""The chart's values: everything in them is described, and what is not described is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tracecore"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    made: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return made


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return made


def _over(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(values)
    *parents, last = path.split(".")
    at = made
    for name in parents:
        at = at.setdefault(name, {})
    at[last] = value
    return made


def test_the_defaults_fit(schema: dict[str, Any], values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(values)


def test_every_default_is_described_and_every_description_has_a_default(
    schema: dict[str, Any], values: dict[str, Any]
) -> None:
    def names(node: dict[str, Any], place: str) -> set[str]:
        node = schema["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        found = {place} if place else set()
        if node.get("additionalProperties") is False and "config" not in place.split("."):
            for name, child in node.get("properties", {}).items():
                found |= names(child, f"{place}.{name}" if place else name)
        return found

    def keys(node: Any, place: str, known: set[str]) -> set[str]:
        found = {place} if place else set()
        if isinstance(node, dict):
            for name, child in node.items():
                path = f"{place}.{name}" if place else name
                if path in known:
                    found |= keys(child, path, known)
        return found

    described = {name for name in names(schema, "") if not name.startswith("global")}
    missing = described - keys(values, "", described)
    optional = {f"agent.seLinuxOptions.{name}" for name in ("user", "role", "type", "level")}
    files = ("ca_file", "cert_file", "key_file", "server_name_override", "insecure_skip_verify", "min_version")
    optional |= {f"outputs.{output}.tls.{name}" for output in ("alertmanager", "webhook", "otlphttp") for name in files}
    times = ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold")
    given = {"startup": ("periodSeconds", "failureThreshold")}
    usual = ("periodSeconds", "timeoutSeconds", "failureThreshold")
    for probe in ("startup", "liveness", "readiness"):
        optional |= {f"probes.{probe}.{name}" for name in times if name not in given.get(probe, usual)}
    assert missing == optional | {"agent.updateStrategy.rollingUpdate.maxSurge"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("agnet", {}),
        ("agent.privileged", True),
        ("agent.securityContext", {"privileged": True}),
        ("agent.hostNetwork", True),
        ("agent.hostPID", True),
        ("agent.capabilities", {"add": ["SYS_ADMIN"]}),
        ("agent.extraVolumes", [{"name": "root", "hostPath": {"path": "/"}}]),
        ("agent.extraVolumeMounts", [{"name": "x", "mountPath": "/x", "readOnly": False}]),
        ("agent.resources", {"limits": {"cpu": "1"}}),
        ("agent.resources.limits.memory", "512M"),
        ("agent.config", {"reciever": {}}),
        ("cluster.replicas", 2),
        ("cluster.runAsUser", 0),
        ("logs.hostPath", "var/log/pods"),
        ("logs.hostPath", "/var/log/pods\n  evil: true"),
        ("logs.namespaces", ["Not_A_Namespace"]),
        ("logs.startAt", "start"),
        ("logs.containerLogMaxSize", "10 megabytes"),
        ("kernel.source", "dmesg"),
        ("kernel.source", "kmsg"),
        ("objects", {"enabled": True, "events": False, "pods": False, "nodes": False, "namespaces": []}),
        ("detection.scope", "world"),
        ("detection.gpuByOrdinal", "always"),
        ("outputs.alertmanager.enabled", True),
        ("outputs.webhook", {"enabled": True, "url": "alertmanager:9093"}),
        ("outputs.otlphttp.enabled", True),
        ("outputs.log.enabled", False),
        ("image.digest", "sha256:123"),
        ("image.tag", 1.0),
        ("agent.extraContainers", [{"name": "tracecore", "image": "x"}]),
        ("cluster.persistence.size", "2 gigabytes"),
        ("cluster.podDisruptionBudget.maxUnavailable", 2),
        ("probes.liveness.path", "/"),
        ("outputs.otlphttp.tls", {"ca": "inline"}),
        ("drainSeconds", 0),
        ("drainSeconds", "20s"),
        ("metrics.scrape.interval", "15"),
        ("priorityClass.value", 2000000001),
        ("networkPolicy.apiServer.cidrs", ["10.0.0.1"]),
    ],
)
def test_mistakes_and_ways_to_more_privileges_are_refused(
    schema: dict[str, Any], values: dict[str, Any], path: str, value: Any
) -> None:
    broken = _over(values, path, value)
    assert broken != values
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(broken)
