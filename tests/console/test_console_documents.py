"""What the console says about files that are protected, partly read, replaced or refused, in the language of the page,
and what it shows if nothing answers a question."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, get_args

import pytest
from PIL import Image
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen import canvas

from agentformer.types import ReasonCode
from tests.console.test_console_browser import ask
from tests.console.test_console_files import KEY, STATIC

pytest.importorskip("flask", reason="the extra `server` is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.process

LANGUAGES = ("en-GB", "fi-FI")
PASSWORD = "open sesame 7"
PHONE = {"width": 375, "height": 740}
LONG_NAME = "kuntalaisten-osallistumisjarjestelmasuunnitelma_lopullinen_versio_2026.txt"


def drawn(*pages: str, password: str = "", labels: bool = False) -> bytes:
    """A PDF. A page with an empty text is an image of noise, in which no text can be recognised."""
    out = io.BytesIO()
    page = canvas.Canvas(out, encrypt=StandardEncryption(password) if password else None)
    for number, text in enumerate(pages):
        if labels:
            page.addPageLabel(number, "ROMAN_LOWER" if number < 2 else "ARABIC", start=1 if number != 1 else 2)
        if text:
            page.drawString(72, 700, text)
        else:
            page.drawImage(ImageReader(Image.effect_noise((300, 400), 80)), 0, 0, 595, 842)
        page.showPage()
    page.save()
    return out.getvalue()


def add(page: Any, folder: Path, name: str, data: bytes) -> Any:
    """Add a file on the view Documents, and return its row when the server has read it."""
    (folder / name).write_bytes(data)
    page.set_input_files("input[type=file] >> nth=0", folder / name)
    row = page.locator(".file", has_text=name).last
    expect(row.locator("progress")).to_have_count(0)
    return row


@pytest.mark.parametrize("language", ["en", "fi"])
def test_every_code_of_a_reason_has_a_text(language: str) -> None:
    known = dict(KEY.findall((STATIC / f"{language}.js").read_text()))
    assert {f"reason.{code}" for code in get_args(ReasonCode) if code} <= known.keys()


@pytest.mark.parametrize(("locale", "wrong"), [("en-GB", "The password is wrong."), ("fi-FI", "Salasana on väärä.")])
def test_a_password_opens_a_file_and_is_stored_nowhere(see: Any, tmp_path: Path, locale: str, wrong: str) -> None:
    seen = see("/#/documents", locale=locale)
    page = seen.page
    name = f"vault {locale}.pdf"
    row = add(page, tmp_path, name, drawn("The vault opens on Tuesday mornings.", password=PASSWORD))
    for typed in ("wrong", "<img src=x>"):
        field = row.locator("input[type=password]")
        field.fill(typed)
        field.press("Enter")
        row.get_by_text(wrong).wait_for()
        expect(row.locator("input[type=password]")).to_have_value("")
    row.locator("input[type=password]").fill(PASSWORD)
    row.locator("form button").click()
    expect(page.locator(".file.done", has_text=name)).to_have_count(1)
    assert page.locator("input[type=password]").count() == 0
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.body.outerHTML])")
    assert "sesame" not in kept and "sesame" not in page.url
    assert not any("sesame" in request.url for request in seen.requests)
    page.locator(".line", has_text=name).locator(".line-main").click()
    page.locator("#panel .source-text").wait_for()  # the password is not stored, so the page has no image
    told = {"en-GB": "which is not stored", "fi-FI": "jota ei tallenneta"}[locale]
    assert told in page.locator("#panel .note").inner_text()
    assert "The vault opens" in page.locator("#panel .source-text").inner_text()


@pytest.mark.parametrize(
    ("locale", "badge", "said", "page_said"),
    [
        ("en-GB", "2 pages missing", "2 of 3 pages have no usable text. The page is an image", "The page is an image"),
        ("fi-FI", "2 sivua puuttuu", "2/3 sivusta on ilman käyttökelpoista tekstiä. Sivu on kuva", "Sivu on kuva"),
    ],
)
def test_a_document_without_some_of_its_pages_says_so_everywhere(
    see: Any, tmp_path: Path, locale: str, badge: str, said: str, page_said: str
) -> None:
    page = see("/#/documents", locale=locale).page
    name = f"partly {locale}.pdf"
    row = add(page, tmp_path, name, drawn(f"The ferry of {locale} leaves at eight.", "", ""))
    line = page.locator(".line", has_text=name)
    for place in (row, line):
        assert badge == place.locator(".badge").inner_text()
        assert said in place.inner_text()
    line.locator(".line-main").click()
    page.wait_for_selector(".sheet img")
    page.locator("#panel .tools-of-page button").nth(3).click()  # the next page
    page.locator("#panel .panel-foot button").wait_for()
    page.locator("#panel .panel-foot button").click()
    assert page_said in page.locator("#panel .note").inner_text()


@pytest.mark.parametrize(
    ("locale", "said"), [("en-GB", "The file is damaged."), ("fi-FI", "Tiedosto on vioittunut. Lataa se uudelleen")]
)
def test_the_reason_of_a_failed_file_is_in_the_language_of_the_page(
    see: Any, tmp_path: Path, locale: str, said: str
) -> None:
    page = see("/#/documents", locale=locale).page
    row = add(page, tmp_path, f"torn {locale}.pdf", b"%PDF-1.4 torn")
    for place in (row, page.locator(".line", has_text=f"torn {locale}.pdf")):
        assert said in place.inner_text()
        assert "the PDF is too damaged" not in place.inner_text()


def test_a_failed_new_version_says_that_the_former_one_is_kept(see: Any, tmp_path: Path) -> None:
    page = see("/#/documents", locale="fi-FI").page
    add(page, tmp_path, "kept.txt", b"The lamp is green.")
    row = add(page, tmp_path, "kept.txt", b"\0" * 9000)
    assert "Aiempi versio säilyi." in row.inner_text()


def test_a_reason_that_the_page_does_not_know_is_shown_as_text(see: Any) -> None:
    page = see("/#/documents", locale="fi-FI").page
    page.wait_for_selector("h1")
    said = page.evaluate("""async () => {
        const { why } = await import("/console/reasons.js");
        const shown = (reason, code) => {
            const place = document.createElement("p");
            place.append(...why({ reason, reason_code: code }));
            return [place.textContent, place.children.length];
        };
        return [shown("<b>odd</b>; try again", "constructor"), shown("", ""),
            shown("no <img src=x onerror=alert(1)> was read", "parts_unread")]; }""")
    assert said == [
        ["<b>odd</b>; try again.", 1],
        ["", 0],
        ["Kaikkea tiedoston sisältöä ei luettu. no <img src=x onerror=alert(1)> was read.", 1],
    ]


def test_a_replacement_is_undone_in_its_row(see: Any, server: Any, tmp_path: Path) -> None:
    page = see("/#/documents").page
    add(page, tmp_path, "tide.txt", b"High tide is at noon.")
    page.get_by_role("button", name="Dismiss tide.txt").click()
    row = add(page, tmp_path, "tide.txt", b"High tide is at midnight.")
    assert "in place of the former version" in row.inner_text()
    row.get_by_role("button", name="Undo: tide.txt").click()
    page.get_by_text("The former version is back: tide.txt").wait_for()
    assert "Undone: the former version is back" in row.inner_text()
    expect(page.locator(".line", has_text="tide.txt")).to_have_count(1)
    page.locator(".line", has_text="tide.txt").locator(".line-main").click()
    expect(page.locator(".source-text")).to_have_text("High tide is at noon.")


def test_a_replacement_is_undone_after_a_reload_and_in_one_of_two_tabs(see: Any, server: Any, tmp_path: Path) -> None:
    page = see("/#/documents").page
    add(page, tmp_path, "ebb.txt", b"Low tide is at six.")
    add(page, tmp_path, "ebb.txt", b"Low tide is at seven.")
    page.locator(".file.done").last.wait_for()
    page.reload()
    page.get_by_text("Replaced: ebb.txt").wait_for()
    other = see("/#/documents").page
    other.get_by_text("Replaced: ebb.txt").wait_for()
    page.get_by_role("button", name="Undo: ebb.txt").click()
    page.get_by_text("The former version is back: ebb.txt").wait_for()
    other.get_by_role("button", name="Undo: ebb.txt").click()
    other.get_by_text("It is too late to undo this: ebb.txt").wait_for()
    other.locator(".line", has_text="ebb.txt").locator(".line-main").click()
    expect(other.locator(".source-text")).to_have_text("Low tide is at six.")


def test_both_versions_are_kept_if_the_person_wants_it(see: Any, server: Any, tmp_path: Path) -> None:
    page = see("/#/documents").page
    page.get_by_label("If a file of this name exists:").select_option("keep-both")
    for hour in (b"one", b"two"):
        add(page, tmp_path, "bell.txt", b"The bell rings at " + hour)
    expect(page.locator(".line", has_text="bell")).to_have_count(2)
    assert page.get_by_role("button", name="Undo").count() == 0


@pytest.mark.parametrize(("locale", "place"), [("en-GB", "page 2 (printed ii)"), ("fi-FI", "sivu 2 (painettu ii)")])
def test_a_page_has_its_number_and_its_printed_number_everywhere(
    see: Any, tmp_path: Path, locale: str, place: str
) -> None:
    page = see("/#/documents", locale=locale, permissions=["clipboard-read", "clipboard-write"]).page
    add(page, tmp_path, "labels.pdf", drawn("Preface.", "The zeppelin lands at noon in Hanko.", "End.", labels=True))
    page.goto(page.url.split("#")[0] + "#/ask")
    turn = ask(page, "When does the zeppelin land in Hanko?")
    assert turn.locator(".source-name").first.inner_text() == f"labels.pdf, {place}"
    turn.locator(".actions button").click()
    page.locator(".toast").last.wait_for()
    assert f"labels.pdf, {place}".replace("_", "\\_") in page.evaluate("navigator.clipboard.readText()")
    turn.locator(".cite").first.click()
    page.wait_for_selector(".sheet img")
    assert place.split(" ", 2)[2] in page.locator(".panel-head").inner_text()


def test_the_nearest_passages_open_their_source_if_nothing_answers(see: Any, server: Any) -> None:
    for name, text in (
        ("swallows.txt", "Swallows <i>nest</i> under the roof of the boat house."),
        ("nests.txt", "Nests are counted in May."),
    ):
        assert server.upload(name, text)[0] == 201
    page = see().page
    turn = ask(page, "What is the airspeed of an unladen swallow on Mars?")
    assert "Nothing in your documents or memories answers this." in turn.inner_text()
    nearest = turn.locator(".nearest .source")
    assert 1 <= nearest.count() <= 3 and turn.locator(".cite").count() == 0
    hit = turn.locator(".nearest .source", has_text="swallows.txt, page 1")
    assert "Swallows <i>nest</i> under the roof" in hit.inner_text()
    hit.click()
    expect(page.locator(".source-text mark")).to_contain_text("Swallows <i>nest</i>")
    page.reload()  # a question that is kept has its nearest passages, too
    page.get_by_role("button", name="What is the airspeed").click()
    assert page.locator(".nearest .source").count() == nearest.count()


def test_the_headings_of_a_quoted_row_are_shown_above_the_exact_quote(see: Any, server: Any) -> None:
    rows = "Berth,Monthly rent,Yearly rent\nWest pier,10 euros,100 euros\nEast pier,20 euros,200 euros\n"
    assert server.upload("berths.csv", rows)[0] == 201
    seen = see(permissions=["clipboard-read", "clipboard-write"])
    turn = ask(seen.page, "What is the yearly rent of the East pier?")
    source = turn.locator(".sources .source").first
    headings, quote = "Berth | Monthly rent | Yearly rent", "East pier | 20 euros | 200 euros"
    assert source.locator(".source-quote").all_inner_texts() == [headings, quote]
    source.click()
    expect(seen.page.locator(".panel .quote")).to_have_text(quote)
    assert seen.page.locator(".panel .headings").inner_text() == headings
    expect(seen.page.locator(".source-text mark")).to_have_text(quote)
    turn.get_by_role("button", name="Copy as Markdown").click()
    seen.page.get_by_text("Copied with its sources").wait_for()
    copied = seen.page.evaluate("navigator.clipboard.readText()")
    assert "   Berth \\| Monthly rent \\| Yearly rent\n\n   > East pier \\| 20 euros \\| 200 euros\n" in copied


def test_a_page_is_made_larger_on_a_phone_and_stays_in_its_frame(see: Any, tmp_path: Path) -> None:
    page = see("/#/documents", viewport=PHONE, has_touch=True).page
    viewport = page.locator("meta[name=viewport]").get_attribute("content")
    assert "maximum-scale" not in viewport and "user-scalable" not in viewport
    add(page, tmp_path, "zoom.pdf", drawn("The gull sits on the mast.", "The end."))
    page.locator(".line", has_text="zoom.pdf").locator(".line-main").tap()
    page.wait_for_selector(".sheet img")
    frame, sheet = page.locator(".sheet-frame"), page.locator(".sheet")
    assert frame.evaluate("(each) => getComputedStyle(each).touchAction") == "auto"  # two fingers may zoom
    before = sheet.bounding_box()["width"]
    page.get_by_role("button", name="Smaller").tap()
    assert sheet.bounding_box()["width"] == before
    for _ in range(2):
        page.get_by_role("button", name="Larger").tap()
    assert sheet.bounding_box()["width"] == pytest.approx(2 * before, rel=0.01)
    assert frame.evaluate("(each) => each.scrollWidth > each.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.locator("#panel").evaluate("(each) => each.scrollWidth <= each.clientWidth")


# The words of the page that are broken into two lines, although they fit into one of 160 pixels.
BROKEN = """() => {
    const broken = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
        for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
            const range = document.createRange();
            range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
            const boxes = [...range.getClientRects()].filter((box) => box.width);
            const lines = new Set(boxes.map((box) => Math.round(box.top))).size;
            if (lines > 1 && boxes.reduce((sum, box) => sum + box.width, 0) < 160) broken.push(word[0]);
        }
    }
    return broken; }"""


@pytest.mark.parametrize("locale", LANGUAGES)
def test_no_word_is_broken_and_nothing_scrolls_sideways_on_a_phone(
    see: Any, server: Any, tmp_path: Path, locale: str
) -> None:
    page = see("/#/documents", viewport=PHONE, locale=locale).page
    add(page, tmp_path, LONG_NAME, f"Suunnitelma {locale} on valmis.".encode())
    add(page, tmp_path, f"torn {locale}.pdf", b"%PDF-1.4 torn")
    add(page, tmp_path, "locked.pdf", drawn("Locked.", password=PASSWORD))
    add(page, tmp_path, f"phone {locale}.pdf", drawn("The heron waits at the harbour wall.", ""))
    assert server.post("/api/memory", content="Aino is the harbour master of Hanko.", kind="decision")[0] in (200, 201)
    wide = "document.documentElement.scrollWidth"
    assert (page.evaluate(wide), page.evaluate(BROKEN)) == (375, [])
    page.goto(page.url.split("#")[0] + "#/ask")
    for question in ("Where does the heron wait?", "What is the airspeed of an unladen swallow?"):
        turn = ask(page, question)
        assert (page.evaluate(wide), page.evaluate(BROKEN)) == (375, [])
    turn = page.locator(".turn").first
    turn.locator(".cite").first.click()
    page.wait_for_selector(".sheet img")
    assert (page.evaluate(wide), page.evaluate(BROKEN)) == (375, [])
    for view in ("memory/search", "memory/known", "memory/sessions", "memory/core", "map", "health"):
        page.goto(f"{page.url.split('#')[0]}#/{view}")
        page.wait_for_selector("#main h1")
        page.wait_for_load_state("networkidle")
        assert (page.evaluate(wide), page.evaluate(BROKEN)) == (375, []), view


def test_many_replacements_have_their_undo_in_their_rows_and_after_a_reload_in_one_list(see: Any, server: Any) -> None:
    page = see("/#/documents", viewport=PHONE).page
    names = [f"folder_{number}-\u202e{number}fdp.exe.txt" for number in range(8)]
    for version in (1, 2):
        files = [{"name": name, "mimeType": "text/plain", "buffer": f"{name} {version}".encode()} for name in names]
        page.set_input_files("input[type=file] >> nth=0", files)
        expect(page.locator(".file.done")).to_have_count(8 * version)
    expect(page.locator(".file .link")).to_have_count(8)
    messages = page.locator(".toast", has_text="folder_")  # other tests have messages of their own
    assert messages.count() == 0
    assert "\u202e" not in page.locator(".progress-list").inner_text()
    page.reload()
    expect(messages).to_have_count(8)
    shown = page.locator(".toasts").bounding_box()
    assert shown["y"] > 100 and shown["height"] <= 0.46 * PHONE["height"]
