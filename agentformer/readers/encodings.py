"""Decode the bytes of a text whose encoding may be named or not. The readers of all text formats use `decode`. This
function never replaces or drops a character."""

from __future__ import annotations

import codecs
import re
import unicodedata
from contextlib import suppress

from agentformer.errors import CorruptDocument
from agentformer.readers.formats import utf16_without_bom

_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Encodings that write all letters in ASCII; without their declaration, the text would be valid and wrong.
_IN_ASCII = frozenset(
    {"utf-7", "hz", "iso2022_kr", *(f"iso2022_jp{each}" for each in ("", "_1", "_2", "_2004", "_3", "_ext"))}
)
_SUPERSETS = {  # as in browsers
    **{"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"},
    **{"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs"},
}
_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs: the text is not in UTF-7
_NO_ENCODINGS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"})
_CODE_PAGE = re.compile(r"(?:windows|win|cp|ibm|dos)[-_ ]?(\d{3,5})")
_JAPANESE = ("cp932", "euc_jp", "iso2022_jp")
_C1 = re.compile(rb"[\x80-\x9f]")
# These bytes are letters and the euro sign in ISO-8859-15. In Windows-1252, they are symbols, which touch no letters.
_LATIN9_LETTER = re.compile(
    rb"(?<=[A-Za-z\xc0-\xff])[\xa6\xa8\xb4\xb8\xbc\xbd\xbe]|[\xa6\xa8\xb4\xb8\xbc\xbd\xbe](?=[a-z\xe0-\xff]{2})"
)
_LATIN9_EURO = re.compile(rb"\d\s?\xa4|\xa4\s?\d")
# Places at which no language of Western Europe has a symbol, or a capital letter with an accent.
_ODD = re.compile(
    r"(?<=[^\W\d_])[€‚ƒ„…†‡ˆ‰‹“”•˜™›¡¢£¤¥¦§¨©ª«¬®¯°±²³´¶¸¹º»¼½¾¿×÷](?=[^\W\d_])|(?<=[a-zß-öø-ÿ])[À-ÖØ-ÞŠŽŒŸ]"
)
_FOREIGN, _LETTER = re.compile(rb"[\x80-\xff]"), re.compile(rb"[A-Za-z\x80-\xff]")
_AROUND = 80  # bytes around a foreign letter from which the language is seen
_FEW = 25  # letters of a text; with fewer, statistics are chance
_LEAST_SCORE, _CLEARLY = 0.1, 1.25  # score of an encoding that contradicts Windows-1252, and its part of that score
_LEGACY = (
    *(f"cp125{n}" for n in range(9)), *(f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16)),
    *("mac-roman", "mac-cyrillic", "mac-greek", "mac-latin2", "mac-iceland", "mac-turkish", "koi8-r", "koi8-u"),
    *(f"cp{n}" for n in (850, 437, 737, 775, 852, 855, 857, 858, 860, 861, 862, 863, 865, 866, 874, 932, 949)),
    *("gb18030", "big5hkscs", "johab", "euc_jis_2004"),
)  # fmt: skip
_SAMPLE = 1 << 18  # bytes for statistics; decoding always covers the whole file
# Without half-width kana, because EUC and Latin bytes that are decoded as Shift-JIS contain half-width kana.
_KANA = re.compile("[\u3040-\u30ff]")


def decode(data: bytes, declared: str = "") -> str:
    """Return the decoded text. `declared` is the encoding that the file names, or "". These encodings are tried in
    order: the encoding of the byte order mark, the declared encoding if it writes all letters in ASCII, ISO-2022-JP,
    UTF-16, UTF-8, the declared encoding, other Japanese encodings, Western European encodings, and the encoding that
    statistics suggest. Raises `CorruptDocument` if no encoding fits."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _strict(data, encoding)
    if _codec(declared) in _IN_ASCII and data.isascii() and (text := _declared(data, declared)):
        return text
    if b"\x1b$" in data[:_SAMPLE] and (japanese := _japanese(data)):
        return japanese
    if encoding := utf16_without_bom(data):
        return _strict(data, encoding)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse_broken_utf8(data, error)
    return _declared(data, declared) or _japanese(data) or _legacy(data)


def decode_lossy(data: bytes, declared: str = "") -> str:
    """Return the text like `decode`. Bytes that do not belong to the encoding of the other bytes become U+FFFD."""
    name = _codec(declared)
    if name not in _IN_ASCII or b"\x1b" not in data:
        with suppress(CorruptDocument):
            return decode(data, declared)
    return data.decode(_SUPERSETS.get(name, name) or "utf-8", "replace")


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
    name = _codec(declared)
    for encoding in (_SUPERSETS.get(name, name), name) if name else ():
        with suppress(UnicodeDecodeError, ValueError):
            text = data.decode(encoding)
            return text if encoding != "utf-7" or not _HALVES.search(text) else ""
    return ""


def _codec(label: str) -> str:
    """Return Python's name of the encoding with this label, or "" if it is unknown."""
    label = label.strip().lower()
    page = _CODE_PAGE.search(label)
    for name in (label, label.removeprefix("x-"), label.removesuffix("-i"), f"cp{page[1]}" if page else ""):
        with suppress(LookupError, ValueError):
            found = codecs.lookup(name).name if name else ""
            if found and found not in _NO_ENCODINGS and "a".encode(found):
                return found
    return ""


def _japanese(data: bytes) -> str:
    """Decode with the Japanese encoding that gives the highest share of kana. Return "" if no share is above 0.3."""
    best, best_share = "", 0.3  # half of Japanese prose is kana; other text has a few per cent by chance
    for encoding in _JAPANESE:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        sample = text[:_SAMPLE]
        non_ascii = sum(1 for c in sample if c > "\x7f")
        share = len(_KANA.findall(sample)) / non_ascii if non_ascii else 0.0
        if share > best_share:
            best, best_share = text, share
    return best


def _legacy(data: bytes) -> str:
    """Return the text in the encoding that fits its language best. Western European encodings are preferred if the
    statistics do not clearly contradict, because they are the most frequent by far."""
    sample = _foreign_places(data)
    western = _western(data, sample)
    few = len(_LETTER.findall(sample)) < _FEW
    for encoding in ("mac_roman", "cp850") if few and not western else ():
        with suppress(UnicodeDecodeError):
            if not _ODD.search(text := data.decode(encoding)):
                return text
    ranked = [] if few and western else _ranked(sample)
    scores = {"cp1252": 0.0, **dict(ranked)}
    if western and (not ranked or ranked[0][1] < max(_LEAST_SCORE, _CLEARLY * scores["cp1252"])):
        return western
    for encoding, _ in ranked:
        with suppress(UnicodeDecodeError):
            return data.decode(encoding)
    raise CorruptDocument("the encoding of the text is not known; open the file in an editor and save it as UTF-8")


def _foreign_places(data: bytes) -> bytes:
    """Return the places of a text that are not in ASCII, with the words around them."""
    pieces: list[bytes] = []
    size = end = 0
    for found in _FOREIGN.finditer(data):
        if found.start() >= end:
            start = max(end, found.start() - _AROUND)
            pieces += ([b"\n"] if start > end else []) + [data[start : found.start() + _AROUND]]
            end = found.start() + _AROUND
            size += len(pieces[-1])
        if size > _SAMPLE:
            break
    return b"".join(pieces)


def _western(data: bytes, sample: bytes) -> str:
    """Return the text, decoded as Windows-1252 or ISO-8859-15. Return "" if `sample`, which is a part of the text, has
    too many accented letters or symbols for a Western European language, or has them at odd places, because the bytes
    must then have another encoding."""
    latin9 = not _C1.search(data) and (_LATIN9_EURO.search(data) or _LATIN9_LETTER.search(data))
    encoding = "iso8859-15" if latin9 else "cp1252"
    try:
        text, part = data.decode(encoding), sample.decode(encoding)
    except UnicodeDecodeError:
        return ""
    accented = sum(1 for c in part if c > "\x7f" and c.isalpha())
    symbols = sum(1 for c in part if c > "\x7f" and unicodedata.category(c) in ("Cc", "Sk", "So", "No"))
    plain = sum(1 for c in part if c < "\x80" and c.isalpha())
    runs = len(re.findall(r"[\u00c0-\u00ff]{3,}", part))
    most = plain // 2 if plain + accented >= _FEW else plain
    usual = accented <= most and runs * 20 <= accented and symbols <= max(2, accented)
    return text if usual and not _ODD.search(part) else ""


def _ranked(sample: bytes) -> list[tuple[str, float]]:
    """Return the names and the scores (higher is better) of the encodings that fit, the best first."""
    from chardet import detect_all  # few files need it

    found = detect_all(sample, max_bytes=len(sample), include_encodings=_LEGACY, compat_names=False)
    scores = [(each["encoding"], round(each["confidence"], 3)) for each in found if each["encoding"] in _LEGACY]
    return sorted(scores, key=lambda each: (-each[1], _LEGACY.index(each[0])))
