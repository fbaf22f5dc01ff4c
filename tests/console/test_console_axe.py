"""axe-core, installed by npm for this test only, finds nothing serious on any view of the console, light and dark."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.long_form import LONG

pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.process

RUN = """() => axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
    .filter((item) => ["serious", "critical"].includes(item.impact))
    .map((item) => item.id + ": " + item.nodes.map((node) => node.html).join(" | ")))"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=90)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("axe-core cannot be installed: the registry of npm does not answer")
    return Path(folder, "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def stored(server: Any) -> None:
    assert server.upload("keys.txt", "The keys are held by Aino. A berth costs 25 euros.")[0] == 201
    for number in range(14):
        text = f"On 3 May the pier {number} was painted by Matti."
        server.post("/api/memory/messages", session_id="monday", role="user", content=text)
    server.post("/api/memory/clean", session_id="monday")
    server.post("/api/memory", content="Aino prefers tea.")
    server.post("/api/memory/core/human/append", text="Aino is vegetarian.")


VIEWS = {
    "ask": "/",
    "answer": "/",
    "documents": "/#/documents",
    "search": "/#/memory/search",
    "sessions": "/#/memory/sessions",
    "session": "/#/memory/sessions/monday",
    "known": "/#/memory/known",
    "entry": "/#/memory/known",
    "profile": "/#/memory/profile",
    "core": "/#/memory/core",
    "map": "/#/map",
    "health": "/#/health",
    "key": "/#/health",
}
SHOWN = [
    (view, scheme)
    for view in VIEWS
    for scheme in ("light", "dark")
    if LONG or scheme == "light" or view in ("answer", "search")
    if LONG or view != "key"
]


@pytest.mark.parametrize(("view", "scheme"), SHOWN)
def test_axe_finds_nothing_serious(see: Any, stored: None, axe: str, view: str, scheme: str) -> None:
    page = see(VIEWS[view], color_scheme=scheme, reduced_motion="reduce").page
    page.wait_for_selector("#main h1, #main .hello")
    page.wait_for_load_state("networkidle")
    if view == "answer":
        page.get_by_role("textbox").fill("Who holds the keys?")
        page.keyboard.press("Enter")
        page.locator(".cite").first.click()
        page.wait_for_selector(".source-text mark")
    elif view == "search":
        page.get_by_role("searchbox").fill("pier")
        page.keyboard.press("Enter")
        page.locator(".found summary").first.click()
    elif view == "map":
        page.locator(".legend button").first.click()
        page.wait_for_selector(".view-map .line")
    elif view == "key":
        page.get_by_role("button", name="Add a key").click()
        page.wait_for_selector("dialog")
    elif view == "entry":
        page.locator(".line button").first.click()
        page.wait_for_selector(".panel-body")
    page.evaluate(axe)
    assert page.evaluate(RUN) == []


def test_axe_would_find_a_button_without_a_name(see: Any, axe: str) -> None:
    page = see().page
    page.wait_for_selector("#main .hello")
    page.evaluate("document.getElementById('main').append(document.createElement('button'))")
    page.evaluate(axe)
    (found,) = page.evaluate(RUN)
    assert found.startswith("button-name")
