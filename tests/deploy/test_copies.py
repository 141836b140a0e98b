"""What is written twice is the same twice: the chart's copies, the Kustomize base, versions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from tracecore.agent.configuration import read

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "deploy" / "kustomize" / "base"


def test_the_chart_carries_the_same_rules_and_dashboards(generate: Any) -> None:
    for source, files, target in generate.COPIES:
        originals = {path.name: path.read_bytes() for path in source.glob(files)}
        copies = {path.name: path.read_bytes() for path in target.glob("*")} if target.is_dir() else {}
        assert copies == originals, f"run deploy/kustomize/generate.py: {target} is not {source}"


def test_the_base_is_the_charts_default(helm: Path, generate: Any) -> None:
    committed = {str(path.relative_to(BASE)): path.read_text() for path in BASE.rglob("*") if path.is_file()}
    assert committed == generate.base(generate.rendered(helm)), "run deploy/kustomize/generate.py"


def test_the_configurations_of_the_base_are_valid() -> None:
    for name in ("agent.yaml", "cluster.yaml"):
        configuration, warnings = read([BASE / "config" / name], {"K8S_NODE_NAME": "node-7"})
        assert configuration.service.pipelines
        assert warnings == ()


def test_versions_agree() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "tracecore" / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
