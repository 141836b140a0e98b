"""The server in the chart, in compose and under systemd: every option exists, and it keeps to the policy."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracecore.cli.serve import command

ROOT = Path(__file__).resolve().parents[2]
OIDC = {"issuer": "https://id.example.com", "clientId": "tracecore", "secretName": "oidc", "operators": ["ops", "sre"]}
CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "postgres": {"database": {"secretName": "pg"}, "replicas": 3},
    "tls": {"tls": {"secretName": "server-tls"}, "persistence": {"existingClaim": "mine"}},
    "oidc": {
        "oidc": OIDC,
        "baseUrl": "https://tracecore.example.com",
        "ingress": {"enabled": True, "host": "tracecore.example.com", "className": "nginx"},
    },
}


def known(words: list[str]) -> None:
    """Every option of a command line of `tracecore serve` exists, and their values fit."""
    command.make_context("serve", words, resilient_parsing=False)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_chart_runs_the_server(render: Any, policy: Any, choice: str) -> None:
    objects = render({"server": {"enabled": True, **CHOICES[choice]}})
    part = "app.kubernetes.io/component"
    own = {one["kind"]: one for one in objects if one["metadata"]["labels"].get(part) == "server"}
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= set(own)
    spec = own["Deployment"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert container["args"][0] == "serve"
    known(container["args"][1:])
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    assert policy.violations(objects) == []
    database = next(one for one in container["env"] if one["name"] == "TRACECORE_DATABASE")
    if choice == "postgres":
        assert database["valueFrom"]["secretKeyRef"] == {"name": "pg", "key": "url"}
        assert (spec["replicas"], spec["strategy"]["type"]) == (3, "RollingUpdate")
        assert "PersistentVolumeClaim" not in own
    else:
        assert database["value"] == "/var/lib/tracecore/store.db"
        assert spec["strategy"]["type"] == "Recreate"
    assert ("--behind-proxy" in container["args"]) == (choice != "tls")
    if choice == "oidc":
        assert own["Ingress"]["spec"]["tls"][0]["hosts"] == ["tracecore.example.com"]
        assert "--operators=ops,sre" in container["args"]
        assert "secret" not in " ".join(container["args"])


@pytest.mark.parametrize(
    ("values", "said"),
    [({"replicas": 2}, "PostgreSQL"), ({"oidc": {"issuer": "https://id.example.com"}}, "belong together")],
)
def test_the_chart_refuses_what_cannot_work(render: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        render({"server": {"enabled": True, **values}})


def test_without_it_nothing_of_the_server_is_there(render: Any) -> None:
    assert not [one for one in render({}) if one["metadata"]["name"].endswith("-server")]


def test_compose_and_systemd_know_the_options() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    server = compose["services"]["server"]
    known(server["command"][1:])
    # Published on loopback only.
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert set(server["secrets"]) <= set(compose["secrets"])
    unit = (ROOT / "deploy" / "systemd" / "tracecore-server.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2])
    assert words[1:3] == ["tracecore", "serve"]
    known([word for word in words[3:] if not word.startswith("$")])
