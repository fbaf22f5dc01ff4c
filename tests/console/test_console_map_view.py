"""The map, the keys, the doctor and the plot of the importance of an entry, in a real Chromium."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import Seen
from tests.edges.running import Running
from tests.faults.long_form import LONG

pytest.importorskip("flask", reason="the extra `server` is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.process

POINTS = 10_000 if LONG else 400


@pytest.fixture(scope="module")
def stored(server: Any) -> None:
    for number in range(8):
        server.post("/api/memory/messages", session_id="monday", role="user", content=f"The pier is blue {number}.")
        server.post("/api/memory", content=f"Soup and coffee for lunch {number}", kind="recipe")


def chosen(page: Any) -> list[str]:
    page.wait_for_selector(".view-map .line")
    return [text.split("\n")[-1] for text in page.locator(".view-map .line").all_inner_texts()]


def test_a_group_is_selected_listed_and_searched(see: Any, stored: None) -> None:
    page = see("/#/map").page
    page.get_by_role("button", name="recipe").click()
    assert page.locator("[aria-live]", has_text="8 selected memories").count() == 1
    assert sorted(chosen(page)) == [f"Soup and coffee for lunch {number}" for number in range(8)]
    page.get_by_placeholder("Search within the selection").fill("the pier is blue, or coffee")
    page.keyboard.press("Enter")
    expect(page.locator(".view-map .found").first).to_be_visible()
    assert all("coffee" in text for text in page.locator(".view-map .found").all_inner_texts())
    page.get_by_role("button", name="Clear the selection").click()
    expect(page.locator(".view-map .line")).to_have_count(0)


def test_an_area_is_selected_with_the_mouse_and_a_point_shows_its_text(see: Any, stored: None) -> None:
    page = see("/#/map").page
    box = page.locator("canvas").bounding_box()
    left, top, width, height = (box[name] for name in ("x", "y", "width", "height"))
    page.mouse.move(left + 9, top + 9)
    page.mouse.down()
    page.mouse.move(left + width - 9, top + height - 9, steps=3)
    page.mouse.up()
    page.get_by_text("16 selected memories").wait_for()
    pier = page.evaluate("""async () => {
        const map = await (await fetch("/api/memory/map")).json();
        const place = map.kind.findIndex((kind) => map.kinds[kind] === "message");
        const at = (value) => 0.03 + 0.94 * value / map.scale;
        return [at(map.x[place]), 1 - at(map.y[place])];
    }""")
    page.mouse.move(left + pier[0] * width, top + pier[1] * height)
    expect(page.locator(".tip")).to_contain_text("The pier is blue")
    page.mouse.click(left + pier[0] * width, top + pier[1] * height)
    expect(page.get_by_text("1 selected memory")).to_be_visible()


def test_the_keyboard_alone_selects_an_area(see: Any, stored: None) -> None:
    page = see("/#/map").page
    page.locator("canvas").focus()
    for _ in range(8):
        page.keyboard.press("+")
    page.keyboard.press("Enter")
    page.get_by_text("16 selected memories").wait_for()
    assert len(chosen(page)) == 16
    page.keyboard.press("Escape")
    expect(page.locator(".view-map .line")).to_have_count(0)


def test_many_points_are_drawn_in_less_than_a_second_of_the_main_thread(see: Any, server: Any) -> None:
    """The time is that of the browser. It is printed; the test asserts that each point was drawn."""
    for start in range(0, POINTS, 200):
        words = ("pier", "boat", "soup", "sauna", "rope")
        items = [
            {"content": f"{words[n % 5]} {words[n % 3]} number {n}", "namespace": "many"}
            for n in range(start, start + 200)
        ]
        assert server.post("/api/memory/batch", items=items)[0] == 201
    page = see().page
    page.evaluate("sessionStorage.setItem('agentformer.namespace', 'many')")
    page.goto(page.url.split("#")[0] + "#/map")
    page.wait_for_selector("canvas")
    page.wait_for_function("performance.getEntriesByName('map').length > 0")
    times = page.evaluate("performance.getEntriesByName('map').map((entry) => entry.duration)")
    tasks = page.evaluate("""() => new Promise((done) => {
        const seen = new PerformanceObserver((list) => done(list.getEntries().map((entry) => entry.duration)));
        seen.observe({type: "longtask", buffered: true}); setTimeout(() => done([]), 500); })""")
    print(f"{POINTS} points: each drawing {max(times):.0f} ms at most; long tasks {[round(task) for task in tasks]} ms")
    assert f"{POINTS:,} memories" in page.locator(".view-map").inner_text()
    drawn = page.evaluate("""() => { const canvas = document.querySelector("canvas"); const {data} =
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let count = 0; for (let at = 3; at < data.length; at += 4) count += data[at] > 0; return count; }""")
    assert drawn > POINTS / 4
    page.get_by_role("button", name="Fact").click()
    page.get_by_text(f"{POINTS:,} selected memories").wait_for()
    page.get_by_placeholder("Search within the selection").fill("sauna number 8")
    page.keyboard.press("Enter")
    expect(page.locator(".view-map .found").first).to_contain_text("sauna")
    if LONG:
        assert max(times) < 1000


def test_the_importance_is_plotted_and_a_look_is_no_use(see: Any, server: Any) -> None:
    body = {"content": "Aino is away this week.", "category": "context", "salience": 0.8, "namespace": "plot"}
    status, entry = server.post("/api/memory", **body)
    assert status == 201
    page = see().page
    page.evaluate("sessionStorage.setItem('agentformer.namespace', 'plot')")
    page.goto(page.url.split("#")[0] + "#/memory/known")
    for _ in range(2):
        page.locator(".line button", has_text="Aino is away").click()
        page.wait_for_selector(".plot polyline")
        assert "Now 0.8, and 0.03 in 30 days" in page.locator("#panel").inner_text()
        page.keyboard.press("Escape")
    heights = [float(pair.split(",")[1]) for pair in page.evaluate("""async () => {
        document.querySelector(".line button").click();
        await new Promise((done) => setTimeout(done, 300));
        return document.querySelector(".plot polyline").getAttribute("points"); }""").split()]  # fmt: skip
    assert heights == sorted(heights) and heights[-1] > heights[0] + 40
    assert server.ask("GET", f"/api/memory/{entry['id']}/salience")[1]["used"] is False


def test_an_archived_and_a_replaced_memory_say_by_what(see: Any, server: Any) -> None:
    for number in range(14):
        text = f"On 3 May the pier {number} was painted by Matti."
        server.post("/api/memory/messages", session_id="s", namespace="old", role="user", content=text)
    server.post("/api/memory/clean", session_id="s", namespace="old")
    page = see().page
    page.evaluate("sessionStorage.setItem('agentformer.namespace', 'old')")
    page.goto(page.url.split("#")[0] + "#/memory/search")
    page.get_by_label("Also what is archived or replaced").check()
    page.get_by_role("searchbox").fill("pier 1 painted by Matti on 3 May")
    page.keyboard.press("Enter")
    page.locator(".found", has_text="archived").first.locator(".line-main").click()
    page.locator("#panel .facts", has_text="Archived by").locator("button.link").click()
    expect(page.locator("#panel .panel-head .badge").first).to_have_text("Summary")


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """A server of its own, whose keys and files a test may change."""
    running = Running(tmp_path, AGENTFORMER_CLEAN_EVERY="0")
    yield running
    running.close()


def test_keys_are_added_shown_once_restricted_and_revoked_and_the_doctor_speaks(
    browser: Any, own: Any, tmp_path: Path
) -> None:
    own.post("/api/memory", content="Aino prefers tea.")
    with sqlite3.connect(tmp_path / "indexes/memory.sqlite3") as connection:
        connection.execute("UPDATE entries SET content = 'Aino prefers rum.'")
    seen = Seen(browser, own, "/#/health")
    page = seen.page
    page.set_default_timeout(60_000)
    page.get_by_role("button", name="Check now").click()
    page.wait_for_selector(".doctor .note.error")
    told = page.locator(".doctor").inner_text()
    assert "Not so: each record is as it was written" in told or "Not so:" in told
    assert "agentformer doctor --repair" in told
    page.get_by_role("button", name="Add a key").click()
    page.get_by_label("Name, such as website").fill("boss")
    page.locator("dialog button[type=submit]").click()
    secret = page.get_by_label("The new key").input_value()
    assert secret.startswith("af_")
    page.get_by_role("button", name="I have stored it").click()
    expect(page.locator(".key")).to_have_count(1)
    assert "this tab" in page.locator(".key").inner_text()
    page.get_by_role("button", name="Add a key").click()
    page.get_by_label("Name, such as website").fill("website")
    page.get_by_label("Namespaces").fill("handbook, board")
    page.locator("dialog button[type=submit]").click()
    theirs = page.get_by_label("The new key").input_value()
    page.get_by_role("button", name="I have stored it").click()
    assert "read · handbook, board" in page.locator(".key", has_text="website").inner_text()
    assert theirs not in page.content()
    page.get_by_role("button", name="Restrict the key website").click()
    page.get_by_text("Tools that it may use").click()
    page.get_by_label("rag_query").uncheck()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".key", has_text="website")).to_contain_text("1 tool is switched off")
    status, _ = own.ask("GET", "/api/memory?namespace=board", headers={"Authorization": f"Bearer {theirs}"})
    assert status == 200
    page.get_by_role("button", name="Revoke the key website").click()
    page.locator("dialog button[type=submit]").click()
    expect(page.locator(".key")).to_have_count(1)
    status, _ = own.ask("GET", "/api/memory?namespace=board", headers={"Authorization": f"Bearer {theirs}"})
    assert status == 401
    assert secret not in page.evaluate("JSON.stringify(localStorage)")
    assert seen.wrong == []
    seen.context.close()


def test_a_deletion_and_its_undo_survive_a_crash_of_the_tab(browser: Any, see: Any, server: Any) -> None:
    assert server.upload("minutes.txt", "The board met on 3 May in the sauna.")[0] == 201
    first = Seen(browser, server, "/#/documents")
    first.page.get_by_role("button", name="Delete minutes.txt").click()
    first.page.get_by_text("Deleted: minutes.txt").wait_for()
    with pytest.raises(Exception, match=r"crash|closed"):
        first.page.goto("chrome://crash", timeout=20_000)
    first.context.close()
    assert "minutes.txt" not in server.documents()
    question = json.dumps({"question": "Where did the board meet on 3 May?"}).encode()
    _, answer = server.ask("POST", "/api/rag/query", question, {"Content-Type": "application/json"})
    assert not any(citation["document"] == "minutes.txt" for citation in answer["citations"])
    page = see("/#/documents").page
    page.get_by_text("Deleted: minutes.txt").wait_for()
    page.get_by_role("button", name="Undo: minutes.txt").click()
    expect(page.locator(".line", has_text="minutes.txt")).to_have_count(1)
    assert "minutes.txt" in server.documents()
