"""Books, mails, Rich Text and images: what is read, and what is said about the rest."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge, EncryptedDocument
from agentformer.readers import ReadLimits, ocr, read
from agentformer.readers.formats import MAIL, MBOX, sniff
from agentformer.types import DocumentText
from tests.readers.conftest import make_pdf
from tests.readers.office_files import make_epub, make_image, make_mail, make_xlsx, sheet, text_cells, zipped


def here(data: bytes, name: str, **limits: int) -> DocumentText:
    return read(data, name, isolate=False, limits=ReadLimits(**limits))


XHTML = '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>{}</body></html>'


def test_a_chapter_of_a_book_is_a_page() -> None:
    rows = "<tr><td><p>a</p></td><td><p>b</p></td></tr><tr><td><p>1</p></td><td><p>2</p></td></tr>"
    document = here(
        make_epub(
            [XHTML.format("<h1>Keys</h1><p>In the <a id='x'/>cupboard.</p>"), XHTML.format(f"<table>{rows}</table>")]
        ),
        "a.epub",
    )
    assert (document.title, [page.text for page in document.pages]) == (
        "The harbour",
        ["Keys\n\nIn the cupboard.", "a | b\n1 | 2"],
    )
    assert [(page.number, page.label) for page in document.pages] == [(1, "Keys"), (2, "Chapter 2")]


def test_a_book_with_copy_protection_is_refused_and_one_with_hidden_fonts_is_read() -> None:
    def encrypted(algorithm: str) -> bytes:
        method = f'<e:EncryptionMethod xmlns:e="http://www.w3.org/2001/04/xmlenc#" Algorithm="{algorithm}"/>'
        return make_epub(
            [XHTML.format("<p>Ships</p>")], {"META-INF/encryption.xml": f"<encryption>{method}</encryption>"}
        )

    with pytest.raises(EncryptedDocument):
        here(encrypted("http://www.w3.org/2001/04/xmlenc#aes128-cbc"), "a.epub")
    assert here(encrypted("http://www.idpf.org/2008/embedding"), "a.epub").pages[0].text == "Ships"


def test_a_message_has_its_headers_its_text_and_its_attachments() -> None:
    inner = make_mail("The inner one.", Subject="Inner")
    attachments = [
        ("costs.xlsx", make_xlsx({"Costs": sheet(text_cells("Boats", "5"))})),
        ("plan.pdf", make_pdf([["Ships lie at the pier."], ["Second page."]])),
        ("note.eml", inner),
        ("all.zip", zipped({"a.txt": "nested"})),
        ("empty.txt", b""),
    ]
    document = here(make_mail("In the blue cupboard.\n", attachments, Subject="=?utf-8?q?Avaimet_=C3=A4?="), "a.eml")

    assert document.title == "Avaimet ä"
    assert [(page.number, page.label) for page in document.pages] == [
        (1, "Avaimet ä"),
        (2, "costs.xlsx > Costs"),
        (3, "plan.pdf > 1"),
        (4, "plan.pdf > 2"),
        (5, "Inner"),
    ]
    assert document.pages[0].text == (
        "From: Anna <anna@example.org>\nTo: board@example.org\nDate: Tue, 24 Nov 2026 10:00:00 +0100\n"
        "Subject: Avaimet ä\n\nIn the blue cupboard."
    )
    assert document.pages[2].text == "Ships lie at the pier."
    assert document.reason == "not read: all.zip: files of type application/zip are not read"


def test_html_is_read_if_a_message_has_no_plain_text() -> None:
    head = b"From: a@b.example\nTo: b@b.example\nSubject: x\nMIME-Version: 1.0\n"
    html = b"Content-Type: text/html; charset=iso-8859-1\n\n<p>L\xe4nsi</p><script>no</script>"
    assert here(head + html, "a.eml").pages[0].text.endswith("Subject: x\n\nLänsi")
    both = b"Content-Type: multipart/alternative; boundary=b\n\n--b\nContent-Type: text/plain\n\n%s\n--b\n%s\n--b--\n"
    assert here(head + both % (b"L\xe4nsi, plain", html), "a.eml").pages[0].text.endswith("\n\nLänsi, plain")
    assert here(head + both % (b" ", html), "a.eml").pages[0].text.endswith("\n\nLänsi")


def test_each_message_of_a_mailbox_is_a_page() -> None:
    line = b"From anna@example.org Tue Nov 24 10:00:00 2026\n"
    box = (
        line + make_mail("One.\n\n>From the north", Subject="1") + b"\n" + line + make_mail("Two.", Subject="2") + b"\n"
    )
    document = here(box, "a.mbox")
    assert (sniff(box), [page.label for page in document.pages]) == (MBOX, ["1", "2"])
    assert document.pages[0].text.endswith("\n\nOne.\n\nFrom the north")


def test_mail_with_few_headers_is_recognised_by_the_extension() -> None:
    line = b"From anna@example.org Tue Nov 24 10:00:00 2026\n"
    box = b"\n\n".join(line + b"Subject: S%d\nFrom: anna@example.org\n\nText %d." % (n, n) for n in range(50))
    document = here(box, "a.mbox")
    assert (sniff(box, "a.mbox"), len(document.pages)) == (MBOX, 50)
    assert document.pages[49].text.endswith("\n\nText 49.")
    assert sniff(line + b"X-Label: none\n\nhello", "a.MBOX") == MBOX
    draft = b"To: bo@example.org\nSubject: Plan\nContent-Transfer-Encoding: base64\n\nVGhlIGJvYXQgc2FpbHMu\n"
    assert here(draft, "draft.eml").pages[0].text.endswith("\n\nThe boat sails.")
    assert sniff(b"Subject: only\r\n\r\nhello", "a.EML") == MAIL
    for text in (draft, box, b"Subject: only\n\nhello"):
        assert sniff(text, "a.txt") == sniff(text) == "text/plain"
    for text in (
        b"Dear Anna,\nDate: today\n",
        b"a: b\nc: d\n\ne",
        b"Subject: x\nnot a header\n",
        b"From here to there\n",
    ):
        assert sniff(text, "a.eml") == sniff(text, "a.mbox") == "text/plain"


def test_messages_in_messages_and_attachments_have_limits() -> None:
    nested = make_mail("deepest")
    for n in range(5):
        nested = make_mail(f"level {n}", [("inner.eml", nested)])
    document = here(nested, "a.eml")
    assert len(document.pages) == 4 and "to a depth of 3" in document.reason
    document = here(make_mail("x", [("a.txt", b"a")] * 203), "a.eml")
    assert (len(document.pages), document.reason) == (201, "not read: 3 attachments after the first 200")
    document = here(make_mail("x", [("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c")]), "a.eml", max_pages=2)
    assert [page.label for page in document.pages] == ["Keys", "a.txt > 1"]
    assert document.reason.count("more than 2 pages") == 2 and "b.txt: " in document.reason
    with pytest.raises(DocumentTooLarge, match="more than 2 pages"):
        here(make_mail("word " * 30_000), "a.eml", max_pages=2)


def test_prose_with_colons_is_no_mail() -> None:
    for text in (
        b"From: Anna\nTo: Bo\n\nhello",
        b"From: a\nDate: b\nSubject line without colon\nTo: c\n\n",
        b"a: b\nc: d\n",
    ):
        assert sniff(text, "a.txt") == "text/plain"
    assert sniff(b"From: a\nDate: b\nSubject: c\n\nhello", "a.txt") == MAIL


RTF = (
    r"{\rtf1\ansi\ansicpg1252{\info{\title The harbour}}{\fonttbl{\f0 Arial;}}\f0 L\'e4nsi \u8364? "
    r"\u-10179?\u-8704?\par\page Second {\*\comment hidden}page\par"
    r"\trowd a\cell b\cell\row\trowd 1\cell 2\cell\row\trowd 3\cell 4\cell\row}"
)


def test_rich_text_has_pages_characters_and_tables() -> None:
    document = here(RTF.encode("ascii"), "a.rtf")
    assert [page.text for page in document.pages] == ["Länsi € 😀", "Second page\na | b\n1 | 2\n3 | 4"]
    assert document.title == "The harbour" and document.pages[1].tables[0].headers == ("a", "b")
    with pytest.raises(CorruptDocument, match="cut off"):
        here(RTF[:-20].encode("ascii"), "a.rtf")


def test_an_image_without_ocr_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "ocr_unavailable", ocr.ocr_advice)
    document = here(make_image(["Keys"], "PNG"), "a.png")
    assert document.status == "no_text" and ocr.ocr_advice() in document.reason


@pytest.mark.process
@pytest.mark.skipif(bool(ocr.ocr_unavailable()), reason="tesseract or the extra `ocr` is not installed")
@pytest.mark.parametrize(("kind", "pages"), [("WEBP", 1), ("TIFF", 2)])
def test_the_text_of_an_image_is_recognised(kind: str, pages: int) -> None:
    document = read(make_image(["The caretaker keeps the keys"], kind, pages), "a.bin")
    assert [(page.text, page.method) for page in document.pages] == [
        ("The caretaker keeps the keys", "tesseract")
    ] * pages


def test_each_format_of_images_is_unpacked() -> None:
    for kind, pages in (("PNG", 1), ("JPEG", 1), ("WEBP", 1), ("TIFF", 3)):
        data = make_image(["Keys"], kind, pages)
        assert [each.size for each in ocr._images(data, 9)] == [(900, 230)] * pages
        assert sniff(data) == f"image/{kind.lower()}"
    with pytest.raises(DocumentTooLarge, match="3 pages; the limit is 2 pages"):
        list(ocr._images(data, 2))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "CMYK", "1"])
def test_every_mode_of_an_image_becomes_gray_on_white(mode: str) -> None:
    prepared = ocr._prepared(Image.new(mode, (700, 30)))
    assert (prepared.mode, prepared.size) == ("L", (2100, 90))
    transparent = ocr._prepared(Image.new("RGBA", (3600, 2), (0, 0, 0, 0)))
    assert transparent.getpixel((0, 0)) == 255


def test_an_image_that_unpacks_to_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "ocr_unavailable", lambda: "")
    out = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(out, "PNG")
    for data, error in ((out.getvalue(), DocumentTooLarge), (out.getvalue()[:200], DocumentError)):
        with pytest.raises(error):
            here(data, "a.png")
    with pytest.raises(CorruptDocument, match="image is damaged"):
        here(make_image(["a"], "PNG")[:300], "a.png")
