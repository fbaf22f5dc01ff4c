"""The numbers, equations, text boxes and merged cells of documents, and documents whose parts have other names."""

from __future__ import annotations

import io
import re
import zipfile

import pytest

from agentformer.readers import read
from agentformer.readers.formats import DOCX, PPTX, XLSX, sniff
from agentformer.readers.grid import MAX_CARRIED, Cell, table_lines
from agentformer.readers.numerals import numeral
from tests.readers.conftest import W, make_docx
from tests.readers.office_files import (
    ODF,
    make_odf,
    make_pptx,
    make_xlsx,
    relations,
    sheet,
    slide,
    text_cells,
    zipped,
)

M = "http://schemas.openxmlformats.org/officeDocument/2006/math"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"


def text_of(data: bytes, name: str) -> str:
    return "\n\n".join(page.text for page in read(data, name, isolate=False).pages)


def word(body: str, **parts: str) -> str:
    return text_of(make_docx(body, extra=parts), "a.docx")


def par(text: str = "", properties: str = "", more: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r>{more}</w:p>"


def item(text: str, level: int, number: int = 1) -> str:
    return par(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


def level(at: int, kind: str, text: str, more: str = "", start: int = 1) -> str:
    return (
        f'<w:lvl w:ilvl="{at}"><w:start w:val="{start}"/><w:numFmt w:val="{kind}"/><w:lvlText w:val="{text}"/>{more}'
        "</w:lvl>"
    )


def numbering(*levels: str, nums: str = '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>') -> dict[str, str]:
    lists = f'<w:abstractNum w:abstractNumId="0">{"".join(levels)}</w:abstractNum>{nums}'
    return {"word/numbering.xml": f'<w:numbering xmlns:w="{W}">{lists}</w:numbering>'}


CLAUSES = (level(0, "decimal", "%1"), level(1, "decimal", "%1.%2"), level(2, "lowerLetter", "(%3)"))


def test_clauses_of_word_have_their_numbers() -> None:
    body = item("A", 0) + item("B", 1) + item("C", 2) + item("D", 2) + item("E", 1) + item("F", 0) + item("G", 1)
    assert word(body, **numbering(*CLAUSES)).split("\n\n") == [
        "1 A", "1.1 B", "(a) C", "(b) D", "1.2 E", "2 F", "2.1 G",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("levels", "body", "lines"),
    [
        (
            (level(0, "upperRoman", "%1."), level(1, "decimal", "%1.%2", "<w:isLgl/>")),
            [("A", 0), ("B", 1)],
            "I. A|1.1 B",
        ),
        ((level(0, "decimalZero", "§ %1", start=9),), [("A", 0), ("B", 0)], "§ 09 A|§ 10 B"),
        ((level(0, "bullet", "•"), level(1, "none", "Note:")), [("A", 0), ("B", 1)], "- A|Note: B"),
        ((level(0, "decimal", "%1"), level(1, "decimal", "%1.%2")), [("A", 1), ("B", 1)], "1.1 A|1.2 B"),
        (
            (level(0, "decimal", "%1"), level(1, "decimal", "%2.", '<w:lvlRestart w:val="0"/>')),
            [("A", 0), ("B", 1), ("C", 0), ("D", 1)],
            "1 A|1. B|2 C|2. D",
        ),
        ((level(0, "upperLetter", "Annex %1", start=26),), [("A", 0), ("B", 0)], "Annex Z A|Annex AA B"),
    ],
)
def test_each_kind_of_number_of_word(levels: tuple[str, ...], body: list[tuple[str, int]], lines: str) -> None:
    assert word("".join(item(*each) for each in body), **numbering(*levels)).split("\n\n") == lines.split("|")


def test_lists_of_word_begin_again_and_go_on() -> None:
    override = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride>'
    nums = "".join(
        f'<w:num w:numId="{n}"><w:abstractNumId w:val="0"/>{override if n == 2 else ""}</w:num>' for n in (1, 2, 3)
    )
    body = item("A", 0) + item("B", 0, 2) + item("C", 0, 2) + item("D", 0, 3) + item("E", 0, 0)
    assert word(body, **numbering(*CLAUSES, nums=nums)).split("\n\n") == ["1 A", "5 B", "6 C", "7 D", "E"]


def test_the_number_of_a_heading_comes_from_its_style() -> None:
    style = (
        '<w:style w:styleId="H1"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
        "</w:style>"
        '<w:style w:styleId="H2"><w:name w:val="heading 2"/><w:basedOn w:val="H1"/></w:style>'
    )
    styles = {"word/styles.xml": f'<w:styles xmlns:w="{W}">{style}</w:styles>'}
    levels = (CLAUSES[0], level(1, "decimal", "%1.%2", '<w:pStyle w:val="H2"/>'))
    body = "".join(par(text, f'<w:pStyle w:val="{style}"/>') for text, style in (("A", "H1"), ("B", "H2"), ("C", "H1")))
    document = read(make_docx(body, extra={**styles, **numbering(*levels)}), "a.docx", isolate=False)
    headings = [heading for page in document.pages for heading in page.headings]
    assert [(heading.text, heading.level) for heading in headings] == [("1 A", 1), ("1.1 B", 2), ("2 C", 1)]


def math(inner: str) -> str:
    return f'<m:oMath xmlns:m="{M}">{inner}</m:oMath>'


def run(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


EQUATIONS = [
    (f"<m:sSup><m:e>{run('v')}</m:e><m:sup>{run('2')}</m:sup></m:sSup>", "v^2"),
    (f"<m:sSubSup><m:e>{run('x')}</m:e><m:sub>{run('i')}</m:sub><m:sup>{run('n+1')}</m:sup></m:sSubSup>", "x_i^(n+1)"),
    (f"<m:f><m:num>{run('a+b')}</m:num><m:den>{run('2')}</m:den></m:f>", "(a+b)/2"),
    (f"<m:rad><m:deg/><m:e>{run('x+1')}</m:e></m:rad>", "√(x+1)"),
    (f"<m:rad><m:deg>{run('3')}</m:deg><m:e>{run('x')}</m:e></m:rad>", "3√x"),
    (
        f'<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub>{run("i=1")}</m:sub><m:sup>{run("n")}</m:sup>'
        f"<m:e>{run('i')}</m:e></m:nary>",
        "∑_(i=1)^n i",
    ),
    (f"<m:d><m:e>{run('a')}</m:e><m:e>{run('b')}</m:e></m:d>", "(a|b)"),
    (f'<m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val="]"/></m:dPr><m:e>{run("a")}</m:e></m:d>', "[a]"),
    (f"<m:func><m:fName>{run('sin')}</m:fName><m:e>{run('x')}</m:e></m:func>", "sin x"),
    (f"<m:m><m:mr><m:e>{run('1')}</m:e><m:e>{run('0')}</m:e></m:mr><m:mr><m:e>{run('2')}</m:e></m:mr></m:m>",
     "[1, 0; 2]"),
    ("<m:sSup><m:e>" * 90 + run("v") + "</m:e></m:sSup>" * 90, "v"),
]  # fmt: skip


@pytest.mark.parametrize(("inner", "text"), EQUATIONS)
def test_an_equation_of_office_is_text(inner: str, text: str) -> None:
    assert word(par("Let ", more=math(inner) + "<w:r><w:t> be.</w:t></w:r>")) == f"Let {text} be."
    shape = f"<p:sp><p:txBody><a:p><a:r><a:t>Let </a:t></a:r>{math(inner)}</a:p></p:txBody></p:sp>"
    assert text_of(make_pptx([slide(shape)]), "a.pptx") == f"Let {text}"


def test_an_equation_of_html_and_opendocument_is_text() -> None:
    power = "<msup><mi>v</mi><mn>2</mn></msup>"
    formula = f"<math><mi>E</mi><mo>=</mo><mfrac><mrow><mi>m</mi>{power}</mrow><mn>2</mn></mfrac></math>"
    assert text_of(f"<html><p>So {formula} holds.</p>".encode(), "a.html") == "So E=(mv^2)/2 holds."
    tex = '<math><semantics><mi>E</mi><annotation encoding="application/x-tex">E = mc^2</annotation></semantics></math>'
    twice = f"<span class='katex'>{tex}<span class='katex-html' aria-hidden='true'><span>E=mc2</span></span></span>"
    assert text_of(f"<html><p>So {twice}.</p>".encode(), "a.html") == "So E = mc^2."
    place = '<draw:frame><draw:object xlink:href="./Object 1" xmlns:xlink="http://www.w3.org/1999/xlink"/></draw:frame>'
    part = formula.replace("<math>", '<math xmlns="http://www.w3.org/1998/Math/MathML">')
    odt = make_odf("text", f"<text:p>So {place} holds.</text:p>", {"Object 1/content.xml": part})
    assert text_of(odt, "a.odt") == "So E=(mv^2)/2 holds."


BOX = "<w:txbxContent>" + par("In the box.") + par("Second.") + "</w:txbxContent>"
ALTERNATIVE = (
    '<w:r><mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
    f"<mc:Choice>{BOX}</mc:Choice><mc:Fallback><w:pict>{BOX}</w:pict></mc:Fallback></mc:AlternateContent></w:r>"
)


def test_a_text_box_follows_its_paragraph() -> None:
    assert word(par("Before.", more=ALTERNATIVE) + par("After.")) == "Before.\n\nIn the box.\n\nSecond.\n\nAfter."
    assert word(par("Before.", more=f"<w:r><w:pict>{BOX}</w:pict></w:r>")) == "Before.\n\nIn the box.\n\nSecond."
    moved = "<w:moveFrom><w:r><w:t>Moved.</w:t></w:r></w:moveFrom><w:moveTo><w:r><w:t>Moved.</w:t></w:r></w:moveTo>"
    assert word(par("", more=moved)) == "Moved."
    rtf = (
        r"{\rtf1 Before.\par{\shp{\*\shpinst\shpleft1{\sp{\sn fFlip}{\sv 0}}{\shptxt \pard In the box.\par}}"
        r"{\shprslt{\*\do\dobxpage{\dptxbxtext\pard In the box.\par}}}}After. \\shp\par"
        r"{\*\do\dobxpage{\dptxbxtext\pard Old box.\par}}}"
    )
    assert text_of(rtf.encode(), "a.rtf").split("\n\n") == ["Before.", "In the box.\nAfter. \\shp", "Old box."]


def test_the_text_boxes_of_a_sheet_follow_its_rows() -> None:
    spaces = f'xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing" xmlns:a="{A}"'
    box = "<xdr:sp><xdr:txBody><a:p><a:r><a:t>Gate </a:t></a:r><a:r><a:t>nine</a:t></a:r></a:p></xdr:txBody></xdr:sp>"
    more = {
        "xl/worksheets/_rels/sheet0.xml.rels": relations(("d", "drawing", "../drawings/drawing1.xml")),
        "xl/drawings/drawing1.xml": f"<xdr:wsDr {spaces}><xdr:grpSp>{box}</xdr:grpSp></xdr:wsDr>",
    }
    assert text_of(make_xlsx({"S": sheet(text_cells("a", "b"))}, more), "a.xlsx") == "S\n\na | b\n\nGate nine"
    shapes = "<draw:frame><draw:text-box><text:p>Gate nine</text:p></draw:text-box></draw:frame>"
    shapes = f"<table:shapes>{shapes}</table:shapes>"
    row = "<table:table-row><table:table-cell><text:p>a</text:p></table:table-cell></table:table-row>"
    ods = make_odf("spreadsheet", f'<table:table table:name="S">{shapes}{row}</table:table>')
    assert text_of(ods, "a.ods") == "S\n\na\n\nGate nine"


def wcell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{text if text.startswith('<') else par(text)}</w:tc>"


def wtable(*rows: str) -> str:
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


HEADS = ["City | Price summer | Price winter", "Oslo | 10 | 20", "Oslo | 30 | 40", "Turku | 5 | 6"]


def html_table(heads: str = "thead") -> bytes:
    return (
        f"<html><table><{heads}><tr><th rowspan=2>City<th colspan=2>Price</tr><tr><th>summer<th>winter</tr></{heads}>"
        "<tbody><tr><td rowspan='2'>Oslo<td>10<td>20</tr><tr><td>30<td>40</tr><tr><td>Turku<td>5<td>6</table>"
    ).encode()


def test_merged_cells_and_two_rows_of_headers_in_every_format() -> None:
    two, restart, goes_on = '<w:gridSpan w:val="2"/>', '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    docx = wtable(
        wcell("City", restart) + wcell("Price", two),
        wcell("", goes_on) + wcell("summer") + wcell("winter"),
        wcell("Oslo", restart) + wcell("10") + wcell("20"),
        wcell("", goes_on) + wcell("30") + wcell("40"),
        wcell("Turku") + wcell("5") + wcell("6"),
    )
    assert word(docx).split("\n") == HEADS
    for heads in ("thead", "tbody"):
        assert text_of(html_table(heads), "a.html").split("\n") == HEADS
    merges = "".join(f'<mergeCell ref="{ref}"/>' for ref in ("A1:A2", "B1:C1", "A3:A4", "A8:A9"))
    rows = [("City", "Price"), ("", "summer", "winter"), ("Oslo", "10", "20"), ("", "30", "40"), ("Turku", "5", "6")]
    xml = sheet(*("".join(text_cells(c) if c else "<c/>" for c in row) for row in rows))
    xlsx = make_xlsx({"S": xml.replace("</worksheet>", f"<mergeCells>{merges}</mergeCells></worksheet>")})
    assert text_of(xlsx, "a.xlsx").split("\n")[2:] == HEADS

    def cell(text: str, more: str = "") -> str:
        return f"<table:table-cell {more}><text:p>{text}</text:p></table:table-cell>"

    below = 'table:number-rows-spanned="2"'
    beside, covered = 'table:number-columns-spanned="2"', "<table:covered-table-cell/>"
    table = "".join(f"<table:table-row>{row}</table:table-row>" for row in (
        cell("City", below) + cell("Price", beside) + covered, covered + cell("summer") + cell("winter"),
        cell("Oslo", below) + cell("10") + cell("20"), covered + cell("30") + cell("40"),
        cell("Turku") + cell("5") + cell("6"),
    ))  # fmt: skip
    assert text_of(make_odf("text", f"<table:table>{table}</table:table>"), "a.odt").split("\n") == HEADS
    assert text_of(make_odf("spreadsheet", f"<table:table>{table}</table:table>"), "a.ods").split("\n") == HEADS
    slides = make_odf(
        "presentation", f"<draw:page><draw:frame><table:table>{table}</table:table></draw:frame></draw:page>"
    )
    assert text_of(slides, "a.odp").split("\n") == HEADS

    def acell(text: str, more: str = "") -> str:
        return f"<a:tc {more}><a:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:txBody></a:tc>"

    down, hidden = 'rowSpan="2"', acell("", 'vMerge="1"')
    lines = "".join(f"<a:tr>{row}</a:tr>" for row in (
        acell("City", down) + acell("Price", 'gridSpan="2"') + acell("", 'hMerge="1"'),
        hidden + acell("summer") + acell("winter"), acell("Oslo", down) + acell("10") + acell("20"),
        hidden + acell("30") + acell("40"), acell("Turku") + acell("5") + acell("6"),
    ))  # fmt: skip
    assert (
        text_of(make_pptx([slide(f"<p:graphicFrame><a:tbl>{lines}</a:tbl></p:graphicFrame>")]), "a.pptx").split("\n")
        == HEADS
    )


def test_what_is_no_second_row_of_headers_stays_a_row() -> None:
    data = [
        [Cell("City"), Cell("Price", 2)],
        [Cell("Oslo"), Cell("10"), Cell("20")],
        [Cell("Rome"), Cell("1"), Cell("2")],
    ]
    assert table_lines(data) == ["City | Price | ", "Oslo | 10 | 20", "Rome | 1 | 2"]
    title = [[Cell("All prices", 2)], [Cell("City"), Cell("Price")], [Cell("Oslo"), Cell("10")]]
    assert table_lines(title) == ["All prices", "City | Price", "Oslo | 10"]
    years = [
        [Cell("City", rows=2), Cell("Price", 2)],
        [Cell("2024"), Cell("2025")],
        [Cell("Oslo"), Cell("1"), Cell("2")],
    ]
    assert table_lines(years) == ["City | Price 2024 | Price 2025", "Oslo | 1 | 2"]


def test_merged_cells_do_not_multiply_a_text() -> None:
    long = "x" * (MAX_CARRIED + 1)
    assert table_lines([[Cell(long, rows=9), Cell("a")], [Cell("b")], [Cell("c")]]) == [f"{long} | a", " | b", " | c"]
    wide = [[Cell("a", 60_000, 60_000)]] + [[Cell("b")] for _ in range(30_000)]
    assert sum(map(len, table_lines(wide))) < 10_000_000
    short = [[Cell("y" * MAX_CARRIED, rows=60_000), Cell("a")]] + [[Cell("b")] for _ in range(1_000)]
    assert len("".join(table_lines(short))) < 1_000_000


def test_a_table_in_a_table_is_read_once() -> None:
    inner = wtable(wcell("x") + wcell("y"), wcell("1") + wcell("2"))
    outer = wtable(wcell("a") + wcell("b"), wcell("c") + f"<w:tc>{par('d')}{inner}</w:tc>")
    assert word(outer) == "a | b\nc | d\n\nx | y\n1 | 2"
    assert word(wtable(f"<w:tc>{par('Frame.')}{inner}</w:tc>")) == "Frame.\n\nx | y\n1 | 2"
    nested = par("deep")
    for _ in range(70):
        nested = wtable(wcell("left") + f"<w:tc>{par('text')}{nested}{par()}</w:tc>")
    text = word(nested)
    assert (text.count("left"), text.count("text"), text.count("deep")) == (70, 70, 1)
    nested = "<text:p>deep</text:p>"
    for _ in range(60):
        cells = "<table:table-cell><text:p>left</text:p></table:table-cell>"
        cells += f"<table:table-cell><text:p>text</text:p>{nested}</table:table-cell>"
        nested = f"<table:table><table:table-row>{cells}</table:table-row></table:table>"
    text = text_of(make_odf("text", nested), "a.odt")
    assert (text.count("left"), text.count("text"), text.count("deep")) == (60, 60, 1)
    html = "deep"
    for _ in range(60):
        html = f"<table><tr><td rowspan=2>left<td>text {html}</tr><tr><td>z</tr></table>"
    text = text_of(f"<html>{html}".encode(), "a.html")
    assert (text.count("left"), text.count("text"), text.count("deep")) == (61, 60, 1)  # merged in the innermost


@pytest.mark.parametrize("depth", [1, 49, 50, 51, 60, 110])
def test_deep_lists_are_whole(depth: int) -> None:
    odt = "".join(f"<text:list><text:list-item><text:p>word{n}</text:p>" for n in range(depth))
    html = "".join(f"<ul><li>word{n}" for n in range(2 * depth))
    odt = text_of(make_odf("text", odt + "</text:list-item></text:list>" * depth), "a.odt")
    html = text_of(f"<html>{html}".encode(), "a.html")
    assert all(re.search(rf"\bword{n}\b", odt) for n in range(depth))
    assert all(re.search(rf"\bword{n}\b", html) for n in range(2 * depth))


def test_lists_and_headings_of_opendocument_have_their_numbers() -> None:
    number = '<text:list-level-style-number text:level="{}" style:num-format="{}" style:num-suffix="{}" {}/>'
    style = '<text:list-style style:name="L">' + number.format(1, "1", ".", "") + number.format(2, "a", ")", "")
    style += '<text:list-level-style-bullet text:level="3"/></text:list-style>'
    style += '<text:outline-style style:name="O">' + "".join(
        f'<text:outline-level-style text:level="{n}" style:num-format="1" text:display-levels="{n}"/>' for n in (1, 2)
    )
    spaces = f'xmlns:text="{ODF}:text:1.0" xmlns:style="{ODF}:style:1.0"'
    styles = f"<x {spaces}>{style}</text:outline-style></x>"

    def items(*texts: str, attributes: str = 'text:style-name="L"') -> str:
        each = "".join(
            f"<text:list-item>{t if t[0] == '<' else f'<text:p>{t}</text:p>'}</text:list-item>" for t in texts
        )
        return f"<text:list {attributes}>{each}</text:list>"

    body = '<text:h text:outline-level="1">One</text:h><text:h text:outline-level="2">Two</text:h>'
    inner = items("b", items("c", attributes=""), attributes="")
    body += items("a", inner, "d") + "<text:p>Between</text:p>"
    body += items("e", attributes='text:style-name="L" text:continue-numbering="true"') + items("f")
    document = read(make_odf("text", body, {"styles.xml": styles}), "a.odt", isolate=False)
    lines = "\n\n".join(page.text for page in document.pages).split("\n\n")
    assert lines == ["1 One", "1.1 Two", "1. a", "a) b", "- c", "2. d", "Between", "3. e", "1. f"]
    assert [heading.text for page in document.pages for heading in page.headings] == ["1 One", "1.1 Two"]


def test_ordered_lists_of_html_have_their_numbers() -> None:
    def numbers(attributes: str, *items: str) -> list[str]:
        html = f"<html><ol {attributes}>" + "".join(f"<li {item}>x</li>" for item in items or ("", "", "")) + "</ol>"
        return [line.split()[0] for line in text_of(html.encode(), "a.html").split("\n")]

    assert numbers("") == ["1.", "2.", "3."]
    assert numbers("start=5") == ["5.", "6.", "7."]
    assert numbers("reversed") == ["3.", "2.", "1."]
    assert numbers("start=-1 reversed") == ["-1.", "-2.", "-3."]
    assert numbers("type=a", "", "value=26", "") == ["a.", "z.", "aa."]
    assert numbers("type=I", "", "type=1", "") == ["I.", "2.", "III."]
    assert numbers("style='list-style-type: upper-alpha'") == ["A.", "B.", "C."]
    assert numbers("start=many type=disc") == ["1.", "2.", "3."]
    nested = "<html><ol><li>a<ul><li>b</ul><li>c<ol type=i><li>d<li>e</ol></ol>"
    assert re.sub(r"\n+", "\n", text_of(nested.encode(), "a.html")).split("\n") == [
        "1. a", "- b", "2. c", "i. d", "ii. e",
    ]  # fmt: skip


def test_automatic_lists_of_a_slide_have_their_numbers() -> None:
    def line(text: str, kind: str, more: str = "", at: int = 0) -> str:
        return f'<a:p><a:pPr lvl="{at}"><a:buAutoNum type="{kind}" {more}/></a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>'

    lines = line("a", "arabicPeriod", 'startAt="3"') + line("b", "alphaLcParenBoth", at=1) + line("c", "arabicPeriod")
    lines += "<a:p><a:r><a:t>plain</a:t></a:r></a:p>" + line("d", "romanUcParenR")
    text = text_of(make_pptx([slide(f"<p:sp><p:txBody>{lines}</p:txBody></p:sp>")]), "a.pptx")
    assert text.split("\n") == ["3. a", "(a) b", "4. c", "plain", "I) d"]


def test_numerals() -> None:
    assert [numeral(n, "i") for n in (1, 4, 9, 14, 40, 90, 400, 1999)] == [
        "i", "iv", "ix", "xiv", "xl", "xc", "cd", "mcmxcix",
    ]  # fmt: skip
    assert [numeral(n, "A") for n in (1, 26, 27, 53, 0, -1)] == ["A", "Z", "AA", "AAA", "0", "-1"]
    assert [numeral(5000, "I"), numeral(7, "01"), numeral(1000, "a")] == ["5000", "07", "1000"]


def test_escaped_characters_of_excel_and_powerpoint() -> None:
    cells = text_cells("a_x000D_\nb", "_x0041_ and _x005F_x0041_", "_xD800_ _x12_")
    assert text_of(make_xlsx({"S": sheet(cells)}), "a.xlsx") == "S\n\na b | A and _x0041_ | _xD800_ _x12_"
    shape = "<p:sp><p:txBody><a:p><a:r><a:t>one_x000B_two</a:t></a:r></a:p></p:txBody></p:sp>"
    assert text_of(make_pptx([slide(shape)]), "a.pptx") == "one\ntwo"


TYPES = '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
FILES = {
    "docx": (make_docx(item("Ships", 0), extra=numbering(*CLAUSES)), DOCX, "word/document.xml", "1 Ships"),
    "xlsx": (make_xlsx({"S": sheet(text_cells("Ships"))}), XLSX, "xl/workbook.xml", "S\n\nShips"),
    "pptx": (
        make_pptx([slide("<p:sp><p:txBody><a:p><a:r><a:t>Ships</a:t></a:r></a:p></p:txBody></p:sp>")]),
        PPTX, "ppt/presentation.xml", "Ships",
    ),
}  # fmt: skip


def repacked(data: bytes, rename: dict[str, str], slash: str = "/", strict: bool = False, fold: bool = False) -> bytes:
    """The archive with other names of its parts, and links to them."""
    parts: dict[str, str | bytes] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        main = next(
            name
            for name in archive.namelist()
            if name in ("word/document.xml", "xl/workbook.xml", "ppt/presentation.xml")
        )
        for name in archive.namelist():
            content = archive.read(name).decode()
            if strict:
                content = re.sub(
                    r"schemas\.openxmlformats\.org/(\w+)/2006/(?!relationships\")", r"purl.oclc.org/ooxml/\1/", content
                )
            new = rename.get(name, name)
            folder, _, file = name.rpartition("/")
            if file.endswith(".rels") and folder.endswith("_rels"):
                owner = f"{folder.removesuffix('_rels')}{file.removesuffix('.rels')}"
                new_owner = rename.get(owner, owner)
                new = f"{new_owner.rpartition('/')[0]}/_rels/{new_owner.rpartition('/')[2]}.rels"
            parts[new.replace("/", slash)] = content
            if fold:
                parts[new.upper() if "Types" not in new else new] = parts.pop(new)
    parts["_rels/.rels".replace("/", slash)] = relations(
        ("m", "officeDocument", rename.get(main, main).replace("/", slash))
    )
    return zipped({"[Content_Types].xml": TYPES, **parts})


@pytest.mark.parametrize("kind", FILES)
def test_parts_are_found_by_their_links(kind: str) -> None:
    data, media_type, main, text = FILES[kind]
    folder = main.partition("/")[0]
    for changed in (
        repacked(data, {main: main.replace(".xml", "2.xml")}),
        repacked(data, {main: f"{folder}/part/main%201.xml"} if kind != "docx" else {main: f"{folder}/main 1.xml"}),
        repacked(data, {}, slash="\\"),
        repacked(data, {}, fold=True),
        repacked(data, {}, strict=True),
    ):
        assert sniff(changed, f"a.{kind}") == media_type
    for changed in (
        repacked(data, {main: main.replace(".xml", "2.xml")}),
        repacked(data, {}, slash="\\"),
        repacked(data, {}, fold=True),
        repacked(data, {}, strict=True),
    ):
        assert text_of(changed, f"a.{kind}") == text


def test_an_archive_with_a_folder_called_word_is_no_document() -> None:
    assert sniff(zipped({"word/list.txt": "a", "[Content_Types].txt": "b"})) == "application/zip"
