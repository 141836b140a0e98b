"""A server with the demo fleet, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from running import running  # noqa: E402

from tracecore.server import demo  # noqa: E402
from tracecore.server.app import make_app  # noqa: E402
from tracecore.server.settings import ServerSettings  # noqa: E402
from tracecore.store.store import Store  # noqa: E402

NOW = 1_790_000_000_000_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the demo fleet; its clock stands."""
    store = Store.open(str(tmp_path_factory.mktemp("fleet") / "demo.db"), durable=False)
    demo.fill(store, NOW)
    yield store
    store.close()


@pytest.fixture(scope="module")
def address(fleet: Store) -> Iterator[str]:
    with running(make_app(fleet, ServerSettings(rate=0), clock=lambda: NOW)) as found:
        yield found


@pytest.fixture(scope="module")
def web(address: str) -> Iterator[httpx.Client]:
    """A browser that does not run JavaScript."""
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("NO BROWSER: install chromium, the pages are not tested without it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens a page; what the console says and dialogs are in its `said`."""
    contexts = []

    def open_(path: str, *, width: int = 1400, scheme: str = "light", base: str = address, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: (page.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: None if request.url.startswith((base, "data:")) else page.said.append(request.url),
        )
        page.goto(base + path)
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def pages(fleet: Store) -> dict[str, str]:
    """The address of every page, by name."""
    rows = fleet.incidents.find(limit=200).incidents
    hang = next(row for row in rows if row.pattern == "nccl_hang" and row.state != "resolved")
    fault = next(row for row in rows if row.pattern == "gpu_fault")
    quoted = next(row for row in rows if (detail := fleet.incidents.get(row.id)) and detail.document.get("last_lines"))
    wide = max(rows, key=lambda row: len((fleet.incidents.get(row.id) or detail).document.get("timeline") or ()))
    job = next(row for row in fleet.jobs.find(state="running").jobs if row.incidents)
    upload = fleet.uploads.find().diagnoses[0]
    return {
        "overview": "/",
        "incidents": "/incidents",
        "search": "/incidents?q=rank+nccl&state=resolved",
        "incident": f"/incidents/{hang.id}",
        "gpu_incident": f"/incidents/{fault.id}",
        "quoted_incident": f"/incidents/{quoted.id}",
        "wide_incident": f"/incidents/{wide.id}",
        "jobs": "/jobs",
        "job": f"/jobs/{job.name}",
        "nodes": "/nodes",
        "node": f"/nodes/{demo.fleet.FLAPPING}",
        "patterns": "/patterns",
        "pattern": "/patterns/nccl_hang",
        "upload": "/upload",
        "one_upload": f"/upload/{upload.id}",
        "silences": "/silences",
        "tokens": "/tokens",
        "not_found": "/nothing-here",
    }


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go; TRACECORE_SHOTS keeps them."""
    kept = os.environ.get("TRACECORE_SHOTS")
    return Path(kept) if kept else tmp_path_factory.mktemp("shots")
