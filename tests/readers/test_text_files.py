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


LEGACY = {
    "Jyväskylän kaupunki myöntää avustuksen. Ääkköset ovat hyvä asia.": ("cp1252", "mac_roman", "cp850"),
    "L'élève a déjà reçu une façade, mais où étiez-vous ? À demain, garçon.": ("cp1252", "mac_roman", "cp850"),
    "Die Straße gehört zur Übung, natürlich mit größeren Mühen als üblich.": ("cp1252", "mac_roman", "cp850"),
    "Gmina przyznaje dotację. Wniosek należy złożyć, także w języku polskim.": ("cp1250", "iso8859-2", "cp852"),
    "Žádost je třeba podat před koncem měsíce, jinak nebude přijata.": ("cp1250", "iso8859-2", "mac_latin2"),
    "A kérelmet a hónap vége előtt kell benyújtani, különben nem fogadják el.": ("cp1250", "iso8859-2"),
    "Başvurunun ay sonundan önce yapılması gerekiyor, çocuklar dışarıda.": ("cp1254", "cp857"),
    "Prašymą reikia pateikti iki mėnesio pabaigos, kitaip jis nebus priimtas.": ("cp1257", "iso8859-13"),
    "יש להגיש את הבקשה לפני סוף החודש, אחרת היא לא תתקבל.": ("cp1255", "iso8859-8"),
    "يجب تقديم الطلب قبل نهاية الشهر وإلا فلن يتم قبوله.": ("cp1256", "iso8859-6"),
    "Η αίτηση πρέπει να υποβληθεί πριν από το τέλος του μήνα.": ("cp1253", "iso8859-7", "mac_greek"),
    "Заявление необходимо подать до конца месяца.": ("cp1251", "koi8-r", "cp866", "mac_cyrillic"),
    "ต้องยื่นคำขอก่อนสิ้นเดือน": ("cp874",),
    "申请必须在月底之前提交，否则不予受理。": ("gb18030",),
    "申請必須在月底之前提交，否則不予受理。": ("big5",),
    "신청은 월말 이전에 제출해야 하며, 그렇지 않으면 접수되지 않습니다.": ("cp949",),
}


@pytest.mark.parametrize("text", LEGACY)
def test_legacy_encodings_are_told_by_their_language(text: str) -> None:
    for encoding in LEGACY[text]:
        assert text_of(read(text.encode(encoding), "a.txt")) == text, encoding


@pytest.mark.parametrize(
    "text",
    ["är", "Jyväskylä", "Grüße", "don’t do that", "“quoted” — text", "price: 5 £", "20 °C", "½ cup", "café", "naïve",
     "1 250 € on", "We don’t “know” – it’s 5 £ and 20 °C. © 2026", "item • one\nitem • two", "§ 12 Abs. 3", "Ünal",
     "The fees would rise, and that was not the first time. It’s 5 £. Zoë and Mr Müller agreed.", "São Paulo"],
)  # fmt: skip
def test_a_few_letters_are_western_european(text: str) -> None:
    assert text_of(read(text.encode("cp1252"), "a.txt")) == text


def test_short_text_of_an_old_mac_is_told_by_its_odd_places() -> None:
    for text in ("Jyväskylä", "på", "café", "São Paulo", "Smörgås på bordet", "don’t do that", "fiancée résumé"):
        assert text_of(read(text.encode("mac_roman"), "a.txt")) == text


def test_a_foreign_letter_far_into_a_file_decides_its_encoding() -> None:
    text = "Plain words of a long log. " * 30_000 + "\nWniosek należy złożyć, także w języku polskim, jeżeli można."
    document = read(text.encode("cp1250"), "a.txt")
    assert document.pages[-1].text.endswith("Wniosek należy złożyć, także w języku polskim, jeżeli można.")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"Report of the night\0\nkey 77-B.\n", "Report of the night\nkey 77-B."),
        (
            b"one\0two \0three\n\0\0\0four and " + b" ".join([b"words"] * 20),
            "one two three\nfour and " + " ".join(["words"] * 20),
        ),
        (b"\x1b[32mINFO\x1b[0m start\n\x1b[1;31mERROR\x1b[0m disk", "INFO start\nERROR disk"),
        (
            b"\x1b]0;title\x07text \x1b]8;;http://a.example\x1b\\link\x1b]8;;\x1b\\ \x1b(B\x1b[m\x1b[?25lend",
            "text link end",
        ),
        (b"N\bNA\bAM\bME\bE _\bf_\bi_\bl_\be", "NAME file"),
    ],
)
def test_codes_of_terminals_and_nul_characters_are_no_text(data: bytes, text: str) -> None:
    assert text_of(read(data, "a.log")) == text
    assert text_of(read(data * 400, "a.log")).count(text.split("\n")[-1]) == 400


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
