"""The way from nothing to a verdict, as docs/operations.md tells it: its own file, its own commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
WALK = (
    (ROOT / "docs" / "operations.md").read_text().partition("## From nothing to a verdict\n")[2].partition("\n## ")[0]
)
UNIT = ROOT / "deploy" / "systemd" / "tracecore.service"


def _block(kind: str) -> str:
    found = re.search(rf"^ *```{kind}\n(.*?)^ *```", WALK, re.DOTALL | re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found.group(1))


def test_the_first_configuration_gives_a_verdict_at_the_webhook(
    agent: Callable[[str], Any], tmp_path: Path, until: Any, peer_kind: Any
) -> None:
    server = peer_kind(200, b"")
    text = _block("yaml").replace("/var/log/pods", str(tmp_path / "pods"))
    text = text.replace("/var/lib/tracecore", str(tmp_path / "lib")).replace(
        "localhost:9999", f"127.0.0.1:{server.port}"
    )
    text = text.replace("service:\n", 'service:\n  telemetry: {metrics: {address: "127.0.0.1:0"}}\n')
    running = agent(text)
    shape = re.search(r"`(running logs: [^`]*)`", WALK)
    assert shape is not None
    assert shape.group(1) in running.log
    for command in re.findall(r"^ {7}((?:mkdir|printf) .*)$", WALK, re.MULTILINE):
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=30)
    until(lambda: server.requests)
    # The directory was not there at first, which is a degraded state for as long as it is not looked at again.
    until(lambda: running.get("/readyz")[0] == 200)
    assert "first data" in running.log
    assert "verdict " in running.log
    written = until(lambda: running.written("lib/verdicts.json"))
    assert written[0]["attributes"]["pattern.name"] == "cuda_oom"
    assert written[0]["resource"].get("k8s.pod.name", "trainer-0") == "trainer-0"
    server.close()


def test_every_configuration_in_the_docs_of_the_agent_is_valid(tmp_path: Path) -> None:
    from tracecore.agent.configuration import read

    checked = 0
    for page in ("agent.md", "operations.md"):
        for found in re.findall(
            r"^ *```yaml\n(.*?)^ *```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE
        ):
            text = textwrap.dedent(found)
            if "service:" in text and "pipelines:" in text and YAML(typ="safe").load(text).get("exporters"):
                path = tmp_path / f"{page}.yaml"
                path.write_text(text)
                read([path])
                checked += 1
    assert checked >= 2


def test_the_unit_is_valid_and_confined() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; the unit is not verified")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(UNIT.name) not in done.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "offline" in done.stderr or "Unknown" in done.stderr or "nrecognized" in done.stderr:
        pytest.skip("this systemd cannot rate a unit that is not installed")
    assert done.returncode == 0, done.stdout[-400:] + done.stderr
