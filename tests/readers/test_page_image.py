"""Images of PDF pages, and the boxes of quotations on them."""

from __future__ import annotations

import functools
import io
import struct
import zlib

import numpy as np
import pytest
from pypdf import PdfWriter
from reportlab.pdfgen import canvas

from agentformer.errors import CorruptDocument, DocumentError, EncryptedDocument, UnsupportedFormat
from agentformer.readers import page_image, read
from agentformer.readers.formats import ReadLimits
from agentformer.readers.pdf import page_image as renderer
from agentformer.readers.pdf.page_image import find, png
from agentformer.readers.sandbox.protocol import PageImage, image_frame, image_from_bytes
from tests.readers.hostile_pdf import one_page

WIDTH, HEIGHT = 600, 800  # points
LINES = {  # the baseline of each line, in points from the bottom
    740: "The keys of the boat house are held by the harbour master.",
    720: "Later: the keys of the boat house are held by the guard.",
    700: "Työ tehtiin kesäkuussa 2025, ja ﬁlmi valmistui.",
}


@functools.cache
def made(*, rotation: int = 0, password: str | None = None) -> bytes:
    out = io.BytesIO()
    page = canvas.Canvas(out, pagesize=(WIDTH, HEIGHT), encrypt=password)
    page.setFont("Helvetica", 12)
    for baseline, line in LINES.items():
        page.drawString(72, baseline, line)
    page.showPage()
    page.save()
    writer = PdfWriter(clone_from=out) if rotation else None
    if writer is None:
        return out.getvalue()
    writer.pages[0].rotate(rotation)
    turned = io.BytesIO()
    writer.write(turned)
    return turned.getvalue()


@functools.cache
def text_of(data: bytes) -> str:
    return read(data, "a.pdf").pages[0].text


def boxes_of(data: bytes, quote: str, occurrence: int = 0) -> tuple[tuple[float, ...], ...]:
    text = text_of(data)
    start = -1
    for _ in range(occurrence + 1):
        start = text.index(quote, start + 1)
    return page_image(data, 1, text=text, start=start, end=start + len(quote)).boxes


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pages in this process. Most of the time for a page is the start of its child process."""
    monkeypatch.setattr("agentformer.readers.image_isolated", renderer.page_image)


def line_of(box: tuple[float, ...]) -> int:
    """The baseline of the line on which a box lies."""
    return next(baseline for baseline in LINES if box[1] < (HEIGHT - baseline - 3) / HEIGHT < box[3])


def decoded(data: bytes) -> tuple[int, int, bytes]:
    """The size of a PNG file, and its rows with their filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, rows, size = 8, b"", (0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        elif kind == b"IDAT":
            rows += body
        at += 12 + length
    return *size, zlib.decompress(rows)


@pytest.mark.process
def test_the_box_of_a_quotation_is_around_its_words() -> None:
    (box,) = boxes_of(made(), "harbour master")
    assert line_of(box) == 740
    assert 0.4 < box[0] < 0.55
    assert 0.02 < box[2] - box[0] < 0.2
    assert box[3] - box[1] < 30 / HEIGHT


@pytest.mark.process
def test_a_quotation_over_two_lines_has_a_box_for_each_line(in_process: None) -> None:
    first, second = boxes_of(made(), "held by the harbour master.\nLater: the keys")
    assert (line_of(first), line_of(second)) == (740, 720)
    assert first[0] > second[0]


@pytest.mark.process
@pytest.mark.parametrize(("occurrence", "baseline"), [(0, 740), (1, 720)])
def test_of_equal_words_those_at_the_cited_position_are_marked(
    in_process: None, occurrence: int, baseline: int
) -> None:
    (box,) = boxes_of(made(), "keys of the boat house are held by the", occurrence)
    assert line_of(box) == baseline


@pytest.mark.process
def test_the_boxes_of_a_rotated_page_lie_on_the_rotated_image(in_process: None) -> None:
    text = read(made(rotation=90), "a.pdf").pages[0].text
    start = text.index("boat house")
    image = page_image(made(rotation=90), 1, text=text, start=start, end=start + 10)
    assert image.width > image.height  # the page lies on its side
    (box,) = image.boxes
    assert 1 - 60 / HEIGHT - 0.04 < box[0] < box[2] < 1 - 60 / HEIGHT + 0.03  # the first line is at the right
    assert 0.05 < box[3] - box[1] < 0.15


@pytest.mark.process
def test_the_pixels_under_a_box_are_those_of_the_words(in_process: None) -> None:
    data = made()
    image = page_image(data, 1, text="harbour master", start=0, end=14)
    width, height, rows = decoded(image.png)
    assert (width, height) == (image.width, image.height) == (2 * WIDTH, 2 * HEIGHT)
    pixels = np.frombuffer(rows, np.uint8).reshape(height, -1)[:, 1:]
    (left, top, right, bottom) = image.boxes[0]
    inside = pixels[int(top * height) : int(bottom * height), int(left * width) : int(right * width)]
    assert (inside < 128).mean() > 0.05  # ink
    blank = pixels[int(0.5 * height) : int(0.6 * height)]
    assert (blank == 255).all()


@pytest.mark.process
def test_words_that_are_not_on_the_page_have_no_box(in_process: None) -> None:
    assert page_image(made(), 1, text="quantum chromodynamics", start=0, end=22).boxes == ()


@pytest.mark.process
def test_a_file_that_cannot_be_shown_gives_an_error_that_says_what_to_do() -> None:
    with pytest.raises(UnsupportedFormat, match="read the text of the page"):
        page_image(b"plain words", 1)
    with pytest.raises(CorruptDocument, match="no page 2"):
        page_image(made(), 2)
    with pytest.raises(EncryptedDocument, match="read the stored text"):
        page_image(made(password="locked"), 1)
    with pytest.raises(CorruptDocument):
        page_image(b"%PDF-1.4 torn", 1)


@pytest.mark.process
@pytest.mark.parametrize("box", [b"[0 0 1 1000000]", b"[0 0 9e9 9e9]", b"[0 0 0 0]", b"[-5 -5 5 5]"])
def test_a_page_of_a_strange_size_gives_a_bounded_image_or_an_error(box: bytes) -> None:
    data = one_page(b"BT ET", page=b"/MediaBox " + box)
    try:
        image = page_image(data, 1, limits=ReadLimits(wall_seconds=20))
    except DocumentError:
        return
    assert image.width * image.height < 10_000_000


def test_a_quotation_is_found_by_its_parts_where_the_page_has_other_letters_between() -> None:
    text = "thecaptainkeepsthekeysfootnotefourinthebluecabinet"
    assert find(text, "keepsthekeysinthebluecabinet", 0) == [(10, 22), (34, 50)]
    assert find(text, "nothingofthis", 0) == []
    assert find(text, "", 0) == []


def test_words_that_a_quotation_shares_with_another_sentence_are_not_marked() -> None:
    title = "overviewofthetechnologyacceptancemodelandabstract"  # the letters of the body are not known
    assert find(title, "hisdoctoralthesisproposedthetechnologyacceptancemodeltotheschool", 400) == []
    scattered = "thekeysare" + "x" * 200 + "heldbythe" + "y" * 200 + "harbourmaster"
    assert find(scattered, "thekeysareheldbytheharbourmaster", 0) == []


def test_a_quotation_with_a_few_letters_that_the_page_lacks_is_found() -> None:
    text = "theharbourmasterkeepsalistofallboatsthecoeeisinthebluecabinetofthefirsthouse"
    assert find(text, "thecoffeeisinthebluecabinetofthefirsthouse", 0) == [(36, 41), (41, 76)]


def test_a_few_letters_that_stand_far_from_the_quotation_are_not_marked() -> None:
    text = "overviewofthetechnologyacceptancemodel" + "x" * 20 + "tur"
    assert find(text, "overviewofthetechnologyacceptancemodeltur", 0) == [(0, 38)]


@pytest.mark.parametrize(("position", "start"), [(0, 0), (9, 0), (12, 20), (99, 20)])
def test_of_equal_quotations_the_nearest_to_the_position_is_found(position: int, start: int) -> None:
    assert find("bluecabinet" + "x" * 9 + "bluecabinet", "bluecabinet", position) == [(start, start + 11)]


@pytest.mark.process
def test_a_sentence_whose_letters_the_file_does_not_say_has_no_box_in_the_title(in_process: None) -> None:
    out = io.BytesIO()
    page = canvas.Canvas(out, pagesize=(WIDTH, HEIGHT))
    page.setFont("Helvetica", 12)
    page.drawString(72, 740, "Overview of the Technology Acceptance Model: Origins")
    page.drawString(72, 700, "~ # ~ ## ~~ ### ~ # ~ ##")  # as of a font without a table of its letters
    page.save()
    text = (
        "Overview of the Technology Acceptance Model: Origins\n\nFred Davis proposed the Technology Acceptance Model."
    )
    start = text.index("Fred")
    assert page_image(out.getvalue(), 1, text=text, start=start, end=len(text)).boxes == ()
    (box,) = page_image(out.getvalue(), 1, text=text, start=0, end=start).boxes
    assert line_of(box) == 740


@pytest.mark.process
def test_letters_with_detached_accents_are_found(in_process: None) -> None:
    out = io.BytesIO()
    page = canvas.Canvas(out, pagesize=(WIDTH, HEIGHT))
    page.setFont("Helvetica", 12)
    page.drawString(72, 740, "Anva\u00a8ndarmanual fo\u00a8r hamnen")
    page.save()
    text = "Användarmanual för hamnen"
    (box,) = page_image(out.getvalue(), 1, text=text, start=0, end=len(text)).boxes
    assert line_of(box) == 740


def test_a_gray_image_is_stored_with_one_channel_and_keeps_its_values() -> None:
    gray = np.repeat(np.arange(12, dtype=np.uint8).reshape(3, 4, 1), 3, axis=2)
    assert decoded(png(gray)) == (4, 3, b"\0\0\1\2\3\0\4\5\6\7\0\x08\x09\x0a\x0b")
    colour = np.zeros((1, 2, 4), np.uint8)
    colour[0, 0] = (1, 2, 3, 99)
    assert decoded(png(colour)) == (2, 1, b"\0\1\2\3\0\0\0")


@pytest.mark.parametrize(
    "change",
    [
        {"boxes": ((0.0, 0.0, 2.0, 1.0),)},
        {"boxes": ((0.0, 0.0, 1.0),)},
        {"width": 0},
        {"height": 10**9},
        {"png": b"<svg onload=alert(1)>"},
    ],
    ids=str,
)
def test_an_invalid_image_from_the_child_process_is_refused(change: dict[str, object]) -> None:
    good = PageImage(10, 20, ((0.0, 0.1, 0.5, 0.2),), b"\x89PNG\r\n\x1a\nrest")
    header = 9  # kind and length of a frame
    assert image_from_bytes(image_frame(good)[header:]) == good
    with pytest.raises(CorruptDocument):
        image_from_bytes(image_frame(good._replace(**change))[header:])  # type: ignore[arg-type]
