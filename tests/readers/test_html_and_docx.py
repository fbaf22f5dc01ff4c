from __future__ import annotations

import pytest

from agentformer.errors import CorruptDocument, DocumentTooLarge, EmptyDocument
from agentformer.readers import read
from agentformer.readers.office import docx

from .conftest import W, make_docx

pytestmark = pytest.mark.process


def test_html_gives_headings_tables_and_no_scripts() -> None:
    source = """<html><head><title>Harbour  book</title><script>var x = 1;</script></head><body>
      <nav>Home</nav><h1>Ships</h1><p>First <b>bold</b> words<br>and more.</p>
      <table><tr><th>Name</th><th>Year</th></tr><tr><td>Esmeralda</td><td>1854</td></tr></table>
      <h2>Storms</h2><ul><li>one</li><li>two</li></ul><p style="display:none">secret</p></body></html>"""
    document = read(source.encode(), "a.html")
    text = document.pages[0].text

    assert document.title == "Harbour book"
    assert "First bold words\nand more." in text
    assert "Name | Year\nEsmeralda | 1854" in text
    assert "- one\n- two" in text
    assert not any(word in text for word in ("var x", "Home", "secret"))
    assert [(h.text, h.level) for h in document.pages[0].headings] == [("Ships", 1), ("Storms", 2)]
    assert all(text[h.start :].startswith(h.text) for h in document.pages[0].headings)


def test_raised_digits_do_not_join_the_number_before_them() -> None:
    run = f'<w:r xmlns:w="{W}"><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>5</w:t></w:r>'
    files = {
        "a.html": b"<p>At most 10<sup>5</sup> cells, the 3<sup>rd</sup> time.</p>",
        "a.docx": make_docx(
            f"<w:p><w:r><w:t>At most 10</w:t></w:r>{run}<w:r><w:t> cells, the 3rd time.</w:t></w:r></w:p>"
        ),
    }
    for name, data in files.items():
        assert read(data, name).pages[0].text == "At most 10⁵ cells, the 3rd time."


def test_html_says_its_own_encoding() -> None:
    source = '<html><head><meta charset="iso-8859-1"></head><body><p>Smörgås på ängen</p></body></html>'

    assert read(source.encode("latin-1"), "a.html").pages[0].text == "Smörgås på ängen"


def test_html_without_text_is_empty() -> None:
    with pytest.raises(EmptyDocument):
        read(b"<html><body><script>1</script></body></html>", "a.html")


def test_html_nested_deeper_than_the_parser_goes_is_refused_and_not_cut() -> None:
    for depth in [2_100, 100_000]:
        source = b"<html><body><p>Start</p>" + b"<div>" * depth + b"deep" + b"</div>" * depth + b"<p>End</p>"
        with pytest.raises(CorruptDocument, match="too many nested elements"):
            read(source, "a.html")


def test_html_nested_as_deep_as_the_parser_goes_is_whole() -> None:
    source = b"<html><body><p>Start</p>" + b"<div>" * 1_900 + b"deep" + b"</div>" * 1_900 + b"<p>End</p>"
    text = read(source, "a.html").pages[0].text
    assert [word in text for word in ("Start", "deep", "End")] == [True] * 3


def paragraph(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def test_docx_gives_headings_tables_and_notes() -> None:
    styles = f'<w:styles xmlns:w="{W}"><w:style w:styleId="Otsikko1"><w:name w:val="heading 1"/></w:style></w:styles>'
    notes = f'<w:footnotes xmlns:w="{W}"><w:footnote w:id="2">{paragraph("A note.")}</w:footnote></w:footnotes>'
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Esmeralda", "1854"))
    body = paragraph("Laivat", "Otsikko1") + paragraph("Satama on täynnä.") + f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    data = make_docx(body, extra={"word/styles.xml": styles, "word/footnotes.xml": notes})
    page = read(data, "a.docx").pages[0]

    assert page.text == "Laivat\n\nSatama on täynnä.\n\nEsmeralda | 1854\n\n[footnote 2] A note."
    assert [(h.text, h.level, h.start) for h in page.headings] == [("Laivat", 1, 0)]


def test_a_zip_bomb_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docx, "MAX_PART_BYTES", 1 << 20)
    data = make_docx(paragraph("x" * (8 << 20)))

    assert len(data) < 100_000
    with pytest.raises(DocumentTooLarge, match="has over 1 MiB of text; split the document"):
        read(data, "a.docx", isolate=False)


def test_a_docx_with_entities_is_refused() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'

    with pytest.raises(CorruptDocument, match="entities"):
        read(make_docx(paragraph("&b;"), prolog=bomb), "a.docx")


def test_a_truncated_docx_is_corrupt() -> None:
    data = make_docx(paragraph("text " * 5000))

    with pytest.raises(CorruptDocument, match="Word document"):
        read(data[: len(data) // 2], "a.docx")


def test_an_empty_docx_is_empty() -> None:
    with pytest.raises(EmptyDocument):
        read(make_docx("<w:p/>"), "a.docx")


@pytest.mark.parametrize(
    "attributes",
    [
        " ".join(f"a{number}=1" for number in range(300_000)),
        " ".join(f"a{number}='>'" for number in range(20_000)),
        '" ' + " ".join(f"a{number}" for number in range(20_000)),
        "/".join(f'a{number}="<p"' for number in range(20_000)),
    ],
    ids=["plain", "quoted ends", "a stray quotation mark", "slashes"],
)
def test_an_element_with_too_many_attributes_is_refused_before_it_is_parsed(attributes: str) -> None:
    """The parser compares each attribute with all others, so 300,000 take minutes."""
    page = f"<html><body><p>before</p><div {attributes}>text</div></body></html>".encode()
    with pytest.raises(CorruptDocument, match="more than 5,000 attributes"):
        read(page, "a.html", isolate=False)


def test_many_elements_with_few_attributes_are_read() -> None:
    page = "<p title='a > b' class=x>word</p>" * 3_000
    assert read(page.encode(), "a.html", isolate=False).pages[0].text.startswith("word")
