"""The console in a real Chromium: the whole job of a person, by mouse, by keyboard, on a phone and in the dark."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from reportlab.pdfgen import canvas

from tests.faults.long_form import LONG

pytest.importorskip("flask", reason="the extra `server` is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.process

KEYS = "The keys of the boat house are held by the harbour master, Aino Virtanen."
FEE = "Jäsenmaksu on 40 euroa vuodessa ja se maksetaan tammikuussa."
EVIL = "The password of the gate is <img src=x onerror=alert(1)><script>alert(2)</script> and [x](javascript:alert(3))."
SIZE = (595, 842)  # points
BASELINE = 700


def pdf(sentence: str, filler: str) -> bytes:
    """A file of two pages; the sentence is on the second one."""
    out = io.BytesIO()
    page = canvas.Canvas(out, pagesize=SIZE)
    page.drawString(72, 700, filler)
    page.showPage()
    page.drawString(72, BASELINE, sentence)
    page.drawString(72, BASELINE - 200, filler)
    page.showPage()
    page.save()
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    (made / "handbook.pdf").write_bytes(pdf(KEYS, "Welcome to the harbour."))
    (made / "vuosikertomus.pdf").write_bytes(pdf(FEE, "Tervetuloa yhdistykseen."))
    (made / "evil <b>.txt").write_text(EVIL)
    (made / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    return made


@pytest.fixture(scope="module")
def filled(server: Any, browser: Any, folder: Path) -> Any:
    """A server to which a person has added all files in the browser."""
    page = browser.new_page(locale="en-GB")
    page.goto(f"http://127.0.0.1:{server.port}/#/documents")
    page.set_input_files("input[type=file] >> nth=0", sorted(folder.iterdir()))
    page.wait_for_selector(".file.failed")
    expect(page.locator(".file.done")).to_have_count(3)
    states = page.locator(".file").all_inner_texts()
    page.close()
    return states


def ask(page: Any, question: str) -> Any:
    """Ask a question with the keyboard, and return its turn."""
    field = page.get_by_role("textbox")
    field.fill(question)
    field.press("Enter")
    turn = page.locator(".turn").last
    turn.locator(".state, .note").first.wait_for()
    return turn


def test_each_file_reports_its_end_and_a_torn_one_says_what_to_do(filled: list[str]) -> None:
    torn = next(text for text in filled if "torn.pdf" in text)
    assert "Stored, but not readable" in torn
    assert "print it to a new PDF" in torn
    assert sum("Ready" in text and "pages" in text for text in filled) == 2


@pytest.mark.parametrize(("question", "sentence", "name"), [
    ("Who holds the keys of the boat house?", KEYS, "handbook.pdf, page 2"),
    ("Kuinka suuri jäsenmaksu on?", FEE, "vuosikertomus.pdf, page 2"),
])  # fmt: skip
def test_a_citation_opens_its_page_with_the_sentence_marked(
    see: Any, filled: Any, question: str, sentence: str, name: str
) -> None:
    page = see().page
    turn = ask(page, question)
    assert sentence in turn.inner_text()
    assert turn.locator(".source-name").first.inner_text() == name
    turn.locator(".cite").first.click()
    page.wait_for_selector(".sheet img")
    assert page.locator(".panel .quote").inner_text() == sentence
    (box,) = page.locator(".box").all()
    left, top, width, height = (float(box.get_attribute(key)) for key in ("x", "y", "width", "height"))
    assert abs(left - 72 / SIZE[0]) < 0.01
    assert top < 1 - BASELINE / SIZE[1] < top + height < top + 0.04
    assert 0.4 < width < 0.9
    shown, sheet = box.bounding_box(), page.locator(".sheet").bounding_box()
    assert sheet["x"] <= shown["x"] < shown["x"] + shown["width"] <= sheet["x"] + sheet["width"]
    page.get_by_role("button", name="Show the text").click()
    assert page.locator(".source-text mark").inner_text() == sentence
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()


def test_the_keyboard_alone_asks_opens_and_closes_a_source_and_returns(see: Any, filled: Any) -> None:
    page = see("/#/documents").page
    page.wait_for_selector(".line")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.goto(page.url.split("#")[0] + "#/ask")
    page.wait_for_selector("textarea")
    page.locator("#main").focus()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.keyboard.type("Who holds the keys of the boat house?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".source")
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.className") == "cite":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector(".sheet img")
    assert page.evaluate("document.activeElement.closest('#panel') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "cite"


@pytest.mark.parametrize(
    "view",
    [
        "/",
        "/#/documents",
        "/#/memory/search",
        "/#/memory/known",
        "/#/memory/profile",
        "/#/memory/core",
        "/#/map",
        "/#/health",
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"] if LONG else ["dark"])
def test_a_view_fits_a_phone(see: Any, filled: Any, view: str, scheme: str) -> None:
    page = see(view, viewport={"width": 375, "height": 740}, color_scheme=scheme).page
    page.wait_for_selector("#main h1")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(18, 19, 23)") == (scheme == "dark")


def test_markup_in_a_document_is_text_everywhere(see: Any, filled: Any) -> None:
    page = see().page
    turn = ask(page, "What is the password of the gate?")
    assert "<img src=x onerror=alert(1)>" in turn.inner_text()
    turn.locator(".cite").first.click()
    page.wait_for_selector(".source-text mark")
    assert "<script>alert(2)</script>" in page.locator(".source-text").inner_text()
    assert page.locator("#panel h2").inner_text() == "evil <b>.txt"
    page.goto(page.url.split("#")[0] + "#/memory/search")
    page.get_by_role("searchbox").fill("password of the gate")
    page.keyboard.press("Enter")
    page.wait_for_selector(".found")
    assert "<img src=x onerror=alert(1)>" in page.locator(".found").first.inner_text()
    page.goto(page.url.split("#")[0] + "#/documents")
    page.wait_for_selector(".line")
    assert page.locator("main img, main script, main a[href^='javascript'], .panel script").count() == 0


def test_the_policy_stops_an_inline_script_and_the_tests_would_see_it(see: Any) -> None:
    seen = see()
    seen.page.wait_for_selector("textarea")
    with pytest.raises(Exception, match="TrustedHTML"):
        seen.page.evaluate("document.body.innerHTML = '<b>x</b>'")
    with pytest.raises(Exception, match="TrustedScript"):
        seen.page.evaluate("document.body.setAttribute('onclick', 'window.hit = 1')")
    seen.page.evaluate("""() => { const style = document.createElement('style');
        style.textContent = 'body { color: red }'; document.body.append(style); }""")
    for _ in range(100):  # the browser reports a violation a moment later
        if any(text.startswith("Violation: style-src-elem") for text in seen.wrong):
            break
        seen.page.wait_for_timeout(100)
    assert any("Content Security Policy" in text for text in seen.wrong)
    assert any(text.startswith("Violation: style-src-elem") for text in seen.wrong)
    seen.page.wait_for_timeout(200)  # the message of the browser may come after that of the event
    seen.wrong.clear()


def test_nothing_found_says_so_and_what_to_do(see: Any, filled: Any) -> None:
    turn = ask(see().page, "What is the airspeed of an unladen swallow?")
    assert "Nothing in your documents or memories answers this." in turn.inner_text()
    assert turn.locator(".cite").count() == 0


def test_the_first_view_is_small_and_comes_from_one_host(see: Any) -> None:
    seen = see()
    seen.page.wait_for_selector("textarea")
    seen.page.wait_for_load_state("networkidle")
    assert 20_000 < seen.bytes() < 150_000  # the fixture `see` checks the hosts


def test_finnish_is_chosen_by_the_browser_and_by_the_person(see: Any) -> None:
    page = see(locale="fi-FI").page
    page.wait_for_selector("textarea")
    assert page.locator("h1").inner_text() == "Mitä haluat tietää?"
    assert page.evaluate("document.documentElement.lang") == "fi"
    page.get_by_label("Kieli").select_option("en")
    page.get_by_role("heading", name="What would you like to know?").wait_for()


def test_a_question_is_kept_and_opened_again_and_copied_with_its_sources(see: Any, filled: Any) -> None:
    seen = see(permissions=["clipboard-read", "clipboard-write"])
    page = seen.page
    ask(page, "Who holds the keys of the boat house?")
    page.get_by_role("button", name="Copy as Markdown").click()
    page.get_by_text("Copied with its sources").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("## Who holds the keys of the boat house?\n")
    assert "1. handbook.pdf, page 2\n" in copied
    assert f"> {KEYS}" in copied
    page.reload()
    page.get_by_role("button", name="Who holds the keys of the boat house?").click()
    page.wait_for_selector(".turn .cite")
    assert KEYS in page.locator(".turn").inner_text()


def test_a_session_is_summarised_opened_and_restored(see: Any, server: Any) -> None:
    for number in range(14):
        text = f"Message {number}: on 3 May the pier {number} was painted blue by Matti."
        status, _ = server.post("/api/memory/messages", session_id="monday", role="user", content=text)
        assert status == 201
    page = see("/#/memory/sessions").page
    page.get_by_role("link", name="monday").click()
    page.wait_for_selector(".message")
    assert page.locator(".timeline > .message").count() == 14
    page.get_by_role("button", name="Summarise now").click()
    page.wait_for_selector(".summary-item")
    left = page.locator(".timeline > .message").count()
    assert left < 14
    summary = page.locator(".summary-item").first
    summary.locator("details > summary").click()
    assert summary.locator("details .message").first.is_visible()
    for rest in reversed(range(page.locator(".summary-item").count())):
        page.locator(".summary-item button", has_text="Restore").first.click()
        expect(page.locator(".summary-item")).to_have_count(rest)
    expect(page.locator(".timeline > .message")).to_have_count(14)


def test_a_fact_is_added_changed_with_its_history_and_deleted(see: Any) -> None:
    page = see("/#/memory/known").page
    page.get_by_role("button", name="Remember something").click()
    page.get_by_label("Text").fill("Aino prefers tea.")
    page.locator("dialog button[type=submit]").click()
    page.locator(".line", has_text="Aino prefers tea.").locator("button").click()
    page.locator("#panel").get_by_role("button", name="Edit").click()
    page.get_by_label("Text").fill("Aino prefers coffee.")
    page.get_by_role("button", name="Save").click()
    page.locator(".line", has_text="Aino prefers coffee.").locator("button").click()
    page.wait_for_selector(".history")
    assert page.locator(".history del").inner_text() == "tea."
    assert page.locator(".history ins").inner_text() == "coffee."
    page.locator("#panel").get_by_role("button", name="Delete").click()
    page.locator("dialog button[type=submit]").click()
    page.get_by_text("Nothing is known yet").wait_for()


def test_a_core_block_shows_its_size(see: Any) -> None:
    page = see("/#/memory/core").page
    page.get_by_label("Name of the block").fill("human")
    page.get_by_label("A line to remember").fill("Aino is vegetarian.")
    page.get_by_role("button", name="Add the line").click()
    page.wait_for_selector(".block meter")
    assert "tokens" in page.locator(".block").inner_text()


def test_a_profile_shows_what_holds_now_and_opens_its_entries(see: Any, server: Any) -> None:
    for day, text in enumerate(("Asta lives in Turku.", "Asta lives in Oslo."), 1):
        server.post("/api/memory", content=text, user_id="asta", occurred_at=f"2026-05-0{day}T09:00:00Z")
    page = see("/#/memory/profile").page
    page.get_by_label("Id of the user").fill("asta")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_text("Asta lives in Oslo.").wait_for()
    assert page.locator("section h2").all_inner_texts() == ["Home"]
    assert page.get_by_text("Asta lives in Turku.").count() == 0
    page.get_by_text("Asta lives in Oslo.").click()
    page.locator("#panel").get_by_role("button", name="Delete").wait_for()
    page.goto(page.url.split("#")[0] + "#/memory/profile/nobody")
    page.get_by_text("Nothing is known about this user").wait_for()


def test_every_result_of_a_search_says_why(see: Any, filled: Any) -> None:
    page = see("/#/memory/search").page
    page.get_by_role("searchbox").fill("keys of the boat house")
    page.keyboard.press("Enter")
    first = page.locator(".found").first
    first.locator("details > summary").click()
    assert "words" in first.locator(".votes").inner_text()
    assert "rank 1" in first.locator(".votes").inner_text()


def test_a_key_is_asked_for_and_kept_for_the_tab(browser: Any, tmp_path: Path) -> None:
    from agentformer.access.keys import KeyStore
    from tests.console.conftest import Seen
    from tests.edges.running import Running

    _, secret = KeyStore(tmp_path / "indexes").make("office", ("read", "write"))
    with_keys = Running(tmp_path)
    try:
        seen = Seen(browser, with_keys)
        seen.page.get_by_label("Key", exact=True).fill(secret)
        seen.page.get_by_role("button", name="Use this key").click()
        seen.page.get_by_text("There are no documents yet.").wait_for()
        assert seen.page.evaluate("sessionStorage.getItem('agentformer.key')") == secret
        assert secret not in seen.page.evaluate("JSON.stringify(localStorage)")
        assert seen.wrong == []
        seen.context.close()
    finally:
        with_keys.close()


def test_a_deleted_document_is_hidden_at_once_and_comes_back_by_undo(see: Any, filled: Any, server: Any) -> None:
    page = see("/#/documents").page
    page.get_by_role("button", name="Delete handbook.pdf").click()
    expect(page.locator(".line", has_text="handbook.pdf")).to_have_count(0)
    page.get_by_role("button", name="Undo: handbook.pdf").click()
    expect(page.locator(".line", has_text="handbook.pdf")).to_have_count(1)
    assert "handbook.pdf" in server.documents()


def test_a_deletion_holds_when_the_tab_closes(see: Any, server: Any) -> None:
    assert server.upload("old.txt", "An old text.")[0] == 201
    page = see("/#/documents").page
    page.get_by_role("button", name="Delete old.txt").click()
    expect(page.locator(".line", has_text="old.txt")).to_have_count(0)
    page.goto("about:blank")
    for _ in range(300):
        if "old.txt" not in server.documents():
            break
        page.wait_for_timeout(100)
    assert "old.txt" not in server.documents()


def test_the_health_view_shows_the_state_of_each_part(see: Any, filled: Any) -> None:
    page = see("/#/health").page
    page.wait_for_selector(".card")
    cards = page.locator(".card").all_inner_texts()
    assert [text.split("\n")[0] for text in cards] == ["Store", "Search index", "Embedding model"]
    assert page.locator(".card.good").count() >= 2
    assert "hashing:256" in page.locator(".health").inner_text()


def test_the_whole_job_on_a_dark_phone(see: Any, filled: Any, server: Any) -> None:
    page = see("/", viewport={"width": 375, "height": 740}, color_scheme="dark", has_touch=True).page
    turn = ask(page, "Kuinka suuri jäsenmaksu on?")
    turn.locator(".cite").first.tap()
    page.wait_for_selector(".sheet img")
    expect(page.locator(".box")).to_be_in_viewport()
    shown = page.locator(".box").bounding_box()
    assert 0 <= shown["x"] < shown["x"] + shown["width"] <= 375
    page.get_by_role("button", name="Close").tap()
    page.get_by_role("link", name="Documents").tap()
    page.get_by_role("button", name="Delete vuosikertomus.pdf").tap()
    expect(page.locator(".line", has_text="vuosikertomus.pdf")).to_have_count(0)
    page.get_by_role("button", name="Undo: vuosikertomus.pdf").tap()
    expect(page.locator(".line", has_text="vuosikertomus.pdf")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_the_keyboard_alone_adds_a_file_deletes_it_and_undoes(see: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "keyboard.txt").write_text("The keyboard is in the attic.")
    page = see("/#/documents").page

    def press(name: str) -> None:
        button = page.get_by_role("button", name=name, exact=True).first
        button.wait_for()
        page.locator("#main").focus()
        for _ in range(60):
            page.keyboard.press("Tab")
            if button.evaluate("(element) => element === document.activeElement"):
                break
        page.keyboard.press("Enter")

    with page.expect_file_chooser() as chooser:
        press("Choose files")
    chooser.value.set_files(tmp_path / "keyboard.txt")
    page.locator(".file.done", has_text="keyboard.txt").wait_for()
    expect(page.locator(".line", has_text="keyboard.txt")).to_have_count(1)
    press("Delete keyboard.txt")
    expect(page.locator(".line", has_text="keyboard.txt")).to_have_count(0)
    press("Undo: keyboard.txt")
    expect(page.locator(".line", has_text="keyboard.txt")).to_have_count(1)
    assert "keyboard.txt" in server.documents()


def test_text_that_is_written_from_right_to_left_stays_in_its_place(see: Any, server: Any) -> None:
    assert server.post("/api/memory", content="الميناء مفتوح (8-16).", kind="event")[0] == 201
    page = see("/#/memory/known", viewport={"width": 375, "height": 740}).page
    text = page.locator(".entry-text", has_text="الميناء")
    assert text.evaluate("(element) => getComputedStyle(element).unicodeBidi") == "plaintext"
    page.evaluate("document.documentElement.dir = 'rtl'")
    for path in ("documents", "memory/known", "map", "health", "ask"):
        page.goto(f"{page.url.split('#')[0]}#/{path}")
        page.wait_for_selector("#main h1")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") == 375, path
    assert page.locator(".side .brand").bounding_box()["x"] > 150  # the frame is mirrored
