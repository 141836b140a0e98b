"""Workers of `tracecore detect` in the chart: their configuration is read, and they keep to the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tracecore.stream.config import read

VALUES: dict[str, Any] = {
    "enabled": True,
    "brokers": ["kafka-0:9093", "kafka-1:9094"],
    "database": {"secretName": "pg"},
}
CHOICES: dict[str, dict[str, Any]] = {
    "plain": {"tls": {"enabled": False}},
    "tls": {"tls": {"caSecretName": "kafka-ca"}},
    "sasl": {"sasl": {"secretName": "kafka", "username": "detect"}, "config": {"settle": "20s", "incidents_topic": ""}},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_chart_runs_workers(render: Any, policy: Any, tmp_path: Path, choice: str) -> None:
    objects = render({"detect": {**VALUES, **CHOICES[choice]}})
    part = "app.kubernetes.io/component"
    own = {one["kind"]: one for one in objects if one["metadata"]["labels"].get(part) == "detect"}
    assert {"Deployment", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} == set(own)
    assert policy.violations(objects) == []
    path = tmp_path / "detect.yaml"
    path.write_text(own["ConfigMap"]["data"]["detect.yaml"])
    env = {"KAFKA_PASSWORD": "secret", "TRACECORE_DATABASE": "postgresql://a@b/c"}
    options, warnings = read(path, env)
    # The file of the Secret is not on this machine.
    assert all("/etc/tracecore-kafka" in one.message for one in warnings)
    assert options.brokers == VALUES["brokers"]
    assert (options.tls is not None) == (choice != "plain")
    container = own["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["detect", "--config=/etc/tracecore/detect.yaml"]
    names = {one["name"] for one in container["env"]}
    assert ("KAFKA_PASSWORD" in names) == (choice == "sasl")
    assert "secret" not in yaml.safe_dump(own["ConfigMap"]["data"])
    if choice == "sasl":
        assert options.auth.sasl is not None
        assert (options.auth.sasl.password, options.settle) == ("secret", 20 * 10**9)
    (ports,) = [rule["ports"] for rule in own["NetworkPolicy"]["spec"]["egress"] if len(rule["ports"]) == 3]
    assert [port["port"] for port in ports] == [5432, 9093, 9094]


@pytest.mark.parametrize(
    ("values", "said"), [({"brokers": []}, "detect.brokers"), ({"database": {"secretName": ""}}, "PostgreSQL")]
)
def test_the_chart_refuses_what_cannot_work(render: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        render({"detect": {**VALUES, **values}})
