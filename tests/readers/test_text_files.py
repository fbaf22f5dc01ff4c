from __future__ import annotations

import pytest

from agentformer.errors import CorruptDocument, EmptyDocument, UnsupportedFormat
from agentformer.readers import read, sniff
from agentformer.types import DocumentText

from .conftest import make_pdf

pytestmark = pytest.mark.process

NORDIC = "Työkalu on pöydällä – på ängen växer blåbär och smör. Überall heißt es: “très élégant”, 5 € each.\n" * 3
JAPANESE = "これは日本語の文章です。港の灯台守は夜ごと船の数をかぞえました。カタカナもあります。\n" * 3


def text_of(document: DocumentText) -> str:
    return "\n".join(page.text for page in document.pages)


def test_every_encoding_gives_the_same_text() -> None:
    for encoding in ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]:
        assert text_of(read(NORDIC.encode(encoding), "a.txt")) == NORDIC.strip("\n")


def test_latin_9_keeps_its_euro_and_letters() -> None:
    text = "Hinta on 25 € ja työ maksaa 100 €. Le cœur de l'œuvre, à Šiauliai.\n" * 3

    assert text_of(read(text.encode("iso8859-15"), "a.txt")) == text.strip("\n")


def test_japanese_encodings_are_told_apart() -> None:
    for encoding in ["cp932", "euc_jp", "iso2022_jp", "utf-16"]:
        assert text_of(read(JAPANESE.encode(encoding), "a.txt")) == JAPANESE.strip("\n")


def test_cyrillic_is_not_read_as_western() -> None:
    for encoding in ["cp1251", "koi8_r"]:
        text = "Смотритель маяка считал корабли, которые проходили до полуночи, и писал их имена в книгу.\n" * 5

        assert text_of(read(text.encode(encoding), "a.txt")) == text.strip("\n")


def test_damaged_utf_8_is_refused_rather_than_filled_with_question_marks() -> None:
    data = NORDIC.encode("utf-8")
    broken = data[:100].rstrip(b"\x80") + b"\xff" + data[100:]

    with pytest.raises(CorruptDocument, match="is not; "):
        read(broken, "a.txt")


def test_nothing_to_read_is_empty() -> None:
    for data in [b"", b" \n\t\r\n ", "\ufeff".encode(), "\u00a0\u3000".encode()]:
        with pytest.raises(EmptyDocument):
            read(data, "a.txt")


def test_only_emoji_is_a_text() -> None:
    assert text_of(read("🚢⚓🌊".encode(), "a.txt")) == "🚢⚓🌊"


def test_binary_rubbish_is_no_text() -> None:
    with pytest.raises(UnsupportedFormat, match="PDF, Word"):
        read(bytes(range(256)) * 40, "a.txt")


def test_one_line_of_five_megabytes_becomes_sections_that_lose_nothing() -> None:
    line = "word " * 1_000_000
    document = read(line.encode(), "a.txt")

    assert len(document.pages) > 100
    assert "".join(page.text for page in document.pages) == line
    assert max(len(page.text) for page in document.pages) <= 40_000


def test_form_feeds_separate_pages() -> None:
    document = read(b"first\x0csecond", "a.txt")

    assert [(page.number, page.text) for page in document.pages] == [(1, "first"), (2, "second")]


def test_code_keeps_its_indentation() -> None:
    code = "def f(x):\n    if x:\n\n\n        return 1\n"

    assert text_of(read(code.encode(), "a.py")) == code.strip("\n")


def test_right_to_left_text_is_kept_and_direction_marks_are_not() -> None:
    assert text_of(read("\u202bسلام\u202c دنیا\u200cها".encode(), "a.txt")) == "سلام دنیا\u200cها"


def test_markdown_sections_carry_their_path() -> None:
    source = (
        "---\ntitle: 'Harbour book'\n---\nIntro.\n# One\ntext\n"
        "## *Two*\n```\n# no heading\n```\nSetext\n------\nend\n# Three\n"
    )
    document = read(source.encode(), "a.md")

    assert document.title == "Harbour book"
    assert [page.label for page in document.pages] == ["", "One", "One > Two", "One > Setext", "Three"]
    assert [(h.text, h.level) for page in document.pages for h in page.headings] == [
        ("One", 1),
        ("Two", 2),
        ("Setext", 2),
        ("Three", 1),
    ]
    assert "# no heading" in document.pages[2].text


def test_a_markdown_heading_has_no_spaces_and_no_closing_marks() -> None:
    source = "# " + " " * 3_000 + "One\n# Two #  \n#\n## Three# ##\ntext\n####### no heading\n#none\n"
    assert [page.label for page in read(source.encode(), "a.md").pages] == ["One", "Two", "Two > Three#"]


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (b"%PDF-1.4\n1 0 obj", "a.txt", "application/pdf"),
        (b"junk\n%PDF-1.4\n1 0 obj", "a", "application/pdf"),
        (b"The magic of a PDF is %PDF-, so they say.", "a.txt", "text/plain"),
        (b"<!DOCTYPE html><p>x", "a.txt", "text/html"),
        (b"# Title", "a.md", "text/markdown"),
        (b"# Title", "a.txt", "text/plain"),
        (b"\x89PNG\r\n\x1a\n", "a.pdf", "image/png"),
    ],
)
def test_the_type_comes_from_the_content(data: bytes, name: str, expected: str) -> None:
    assert sniff(data, name) == expected


def test_a_pdf_under_another_name_is_read_and_text_under_a_pdf_name_is_not() -> None:
    assert read(make_pdf([["A page of text."]]), "notes.txt").media_type == "application/pdf"
    with pytest.raises(UnsupportedFormat, match=r"not a PDF.*rename the file to \.txt"):
        read(b"../somewhere/else.pdf", "a.pdf")


def test_an_unknown_type_names_what_is_read() -> None:
    with pytest.raises(UnsupportedFormat, match="image/gif cannot be read; PDF, Word"):
        read(b"GIF89a" + bytes(50), "a.gif")
