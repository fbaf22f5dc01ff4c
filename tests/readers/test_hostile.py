"""Files that mean harm end in text or in a typed error, and take nothing with them: no memory of this process, no file
of this machine, no call to anybody.

`FAULTS_HOSTILE=all` reads all of them, also those whose readers are ended by their limits.
"""

from __future__ import annotations

import os
import socket
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge, UnsupportedFormat
from agentformer.readers import ReadLimits, read
from agentformer.types import DocumentText
from tests import forked

from .hostile import HOSTILE
from .hostile_text import TWO_TYPES

resource = pytest.importorskip("resource", reason="the readers have limits on POSIX only")
pytestmark = pytest.mark.process

LIMITS = ReadLimits(wall_seconds=5.0, memory_bytes=1 << 30)
QUICK = (
    *("pdf-flate_bomb", "pdf-filter_chain", "pdf-nested_arrays", "pdf-kids_circle", "pdf-object_stream_loop"),
    *("pdf-image_100000", "pdf-many_updates", "pdf-outline_loop", "pdf-reaching_out"),
    *("docx-overlapping", "docx-quadratic", "docx-entity_net", "docx-sizes_lie", "html-active", "html-doctype"),
    *("html-deep_divs", "html-numbers", "pptx-bomb", "pptx-entities", "xlsx-cells_far_away", "xlsx-entities"),
    *("ods-repeated", "epub-entities", "eml-deep", "eml-bomb", "eml-image", "rtf-deep", "csv-columns", "png-lies"),
    *("tiff-loop", "txt-tricks", "txt-surrogate_utf16", "txt-nuls", "md-brackets"),
)
# Each is refused for the very reason for which it was made, or read as what it honestly is.
REFUSED: dict[str, tuple[type[DocumentError], str]] = {
    "docx-bomb": (DocumentTooLarge, "over 200 MiB"),
    "docx-bomb_that_claims_little": (CorruptDocument, "damaged"),
    "docx-entity_file": (CorruptDocument, "declares XML entities"),
    "docx-laughs": (CorruptDocument, "damaged"),
    "pdf-page_laughs": (CorruptDocument, "claims 1,000,000"),
    "pdf-same_page_a_million_times": (DocumentTooLarge, "1,000,000 pages"),
}
HONEST = ("pdf-prev_loop", "pdf-xref_lies", "pdf-form_loop", "docx-paths", "docx-external_parts")
TYPES: dict[str, str | None] = {  # None: refused
    "pdf_named_txt": "application/pdf",
    "docx_named_pdf": None,
    "html_named_docx": "text/html",
    "zip_named_docx": None,
    "zip_that_mentions_word": None,
    "program_named_pdf": None,
    "image_named_txt": None,
    "pdf_then_zip": "application/pdf",
    "zip_then_pdf": None,
    "pdf_then_html": "application/pdf",
    "html_then_pdf": "application/pdf",
    "pdf_utf16": "text/plain",
    "script": "text/plain",
}
KNOWN = (*REFUSED, *HONEST, *(f"types-{name}" for name in TYPES))
CHOSEN = tuple(HOSTILE) if os.environ.get("FAULTS_HOSTILE") else (*QUICK, *KNOWN)
GROWTH = 64 << 20  # bytes that this process may need beyond the file and its text


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def everything(document: DocumentText) -> str:
    pages = [f"{p.text} {p.label} {p.reason} {[h.text for h in p.headings]}" for p in document.pages]
    return "\n".join([*pages, document.title, document.reason])


@pytest.mark.parametrize("name", CHOSEN)
def test_a_hostile_file_ends_in_text_or_a_typed_error(name: str, listener: socket.socket) -> None:
    file, make = HOSTILE[name]
    data = make(f"http://127.0.0.1:{listener.getsockname()[1]}/canary")
    before = peak_bytes()
    found: DocumentText | DocumentError
    try:  # what is known of has more time, so that it is not the time of a busy machine that refuses it
        found = read(data, file, limits=replace(LIMITS, wall_seconds=60.0) if name in KNOWN else LIMITS)
    except DocumentError as error:
        assert str(error) and len(str(error)) < 500
        found, text = error, str(error)
    else:
        text = everything(found)
    assert peak_bytes() - before < GROWTH + 2 * len(data) + 16 * len(text)
    assert "CANARY" not in text and passwords() not in text
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n"]
    assert not set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u061c\u200e\u200f") & set(text)
    with pytest.raises(BlockingIOError):
        listener.accept()
    check(name, found)


def check(name: str, found: DocumentText | DocumentError) -> None:
    """Compare with what is known of the file."""
    if name in REFUSED:
        error, told = REFUSED[name]
        assert type(found) is error and told in str(found)
    elif name in HONEST:
        assert isinstance(found, DocumentText) and found.pages[0].text.startswith("Ships lie at the pier.")
    elif name.removeprefix("types-") in TYPES:  # content decides what a file of two types is
        kind = found.media_type if isinstance(found, DocumentText) else None
        assert kind == TYPES[name.removeprefix("types-")]
        assert kind or type(found) is UnsupportedFormat


def test_every_file_of_two_types_has_an_expected_type() -> None:
    assert set(TYPES) == set(TWO_TYPES)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def passwords() -> str:
    return Path("/etc/passwd").read_text().partition("\n")[0]


DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def test_a_zip_with_a_document_of_word_is_one_also_with_a_pdf_behind_it() -> None:
    _, make = TWO_TYPES["zip_then_pdf"]
    assert read(make(""), "a.docx", limits=LIMITS).media_type == DOCX


def test_what_this_process_does_before_the_reader_starts_takes_no_longer_than_the_file_is_long() -> None:
    """In another process, since what it would hang for ever is all threads of this one."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (30, 30))\n"
        "from agentformer.readers import read\nfrom agentformer.readers.sandbox import process as sandbox\n"
        "from tests.readers.hostile import HOSTILE\n"
        "sandbox._BOOT = ''\n"
        "for name in sys.argv[1:]:\n"
        "    file, make = HOSTILE[name]\n"
        "    try:\n        read(make(''), file)\n    except Exception as error:\n        print(type(error).__name__)\n"
        "print('ended')\n"
    )
    names = ("txt-comments", "docx-million_entries", "txt-marks")
    ran = forked.ended(forked.program(code, *names, cwd=ROOT))
    assert ran.stdout.endswith("ended\n"), ran


ROOT = Path(__file__).resolve().parents[2]
