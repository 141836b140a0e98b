"""The pages in a browser: no errors, nothing too wide, no serious accessibility violation, live updates."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made import incident
from page_names import NAMES
from running import running

from tracecore.server import demo
from tracecore.server.app import make_app
from tracecore.server.demo import live
from tracecore.server.diagnosing import Diagnoses
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store

INCIDENTS = Path(__file__).parents[3] / "examples" / "incidents"
AXE = (Path(__file__).parents[2] / "data" / "axe" / "axe.min.js").read_text()
RULES = "({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'], resultTypes: ['violations']})"
Tab = Callable[..., Any]

pytestmark = pytest.mark.integration


def violations(page: Any) -> list[str]:
    """What axe-core finds that is serious or worse, with the elements."""
    page.evaluate(AXE)
    found = page.evaluate(f"axe.run(document, {RULES}).then(result => result.violations)")
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:5]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light")])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_sound(tab: Tab, pages: dict[str, str], shots: Path, name: str, width: int, scheme: str) -> None:
    page = tab(pages[name], width=width, scheme=scheme, bypass_csp=True)
    page.wait_for_timeout(300)
    page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
    assert [said for said in page.said if not (name == "not_found" and "404" in said)] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


@pytest.mark.parametrize("name", ["overview", "incident", "job", "nodes"])
def test_a_wall_screen_uses_its_width(tab: Tab, pages: dict[str, str], shots: Path, name: str) -> None:
    page = tab(pages[name], width=3840)
    page.screenshot(path=shots / f"{name}-3840.png")
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") > 18
    assert page.evaluate("document.querySelector('main').clientWidth") > 2000


@pytest.mark.parametrize("name", NAMES)
def test_a_page_reads_without_javascript(tab: Tab, pages: dict[str, str], name: str) -> None:
    page = tab(pages[name], java_script_enabled=False)
    assert page.locator("h1").inner_text()
    if name == "job":
        assert page.locator(".plot svg polyline").count() > 2
    if name == "overview":
        assert page.locator(".incidents li").count() > 3


def test_an_incident_appears_while_somebody_looks(tab: Tab, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "live.db"), durable=False)
    demo.fill(store, time.time_ns())
    with running(make_app(store, ServerSettings(rate=0))) as address:
        page = tab("/", base=address)
        page.wait_for_selector(".live.on")
        before = page.locator("#overview .incidents > li").count()
        document, gpus = live.break_something(store, random.Random(5), time.time_ns())
        page.wait_for_selector(f"a.headline[href='/incidents/{document['id']}']", timeout=10_000)
        assert page.locator("#overview .incidents > li").count() == before + 1
        assert page.locator("li.fresh").count() == 1

        page.goto(f"{address}/incidents/{document['id']}")
        page.fill("#note", "half a thought")
        live.resolve(store, document, gpus, time.time_ns())
        page.wait_for_timeout(3_000)
        assert page.input_value("#note") == "half a thought", "a draft is not thrown away"
        page.fill("#note", "")
        page.locator("h1").click()
        store.people.note(document["id"], "maria", "it was the cable", time.time_ns())
        page.wait_for_selector("text=it was the cable", timeout=10_000)
        assert page.locator(".incident-head .state").inner_text() == "resolved"
        assert page.said == []
        page.context.close()
    store.close()


@pytest.mark.parametrize("path", ["/nodes", "/jobs", "/jobs/llama-70b"])
def test_nodes_and_jobs_change_while_somebody_looks(tab: Tab, tmp_path: Path, path: str) -> None:
    store = Store.open(str(tmp_path / "watched.db"), durable=False)
    now = time.time_ns()
    store.put_incident(incident(1, at=now, job="llama-70b", node="gpu-a01", state="resolved"), now)
    with running(make_app(store, ServerSettings(rate=0))) as address:
        page = tab(path, base=address)
        page.wait_for_selector(".live.on", timeout=15_000)
        told = incident(
            2, at=time.time_ns(), job="llama-70b", node="gpu-a02", headline="GPU 5 of gpu-a02 fell off the bus"
        )
        expected = {"/nodes": "gpu-a02", "/jobs": "1 open", "/jobs/llama-70b": "GPU 5 of gpu-a02 fell off the bus"}[
            path
        ]
        assert page.locator("main").get_by_text(expected).count() == 0
        store.put_incident(told, time.time_ns())
        page.locator("main").get_by_text(expected).first.wait_for(timeout=15_000)
        assert page.said == []
        page.context.close()
    store.close()


def test_the_theme_is_chosen_and_kept(tab: Tab, pages: dict[str, str]) -> None:
    page = tab("/", scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("[data-theme-toggle]")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.goto(page.url + "jobs")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_a_timeline_zooms_by_dragging_and_by_keyboard(tab: Tab, pages: dict[str, str]) -> None:
    page = tab(pages["gpu_incident"])
    drawing = page.locator("#timeline svg[data-from]")
    began = drawing.get_attribute("data-from")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_selector("[aria-label='Zoom out']")
    assert page.locator("#timeline svg[data-from]").get_attribute("data-from") != began
    page.focus("[aria-label='Show all of it']")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-label='Zoom out']", state="detached")
    assert page.locator("#timeline svg[data-from]").get_attribute("data-from") == began


def test_the_keyboard_reaches_search_and_content(tab: Tab) -> None:
    page = tab("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    page.keyboard.type("gpu_fault")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Search')")
    assert page.locator(".incidents li").count() > 3


def test_charts_are_drawn_by_uplot_and_follow_the_width(tab: Tab, pages: dict[str, str]) -> None:
    page = tab(pages["job"])
    page.wait_for_selector(".uplot canvas")
    assert page.locator(".uplot").count() == 2
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_an_incident_prints_with_everything_unfolded(tab: Tab, pages: dict[str, str], shots: Path) -> None:
    page = tab(pages["gpu_incident"])
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible()
    assert not page.locator("textarea").is_visible()
    page.pdf(path=shots / "incident.pdf")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_bundle_is_uploaded_and_its_progress_shown(tab: Tab, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "run"), "gztar", INCIDENTS / "nccl_hang_one_rank_missing")
    store = Store.open(str(tmp_path / "uploads.db"), durable=False)
    settings = ServerSettings(rate=0)
    app = make_app(store, settings)
    app.state.diagnoses = Diagnoses(store, settings, tmp_path / "uploads", time.time_ns)
    app.state.diagnoses.start()
    with running(app) as address:
        page = tab("/upload", base=address)
        page.set_input_files("#file", archive)
        page.click("button:has-text('Diagnose')")
        page.wait_for_selector("text=1 incident found", timeout=60_000)
        assert "/upload/" in page.url
        page.click("a.headline")
        page.wait_for_selector("h1:has-text('rank 2 never entered it')")
        assert page.locator("#timeline svg").count() == 1
        page.goto(f"{address}/upload")
        page.set_input_files("#file", {"name": "empty.log", "mimeType": "text/plain", "buffer": b""})
        page.click("button:has-text('Diagnose')")
        page.wait_for_selector("text=the upload is empty")
        page.context.close()
    app.state.diagnoses.stop()
    store.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (400, "light")])
def test_the_sign_in_page_is_sound(tab: Tab, fleet: Store, shots: Path, width: int, scheme: str) -> None:
    _, secret = fleet.tokens.create("operator", ["operate"], who="test", now=1)
    with running(make_app(fleet, ServerSettings(rate=0, auth=True))) as address:
        page = tab("/jobs", base=address, width=width, scheme=scheme, bypass_csp=True)
        page.screenshot(path=shots / f"login-{width}-{scheme}.png")
        assert page.said == []
        assert violations(page) == []
        page.fill("#token", "tc_wrong_wrong")
        page.click("button:has-text('token')")
        page.wait_for_selector("text=This is not a valid token.")
        page.fill("#token", secret)
        page.click("button:has-text('token')")
        page.wait_for_selector("h1:has-text('Jobs')")
        assert violations(page) == []
        page.click("text=Sign out")
        page.wait_for_selector("h1:has-text('Sign in')")
        page.context.close()
