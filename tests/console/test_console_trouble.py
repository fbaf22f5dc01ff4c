"""The console when something is in the way: a missing key, a server that is gone, another tab, a very long name."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import Seen
from tests.edges.running import Running

pytest.importorskip("flask", reason="the extra `server` is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.process

LONG_NAME = "x" * 235 + ".txt"
ADD = "input[type=file] >> nth=0"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path, AGENTFORMER_CLEAN_EVERY="0")
    yield running
    running.close()


def encrypted_pdf() -> bytes:
    from reportlab.lib.pdfencrypt import StandardEncryption
    from reportlab.pdfgen import canvas

    out = io.BytesIO()
    page = canvas.Canvas(out, encrypt=StandardEncryption("secret", canPrint=0))
    page.drawString(72, 700, "Nobody reads this.")
    page.save()
    return out.getvalue()


def test_the_first_key_administers_and_a_key_that_reads_is_offered_nothing_else(browser: Any, own: Running) -> None:
    assert own.upload("read.txt", "Read this.")[0] == own.post("/api/memory", content="Aino prefers tea.")[0] == 201
    seen = Seen(browser, own, "/#/health")
    page = seen.page
    page.clock.install()
    page.reload()
    page.get_by_role("button", name="Add a key").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("The first key is the key of an administrator")
    expect(dialog.get_by_label("Administer")).to_be_checked()
    expect(dialog.get_by_label("Administer")).to_be_disabled()
    dialog.get_by_label("Name, such as website").fill("boss")
    dialog.locator("button[type=submit]").click()
    secret = page.get_by_label("The new key").input_value()
    page.clock.run_for(6000)  # the view looks at the server again; no prompt for a key opens above the new key
    expect(page.locator("dialog")).to_have_count(1)
    page.get_by_role("button", name="I have stored it").click()
    assert page.evaluate("sessionStorage.getItem('agentformer.key')") == secret
    expect(page.get_by_role("button", name="Forget the key")).to_be_visible()
    page.get_by_role("button", name="Add a key").click()
    page.get_by_label("Name, such as website").fill("website")
    page.get_by_text("Tools that it may use").click()
    expect(page.get_by_label("rag_query")).to_be_checked()
    expect(page.get_by_label("rag_upload")).to_be_disabled()
    expect(page.get_by_label("rag_upload")).not_to_be_checked()
    page.get_by_label("Write:").check()
    expect(page.get_by_label("rag_upload")).to_be_checked()
    page.get_by_label("Write:").uncheck()
    page.locator("dialog button[type=submit]").click()
    reading = page.get_by_label("The new key").input_value()
    page.get_by_role("button", name="I have stored it").click()
    assert "switched off" not in page.locator(".key", has_text="website").inner_text()
    page.evaluate("(key) => sessionStorage.setItem('agentformer.key', key)", reading)
    page.goto(f"{seen.base}/#/documents")
    page.reload()
    expect(page.get_by_text("This key may only read.")).to_be_visible()
    expect(page.locator(".drop")).to_have_count(0)
    page.locator(".line", has_text="read.txt").wait_for()
    expect(page.get_by_role("button", name="Delete read.txt")).to_have_count(0)
    page.goto(f"{seen.base}/#/memory/known")
    page.locator(".line", has_text="Aino prefers tea.").locator("button").click()
    page.wait_for_selector("#panel .facts")
    expect(page.locator("#panel").get_by_role("button", name="Edit")).to_have_count(0)
    assert seen.wrong == []
    seen.context.close()


def test_without_a_key_the_page_asks_once_and_then_waits(browser: Any, own: Running) -> None:
    status, made = own.post("/api/keys", name="boss", rights=["admin"])
    assert status == 201
    seen = Seen(browser, own, "/#/health")
    page = seen.page
    page.clock.install()
    page.reload()
    page.get_by_label("Key", exact=True).wait_for()
    asked = [request.url for request in seen.requests if "/console/" not in request.url]
    page.clock.run_for(30_000)  # six times the time between two looks
    assert asked == [request.url for request in seen.requests if "/console/" not in request.url]
    page.get_by_label("Key", exact=True).fill(made["key"])
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator(".card")).to_have_count(3)
    expect(page.get_by_role("button", name="Forget the key")).to_be_visible()
    assert seen.wrong == []
    seen.context.close()


def test_each_view_says_that_the_server_is_gone_and_comes_back(see: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "lost.txt").write_text("The boat is lost.")
    seen = see("/#/ask")
    page = seen.page
    page.wait_for_selector("textarea")
    page.route("**/*", lambda route: route.abort())  # as if the server was killed
    for name in ("Health", "Memory", "Map"):
        page.get_by_role("link", name=name).click()
        expect(page.locator("main h1")).to_have_text(name)
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
        expect(page.locator("#side nav a[aria-current]")).to_have_text(name)
    page.unroute("**/*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("link", name="Health").click()
    expect(page.locator(".card")).to_have_count(3)
    page.get_by_role("link", name="Documents").click()
    page.wait_for_selector(".drop")
    page.route("**/*", lambda route: route.abort())
    page.get_by_role("link", name="Documents").click()
    expect(page.locator(".note.error")).to_contain_text("The server does not answer")
    page.set_input_files(ADD, tmp_path / "lost.txt")
    row = page.locator(".file.failed", has_text="lost.txt")
    expect(row).to_contain_text("The server does not answer")
    assert "Save the file again" not in row.inner_text()
    page.unroute("**/*")
    row.get_by_role("button", name="Try again").click()
    expect(page.locator(".file.done", has_text="lost.txt")).to_have_count(1)
    expect(page.locator(".line", has_text="lost.txt")).to_have_count(1)


def test_a_long_name_wraps_and_an_unread_file_says_that_it_is_stored(see: Any, tmp_path: Path) -> None:
    (tmp_path / LONG_NAME).write_text("A long name.")
    (tmp_path / "secret.pdf").write_bytes(encrypted_pdf())
    page = see("/#/documents").page
    page.set_input_files(ADD, [tmp_path / LONG_NAME, tmp_path / "secret.pdf"])
    expect(page.locator(".file.done")).to_have_count(1)
    row = page.locator(".file.failed", has_text="secret.pdf")
    expect(row).to_contain_text("Stored, but not readable")
    expect(row).to_contain_text("The file is protected by a password. Add it with its password.")
    expect(page.locator(".line .badge.encrypted")).to_have_text("protected by a password")
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
    assert page.locator(".file").first.bounding_box()["width"] < 1000


def test_a_document_that_another_tab_deletes_leaves_the_list_and_its_panel(see: Any, server: Any) -> None:
    for name in ("kept.txt", "gone.txt", "shown.txt"):
        assert server.upload(name, f"The text of {name}.")[0] == 201
    page = see("/#/documents").page
    for name in ("gone.txt", "shown.txt"):
        line = page.locator(".line", has_text=name).locator(".line-main")
        line.wait_for()
        if name == "shown.txt":
            line.click()
            page.wait_for_selector(".source-text")
        _, listed = server.ask("GET", "/api/rag/documents")
        (key,) = [item["id"] for item in listed["documents"] if item["name"] == name]
        assert server.ask("DELETE", f"/api/rag/documents/{key}")[0] in (200, 204)
        if name == "gone.txt":
            line.click()  # the server answers that there is no such document
        else:
            page.evaluate("dispatchEvent(new Event('focus'))")
        expect(line).to_have_count(0)
        expect(page.locator("#panel")).to_be_hidden()
    expect(page.locator(".line", has_text="kept.txt")).to_have_count(1)


def test_messages_have_speakers_and_a_saved_entry_stays_open(see: Any, server: Any) -> None:
    for role, text in (("user", "Where is the boat?"), ("assistant", "In the harbour.")):
        assert server.post("/api/memory/messages", session_id="talk", role=role, content=text)[0] == 201
    page = see("/#/memory/sessions/talk").page
    expect(page.locator(".message > .muted").nth(0)).to_contain_text("User")
    expect(page.locator(".message > .muted").nth(1)).to_contain_text("Assistant")
    assert server.post("/api/memory", content="Aino prefers tea.")[0] == 201
    page.goto(page.url.split("#")[0] + "#/memory/known")
    page.locator(".line", has_text="Aino prefers tea.").locator("button").click()
    page.locator("#panel").get_by_role("button", name="Edit").click()
    page.get_by_label("Text").fill("Aino prefers coffee.")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector("#panel .history")
    assert page.evaluate("document.activeElement.closest('#panel') !== null")


def test_the_question_stays_in_view_and_recent_questions_are_on_a_phone(see: Any, server: Any) -> None:
    for number in range(3):
        planks = " ".join(f"Plank {plank} lies on post {plank}." for plank in range(40))
        text = f"The pier number {number} is open in summer. The pier is long and blue. {planks}"
        assert server.upload(f"pier{number}.txt", text)[0] == 201
    page = see("/", viewport={"width": 375, "height": 500}).page
    for question in ("Which pier is open in summer?", "Is the pier long and blue?"):
        page.get_by_role("textbox").fill(question)
        page.get_by_role("textbox").press("Enter")
        turn = page.locator(".turn").last
        turn.locator(".state").wait_for()
        expect(turn.locator(".question")).to_be_in_viewport(ratio=1)
    turn.locator(".cite").first.click()
    page.wait_for_selector(".source-text mark")
    page.get_by_role("button", name="Close").click()
    page.locator("#recent-here summary").click()
    page.locator("#recent-here").get_by_role("button", name="Which pier is open in summer?").click()
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".question")).to_have_text("Which pier is open in summer?")
