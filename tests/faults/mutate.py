"""Thousands of damaged files: what is damaged, how, and what a reader makes of them.

    PYTHONPATH=. python tests/faults/mutate.py pdf 1000 SEED

reads mutants 0 to 999 of a kind, two at a time, and prints what became of them. `--write FOLDER NUMBER` keeps one.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import resource
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from agentformer.errors import DocumentError
from agentformer.readers import ReadLimits, read
from tests.faults.long_form import LONG
from tests.readers.conftest import COLLECTION, W, make_docx, make_pdf
from tests.readers.office_files import (
    make_epub,
    make_mail,
    make_odf,
    make_pptx,
    make_xlsx,
    shape,
    sheet,
    slide,
    table,
    text_cells,
)

KINDS = ("pdf", "docx", "html")
MORE_KINDS = ("pptx", "xlsx", "odt", "epub", "eml", "rtf", "csv")  # in the long form
LIMITS = ReadLimits(wall_seconds=15.0 if LONG else 5.0, memory_bytes=1 << 30)
PIER = "Ships lie at the pier, and the caretaker keeps the keys in the blue cupboard. "
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"65536",
    b"2147483647",
    b"-2147483648",
    b"4294967296",
    b"9" * 40,
    b"1e38",
    b".",
    b"7 0 R",
)
FILTERS = (
    b"/FlateDecode",
    b"/LZWDecode",
    b"/ASCII85Decode",
    b"/RunLengthDecode",
    b"/DCTDecode",
    b"/JBIG2Decode",
    b"/Crypt",
)
TAGS = (
    b"<div>",
    b"</table>",
    b"<table><td>",
    b"<script>",
    b"<!--",
    b"<![CDATA[",
    b"<p hidden>",
    b"&#0;",
    b"&x;",
    b"</",
)

Damage = Callable[[bytes, random.Random], bytes]


@cache
def seeds(kind: str) -> tuple[bytes, ...]:
    """Whole files that are damaged then: real ones where they are at hand, and some made here."""
    if kind == "pdf":
        real = [path.read_bytes() for path in sorted((COLLECTION / "files").glob("*.pdf"))]
        return (
            *real,
            make_pdf([[PIER] * 20, ["", PIER]], title="Harbour"),
            make_pdf([[f"{n} {PIER}"] for n in range(30)]),
        )
    if kind == "docx":
        paragraph = f"<w:p><w:pPr><w:pStyle w:val='h1'/></w:pPr><w:r><w:t>{PIER}</w:t><w:tab/></w:r></w:p>"
        table = f"<w:tbl><w:tr><w:tc>{paragraph}</w:tc><w:tc>{paragraph}</w:tc></w:tr></w:tbl>"
        styles = f'<w:styles xmlns:w="{W}"><w:style w:styleId="h1"><w:name w:val="heading 1"/></w:style></w:styles>'
        notes = f'<w:footnotes xmlns:w="{W}"><w:footnote w:id="2">{paragraph}</w:footnote></w:footnotes>'
        parts = {"word/styles.xml": styles, "word/footnotes.xml": notes}
        return make_docx(paragraph * 5), make_docx((paragraph + table) * 30, extra=parts)
    if kind in MORE_KINDS:
        return _more_seeds()[kind]
    rows = "".join(f"<tr><th>{n}</th><td>{PIER}<br>&amp; &eacute;</td></tr>" for n in range(40))
    head = '<head><meta charset="utf-8"><title>Harbour</title><style>p {color: red}</style></head>'
    main = f"<main><h1>Ships</h1><p class='a'>{PIER * 9}</p><ul><li>one<li>two</ul><table>{rows}</table></main>"
    whole = f"<!doctype html><html>{head}<body><nav>Home</nav>{main}</body></html>"
    return whole.encode(), f"<html><body><pre>{PIER}</pre>".encode()


@cache
def _more_seeds() -> dict[str, tuple[bytes, ...]]:
    cells = sheet(*(text_cells(f"Boat {n}", PIER, str(n)) + f"<c><f>A{n}</f><v>{n}.5</v></c>" for n in range(1, 40)))
    slides = [slide(shape("Keys", "title"), shape(PIER), table(("a", "b"), ("1", PIER), ("2", "x"))) for _ in range(5)]
    rows = "<table:table-row><table:table-cell><text:p>x</text:p></table:table-cell></table:table-row>" * 9
    text = f'<text:h text:outline-level="1">Keys</text:h><text:p>{PIER}</text:p><table:table>{rows}</table:table>' * 9
    mail = make_mail(PIER * 9, [("a.xlsx", make_xlsx({"a": cells})), ("b.eml", make_mail(PIER)), ("c.txt", b"x")])
    box = b"".join(b"From a@b.example Tue Nov 24 10:00:00 2026\n" + make_mail(PIER) + b"\n\n" for _ in range(5))
    rich = r"{\rtf1\ansi{\fonttbl{\f0 Arial;}}" + rf"\f0 {PIER}\par\page \'e4\u8364?\trowd a\cell b\cell\row" * 9 + "}"
    return {
        "pptx": (make_pptx(slides),),
        "xlsx": (make_xlsx({"Boats": cells, "Sails": cells}),),
        "odt": (make_odf("text", text), make_odf("spreadsheet", f"<table:table>{rows}</table:table>")),
        "epub": (make_epub([f"<html><body><h1>Keys</h1><p>{PIER * 9}</p></body></html>"] * 3),),
        "eml": (mail, box),
        "rtf": (rich.encode("ascii"),),
        "csv": (b"name;note\n" + f'Boat;"{PIER}"\n'.encode() * 200,),
    }


def mutant(kind: str, seed: int, number: int) -> bytes:
    """The same file for the same three."""
    choose = random.Random(f"{kind} {seed} {number}")
    data = choose.choice(seeds(kind))
    for _ in range(choose.choice((1, 1, 2, 5))):
        data = choose.choice(BYTES + SURGERY[kind])(data, choose)
    return data


def _flips(data: bytes, choose: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((1, 4, 32, 256)) if changed else 0):
        changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def _truncated(data: bytes, choose: random.Random) -> bytes:
    return data[: choose.randrange(1, len(data) + 1)] if data else data


def _block(data: bytes, choose: random.Random) -> tuple[int, int]:
    start = choose.randrange(len(data) + 1)
    return start, min(len(data), start + choose.choice((1, 16, 512, 8192)))


def _cut_out(data: bytes, choose: random.Random) -> bytes:
    start, end = _block(data, choose)
    return data[:start] + data[end:]


def _repeated(data: bytes, choose: random.Random) -> bytes:
    start, end = _block(data, choose)
    return data[:end] + data[start:end] * choose.choice((1, 3, 50)) + data[end:]


def _moved(data: bytes, choose: random.Random) -> bytes:
    start, end = _block(data, choose)
    rest, at = data[:start] + data[end:], choose.randrange(len(data) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def _noise(data: bytes, choose: random.Random) -> bytes:
    start, end = _block(data, choose)
    return data[:start] + choose.randbytes(end - start) + data[end:]


def _numbers(data: bytes, choose: random.Random) -> bytes:
    return _replaced(rb"(?<![\w.])-?\d+(?![\w.])", data, choose, lambda found: choose.choice(NUMBERS))


def _replaced(
    pattern: bytes, data: bytes, choose: random.Random, by: Callable[[re.Match[bytes]], bytes], most: int = 6
) -> bytes:
    """Some of the matches, told again by `by`."""
    found = list(re.finditer(pattern, data))
    for match in sorted(choose.sample(found, min(len(found), choose.randint(1, most))), key=lambda m: -m.start()):
        data = data[: match.start()] + by(match) + data[match.end() :]
    return data


def _pdf_values(data: bytes, choose: random.Random) -> bytes:
    """What a key says becomes another number, another object, or nothing."""
    keys = rb"/(?:Length|Count|Prev|Kids|Parent|Contents|Size|Root|W|Index|First|N|Width|Height|Type|Subtype"
    keys += rb"|Resources|MediaBox)"
    others = (b" 0 0 R", b" 1 0 R", b" 3 0 R", b"[3 0 R 3 0 R]", b"/Pages", b"<<>>", b"[[[[", b"null")

    def by(found: re.Match[bytes]) -> bytes:
        return found.group(1) + b" " + choose.choice((*NUMBERS, *others))

    return _replaced(rb"(" + keys + rb")\s*(?:\d+ \d+ R|\[[^\]]{0,200}\]|/?[\w.+-]+)", data, choose, by)


def _pdf_filters(data: bytes, choose: random.Random) -> bytes:
    def by(found: re.Match[bytes]) -> bytes:
        return b"/Filter[" + b"".join(choose.choices(FILTERS, k=choose.choice((1, 2, 20)))) + b"]"

    return _replaced(rb"/Filter\s*(?:\[[^\]]*\]|/\w+)", data, choose, by)


def _pdf_references(data: bytes, choose: random.Random) -> bytes:
    return _replaced(rb"\d+ 0 R", data, choose, lambda found: b"%d 0 R" % choose.randrange(40), most=12)


def _pdf_objects(data: bytes, choose: random.Random) -> bytes:
    """Objects swapped, removed, or there twice, with the numbers of others."""
    objects = [match.span(1) for match in re.finditer(rb"\d+ \d+ obj(.*?)endobj", data, re.DOTALL)]
    if len(objects) < 2:
        return _flips(data, choose)
    (a, b), (c, d) = sorted(choose.sample(objects, 2))
    changes = (
        data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:],
        data[:a] + data[b:],
        data[:b] + b"endobj\n%d 0 obj" % choose.randrange(40) + data[c:d] + data[b:],
    )
    return choose.choice(changes)


def _pdf_streams(data: bytes, choose: random.Random) -> bytes:
    contents = [match.span(1) for match in re.finditer(rb"stream\r?\n(.*?)endstream", data, re.DOTALL)]
    if not contents:
        return _noise(data, choose)
    start, end = choose.choice(contents)
    first, last = choose.choice(contents)
    other = choose.choice((b"", choose.randbytes(300), data[first:last], b"q BT /X Do " * 5000, data[start:end] * 3))
    return data[:start] + other + data[end:]


def _docx_part(data: bytes, choose: random.Random) -> bytes:
    """A part damaged inside of an archive that is whole."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            parts = {name: file.read(name) for name in file.namelist()}
    except Exception:  # damaged before: the file as a whole once more
        return _flips(data, choose)
    largest = max(parts, key=lambda each: len(parts[each]), default="")
    main = largest if "word/document.xml" not in parts and largest else "word/document.xml"
    name = choose.choice([*parts, *[main] * 4])
    damage = choose.choice((*BYTES, _tags, _tags, _tags))
    parts[name] = damage(parts.get(name, b""), choose)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", choose.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))) as file:
        for each, content in parts.items():
            file.writestr(each, content)
    return out.getvalue()


def _zip_headers(data: bytes, choose: random.Random) -> bytes:
    """Sizes, methods, flags and offsets, near the marks of headers."""
    marks = [match.start() for match in re.finditer(rb"PK(?:\x01\x02|\x03\x04|\x05\x06)", data)]
    changed = bytearray(data)
    for mark in choose.sample(marks, min(len(marks), 3)):
        at = mark + 4 + choose.randrange(42)
        if at < len(changed):
            changed[at] = choose.choice((0, 1, 8, 9, 0x7F, 0xFF, choose.randrange(256)))
    return bytes(changed)


def _tags(data: bytes, choose: random.Random) -> bytes:
    """Tags taken away, repeated, exchanged, left open, or put in."""

    def by(found: re.Match[bytes]) -> bytes:
        tag = found.group()
        deep = tag * choose.choice((2, 300, 5000))
        return choose.choice(
            (b"", deep, tag[:-1], tag[:1] + tag[2:], choose.choice(TAGS), tag.upper(), b"</" + tag[1:])
        )

    return _replaced(rb"<[^>]{1,300}>", data, choose, by, most=8)


BYTES: tuple[Damage, ...] = (_flips, _truncated, _cut_out, _repeated, _moved, _noise, _numbers)
SURGERY: dict[str, tuple[Damage, ...]] = {
    "pdf": (_pdf_values, _pdf_values, _pdf_filters, _pdf_references, _pdf_objects, _pdf_objects, _pdf_streams),
    "docx": (*[_docx_part] * 20, *[_zip_headers] * 5),  # damage of the packed bytes is mostly seen by the checksum
    "html": (_tags, _tags, _tags, _tags),
    **dict.fromkeys(("pptx", "xlsx", "odt", "epub"), (*[_docx_part] * 20, *[_zip_headers] * 5)),
    **dict.fromkeys(("eml", "rtf", "csv"), ()),
}


def read_all(kind: str, count: int, seed: int, *, at_once: int = 2) -> dict[str, object]:
    """What became of the mutants 0 to `count` - 1 of a kind."""
    seen: Counter[str] = Counter()
    failures: list[str] = []
    slowest = (0.0, -1)

    def one(number: int) -> None:
        nonlocal slowest
        data, began = mutant(kind, seed, number), time.monotonic()
        try:
            seen[read(data, f"a.{kind}", limits=LIMITS).status] += 1
        except DocumentError as error:
            seen[f"{type(error).__name__}: {_kind_of(str(error))}"] += 1
        except BaseException as error:
            failures.append(f"{kind} {seed} {number}: {type(error).__name__}: {error}"[:300])
        slowest = max(slowest, (round(time.monotonic() - began, 1), number))

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(count)))
    return {
        "kind": kind,
        "seed": seed,
        "read": count,
        "seen": dict(seen.most_common()),
        "slowest_seconds_and_number": slowest,
        "peak_bytes_of_a_reader": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "peak_bytes_of_this_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "failures": failures,
    }


def _kind_of(message: str) -> str:
    return re.sub(r"\d[\d,.]*", "N", message)[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS + MORE_KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--write", nargs=2, metavar=("FOLDER", "NUMBER"))
    given = parser.parse_args()
    if given.write:
        folder, number = Path(given.write[0]), int(given.write[1])
        (folder / f"{given.seed}-{number}.{given.kind}").write_bytes(mutant(given.kind, given.seed, number))
        return
    json.dump(read_all(given.kind, given.count, given.seed), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
