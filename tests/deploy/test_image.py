"""The recipe of the image, as far as it can be read: what it starts from, what it installs, who runs it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "deploy" / "image"


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: name and the rest, with continued lines put together."""
    text = re.sub(r"^\s*#.*\n", "", (IMAGE / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def requirements() -> Any:
    spec = importlib.util.spec_from_file_location("image_requirements", IMAGE / "requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packages_are_those_of_the_lock_and_all_that_is_needed(requirements: Any) -> None:
    locked = requirements.lock()
    for name, text in requirements.files().items():
        assert (IMAGE / name).read_text() == text, "run deploy/image/requirements.py"
        entries = re.findall(r"^(\S+)==\S+", text, re.MULTILINE)
        assert entries
        for entry in entries:
            assert "--hash=sha256:" in locked[requirements.name_of(entry)]


def test_every_package_that_is_imported_is_in_the_image(requirements: Any) -> None:
    from importlib.metadata import packages_distributions

    owners = packages_distributions()
    packages = {
        requirements.name_of(name) for name in re.findall(r"^(\S+)==", (IMAGE / "requirements.txt").read_text(), re.M)
    }
    #: Behind an option or a command that says what to install when it is missing.
    optional = {"fastapi", "uvicorn", "starlette", "jinja2", "psycopg", "ua-parser", "confluent-kafka",
                "apprise", "nvidia-ml-py", "uvloop", "httptools", "ray", "anyio", "fsspec",
                "pyarrow", "duckdb"}  # fmt: skip
    for path in (ROOT / "src" / "tracecore").rglob("*.py"):
        for module in re.findall(r"^\s*(?:import|from) ([a-zA-Z_0-9]+)", path.read_text(), re.MULTILINE):
            if module in owners and module != "tracecore":
                names = {requirements.name_of(name) for name in owners[module]}
                assert names & (packages | optional), f"{path}: {module}"


def test_the_last_stage_is_empty_but_for_what_was_put_together(steps: list[tuple[str, str]]) -> None:
    starts = [number for number, (name, _) in enumerate(steps) if name == "FROM"]
    assert [steps[number][1] for number in starts] == ["${BASE} AS build", "scratch"]
    last = dict(steps[starts[-1] :])
    assert last["COPY"] == "--from=build /rootfs /"
    assert "RUN" not in last
    assert last["USER"] == "65532:65532"
    assert last["ENTRYPOINT"] == '["/opt/tracecore/bin/tracecore"]'


def test_nothing_is_fetched_unpinned(steps: list[tuple[str, str]]) -> None:
    assert "ADD" not in dict(steps)
    runs = [text for name, text in steps if name == "RUN"]
    assert not [text for text in runs if re.search(r"\b(?:curl|wget|git)\b", text)]
    install = (IMAGE / "install.sh").read_text()
    fetches = [line for line in re.sub(r"\\\n", " ", install).splitlines() if "pip install" in line]
    assert len(fetches) == 2
    for line in fetches:
        assert "--require-hashes" in line or "--no-index" in line
    (base,) = [text for name, text in steps if name == "ARG"]
    assert re.fullmatch(r"BASE=[a-z]+:[a-z0-9.-]+", base), "a name without a registry, and not the latest"
    assert "latest" not in base


def test_what_it_copies_exists(steps: list[tuple[str, str]]) -> None:
    for name, text in steps:
        if name == "COPY" and not text.startswith("--from"):
            for source in text.split()[:-1]:
                assert (ROOT / source).exists(), source
