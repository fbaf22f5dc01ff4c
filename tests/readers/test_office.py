"""Presentations, sheets, CSV and OpenDocument files: what is read, and what is said about the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge, EmptyDocument, EncryptedDocument
from agentformer.readers import ReadLimits, read
from agentformer.types import DocumentText
from tests.readers.office_files import (
    S,
    make_odf,
    make_pptx,
    make_xlsx,
    relations,
    shape,
    sheet,
    slide,
    table,
    text_cells,
)


def here(data: bytes, name: str, **limits: int) -> DocumentText:
    return read(data, name, isolate=False, limits=ReadLimits(**limits))


def texts(document: DocumentText) -> list[str]:
    return [page.text for page in document.pages]


def test_a_slide_is_a_page_with_its_title_its_table_and_its_notes() -> None:
    notes = slide(shape("12", "sldNum"), shape("Say who it is."), root="notes")
    data = make_pptx(
        [
            slide(
                shape("Footer", "ftr"),
                shape("Keys", "title"),
                "<p:grpSp>" + shape("In the blue\ncupboard") + "</p:grpSp>",
            ),
            slide(table(("cost", "2018"), ("Boats", "5"), ("Sails", "7")), shape("Costs", "ctrTitle")),
            slide(),
        ],
        {
            "ppt/notesSlides/n.xml": notes,
            "ppt/slides/_rels/slide1.xml.rels": relations(("n", "notesSlide", "../notesSlides/n.xml")),
        },
    )
    document = here(data, "a.pptx")

    assert texts(document) == [
        "Keys\n\nIn the blue\ncupboard\n\nNotes: Say who it is.",
        "Costs\n\ncost | 2018\nBoats | 5\nSails | 7",
        "",
    ]
    assert [page.label for page in document.pages] == ["Keys", "Costs", ""]
    assert document.pages[1].tables[0].headers == ("cost", "2018")
    assert document.pages[2].reason.startswith("the slide has no text")


def test_slides_follow_the_order_of_the_presentation_and_not_their_names() -> None:
    data = make_pptx([slide(shape("one")), slide(shape("two"))])
    swapped = relations(("s0", "slide", "slides/slide2.xml"), ("s1", "slide", "slides/slide1.xml"))
    data = make_pptx([slide(shape("one")), slide(shape("two"))], {"ppt/_rels/presentation.xml.rels": swapped})
    assert texts(here(data, "a.pptx")) == ["two", "one"]


def test_macros_are_ignored_and_the_document_says_so() -> None:
    data = make_pptx([slide(shape("Ships"))], {"ppt/vbaProject.bin": b"Sub AutoOpen()"})
    assert here(data, "a.pptm").reason == "the macros of the file are ignored"
    data = make_odf("text", "<text:p>Ships</text:p>", {"Basic/Standard/Module1.xml": "<m/>"})
    assert here(data, "a.odt").reason == "the macros of the file are ignored"


STYLES = (
    f'<styleSheet xmlns="{S}"><numFmts><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd\\ hh:mm"/>'
    '<numFmt numFmtId="165" formatCode="#,##0.00\\ &quot;days&quot;"/><numFmt numFmtId="166" formatCode="[h]:mm"/>'
    '<numFmt numFmtId="167" formatCode="[$-409]mmmm\\ yyyy"/></numFmts><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/>'
    '<xf numFmtId="164"/><xf numFmtId="10"/><xf numFmtId="165"/><xf numFmtId="166"/><xf numFmtId="167"/>'
    '<xf numFmtId="9"/></cellXfs></styleSheet>'
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("<c><v>0.10000000000000001</v></c>", "0.1"),
        ("<c><v>1200000</v></c>", "1200000"),
        ('<c s="1"><v>45000</v></c>', "2023-03-15"),
        ('<c s="2"><v>45000.5</v></c>', "2023-03-15 12:00"),
        ('<c s="3"><v>0.125</v></c>', "12.50%"),
        ('<c s="7"><v>0.5</v></c>', "50%"),
        ('<c s="7"><v>0.125</v></c>', "12.5%"),  # the digits that a program hides may be the answer
        ('<c s="4"><v>3.5</v></c>', "3.5"),
        ('<c s="5"><v>1.25</v></c>', "30:00"),
        ('<c s="6"><v>45000</v></c>', "2023-03-15"),
        ('<c s="1"><v>1e300</v></c>', "1e300"),
        ('<c s="99"><v>7</v></c>', "7"),
        ('<c t="b"><v>1</v></c>', "TRUE"),
        ('<c t="e"><v>#DIV/0!</v></c>', "#DIV/0!"),
        ('<c t="str"><f>A1</f><v>made</v></c>', "made"),
        ('<c t="s"><v>1</v></c>', "Länsi satama"),
        ('<c t="s"><v>9</v></c>', ""),
        ("<c><f>1+1</f><v>2</v></c>", "2"),
    ],
)
def test_a_cell_is_read_as_a_program_shows_it(cell: str, text: str) -> None:
    strings = (
        f'<sst xmlns="{S}"><si><t>x</t></si><si><r><t>Länsi </t></r><r><t>satama</t></r><rPh><t>no</t></rPh></si></sst>'
    )
    data = make_xlsx({"": sheet(text_cells("head") + cell)}, {"xl/styles.xml": STYLES, "xl/sharedStrings.xml": strings})
    assert texts(here(data, "a.xlsx")) == [f"head | {text}" if text else "head"]


def test_a_sheet_is_a_page_with_titles_tables_and_gaps() -> None:
    rows = (
        text_cells("Members"),
        text_cells("name", "", "fee | year"),
        text_cells("Ann", "", "5"),
        text_cells("", "", "7"),
        "",
        text_cells("The end\nof it"),
    )
    document = here(make_xlsx({"Club": sheet(*rows), "Empty": sheet()}), "a.xlsx")

    assert document.pages[0].text == "Club\n\nMembers\nname | fee ¦ year\nAnn | 5\n| | 7\n\nThe end of it"
    assert document.pages[0].tables[0].headers == ("name", "fee ¦ year")
    assert [(page.label, page.status) for page in document.pages] == [("Club", "text"), ("Empty", "no_text")]


def test_dates_of_1904_and_formulas_without_a_value() -> None:
    data = make_xlsx(
        {"a": sheet('<c s="1"><v>0</v></c><c><f>NOW()</f></c><c><f>1</f><v/></c>')},
        {"xl/styles.xml": STYLES},
        properties='<workbookPr date1904="1"/>',
    )
    document = here(data, "a.xlsx")
    assert document.pages[0].text == "a\n\n1904-01-01"
    assert document.reason.startswith("formulas without a stored value: 2")


def test_a_long_table_fills_pages_that_begin_with_its_headers() -> None:
    lines = "".join(f"Boat {n},{'x' * 90}\n" for n in range(500))
    document = here(f"name,note\n{lines}".encode(), "a.csv")

    assert len(document.pages) == 3
    assert {page.text.partition("\n")[0] for page in document.pages} == {"name | note"}
    assert sum(page.text.count("Boat ") for page in document.pages) == 500
    assert all(page.tables[0].headers == ("name", "note") for page in document.pages)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.csv", b'a,b\n"x, y",2\n', "a | b\nx, y | 2"),
        ("a.csv", "nimi;paikka\nVene;Länsi\n".encode("cp1252"), "nimi | paikka\nVene | Länsi"),
        ("a.csv", "nimi;paikka\nVene;Länsi\n".encode("utf-16"), "nimi | paikka\nVene | Länsi"),
        ("a.tsv", b"a\tb, c\n1\t2\n", "a | b, c\n1 | 2"),
        ("a.csv", b"only prose here\nand more, of it\n", "only prose here\nand more, of it"),
        ("a.txt", b"a,b\n1,2\n", "a,b\n1,2"),
    ],
)
def test_csv_is_read_with_its_own_delimiter_and_encoding(name: str, data: bytes, text: str) -> None:
    assert texts(here(data, name)) == [text]


def test_a_quotation_mark_that_is_never_closed_is_told() -> None:
    start = b"a,b\n" * 20_000
    with pytest.raises(CorruptDocument, match="close its quotation marks"):
        here(start + b'"' + b"x,y\n" * 300_000, "a.csv")


def odf_row(*cells: str, more: str = "") -> str:
    items = "".join(f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" for cell in cells)
    return f"<table:table-row{more}>{items}</table:table-row>"


def test_a_text_of_opendocument_has_headings_tables_and_notes() -> None:
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        '<text:h text:outline-level="2">Keys</text:h>'
        "<text:p>In<text:s text:c='2'/>the <text:span>blue</text:span><text:note>"
        "<text:note-citation>1</text:note-citation>"
        "<text:note-body><text:p>Not the red one.</text:p></text:note-body></text:note> cupboard"
        "<office:annotation><text:p>comment</text:p></office:annotation></text:p>"
        "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
        f"<table:table>{odf_row('a', 'b')}{odf_row('1', '2')}{odf_row('3', '4')}</table:table>"
    )
    meta = '<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The harbour</dc:title></m>'
    document = here(make_odf("text", body, {"meta.xml": meta}), "a.odt")

    assert document.pages[0].text == (
        "Keys\n\nIn  the blue [Not the red one.] cupboard\n\n- one\n\na | b\n1 | 2\n3 | 4"
    )
    assert [(heading.text, heading.level) for heading in document.pages[0].headings] == [("Keys", 2)]
    assert document.title == "The harbour" and len(document.pages[0].tables) == 1


def test_sheets_of_opendocument_repeat_rows_but_not_the_empty_rest() -> None:
    rows = odf_row("name", "fee") + odf_row("Ann", "5,00 €", more=' table:number-rows-repeated="2"')
    cell = '<table:table-cell table:number-columns-repeated="16384"/>'
    empty = f'<table:table-row table:number-rows-repeated="1048000">{cell}</table:table-row>'
    document = here(make_odf("spreadsheet", f'<table:table table:name="Club">{rows}{empty}</table:table>'), "a.ods")
    assert texts(document) == ["Club\n\nname | fee\nAnn | 5,00 €\nAnn | 5,00 €"]


def test_slides_of_opendocument_have_titles_and_notes() -> None:
    frame = '<draw:frame presentation:class="{}"><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>'
    notes = f"<presentation:notes>{frame.format('notes', 'Say it.')}</presentation:notes>"
    page = f"<draw:page>{frame.format('outline', 'Blue cupboard')}{frame.format('title', 'Keys')}{notes}</draw:page>"
    document = here(make_odf("presentation", page + "<draw:page/>"), "a.odp")
    assert texts(document) == ["Keys\n\nBlue cupboard\n\nNotes: Say it.", ""]
    assert [page.label for page in document.pages] == ["Keys", ""]


LAUGHS = sheet(text_cells("&lol;"), prolog='<!DOCTYPE d [<!ENTITY lol "x">]>')
FILE = slide(shape("&e;"), prolog='<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]>')
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
LOCKED = make_odf("text", "<text:p>a</text:p>", {"META-INF/manifest.xml": "<x:encryption-data/>"})
XLSX, PPTX = make_xlsx({"a": sheet(text_cells("a"))}), make_pptx([slide(shape("a"))])


@pytest.mark.parametrize(
    ("name", "data", "error", "message"),
    [
        ("a.xlsx", XLSX[:-40], CorruptDocument, "damaged or cut off; open it in Excel"),
        ("a.pptx", PPTX[:-40], CorruptDocument, "damaged or cut off; open it in PowerPoint"),
        ("a.xlsx", make_xlsx({}), EmptyDocument, "white space"),
        ("a.pptx", make_pptx([slide()]), EmptyDocument, "the slide has no text"),
        ("a.xlsx", make_xlsx({"a": LAUGHS}), CorruptDocument, "declares XML entities"),
        ("a.pptx", make_pptx([FILE]), CorruptDocument, "declares XML entities"),
        ("a.odt", LOCKED, EncryptedDocument, "encrypted"),
        ("a.xlsx", OLE + "EncryptedPackage".encode("utf-16-le"), EncryptedDocument, "Office file is encrypted"),
        ("a.xls", OLE + bytes(600), DocumentError, r"old Office files \(.doc, .xls"),
        ("a.xlsx", b"plain text", DocumentError, "is not an Excel workbook: its content is text/plain"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    name: str, data: bytes, error: type[DocumentError], message: str
) -> None:
    with pytest.raises(error, match=message):
        here(data, name)


def test_the_limits_hold_for_sheets() -> None:
    rows: Sequence[bytes] = [b"name,note\n", *(b"x" * 60 + b",y\n" for _ in range(2_000))]
    with pytest.raises(DocumentTooLarge, match="characters"):
        here(b"".join(rows), "a.csv", max_chars=100_000)
    with pytest.raises(DocumentTooLarge, match="2 pages"):
        here(b"".join(rows), "a.csv", max_pages=2)
    with pytest.raises(DocumentTooLarge, match="1,200 columns; the limits are 1,000 columns"):
        here(b",".join([b"a"] * 1_200) + b"\n" + b",".join([b"1"] * 1_200), "a.csv")
