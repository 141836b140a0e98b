"""The published conformance suite and the inspector's command line against `tracecore serve` and `tracecore mcp`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "@modelcontextprotocol/conformance": "0.1.16",
    "@modelcontextprotocol/inspector": "0.15.0",
    "node": "22.23.3",
}
TRACECORE = [sys.executable, "-c", "from tracecore.cli.main import main; import sys; sys.exit(main())"]
TOOLS = {"list_incidents", "search", "get_incident", "get_evidence", "explain_pattern", "verify_claim", "add_note"}


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder with the suite, the inspector and a Node.js that runs both."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore" / "mcp-suite-0.1.16"
    if not (place / "done").exists():
        if not shutil.which("npm"):
            pytest.skip("NO NPM, so the published suite of the Model Context Protocol is not run")
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
        got = subprocess.run(["npm", "install", "--no-fund", "--no-audit"], cwd=place, capture_output=True, text=True)
        if got.returncode:
            pytest.skip(f"NO SUITE: npm cannot fetch it: {got.stderr[-300:]}")
        (place / "done").touch()
    return place / "node_modules"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(TRACECORE, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="module")
def suite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server with what the suite wants it to have besides its own tools."""
    command = [sys.executable, str(Path(__file__).with_name("suite_server.py"))]
    with serving(command, tmp_path_factory.mktemp("suite")) as url:
        yield url


@contextmanager
def serving(program: list[str], folder: Path) -> Iterator[str]:
    with socket.socket() as found, socket.socket() as other:
        found.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, otlp = found.getsockname()[1], other.getsockname()[1]
    command = [*program, "serve", f"--database={folder}/store.db", f"--listen=127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*command, f"--otlp-listen=127.0.0.1:{otlp}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


def run(packages: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(packages / "node/bin/node"), str(packages / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def inspected(packages: Path, *arguments: str) -> dict[str, Any]:
    got = run(packages, "@modelcontextprotocol/inspector/cli/build/cli.js", "--cli", *arguments)
    assert got.returncode == 0, got.stdout + got.stderr
    found: dict[str, Any] = json.loads(got.stdout)
    return found


def conformance(packages: Path, url: str, expected: str) -> str:
    """Run the suite; what fails has to stand in the file, and what stands there has to fail."""
    got = run(packages, "@modelcontextprotocol/conformance/dist/index.js", "server", "--url", url,
              "--expected-failures", str(Path(__file__).with_name(expected)))  # fmt: skip
    assert got.returncode == 0, got.stdout[-3000:] + got.stderr[-1000:]
    return got.stdout


def test_the_published_suite_finds_no_more_than_is_written_down(packages: Path, server: str) -> None:
    said = conformance(packages, server, "expected.yaml")
    for scenario in ("server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error",
                     "resources-list", "prompts-list", "completion-complete", "dns-rebinding-protection",
                     "server-sse-multiple-streams"):  # fmt: skip
        assert f"✓ {scenario}" in said


def test_with_its_own_tools_the_server_passes_the_whole_suite(packages: Path, suite_server: str) -> None:
    said = conformance(packages, suite_server, "expected_with_its_tools.yaml")
    assert said.count("✓") >= 30, said[-3000:]
    assert "✗" not in said, said[-3000:]


def test_the_inspector_lists_and_calls_tools_over_http(packages: Path, server: str) -> None:
    http = (server, "--transport", "http")
    listed = inspected(packages, *http, "--method", "tools/list")
    assert {tool["name"] for tool in listed["tools"]} == TOOLS
    called = inspected(packages, *http, "--method", "tools/call", "--tool-name", "explain_pattern",
                       "--tool-arg", "name=nccl_hang")  # fmt: skip
    assert not called.get("isError")
    assert "nccl_hang" in json.dumps(called)
    read = inspected(packages, *http, "--method", "resources/read", "--uri", "tracecore://runbooks/nccl_hang")
    assert "nccl_hang" in read["contents"][0]["text"]


def test_the_inspector_diagnoses_over_standard_input_and_output(packages: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -c '{TRACECORE[2]}' mcp\n")
    start.chmod(0o755)
    listed = inspected(packages, str(start), "--method", "tools/list")
    assert {tool["name"] for tool in listed["tools"]} == TOOLS | {"diagnose_path"}
    bundle = ROOT / "examples/incidents/nccl_hang_one_rank_missing"
    called = inspected(packages, str(start), "--method", "tools/call", "--tool-name", "diagnose_path",
                       "--tool-arg", f"path={bundle}")  # fmt: skip
    assert "nccl_hang" in json.dumps(called)
