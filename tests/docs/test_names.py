"""The distribution has a name of its own, and nobody is told to install what is another project's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAKEN = re.compile(r"pip3? install (?:[^`\n]* )?['\"]?tracecore(?![-_\w])")
TEXT = {".md", ".py", ".yaml", ".toml", ".txt", ".sh", ".service"}


def test_the_distribution_is_not_called_like_another_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "tracecore-diagnosis"
    assert project["scripts"] == {"tracecore": "tracecore.cli.main:main"}
    built = project["name"].replace("-", "_")
    assert f"/dist/{built}-*.whl" in (ROOT / "deploy" / "image" / "install.sh").read_text()


def test_nobody_is_told_to_install_another_project() -> None:
    assert TAKEN.search("pip install tracecore[gpu]")
    for folder in ("docs", "src", "deploy", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in TEXT and "incidents" not in path.parts:
                assert not TAKEN.search(path.read_text(encoding="utf-8", errors="replace")), path
    assert not TAKEN.search((ROOT / "README.md").read_text())


def test_the_page_for_kubernetes_begins_with_an_image_that_exists() -> None:
    text = (ROOT / "docs" / "install-kubernetes.md").read_text()
    assert text.index("docker build -f deploy/image/Dockerfile") < text.index("helm install")
    assert "--set image.repository=" in text
