"""Formats of files at the level of one function: media types, encodings, sections, running lines and headings."""

from __future__ import annotations

import io
import zipfile

import pytest

from agentformer.errors import DocumentTooLarge, EmptyDocument
from agentformer.readers import encodings, html, markdown
from agentformer.readers.formats import (
    BINARY,
    DOCX,
    EPUB,
    HTML,
    MARKDOWN,
    ODT,
    PDF,
    PLAIN,
    PPTX,
    XLSX,
    ReadLimits,
    ReadOptions,
    looks_like_text,
    sniff,
    utf16_without_bom,
)
from agentformer.readers.office import docx
from agentformer.readers.pdf.layout import Line, OutlineEntry, bodies, page_headings, with_paragraphs
from agentformer.readers.sections import MIN_SECTION, OutlineBuilder, document_of, page_of, parts_of
from agentformer.types import DocumentText, Heading, Page, Span

from .conftest import W, make_docx


def zipped(*names: str, comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
        archive.comment = comment
    return out.getvalue()


def test_the_type_of_an_archive_comes_from_the_names_of_its_files() -> None:
    word = zipped("a.txt", "word/document.xml")
    end = word.rindex(b"PK\x05\x06")
    for data, media_type in (
        (word, DOCX),
        (zipped("word/document.xml", "b.txt"), DOCX),
        (zipped("xl/workbook.xml"), XLSX),
        (zipped("ppt/presentation.xml"), PPTX),
        (zipped("content.xml", "META-INF/manifest.xml"), ODT),
        (zipped("content.xml"), "application/zip"),
        (zipped("META-INF/container.xml"), EPUB),
        (zipped("a.txt", "xword/document.xml", "word/document.xmlx"), "application/zip"),
        (zipped("a.txt"), "application/zip"),
        (zipped("word/document.xml", comment=b"c" * 65_535), DOCX),
        (word[: end + 16], DOCX),
        (word[: end + 15], DOCX),  # truncated, with a part of Word
        (zipped("a.txt")[:40], "application/zip"),
        (b"PK\x05\x06" + bytes(18), "application/zip"),
    ):
        assert sniff(data) == media_type
    plain_archive = zipped("a.txt", "word/documentx.xml").replace(b"word/documentx.xml", b"word/document.xmlx")
    assert sniff(plain_archive) == "application/zip"  # the length of the name differs


def test_the_first_bytes_decide_the_type() -> None:
    for data, name, media_type in (
        (b"%PDF-1.4", "", PDF),
        (b"x" * 1019 + b"%PDF- 1 0 obj", "", PDF),
        (b"x" * 1020 + b"%PDF- 1 0 obj", "", PLAIN),
        (b"the text mentions %PDF-", "", PLAIN),
        (b"%!PS-Adobe", "", "application/postscript"),
        (b"\x89PNG\r\n", "", "image/png"),
        (b"BZh91AY&SY\xff", "", "application/x-bzip2"),
        (b"BZh is text", "", PLAIN),
        (b"\x00\x00\x00\x18ftypmp42", "", "video/mp4"),
        (b"\x00\x00\x00ftyp\x01", "", BINARY),
        (b"<html>", "", HTML),
        (b"<?xml version='1.0'?> <!-- a --> <!-- b --> <!DOCTYPE html>", "", HTML),
        (b"<!-- a --> text", "", PLAIN),
        (b"<p>text", "a.html", HTML),
        (b"<p>text", "a.txt", PLAIN),
        (b"text", "a.html", PLAIN),
        (b"# text", "a.MD", MARKDOWN),
        (b"# text", "a.txt", PLAIN),
    ):
        assert sniff(data, name) == media_type, data


def test_text_has_few_control_bytes() -> None:
    for controls, letters, is_text in ((1, 199, True), (1, 198, False), (2, 398, True), (2, 397, False)):
        assert looks_like_text(b"\x01" * controls + b"\xe4" * letters) is is_text
    for controls, letters, is_text in ((1, 19, True), (1, 18, False), (4, 76, True), (4, 75, False)):
        assert looks_like_text(b"a" * letters + b"\0" * controls) is is_text
    for data, encoding in (
        ("ab".encode("utf-16-le"), "utf-16-le"),
        ("ab".encode("utf-16-be"), "utf-16-be"),
        (b"a\x00", ""),  # too short
        (b"a\x00b\x00c", ""),  # an odd number of bytes
        (b"abcd", ""),
        (("a" * 4 + "ä" * 6).replace("ä", "中").encode("utf-16-le"), "utf-16-le"),
        (("a" * 3 + "中" * 7).encode("utf-16-le"), ""),
        (bytes(8), ""),
        (b"\x00\x01\x02\x03", ""),  # a control character beside the zero
        (b"\x00\xff\xfe\x01", ""),  # a letter of Latin-1 alone
        ("für".encode("utf-16-le"), "utf-16-le"),
    ):
        assert utf16_without_bom(data) == encoding, data


def test_parts_end_at_the_strongest_border_of_their_second_half() -> None:
    for text, parts in (
        ("a" * 10, ["a" * 10]),
        ("a" * 11, ["a" * 10, "a"]),
        ("aaaaaa\n\nbbbbbb", ["aaaaaa\n\n", "bbbbbb"]),
        ("aa\n\naaa b cc dd", ["aa\n\naaa b ", "cc dd"]),
        ("aaaaa\nb. ccc", ["aaaaa\n", "b. ccc"]),
        ("aaaaa b. ccc", ["aaaaa b. ", "ccc"]),
        ("aaaaa bbbbbb", ["aaaaa ", "bbbbbb"]),
        ("aaaa bbbbbbbb", ["aaaa bbbbb", "bbb"]),
    ):
        assert [*parts_of(text, 10)] == parts, text
    assert MIN_SECTION == 1_500 and [len(part) for part in parts_of("a" * 40_001)] == [40_000, 1]


def test_a_document_has_limits() -> None:
    pages = [page_of(1, "abc"), page_of(2, " "), page_of(3, "de")]
    assert (pages[1].text, pages[1].status, pages[1].reason) == ("", "no_text", "blank")
    document = document_of(PLAIN, pages, ReadLimits(max_chars=5, max_pages=3), "title")
    assert (len(document.pages), document.title) == (3, "title")
    for limits, message in ((ReadLimits(max_chars=4), "4 characters"), (ReadLimits(max_pages=2), "2 sections")):
        with pytest.raises(DocumentTooLarge, match=message):
            document_of(PLAIN, pages, limits)
    with pytest.raises(EmptyDocument, match="only white space or unreadable characters"):
        document_of(PLAIN, pages[1:2], ReadLimits())


def outline(*sections: tuple[str, int, int]) -> list[tuple[str, str, list[tuple[str, int]]]]:
    builder = OutlineBuilder()
    for title, level, size in sections:
        builder.heading(title, level)
        builder.text("x" * size)
    pages = builder.pages("test")
    return [(page.label, page.text[:1], [(each.text, each.start) for each in page.headings]) for page in pages]


def test_small_sections_share_a_page() -> None:
    assert outline(("A", 2, 10), ("B", 2, 10)) == [("A", "A", [("A", 0), ("B", 15)])]
    for size, pages in ((1_484, 1), (1_485, 2)):  # with the first section, 1,500 and 1,501
        assert len(outline(("A", 2, 10), ("B", 2, size))) == pages
    assert [label for label, _, _ in outline(("A", 1, 10), ("B", 2, 10), ("C", 1, 10), ("", 1, 5))] == ["A", "C"]
    assert outline(("A", 1, 2000), ("B", 2, 10))[1][0] == "A > B"
    (first, second) = outline(("A", 2, 40_010), ("B", 3, 40_000))[:2]
    assert (first[2], second[2]) == ([("A", 0)], [])


def test_lines_and_cells_are_separated_once() -> None:
    builder = OutlineBuilder()
    for step in ("line", "cell", "a", " b", "cell", "  c", "line", "line", "  d", "paragraph", "line", "e"):
        if step == "paragraph":
            builder.line(paragraph=True)
        elif step in ("line", "cell"):
            getattr(builder, step)()
        else:
            builder.text(step)
    builder.text("  f", verbatim=True)
    (page,) = builder.pages("test")
    assert page.text == "a b | c\nd\n\ne  f"


def test_markdown_headings() -> None:
    for line, following, heading in (
        ("# A", "", (1, "A")),
        ("###### **A** `b` ##", "", (6, "A b")),
        ("####### A", "", None),
        ("#", "", None),
        ("A", "===", (1, "A")),
        ("A", "--", (2, "A")),
        ("A", "-", None),
        ("- A", "---", None),
        ("", "---", None),
        ("A" * 199, "===", (1, "A" * 199)),
        ("A" * 200, "===", None),
        ("# [A](http://b)", "", (1, "A")),
        (f"# {'A' * 400}", "", (1, "A" * 300)),
    ):
        assert markdown._heading(line, following) == heading, line
    assert [markdown._fenced(line, "```") for line in ("```", "````", "``` x", "~~~")] == [
        ("", True),
        ("", True),
        ("```", True),
        ("```", True),
    ]
    assert markdown._fenced("~~~ python", "") == ("~~~", True) and markdown._fenced("a", "") == ("", False)


def test_the_bytes_of_a_text_decide_its_encoding() -> None:
    for data, text in (
        ("ä".encode(), "ä"),
        ("ä".encode("utf-8-sig"), "ä"),
        ("ä".encode("utf-16"), "ä"),
        ("ä".encode("utf-32"), "ä"),
        ("über".encode("cp1252"), "über"),
        ("sœur".encode("iso8859-15"), "sœur"),
        ("かなのテスト".encode("cp932"), "かなのテスト"),
        ("かなのテスト".encode("euc_jp"), "かなのテスト"),
        ("かなのテスト".encode("iso2022_jp"), "かなのテスト"),
    ):
        assert encodings.decode(data) == text


def rows(*lines: tuple[str, float, float]) -> list[Line]:
    """Return lines of the height 10 with their text, their left end and their position from the top."""
    return [Line(text, x, 1000 - y, 10.0, x + 5.0 * len(text), 1000 - y) for text, x, y in lines]


def test_a_gap_an_indent_or_the_next_column_begins_a_paragraph() -> None:
    first = [("One.", 0, 0), ("Two.", 0, 12), ("Three.", 0, 24)]
    for line, mark in (
        (("Four.", 0, 36), "\n"),
        (("Four.", 0, 40), "\n"),  # 16 points are 1.33 times the usual distance
        (("Four.", 0, 41), "\n\n"),
        (("four.", 0, 41), "\n"),
        (("Four.", 7, 36), "\n"),
        (("Four.", 8, 36), "\n\n"),
        (("Four.", 50, 36), "\n"),
        (("four.", 8, 36), "\n"),
        (("Four.", 300, -20), "\n\n"),  # the next column
        (("four.", 300, -20), "\n"),
        (("four.", 0, 60), "\n\n"),
    ):
        text = with_paragraphs("", rows(*first, line))
        assert text == f"One.\nTwo.\nThree.{mark}{line[0]}", line
    assert with_paragraphs("a\r\nb", rows(("a", 0, 0))) == "a\nb"
    assert with_paragraphs("a\r\nb", None) == "a\nb"
    assert with_paragraphs("", rows(("x", 0, 0), ("2", 5.5, -3))) == "x2"
    assert with_paragraphs("", rows(("x", 0, 0), ("2", 7, -3))) == "x 2"
    assert with_paragraphs("", rows(("x", 0, 0), ("2", 7, -6), ("y", 0, 20))) == "x\n2\ny"


def test_lines_on_three_pages_are_running_lines() -> None:
    def spans(*pages: list[str]) -> list[str | None]:
        texts = ["\n".join(page) for page in pages]
        return [span and text[span.start : span.end] for text, span in zip(texts, bodies(texts), strict=True)]

    words = ["alpha", "beta", "gamma", "delta"]
    assert spans(*(["Report", word] for word in words[:2])) == [None, None]
    assert spans(*(["Report", word] for word in words[:3])) == words[:3]
    assert spans(*([word, f"Page {n}"] for n, word in enumerate(words, 7))) == words
    assert spans(*([word, "12.3.21"] for word in words)) == words
    assert spans(*([word, "12.3."] for word in words)) == [None] * 4  # five characters, no letters
    assert spans(*([f"Step {7 * n}", word] for n, word in enumerate(words))) == [None] * 4
    assert spans(*([f"Annual report {7 * n}", word] for n, word in enumerate(words))) == words
    assert spans(*(["Report"] for _ in words)) == [None] * 4  # nothing else is on the pages
    header = [f"Header {letter}" for letter in "abcdef"]
    assert spans(*([*header, word] for word in words)) == [f"Header f\n{word}" for word in words]
    chapters = [["Chapter one" if n % 7 == 0 else f"other {chr(97 + n)}", f"text {chr(97 + n)}"] for n in range(15)]
    assert spans(*chapters)[7] is None  # the same line is on pages 0, 7 and 14; six pages on each side are compared
    chapters = [["Chapter one" if n % 6 == 0 else f"other {chr(97 + n)}", f"text {chr(97 + n)}"] for n in range(13)]
    assert spans(*chapters)[6] == "text g"


def test_entries_of_the_outline_are_found_on_their_page() -> None:
    text = "Intro\n1 Keys and\nlocks\nKeys and locks are old.\n2.1 Boats"
    pages = [Page(1, text, body=Span(6, len(text))), Page(2, "nothing")]
    entries = [
        OutlineEntry(0, 1, "Keys and locks"),
        OutlineEntry(0, 12, "3. Boats"),
        OutlineEntry(0, 2, "Missing"),
        OutlineEntry(1, 1, "Missing"),
        OutlineEntry(1, 1, " "),
    ]
    first, second = page_headings(pages, entries)
    assert first.headings == (
        Heading("Keys and locks", 1, 6),
        Heading("Missing", 2, 6),
        Heading("3. Boats", 9, text.index("2.1 Boats")),
    )
    assert second.headings == (Heading("Missing", 1, 0),)
    entries = [OutlineEntry(0, 1, "New keys"), OutlineEntry(0, 1, "Old boats")]
    (page,) = page_headings([Page(1, "Old boats\nNew keys")], entries)
    assert [(heading.text, heading.start) for heading in page.headings] == [("Old boats", 0), ("New keys", 10)]
    (page,) = page_headings(pages[1:], [OutlineEntry(0, 1, "x" * 301)])
    assert page.headings[0].text == "x" * 300


def html_of(source: str) -> DocumentText:
    (document,) = html.parse(source.encode(), ReadOptions("a", HTML))
    return document


def test_an_outline_finds_the_line_of_a_title_with_and_without_its_number() -> None:
    text = "Boats\nKeys\n2.1 Ropes\nIV. Anchors\nA.3  Buoys\nYEAR Lamps\n"
    titles = ["Keys", "Ropes", "7. Anchors", "Buoys", "Lamps", "2.1 Ropes"]
    for title in titles:
        (page,) = page_headings([Page(1, text)], [OutlineEntry(0, 1, title)])
        start = page.headings[0].start
        expected = {"Keys": "Keys", "Ropes": "2.1 Ropes", "7. Anchors": "IV. Anchors", "Buoys": "A.3  Buoys"}
        assert text[start:].startswith(expected.get(title, title)), title


def test_the_elements_of_html_become_lines_and_paragraphs() -> None:
    document = html_of(
        "<html><head><title> A  b </title></head><body><nav>menu</nav><h1>One</h1><p>a <b>b</b>\n c</p><p>d<br>e</p>"
        "<ul><li>f</li><li>g</li></ul><table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>"
        "<pre>  x\n  y</pre><div hidden>no</div><div style='display : NONE'>no</div><script>no</script></body></html>"
    )
    (page,) = document.pages
    assert (document.title, page.label) == ("A b", "One")
    assert page.text == "One\n\na b c\n\nd\ne\n\n- f\n- g\n\n1 | 2\n3\n\n  x\n  y"
    assert page.headings == (Heading("One", 1, 0),)


def test_paragraphs_in_the_cells_of_a_table_are_no_lines_unless_they_are_long() -> None:
    def table(*cells: str) -> str:
        row = "".join(f"<td><p>{cell}</p></td>" for cell in cells)
        return html_of(f"<html><body><table><tr>{row}</tr></table></body></html>").pages[0].text

    assert table("a", "<b>b</b>\n c") == "a | b c"
    assert table("a", "x" * 201) == "a\n\n" + "x" * 201
    assert table("a", "b<ul><li>c</li></ul>") == "a\n\nb\n\n- c"
    assert table("a", "<span style='display:none'>b</span>c") == "a\n\nc"


def test_only_a_main_part_of_some_length_replaces_the_body() -> None:
    for tag in ("main", "article"):
        for size, starts in ((201, "x"), (200, "out")):
            part = f"<{tag}><p>{'x' * size}</p></{tag}>"
            assert html_of(f"<body><p>out</p>{part}</body>").pages[0].text.startswith(starts)
        assert html_of(f"<body><p>out</p>{part * 2}</body>").pages[0].text.startswith("out")


def test_deep_elements_of_html_are_read_as_plain_text() -> None:
    for depth, text in ((398, "deep\n\nx\n\ny"), (399, "deepxy")):
        source = f"{'<div>' * depth}deep<p>x</p>y{'</div>' * depth}"
        assert html_of(f"<html><body>{source}</body></html>").pages[0].text == text, depth


def paragraph(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def word(body: str, **parts: str) -> DocumentText:
    (document,) = docx.parse(make_docx(body, extra=parts), ReadOptions("a.docx", DOCX))
    return document


def test_the_elements_of_word_become_lines_and_paragraphs() -> None:
    names = (("T", "Title"), ("H1", "Heading 1"), ("H2", "heading2"), ("N", "Normal"), ("X", "heading"))
    style = "".join(f'<w:style w:styleId="{id}"><w:name w:val="{name}"/></w:style>' for id, name in names)
    styles = {"word/styles.xml": f'<w:styles xmlns:w="{W}">{style}</w:styles>'}
    body = "".join(paragraph(id, f'<w:pStyle w:val="{id}"/>') for id in ("T", "H2", "N", "X", "Q"))
    body += paragraph("item", "<w:numPr/>") + "<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/></w:r>"
    body += (
        "<w:r><w:t>c</w:t><w:noBreakHyphen/></w:r><w:tab/></w:p>"
        + f"<w:sdt><w:sdtContent>{paragraph('in')}</w:sdtContent></w:sdt>"
    )
    row = f"<w:tr><w:tc>{paragraph('1')}{paragraph('2')}</w:tc><w:tc>{paragraph('')}</w:tc></w:tr><w:tr><w:tc/></w:tr>"
    core = '<c xmlns:d="http://purl.org/dc/elements/1.1/"><d:title> The  title </d:title></c>'
    note = f'<w:endnotes xmlns:w="{W}"><w:endnote w:id="3">{paragraph("End.")}</w:endnote><w:endnote/></w:endnotes>'
    extra = {**styles, "docProps/core.xml": core, "word/endnotes.xml": note}
    document = word(f"{body}<w:tbl>{row}</w:tbl>", **extra)
    (page,) = document.pages
    assert document.title == "The title"
    assert page.headings == (Heading("T", 1, 0), Heading("H2", 2, 3))
    assert page.text == "T\n\nH2\n\nN\n\nX\n\nQ\n\n- item\n\na b\nc-\n\nin\n\n1 2 |\n\n[endnote 3] End."


def test_word_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    body = paragraph("text")
    for depth in (60, 61, 250):
        nested = f"{'<w:sdt>' * depth}{body}{'</w:sdt>' * depth}"
        assert [page.text for page in word(nested).pages] == ["text"]
    with zipfile.ZipFile(io.BytesIO(make_docx(body))) as archive:
        size = archive.getinfo("word/document.xml").file_size
    assert docx.MAX_PART_BYTES == 200 * 2**20
    monkeypatch.setattr(docx, "MAX_PART_BYTES", size)
    assert word(body).pages[0].text == "text"
    monkeypatch.setattr(docx, "MAX_PART_BYTES", size - 1)
    with pytest.raises(DocumentTooLarge):
        word(body)
