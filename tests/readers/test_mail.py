"""Mail as programs and mailing lists really write it: all of its text is read, or what is not read is named."""

from __future__ import annotations

import base64
import gc
from collections.abc import Iterator

import pytest

from agentformer.readers import read
from agentformer.readers.mail import parts
from agentformer.types import DocumentText
from tests.readers.office_files import make_mail

HEAD = b"From: Liv <liv@example.org>\nTo: desk@example.org\nSubject: x\nMIME-Version: 1.0\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\n\n"
HTML = b"Content-Type: text/html; charset=utf-8\n\n"


def here(data: bytes, name: str = "a.eml") -> DocumentText:
    return read(data, name, isolate=False)


def body(data: bytes) -> str:
    """The text below the headers of the first page."""
    return here(data).pages[0].text.partition("\n\n")[2]


def multipart(kind: str, *parts: bytes) -> bytes:
    return (
        f"Content-Type: multipart/{kind}; boundary=b-{kind}\n\n".encode()
        + b"".join(b"--b-%s\n%s\n" % (kind.encode(), part) for part in (*parts,))
        + b"--b-%s--\n" % kind.encode()
    )


def single(kind: str, content: bytes, coding: str = "8bit") -> bytes:
    return HEAD + f"Content-Type: {kind}\nContent-Transfer-Encoding: {coding}\n\n".encode() + content


def test_the_texts_around_an_image_are_all_read() -> None:
    image = b"Content-Type: image/png\nContent-ID: <i@x>\nContent-Transfer-Encoding: base64\n\niVBORw0KGgo=\n"
    mixed = multipart("mixed", TEXT + b"Before.", image, TEXT + b"Between.", image, HTML + b"<p>After.</p>")
    assert body(HEAD + mixed) == "Before.\n\nBetween.\n\nAfter."


@pytest.mark.parametrize(
    ("declared", "codec", "text"),
    [
        ("iso-2022-jp", "iso2022_jp", "会議は金曜日です。"),
        ("ISO-2022-JP-2", "iso2022_jp_2", "会議"),
        ("iso-2022-kr", "iso2022_kr", "회의는 금요일"),
        ("hz-gb-2312", "hz", "会议在星期五"),
        ("utf-7", "utf-7", "Smörgås på bordet"),
        ("unicode-1-1-utf-7", "utf-7", "Ägare: Åsa"),
        ("gb2312", "gb18030", "会议在星期五 €"),
        ("ks_c_5601-1987", "cp949", "회의는 금요일 똠"),
        ("big5", "big5", "會議在星期五"),
        ("koi8-r", "koi8-r", "Да"),
        ("windows-1255", "cp1255", "שלום"),
        ("iso-8859-8-i", "iso8859-8", "שלום"),
        ("x-mac-roman", "mac_roman", "Käännös"),
        ("windows-1250", "cp1250", "Řeka"),
        ("win-1251", "cp1251", "Да"),
        ("x-unknown", "utf-8", "Käännös"),
        ("iso-8859-1", "utf-8", "Käännös"),
    ],
)
def test_the_declared_encoding_is_obeyed(declared: str, codec: str, text: str) -> None:
    assert body(single(f'text/plain; charset="{declared}"', text.encode(codec))) == text
    word = base64.b64encode(text.encode(codec)).decode()
    headers = HEAD.replace(b"Subject: x", f"Subject: Re: =?{declared}?B?{word}?= end".encode())
    assert here(headers + TEXT).title == f"Re: {text} end"


def test_ascii_that_is_declared_as_utf_7_stays() -> None:
    text = "Price+tax is 5+6, key /kxdRlcPb+dRlcPb+2E- and +ZZ"
    assert body(single("text/plain; charset=utf-7", text.encode())) == text


def test_headers_with_bytes_of_other_encodings_are_text() -> None:
    for codec in ("utf-8", "cp1252"):
        attached = 'Content-Type: text/plain\nContent-Disposition: attachment; filename="Käyttöohje päivä.txt"\n\nx'
        data = HEAD.replace(b"x", "Käyttöohje päivitetty".encode(codec), 1) if codec == "utf-8" else HEAD
        data = HEAD.replace(b"Subject: x", "Subject: Käyttöohje päivitetty".encode(codec))
        document = here(data + multipart("mixed", TEXT + b"y", attached.encode(codec)))
        assert document.title == "Käyttöohje päivitetty"
        assert document.pages[1].label == "Käyttöohje päivä.txt > 1"


def test_an_encoded_word_may_divide_a_letter_and_have_spaces() -> None:
    subject = b"Subject: =?utf-8?B?S8Ok?= =?utf-8?Q?ytt=C3?=\n =?utf-8?Q?=B6ohje on?= ok"
    assert here(HEAD.replace(b"Subject: x", subject) + TEXT).title == "Käyttöohje on ok"


FOOTER = b"_______________________________________________\nharbour mailing list\nhttps://lists.example.org/\n"


@pytest.mark.parametrize("words", [1, 40, 57, 300])
@pytest.mark.parametrize("footer", [FOOTER, b"\n--\nUnsubscribe here\n", b"\nUnsubscribe\n"])
def test_text_after_base64_is_read(words: int, footer: bytes) -> None:
    text = " ".join(["Köysi"] * words)
    coded = base64.encodebytes(text.encode())
    expected = f"{text}\n\n{footer.decode().strip()}"
    assert body(single("text/plain; charset=utf-8", coded + footer, "base64")) == expected


def test_damaged_base64_loses_only_its_damaged_place() -> None:
    text = "".join(f"{n:04}, " for n in range(200))
    coded = base64.encodebytes(text.encode())
    damaged = coded[:400] + b"!" + coded[401:]
    words = body(single("text/plain", damaged, "base64")).split(", ")
    assert len(words) >= 199 and sum(word == f"{n:04}" for n, word in enumerate(words)) >= 198
    assert body(single("text/plain", coded.replace(b"\n", b"\r\r\n"), "base64")) == text.strip()
    halves = base64.encodebytes(b"first half; ") + base64.encodebytes(b"second half")
    assert body(single("text/plain", halves, "base64")) == "first half; second half"
    assert body(single("text/plain", b"This is no base64 at all.", "base64")) == "This is no base64 at all."


def test_a_nested_message_in_base64_is_read() -> None:
    coded = base64.encodebytes(make_mail("The inner one costs 20 €.", Subject="Inner"))
    head = b"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n"
    document = here(HEAD + multipart("mixed", TEXT + b"Outer.", head + coded))
    assert [page.label for page in document.pages] == ["x", "Inner"]
    assert document.pages[1].text.endswith("The inner one costs 20 €.") and not document.reason


@pytest.mark.parametrize("kind", ["plain", "html"])
def test_one_wrong_byte_damages_one_letter(kind: str) -> None:
    line = "<p>Kääpiö söi köyttä.</p>\n" if kind == "html" else "Kääpiö söi köyttä.\n\n"
    data = (line * 20).encode() + b"Last \xff line."
    text = body(single(f"text/{kind}; charset=utf-8", data))
    assert text.count("Kääpiö söi köyttä.") == 20 and text.endswith("Last \ufffd line.")


EVENT = """\
BEGIN:VCALENDAR
BEGIN:VTIMEZONE
TZID:Europe/Helsinki
BEGIN:STANDARD
DTSTART:16010101T040000
END:STANDARD
END:VTIMEZONE
BEGIN:VEVENT
SUMMARY:Budget round\\, spring
DTSTART{}
DTEND;VALUE=DATE:20260520
LOCATION:Room
  Kajava
ORGANIZER;CN="Moe, Liv":mailto:liv@example.org
DESCRIPTION:One\\nTwo; three
BEGIN:VALARM
DESCRIPTION:Reminder
END:VALARM
X-OTHER:no
END:VEVENT
END:VCALENDAR
"""


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (":20260519T070000Z", "2026-05-19 07:00 UTC"),
        (";TZID=Europe/Helsinki:20260519T100000", "2026-05-19 07:00 UTC"),
        (';TZID="FLE Standard Time":20260519T100000', "2026-05-19 10:00 (FLE Standard Time)"),
        (":20260519T100000", "2026-05-19 10:00"),
        (";VALUE=DATE:20260519", "2026-05-19"),
        (":soon", "soon"),
    ],
)
def test_a_calendar_entry_is_text_with_its_time(start: str, shown: str) -> None:
    calendar = EVENT.format(start).encode()
    expected = (
        f"Event: Budget round, spring\nStart: {shown}\nEnd: 2026-05-19\nLocation: Room Kajava\n"
        "Organizer: Moe, Liv <liv@example.org>\nDescription: One\nTwo; three"
    )
    part = b"Content-Type: text/calendar; charset=utf-8; method=REQUEST\n\n" + calendar
    attached = b"Content-Type: application/ics\nContent-Disposition: attachment; filename=invite.ics\n\n" + calendar
    both = HEAD + multipart("mixed", multipart("alternative", TEXT + b"You are invited.", part), attached)
    assert body(both) == f"You are invited.\n\n{expected}" and len(here(both).pages) == 1
    alone = here(HEAD + multipart("mixed", TEXT + b"See the file.", attached))
    assert [page.text for page in alone.pages[1:]] == [expected]
    assert here(calendar, "a.ics").pages[0].text == expected


def test_a_calendar_without_entries_stays_as_it_is() -> None:
    source = "BEGIN:VCALENDAR\nX-WR-CALNAME:Harbour\nBEGIN:VTIMEZONE\nTZID:Europe/Oslo\nEND:VTIMEZONE\nEND:VCALENDAR"
    assert here(source.encode(), "a.ics").pages[0].text == source
    busy = "BEGIN:VCALENDAR\nBEGIN:VFREEBUSY\nFREEBUSY:20260308T160000Z/20260308T190000Z\nEND:VFREEBUSY\nEND:VCALENDAR"
    assert here(busy.encode(), "a.ics").pages[0].text == "Busy: 2026-03-08 16:00 UTC/2026-03-08 19:00 UTC"


STUB = b"This message is in HTML. Please use a client that can show HTML."
LONG = " ".join(f"word{n}" for n in range(100))


def test_the_better_of_two_formats_is_read() -> None:
    def alternative(plain: str, html: str) -> str:
        return body(HEAD + multipart("alternative", TEXT + plain.encode(), HTML + html.encode()))

    stub = alternative(STUB.decode(), "<p>Revenue was <b>412,000</b> euros.</p>")
    assert stub == f"{STUB.decode()}\n\nRevenue was 412,000 euros."
    assert alternative("The fee is 20.", "<p>Junk</p>") == "The fee is 20.\n\nJunk"
    assert alternative("Fee 20", "<p>Fee: <b>20</b> of 2026, paid</p>") == "Fee: 20 of 2026, paid"
    assert alternative("Pier *four* is shut: https://a.example/b", "<p>Pier <b>four</b> is shut</p>").startswith(
        "Pier *"
    )
    assert alternative("会議は金曜日です", "<p>会議は<br>金曜日です</p>") == "会議は金曜日です"
    assert alternative(LONG, f"<p>{LONG} and some more text</p>") == LONG
    assert alternative(LONG, f"<p>{LONG} {LONG.replace('word', 'other')}</p>").endswith("other99")
    both = alternative(LONG, f"<p>{LONG.replace('word', 'other')}</p>")
    assert "word99" in both and "other99" in both


def test_an_attachment_between_the_formats_is_read() -> None:
    attached = b"Content-Type: text/csv; name=a.csv\nContent-Disposition: inline; filename=a.csv\n\na,b\n1,2\n3,4\n"
    rich = multipart("mixed", HTML + b"<p>Hello boats</p>", attached, HTML + b"<p>and ships</p>")
    document = here(HEAD + multipart("alternative", TEXT + b"Hello boats and ships", rich))
    assert [page.text.partition("\n\n")[2] or page.text for page in document.pages] == [
        "Hello boats and ships", "a | b\n1 | 2\n3 | 4",
    ]  # fmt: skip


def test_the_report_about_a_message_that_was_not_delivered_is_read() -> None:
    status = b"Reporting-MTA: dns; mx.example.org\n\nAction: failed\nStatus: 5.1.1\n"
    report = b"Content-Type: message/delivery-status\n\n" + status
    text = body(HEAD + multipart("report", TEXT + b"Not delivered.", report))
    assert text == "Not delivered.\n\nReporting-MTA: dns; mx.example.org\n\nAction: failed\nStatus: 5.1.1"


def test_a_message_without_the_border_of_its_parts_is_text() -> None:
    assert body(HEAD + b"Content-Type: multipart/mixed\n\nThe border is missing.\n") == "The border is missing."


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection, which would finalize what other tests left where the stack is almost full."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_damaged_part_is_named_and_loses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = HTML + b"<div>" * 70_000
    document = here(HEAD + multipart("mixed", TEXT + b"Kept.", deep))
    assert document.pages[0].text.endswith("Kept.") and document.reason.startswith("not read: the text in HTML: ")
    line = b"From liv@example.org Tue Nov 24 10:00:00 2026\n"
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(2_000))
    box = b"\n\n".join(line + HEAD + part for part in (TEXT + b"One.", nested, TEXT + b"Three."))
    document = here(box, "a.mbox")
    assert [page.text[-6:].strip() for page in document.pages] == ["One.", "Three."]
    assert document.reason.startswith("not read: message 2: ")
    monkeypatch.setattr(parts, "MAX_PARTS", 2)
    document = here(HEAD + multipart("mixed", *(TEXT + b"%d" % n for n in range(5))))
    assert document.pages[0].text.endswith("\n\n0\n\n1")
    assert document.reason == "not read: 3 parts after the first 2 parts of a message"
