"""Markup in a model's answer, in documents, in memories and in names is text on every view, and breaks no policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.console.conftest import Seen
from tests.edges.running import Running
from tests.edges.talking import Talker

pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.process

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>alert(2)</script>"
WORSE = '"><svg/onload=alert(3)><a href="javascript:alert(4)">x</a><iframe srcdoc="<script>alert(5)</script>">&lt;b&gt;'
EVIL = f"{IMAGE} {SCRIPT} {WORSE}"
NAME = "<b onclick=alert(6)> & 'name'"
SESSION = f"monday {IMAGE}"
# Elements that no view contains unless text became markup. Pictures of pages have the address of a blob.
INJECTED = """[...document.querySelectorAll(`main img, main iframe, main script, .panel script, .panel iframe, main b,
    .panel img:not([src^="blob:"]), a[href^="java" i], dialog b, [onclick], [onerror], [onload], svg svg, form[action],
    object, embed, base, meta[http-equiv]`)].map((element) => element.outerHTML)"""


class Hostile(NamedTuple):
    server: Running
    talker: Talker


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    talker = Talker()
    server = Running(tmp_path_factory.mktemp("hostile"), AGENTFORMER_CLEAN_EVERY="0", **talker.settings)
    try:
        status, _ = server.upload(f"{NAME.replace('/', '')}.txt", f"The password of the gate is {EVIL}.")
        assert status == 201
        for number in range(14):
            text = f"On 3 May the pier {number} was painted {EVIL}."
            body = {"session_id": SESSION, "role": "user", "speaker": NAME, "content": text}
            assert server.post("/api/memory/messages", **body)[0] == 201
        assert server.post("/api/memory/clean", session_id=SESSION)[0] == 200
        assert server.post("/api/memory", content=f"A fact {EVIL}", title=f"Title {IMAGE}", kind=NAME)[0] == 201
        assert server.post("/api/memory/core/human/append", text=f"Aino {EVIL}")[0] in (200, 201)
        yield Hostile(server, talker)
    finally:
        server.close()
        talker.close()


@pytest.fixture
def page(browser: Any, hostile: Hostile) -> Iterator[Any]:
    seen = Seen(browser, hostile.server)
    seen.page.set_default_timeout(60_000)
    yield seen.page
    injected = seen.page.evaluate(INJECTED)
    seen.context.close()
    assert (injected, seen.wrong) == ([], [])


def go(page: Any, path: str, wait: str) -> str:
    page.goto(f"{page.url.split('#')[0]}#/{path}")
    page.wait_for_selector(wait)
    assert page.evaluate(INJECTED) == []
    return str(page.locator("main").inner_text())


def test_an_answer_of_a_model_is_text(page: Any, hostile: Hostile) -> None:
    hostile.talker.script = lambda: iter(["The password is ", IMAGE[:9], IMAGE[9:], f" [1]. {SCRIPT} [1] {WORSE}"])
    page.get_by_role("textbox").fill("What is the password of the gate?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn .state")
    told = page.locator(".turn").inner_text()
    assert IMAGE in told
    assert "<script>alert(2)</script>" in told
    assert "Written by a language model" in told
    assert "img src=x onerror=alert(1)>" in page.locator(".answer > .text").inner_text()
    page.locator(".source").first.click()
    page.wait_for_selector("#panel .source-text, #panel .page :text('img')")
    assert page.evaluate(INJECTED) == []


def test_a_sentence_that_the_sources_do_not_support_is_marked_as_text(page: Any, hostile: Hostile) -> None:
    hostile.talker.script = lambda: iter([f"The gate was built in 1871 by 42 smiths {IMAGE} [1]."])
    page.get_by_role("textbox").fill("What is the password of the gate?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".note.warn")
    told = page.locator(".note.warn").inner_text()
    assert "not supported by the sources" in told
    assert "1871" in told
    assert page.locator(".unsupported").count() == 1


@pytest.mark.parametrize(
    ("path", "wait", "shown"),
    [
        ("documents", ".line", NAME),
        ("memory/sessions", ".line", SESSION),
        (f"memory/sessions/{quote(SESSION, safe='')}", ".summary-item", IMAGE),
        ("memory/known", ".line", f"Title {IMAGE}"),
        ("memory/core", ".block", SCRIPT),
        ("map", ".legend li", NAME),
        ("health", ".card", NAME),
    ],
)
def test_a_view_shows_markup_as_text(page: Any, path: str, wait: str, shown: str) -> None:
    assert shown in go(page, path, wait)
    if path == "memory/known":
        page.locator(".line button").first.click()
        page.wait_for_selector(".panel-body")
        assert SCRIPT in page.locator("#panel").inner_text()
    if path == "map":
        page.locator(".legend button").first.click()
        page.wait_for_selector(".view-map .line")
        assert IMAGE in page.locator("main").inner_text()


def test_a_search_and_a_source_show_markup_as_text(page: Any) -> None:
    go(page, "memory/search", "input[type=search]")
    page.get_by_role("searchbox").fill("password of the gate")
    page.keyboard.press("Enter")
    page.wait_for_selector(".found")
    assert SCRIPT in page.locator(".found").first.inner_text()
    page.locator(".found .line-main").first.click()
    page.wait_for_selector(".source-text")
    assert WORSE in page.locator("#panel .source-text").inner_text()


def test_a_violation_of_the_policy_fails_a_test(browser: Any, hostile: Hostile) -> None:
    seen = Seen(browser, hostile.server)
    seen.page.evaluate("""() => { const image = document.createElement("img");
        image.src = "data:image/png;base64,AAAA"; document.body.append(image); }""")
    for _ in range(100):
        if any(text.startswith("Violation: img-src") for text in seen.wrong):
            break
        seen.page.wait_for_timeout(100)
    assert any(text.startswith("Violation: img-src") for text in seen.wrong), seen.wrong
    seen.context.close()
