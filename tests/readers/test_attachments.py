"""Files inside of files, read by the real child process with all its restrictions: every container with every format.

A child that the tests fork has imported all parsers. Each child here is a new process, like that of a server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import cache

import pytest

from agentformer.errors import DocumentError
from agentformer.readers import formats, read
from agentformer.readers.sandbox import process as sandbox
from agentformer.types import DocumentText
from tests.readers.conftest import make_docx, make_pdf
from tests.readers.office_files import (
    make_epub,
    make_image,
    make_mail,
    make_odf,
    make_pptx,
    make_xlsx,
    shape,
    sheet,
    slide,
    text_cells,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]

SHIPS = "Ships lie at the pier."
LINE = b"From anna@example.org Tue Nov 24 10:00:00 2026\n"
CALENDAR = f"BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:{SHIPS}\nEND:VEVENT\nEND:VCALENDAR\n"
FILES: dict[str, Callable[[], bytes]] = {
    "a.pdf": lambda: make_pdf([[SHIPS]]),
    "a.docx": lambda: make_docx(f"<w:p><w:r><w:t>{SHIPS}</w:t></w:r></w:p>"),
    "a.pptx": lambda: make_pptx([slide(shape(SHIPS))]),
    "a.xlsx": lambda: make_xlsx({"S": sheet(text_cells(SHIPS))}),
    "a.odt": lambda: make_odf("text", f"<text:p>{SHIPS}</text:p>"),
    "a.ods": lambda: make_odf(
        "spreadsheet",
        f"<table:table><table:table-row><table:table-cell><text:p>{SHIPS}</text:p></table:table-cell>"
        "</table:table-row></table:table>",
    ),
    "a.odp": lambda: make_odf(
        "presentation", f"<draw:page><draw:frame><text:p>{SHIPS}</text:p></draw:frame></draw:page>"
    ),
    "a.epub": lambda: make_epub([f"<html><body><p>{SHIPS}</p></body></html>"]),
    "a.rtf": lambda: b"{\\rtf1 " + SHIPS.encode() + b"}",
    "a.html": lambda: f"<html><body><p>{SHIPS}</p></body></html>".encode(),
    "a.md": lambda: f"# Pier\n\n{SHIPS}".encode(),
    "a.ipynb": lambda: json.dumps({"cells": [{"cell_type": "markdown", "source": SHIPS}]}).encode(),
    "a.ics": CALENDAR.encode,
    "a.csv": lambda: f"place,text\npier,{SHIPS}\nquay,none\n".encode(),
    "a.tsv": lambda: f"place\ttext\npier\t{SHIPS}\nquay\tnone\n".encode(),
    "a.txt": lambda: f"Länsi. {SHIPS}".encode("cp1250"),
    "a.py": lambda: f"def ships():\n    return '{SHIPS}'\n".encode(),
    "a.eml": lambda: make_mail(SHIPS),
    "a.mbox": lambda: LINE + make_mail(SHIPS),
    "a.png": lambda: make_image([SHIPS], "PNG"),
    "a.jpg": lambda: make_image([SHIPS], "JPEG"),
    "a.tif": lambda: make_image([SHIPS], "TIFF"),
    "a.webp": lambda: make_image([SHIPS], "WEBP"),
}


def in_base64(message: bytes) -> bytes:
    head = b"From: a@b.example\nTo: c@d.example\nSubject: Outer\nContent-Type: message/rfc822\n"
    return head + b"Content-Transfer-Encoding: base64\n\n" + base64.encodebytes(message)


CONTAINERS: dict[str, Callable[[bytes], tuple[bytes, str]]] = {
    "eml": lambda mail: (mail, "box.eml"),
    "mbox": lambda mail: (
        LINE + make_mail("First.") + b"\n\n" + LINE + mail + b"\n\n" + LINE + make_mail("Last."),
        "box.mbox",
    ),
    "eml in eml": lambda mail: (make_mail("Outer.", [("inner.eml", mail)]), "box.eml"),
    "eml in base64": lambda mail: (in_base64(mail), "box.eml"),
    "mbox in eml": lambda mail: (make_mail("Outer.", [("inner.mbox", LINE + mail)]), "box.eml"),
}


@cache
def content(name: str) -> bytes:
    return FILES[name]()


def test_every_format_has_a_file_here() -> None:
    assert {formats.sniff(content(name), name) for name in FILES} == set(formats.ADAPTERS)


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each reader be a new process, which a fork of the tests replaces otherwise."""
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT + "\n")


def text_of(document: DocumentText) -> str:
    return "\n".join(page.text for page in document.pages)


@pytest.mark.usefixtures("new_processes")
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", FILES)
def test_each_format_is_read_in_each_container(name: str, container: str) -> None:
    data, box = CONTAINERS[container](make_mail("The letter.", [(name, content(name))]))
    document = read(data, box)
    text = text_of(document)
    assert document.status == "ready" and "The letter." in text
    if formats.sniff(content(name), name) in formats.IMAGES:
        assert SHIPS in text or f"not read: {name}: 1 of 1 pages have no usable text" in document.reason
    else:
        assert SHIPS in text and not document.reason
    assert container != "mbox" or ("First." in text and "Last." in text)


BROKEN = {
    "its parser has an error": "raise KeyError(1)",
    "its parser uses too much memory": "raise MemoryError",
    "its parser is refused by the sandbox": "import ctypes; ctypes.CDLL('libm.so.6')",
    "its parser crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "its parser ends": "import os; os._exit(1)",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_an_attachment_that_fails_loses_no_message(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    parser = (
        "import agentformer.readers.rtf as rtf\n"
        f"def parse(data, options):\n    {body}\n    yield\n"
        "rtf.parse = parse\nmain()\n"
    )
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT.replace("main()\n", parser))
    mail = make_mail("The letter.", [("good.txt", SHIPS.encode()), ("bad.rtf", content("a.rtf"))])
    document = read(CONTAINERS["mbox"](mail)[0], "box.mbox")
    text = text_of(document)
    assert all(part in text for part in ("First.", "The letter.", SHIPS, "Last."))
    assert document.reason.startswith("not read: bad.rtf: its parser ")


def test_a_refusal_of_the_sandbox_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = (
        "import agentformer.readers.rtf as rtf, socket\n"
        "def parse(data, options):\n    socket.socket()\n    yield\n"
        "rtf.parse = parse\nmain()\n"
    )
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT.replace("main()\n", parser))
    with pytest.raises(DocumentError, match=r"sandbox of the reader has refused .*socket") as caught:
        read(content("a.rtf"), "a.rtf")
    assert type(caught.value) is DocumentError and "malicious" not in str(caught.value)


def test_a_mail_without_attachments_imports_no_further_parser() -> None:
    assert formats.attached_types(make_mail("Ships."), formats.MAIL) == ()
    assert formats.attached_types(make_mail("Ships.", [("a.pdf", b"%PDF-1.4")]), formats.MAIL)
    assert formats.attached_types(in_base64(make_mail("Ships.")), formats.MAIL)
    assert formats.attached_types(b" " * (2 << 20), formats.MBOX)
    assert formats.attached_types(content("a.docx"), formats.DOCX) == ()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("new_processes")
def test_a_file_that_is_embedded_in_a_document_is_named_as_not_read(name: str) -> None:
    word = make_docx(f"<w:p><w:r><w:t>{SHIPS}</w:t></w:r></w:p>", extra={f"word/embeddings/{name}": content(name)})
    document = read(word, "box.docx")
    assert text_of(document) == SHIPS and document.reason.startswith("the embedded files are not read")
