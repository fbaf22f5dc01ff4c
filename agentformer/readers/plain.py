"""Read plain text: prose, logs, CSV and source code. Only line ends and control characters are changed.

The readers of all text formats use `decode`. This function never replaces or drops a character.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from charset_normalizer import from_bytes

from agentformer.errors import CorruptDocument
from agentformer.readers.adapters import ReadOptions
from agentformer.readers.code.languages import language_of
from agentformer.readers.media_type import utf16_without_bom
from agentformer.readers.sections import document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.types import DocumentText, Page


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. A form feed character begins a new page. A page that is too long is divided into several
    pages."""
    code = language_of(options.name)
    pages = _code_pages(decode(data), code) if code else _pages(decode(data))
    yield document_of(options.media_type, pages, options.limits)


def _code_pages(text: str, code: str) -> Iterator[Page]:
    """Yield the pages of source code. Nearly every file is one page, so that its parts are found together."""
    lines = text.replace("\f", "").replace("\r\n", "\n")
    line = 1 + len(lines) - len(lines.lstrip("\n"))  # `clean_plain` removes empty lines at the beginning
    for number, part in enumerate(parts_of(clean_plain(lines), _CODE_CHARS), 1):
        yield replace(page_of(number, part), line=line, code=code)
        line += part.count("\n")


def _pages(text: str) -> Iterator[Page]:
    parts = (part for sheet in text.split("\f") for part in parts_of(clean_plain(sheet)))
    for number, part in enumerate(parts, 1):
        yield page_of(number, part, str(number))


_CODE_CHARS = 1_000_000  # code points of a page of source code; longer files are generated


_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_JAPANESE = ("cp932", "euc_jp", "iso2022_jp")
_C1 = re.compile(rb"[\x80-\x9f]")
# Letters and the euro in ISO-8859-15, but symbols in Windows-1252, which do not touch letters.
_LATIN9_LETTER = re.compile(
    rb"(?<=[A-Za-z\xc0-\xff])[\xa6\xa8\xb4\xb8\xbc\xbd\xbe]|[\xa6\xa8\xb4\xb8\xbc\xbd\xbe](?=[a-z\xe0-\xff]{2})"
)
_LATIN9_EURO = re.compile(rb"\d\s?\xa4|\xa4\s?\d")
_SAMPLE = 1 << 18  # bytes for statistics; decoding always covers the whole file
_KANA = re.compile("[\u3040-\u30ff]")  # not half-width: EUC and Latin bytes read as Shift-JIS look like that


def decode(data: bytes, declared: str = "") -> str:
    """Return the decoded text. `declared` is the encoding that the file names, or "". These encodings are tried: that
    of the byte order mark, ISO-2022-JP, UTF-16, UTF-8, the declared one, other Japanese encodings, Western European
    encodings, and the one that statistics suggest. Raises `CorruptDocument` if none fits."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _strict(data, encoding)
    if b"\x1b$" in data[:_SAMPLE] and (japanese := _japanese(data)):
        return japanese
    if encoding := utf16_without_bom(data):
        return _strict(data, encoding)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse_broken_utf8(data, error)
    return _declared(data, declared) or _japanese(data) or _western(data) or _statistical(data)


def _strict(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise CorruptDocument(
            f"the text is mostly {encoding.upper()}, but the byte at offset {error.start} is not; "
            "open the file in an editor and save it as UTF-8"
        ) from error


def _refuse_broken_utf8(data: bytes, error: UnicodeDecodeError) -> None:
    """Raise `CorruptDocument` if the bytes are UTF-8 with a few invalid bytes. Otherwise, another encoding would be
    tried, and the text would be garbled."""
    text = data[:_SAMPLE].decode("utf-8", "surrogateescape")
    broken = sum(1 for c in text if "\udc80" <= c <= "\udcff")
    good = sum(1 for c in text if c > "\x7f") - broken
    if good >= 4 and good > 4 * broken:
        raise CorruptDocument(
            f"the text is mostly UTF-8, but the byte at offset {error.start} is not; save the file again as UTF-8"
        )


def _declared(data: bytes, declared: str) -> str:
    try:
        # Browsers read declared Latin-1 as Windows-1252, too.
        name = codecs.lookup(declared).name
        return data.decode("cp1252" if name in ("iso8859-1", "ascii") else name)
    except (LookupError, UnicodeDecodeError, ValueError):
        return ""


def _japanese(data: bytes) -> str:
    best, best_share = "", 0.3  # half of Japanese prose is kana; other text has a few per cent by chance
    for encoding in _JAPANESE:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        sample = text[:_SAMPLE]
        foreign = sum(1 for c in sample if c > "\x7f")
        share = len(_KANA.findall(sample)) / foreign if foreign else 0.0
        if share > best_share:
            best, best_share = text, share
    return best


def _western(data: bytes) -> str:
    """Return the text, decoded as Windows-1252 or ISO-8859-15. Return "" if this text has too many accented letters or
    symbols for a Western European language, because then the bytes have another encoding."""
    latin9 = not _C1.search(data) and (_LATIN9_EURO.search(data) or _LATIN9_LETTER.search(data))
    try:
        text = data.decode("iso8859-15" if latin9 else "cp1252")
    except UnicodeDecodeError:
        return ""
    sample = text[:_SAMPLE]
    accented = sum(1 for c in sample if c > "\x7f" and c.isalpha())
    symbols = sum(1 for c in sample if c > "\x7f" and unicodedata.category(c) in ("Cc", "Sk", "So", "No"))
    plain = sum(1 for c in sample if c < "\x80" and c.isalpha())
    runs = len(re.findall(r"[\u00c0-\u00ff]{3,}", sample))
    return text if accented * 2 <= plain and runs * 20 <= accented and symbols <= max(2, accented) else ""


def _statistical(data: bytes) -> str:
    best = from_bytes(data[:_SAMPLE] if len(data) > 2 * _SAMPLE else data).best()
    if best is not None:
        with suppress(UnicodeDecodeError):
            return data.decode(best.encoding)
    raise CorruptDocument("the encoding of the text is not known; open the file in an editor and save it as UTF-8")
