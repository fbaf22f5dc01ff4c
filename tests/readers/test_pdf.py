from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pypdf
import pytest
from PIL import Image, ImageDraw, ImageFont
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, NumberObject, TextStringObject
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

from agentformer.errors import CorruptDocument, DocumentTooLarge, EncryptedDocument, install_command
from agentformer.readers import ReadLimits, ocr, page_image, read
from agentformer.readers.pdf import reader as pdf
from agentformer.readers.pdf.engines import PdfiumDocument, PypdfDocument
from agentformer.types import DocumentText
from tests.readers.conftest import make_pdf, rewritten

pytestmark = pytest.mark.process

PROSE = (
    "The lighthouse keeper counted the ships that passed before midnight and wrote",
    "their names in a long book, which nobody but the harbour master ever opened.",
    "When the fog came down over the islands he rang the bell every other minute.",
)


def read_here(data: bytes, **options: object) -> DocumentText:
    return read(data, "a.pdf", isolate=False, **options)  # type: ignore[arg-type]


def test_text_comes_page_by_page_with_numbers_from_one() -> None:
    document = read(make_pdf([PROSE, ["A second page of this document."]], title="The Lighthouse"), "a.pdf")

    assert document.status == "ready"
    assert document.title == "The Lighthouse"
    assert [page.number for page in document.pages] == [1, 2]
    assert "wrote\ntheir names in a long book" in document.pages[0].text
    assert document.pages[1].text == "A second page of this document."


def test_a_title_that_a_program_made_up_is_no_title() -> None:
    for title in ["untitled", "Microsoft Word - draft.docx", "report_final.pdf", "12"]:
        assert read_here(make_pdf([PROSE], title=title)).title == ""


def test_the_name_in_the_title_of_a_program_is_the_title() -> None:
    assert read_here(make_pdf([PROSE], title="Microsoft Word - Annual report.docx")).title == "Annual report"


def test_bold_lines_are_headings_below_the_outline() -> None:
    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    for titles in (("Balance Sheet", "Assets"), (), ("Cash Flows",)):
        canvas.setFont("Helvetica-Bold", 12)
        for n, title in enumerate(titles):
            canvas.drawString(72, 760 - 20 * n, title)
        canvas.setFont("Helvetica", 12)
        for n, row in enumerate(PROSE):
            canvas.drawString(72, 700 - 14 * n, row)
        canvas.showPage()
    canvas.save()
    outlined = rewritten(buffer.getvalue(), lambda writer: writer.add_outline_item(title="Statements", page_number=0))

    pages = read_here(outlined).pages

    assert [[(heading.text, heading.level) for heading in page.headings] for page in pages] == [
        [("Statements", 1), ("Balance Sheet", 8), ("Assets", 8)],
        [],
        [("Cash Flows", 8)],
    ]
    assert [heading.start for heading in pages[0].headings] == [0, 0, len("Balance Sheet") + 1]


def test_tables_have_their_place_in_the_text() -> None:
    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    canvas.setFont("Helvetica", 10)
    rows = [("", "2018", "2017"), ("Purchases of boats", "1,577", "1,373"), ("Sails", "82", "12"), ("Tar", "3", "4")]
    canvas.drawString(72, 760, "(in thousands)")
    for n, cells in enumerate(rows):
        canvas.drawString(72, 740 - 14 * n, cells[0])
        canvas.drawRightString(350, 740 - 14 * n, cells[1])
        canvas.drawRightString(450, 740 - 14 * n, cells[2])
    canvas.save()

    [page] = read(buffer.getvalue(), "a.pdf").pages

    [table] = page.tables
    assert (table.headers, table.scale) == (("2018", "2017"), "in thousands")
    assert page.text[table.start : table.end].split() == [
        word for row in rows[1:] for cell in row for word in cell.split()
    ]


def test_a_gap_between_lines_begins_a_paragraph() -> None:
    document = read_here(make_pdf([[*PROSE, "", "Another paragraph begins after a gap, and it", "has two lines."]]))

    assert "every other minute.\n\nAnother paragraph" in document.pages[0].text
    assert document.pages[0].text.count("\n\n") == 1


def test_detached_accents_and_torn_words_are_repaired() -> None:
    lines = ["Ty\u00a8okalu on k\u00a8ayt\u00a8oss\u00a8a, ja raken-", "nus on valmis kev\u00a8a\u00a8all\u00a8a."]

    assert "Työkalu on käytössä, ja rakennus on valmis keväällä." in read_here(make_pdf([lines])).pages[0].text


def test_running_lines_are_outside_the_body_and_inside_the_text() -> None:
    bodies = [
        ["Ships arrive in the morning."],
        ["Fog is rung by bell."],
        ["The book is full."],
        ["Nobody reads the last page."],
    ]
    pages = [["Harbour Authority Report", *lines, f"page {n} of 4"] for n, lines in enumerate(bodies, 1)]

    for page, lines in zip(read_here(make_pdf(pages)).pages, bodies, strict=True):
        assert page.body is not None
        assert page.text[page.body.start : page.body.end] == lines[0]
        assert page.text.startswith("Harbour Authority Report")


def test_running_lines_may_be_numbered_in_roman_numerals_or_carry_a_long_number() -> None:
    numerals = ["iii", "iv", "v", "vi"]
    texts = ["Ships arrive in the morning.", "Fog is rung by bell.", "The book is full.", "Nobody reads the last page."]
    pages = [[f"Harbour Authority {n} 20190012345", text] for n, text in zip(numerals, texts, strict=True)]

    for page, text in zip(read_here(make_pdf(pages)).pages, texts, strict=True):
        assert page.body is not None
        assert page.text[page.body.start : page.body.end] == text


def test_labels_and_outline_are_those_of_the_document() -> None:
    pages = [["Preface", *PROSE], ["Chapter One", *PROSE, "The Storm", *PROSE]]

    def label(writer: pypdf.PdfWriter) -> None:
        roman = DictionaryObject({NameObject("/S"): NameObject("/r"), NameObject("/St"): NumberObject(4)})
        arabic = DictionaryObject({NameObject("/S"): NameObject("/D"), NameObject("/P"): TextStringObject("A-")})
        numbers = ArrayObject([NumberObject(0), roman, NumberObject(1), arabic])
        writer.root_object[NameObject("/PageLabels")] = DictionaryObject({NameObject("/Nums"): numbers})
        chapter = writer.add_outline_item(title="Chapter One", page_number=1)
        writer.add_outline_item(title="The Storm", page_number=1, parent=chapter)

    document = read_here(rewritten(make_pdf(pages), label))

    assert [page.label for page in document.pages] == ["iv", "A-1"]
    text, headings = document.pages[1].text, document.pages[1].headings
    assert [(h.text, h.level) for h in headings] == [("Chapter One", 1), ("The Storm", 2)]
    assert all(text[h.start :].startswith(h.text) for h in headings)


def test_form_values_missing_from_the_text_are_added() -> None:
    out = io.BytesIO()
    canvas = Canvas(out)
    canvas.drawString(60, 800, "Application for a berth")
    canvas.acroForm.textfield(name="ship", tooltip="Name of ship", value="Esmeralda", x=60, y=700)
    canvas.save()

    assert "Name of ship: Esmeralda" in read_here(out.getvalue()).pages[0].text


def test_a_substitution_cipher_is_garbled_and_not_stored() -> None:
    rot = str.maketrans("abcdefghijklmnopqrstuvwxyz", "qwxzvkjpybmnlhfgdsrctoeiua")
    document = read_here(make_pdf([[line.lower().translate(rot) for line in PROSE * 4]]))

    assert document.status == "garbled"
    assert document.pages[0].status == "garbled"
    assert document.pages[0].text == ""
    assert document.pages[0].reason


def scanned() -> bytes:
    out = io.BytesIO()
    canvas = Canvas(out)
    canvas.rect(100, 100, 300, 300, fill=1)
    canvas.save()
    return out.getvalue()


def test_a_page_without_text_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "ocr_unavailable", ocr.ocr_advice)
    document = read_here(scanned())

    assert document.status == "no_text"
    assert install_command("ocr") in document.reason
    assert [page.status for page in document.pages] == ["no_text"]


def test_a_scanned_page_is_recognised_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "ocr_unavailable", lambda: "")
    monkeypatch.setattr(pdf, "recognise", lambda document, number: "Words on a scanned page")
    document = read_here(scanned())

    assert (document.status, document.pages[0].method) == ("ready", "tesseract")
    assert document.pages[0].text == "Words on a scanned page"
    assert read_here(scanned(), ocr=False).status == "no_text"


def test_recognition_draws_the_page_and_never_a_giant_image(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int]] = []

    def image_to_data(picture: Image.Image, languages: str, **options: object) -> dict[str, list[Any]]:
        drawn.append(picture.size)
        return {"text": ["read"], "conf": [95], "block_num": [1], "par_num": [1], "line_num": [1]}

    engine = SimpleNamespace(
        image_to_data=image_to_data,
        get_languages=lambda: ["eng", "fin"],
        TesseractError=OSError,
        Output=SimpleNamespace(DICT="dict"),
    )
    monkeypatch.setitem(sys.modules, "pytesseract", engine)
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(144, 72))
    canvas.drawInlineImage(Image.new("L", (400, 300)), 10, 10, 50, 40)
    canvas.save()
    document = PdfiumDocument(out.getvalue(), None)

    assert document.largest_image(0) == 120_000
    assert pdf.recognise(document, 0) == "read"
    assert drawn == [(600, 300)]
    monkeypatch.setattr(pdf, "MAX_IMAGE_PIXELS", 100_000)
    assert pdf.recognise(document, 0) == ""
    assert len(drawn) == 1


def written(turned: int) -> Image.Image:
    """A page with three lines of print, turned clockwise."""
    page = Image.new("L", (1700, 1100), 255)
    for n, line in enumerate(
        ("The caretaker keeps the keys", "in the blue cupboard by the door.", "Dogs wait outside.")
    ):
        ImageDraw.Draw(page).text((150, 200 + 160 * n), line, fill=0, font=ImageFont.load_default(80))
    return page.rotate(-turned, expand=True)


@pytest.mark.skipif(bool(pdf.ocr_unavailable()), reason="tesseract or the extra `ocr` is not installed")
@pytest.mark.parametrize("turned", [0, 180])
def test_a_real_scan_is_read_upright_and_upside_down(turned: int) -> None:
    page = written(turned)
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(page.width * 0.24, page.height * 0.24))
    canvas.drawInlineImage(page, 0, 0, page.width * 0.24, page.height * 0.24)
    canvas.save()
    document = read(out.getvalue(), "scan.pdf")

    if turned and document.status == "no_text":
        pytest.skip("tesseract's orientation data (osd) is not installed")
    assert (document.status, document.pages[0].method) == ("ready", "tesseract")
    assert "keeps the keys" in document.pages[0].text


@pytest.mark.skipif(bool(pdf.ocr_unavailable()), reason="tesseract or the extra `ocr` is not installed")
def test_guesswork_of_recognition_is_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "_turn", lambda picture: 0)
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(408, 264))
    canvas.drawInlineImage(written(180), 0, 0, 408, 264)
    canvas.save()

    assert pdf.recognise(PdfiumDocument(out.getvalue(), None), 0) == ""


def test_a_giant_page_is_never_drawn() -> None:
    for size, drawn in [((595, 842), True), ((200_000, 200_000), False), ((0, 10), False)]:
        scale = pdf.scale_for(*size)

        assert bool(scale) is drawn
        assert size[0] * size[1] * scale**2 <= pdf.MAX_PIXELS


def test_a_password_is_needed_and_accepted() -> None:
    locked = rewritten(make_pdf([PROSE]), lambda w: w.encrypt("öppna", algorithm="AES-256"))

    with pytest.raises(EncryptedDocument, match="needs a password") as needed:
        read(locked, "a.pdf")
    with pytest.raises(EncryptedDocument, match="password is wrong") as wrong:
        read_here(locked, password="wrong")
    assert (needed.value.code, wrong.value.code) == ("password_needed", "password_wrong")
    assert "lighthouse" in read_here(locked, password="öppna").pages[0].text


@pytest.mark.parametrize("names", [b"/Filter /Adobe.PubSec", b"/Filter/Entrust.PPKEF/SubFilter/adbe.pkcs7.s5"])
def test_a_file_that_is_encrypted_for_a_certificate_is_called_encrypted(names: bytes) -> None:
    dictionary = b"/Encrypt << " + names + b" /V 4 /Length 128 /Recipients [<30820100>] >> "
    head, trailer, rest = make_pdf([PROSE]).rpartition(b"trailer")
    locked = head + trailer + rest.replace(b"<<", b"<< " + dictionary, 1)
    for password in (None, "open sesame"):
        with pytest.raises(EncryptedDocument, match="certificate"):
            read_here(locked, password=password)


def test_a_password_is_prepared_as_the_standard_says() -> None:
    locked = rewritten(make_pdf([PROSE]), lambda w: w.encrypt("SaSLprep", algorithm="AES-256"))

    assert "lighthouse" in read_here(locked, password="S\u00aaSL\u00adprep").pages[0].text


def test_a_password_may_be_longer_than_the_part_that_encryption_uses() -> None:
    password = "a" + "ö" * 100
    locked = rewritten(make_pdf([PROSE]), lambda w: w.encrypt(password, algorithm="AES-256"))

    assert "lighthouse" in read_here(locked, password=password).pages[0].text


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_the_second_extractor_reads_an_encrypted_file_without_a_library_for_encryption(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cryptography", "Crypto"):
        monkeypatch.setitem(sys.modules, name, None)
    locked = rewritten(make_pdf([PROSE]), lambda w: w.encrypt("x", algorithm=algorithm))
    fast = PdfiumDocument(locked, "x")

    assert fast.encrypted
    assert "lighthouse" in (PypdfDocument(fast.decrypted(), ()).text(0) or "")
    assert not PdfiumDocument(make_pdf([PROSE]), None).encrypted


def test_a_file_that_only_restricts_its_owner_opens() -> None:
    restricted = rewritten(make_pdf([PROSE]), lambda w: w.encrypt("", "owner", algorithm="RC4-128"))

    assert read_here(restricted).status == "ready"


def test_a_truncated_file_is_corrupt_or_read_in_part() -> None:
    for keep in [0.02, 0.3]:
        data = make_pdf([PROSE] * 20)
        try:
            document = read(data[: int(len(data) * keep)], "a.pdf")
        except CorruptDocument as error:
            assert "damaged" in str(error)
        else:
            assert document.pages


def test_a_page_tree_that_lies_about_its_size_is_corrupt() -> None:
    forged = re.sub(rb"/Count 1\b", b"/Count 99999999999", make_pdf([PROSE]))

    with pytest.raises(CorruptDocument, match="claims"):
        read_here(forged)


def test_one_bad_page_does_not_cost_the_others() -> None:
    def spoil(writer: pypdf.PdfWriter) -> None:
        writer.pages[1][NameObject("/Contents")] = NumberObject(7)

    document = read_here(rewritten(make_pdf([PROSE, PROSE, PROSE]), spoil))

    assert [page.status for page in document.pages] == ["text", "no_text", "text"]
    assert document.status == "ready"
    assert document.reason.startswith("1 of 3 pages")


def test_hundreds_of_pages_are_read_and_bounded() -> None:
    data = make_pdf([[f"Entry {n} of the harbour book", *PROSE] for n in range(200)])
    document = read(data, "a.pdf")

    assert len(document.pages) == 200
    assert "Entry 199 of the harbour book" in document.pages[-1].text
    with pytest.raises(DocumentTooLarge, match="200 pages"):
        read(data, "a.pdf", limits=ReadLimits(max_pages=100))
    with pytest.raises(DocumentTooLarge, match="characters"):
        read(data, "a.pdf", limits=ReadLimits(max_chars=10_000))


def test_every_offset_lies_inside_its_page() -> None:
    document = read_here(
        make_pdf(
            [
                ["Report of the harbour", f"Entry {n * 7 % 5} came {n % 3}", *PROSE, *PROSE, *PROSE, *PROSE, str(n)]
                for n in range(1, 9)
            ]
        )
    )

    for page in document.pages:
        assert page.body is not None
        assert 0 <= page.body.start < page.body.end <= len(page.text)
        assert all(0 <= heading.start <= len(page.text) for heading in page.headings)


@pytest.mark.parametrize("content", [0, 90, 180, 270])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_the_lines_of_a_turned_page_keep_their_order(content: int, rotation: int) -> None:
    lines = [f"Line {n} of the mooring guide" for n in range(4)]
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4)
    canvas.translate(A4[0] / 2, A4[1] / 2)
    canvas.rotate(content)
    for number, line in enumerate(lines):
        canvas.drawString(-200, 100 - 20 * number, line)
    canvas.save()
    data = rewritten(out.getvalue(), lambda writer: writer.pages[0].rotate(rotation) and None)
    text = read(data, "a.pdf", isolate=False).pages[0].text
    assert text.split("\n") == lines
    start = text.index("Line 2")
    image = page_image(data, 1, text=text, start=start, end=start + 26)
    ((left, top, right, bottom),) = image.boxes
    assert max(right - left, bottom - top) < 0.4 and min(right - left, bottom - top) < 0.04
