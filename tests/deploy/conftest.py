from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tracecore"
BASE = ROOT / "deploy" / "kustomize" / "base"


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a stream of YAML."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [found for found in yaml.load_all(text, loader) if found]


@pytest.fixture(scope="session")
def policy() -> Any:
    return module(Path(__file__).with_name("policy.py"))


@pytest.fixture(scope="session")
def programs() -> Any:
    return module(Path(__file__).with_name("programs.py"))


@pytest.fixture(scope="session")
def generate() -> Any:
    return module(ROOT / "deploy" / "kustomize" / "generate.py")


@pytest.fixture(scope="session")
def helm(programs: Any) -> Path:
    found = programs.helm()
    if isinstance(found, str):
        pytest.skip(found)
    return Path(found)


Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def render(helm: Path, generate: Any, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """The objects that the chart makes of these values, by a real helm."""

    def rendered(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        file = tmp_path_factory.mktemp("values") / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        command = [str(helm), "template", "probe", str(CHART), "--namespace", "watch", "--values", str(file)]
        command += ["--kube-version", generate.KUBERNETES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return objects(done.stdout)

    return rendered


@pytest.fixture(scope="session")
def base() -> list[dict[str, Any]]:
    """The objects of the Kustomize base, as committed."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return [found for name in kustomization["resources"] for found in objects((BASE / name).read_text())]
