"""Word files that mean harm, each made by a function: zip bombs, lies in headers, path tricks, entities."""

from __future__ import annotations

import io
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable

from .conftest import W
from .hostile_pdf import deflated

Make = Callable[[str], bytes]

TYPES, BODY = "[Content_Types].xml", "word/document.xml"
PARAGRAPH = "<w:p><w:r><w:t>Ships lie at the pier.</w:t></w:r></w:p>"


def document(body: str = PARAGRAPH, prolog: str = "", attributes: str = "") -> str:
    return f'{prolog}<w:document xmlns:w="{W}"{attributes}><w:body>{body}</w:body></w:document>'


def archive(*parts: tuple[str | zipfile.ZipInfo, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same name twice is meant
        for name, content in ((TYPES, "<Types/>"), *parts):
            file.writestr(name, content)
    return out.getvalue()


def packed(name: str, data: bytes, unpacked: int, *, flags: int = 0) -> bytes:
    """An archive with one part, whose headers say what one wants."""
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, 8, 0, 0, 0, len(data), unpacked, len(name), 0)
    central = struct.pack(
        "<4s6H3L5H2L", b"PK\1\2", 20, 20, flags, 8, 0, 0, 0, len(data), unpacked, len(name), 0, 0, 0, 0, 0, 0
    )
    body, directory = local + name.encode() + data, central + name.encode()
    return body + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(body), 0)


def _raw(bomb: bytes) -> bytes:
    return bomb[2:-4]  # zip has deflate without zlib's frame


def _bomb(claimed: int) -> Make:
    def make(url: str) -> bytes:
        return packed(BODY, _raw(deflated(b"<w:p/>" * (1 << 20), 700)), claimed)  # 4 GB

    return make


def _overlapping(url: str) -> bytes:
    """Thousands of names for the same packed bytes."""
    data = _raw(deflated(b" " * (1 << 20), 50))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(data), 50 << 20, len(BODY), 0)
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(data), 50 << 20, len(BODY), *[0] * 6)
    body, directory = local + BODY.encode() + data, (entry + BODY.encode()) * 20_000
    return body + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 20_000, 20_000, len(directory), len(body), 0)


def _million_entries(url: str) -> bytes:
    body = archive((BODY, document()))
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, *[0] * 6) + b"x"
    at = body.index(b"PK\1\2")
    directory = body[at : body.index(b"PK\5\6")] + entry * 1_000_000
    return body[:at] + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(directory), at, 0)


def _paths(url: str) -> bytes:
    link = zipfile.ZipInfo("word/link.xml")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    names = ("../../../../tmp/evil", "/tmp/evil", "..\\..\\evil", "C:\\evil", "word/../../evil", "nul\0l", "a\nb")
    return archive((BODY, document()), (link, "/etc/passwd"), *((name, "evil") for name in names))


def _body_is_a_link(url: str) -> bytes:
    link = zipfile.ZipInfo(BODY)
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return archive((link, "/etc/passwd"))


def _laughs(url: str) -> bytes:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    prolog = f'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY l0 "lol">{levels}]>'
    return archive((BODY, document("<w:p><w:r><w:t>&l9;</w:t></w:r></w:p>", prolog)))


def _quadratic(url: str) -> bytes:
    prolog = f'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "{"a" * 100_000}">]>'
    return archive((BODY, document(f"<w:p><w:r><w:t>{'&a;' * 100_000}</w:t></w:r></w:p>", prolog)))


def _external(declaration: str) -> Make:
    def make(url: str) -> bytes:
        prolog = f'<?xml version="1.0"?><!DOCTYPE d [{declaration.format(url=url)}]>'
        return archive((BODY, document(f"<w:p><w:r><w:t>x&e;</w:t></w:r></w:p>{PARAGRAPH}", prolog)))

    return make


def _external_parts(url: str) -> bytes:
    relations = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="t" Target="{url}" TargetMode="External"/></Relationships>'
    )
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file:///etc/passwd" parse="text"/>'
    sheet = f'<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="{url}"?>'
    return archive((BODY, document(include + PARAGRAPH, sheet)), ("word/_rels/document.xml.rels", relations))


def _deep(tag: str, depth: int) -> Make:
    return lambda url: archive((BODY, document(f"<w:{tag}>" * depth + PARAGRAPH + f"</w:{tag}>" * depth)))


def _deep_tables(url: str) -> bytes:
    depth = 60
    opened = f"<w:tbl><w:tr><w:tc>{PARAGRAPH}" * depth
    return archive((BODY, document(opened + PARAGRAPH * 1000 + "</w:tc></w:tr></w:tbl>" * depth)))


def _attributes(url: str) -> bytes:
    many = "".join(f' a{n}="{n}"' for n in range(100_000))
    return archive((BODY, document(f'<w:p{many} big="{"x" * (12 << 20)}"/>' + PARAGRAPH)))


def _truncated(url: str) -> bytes:
    return archive((BODY, document(PARAGRAPH * 1000)))[:-60]


def _twice(url: str) -> bytes:
    return archive((BODY, document()), (BODY, document("<w:p><w:r><w:t>The other one.</w:t></w:r></w:p>")))


def _styles(url: str) -> bytes:
    styles = f'<w:styles xmlns:w="{W}">' + '<w:style w:styleId="s"><w:name w:val="heading 9"/></w:style>' * 100_000
    title = f"<c xmlns:d='http://purl.org/dc/elements/1.1/'><d:title>{'t' * 1_000_000}\u202e</d:title></c>"
    return archive((BODY, document()), ("word/styles.xml", styles + "</w:styles>"), ("docProps/core.xml", title))


DOCXS: dict[str, Make] = {
    "bomb": _bomb((1 << 32) - 1),
    "bomb_that_claims_little": _bomb(1000),
    "overlapping": _overlapping,
    "million_entries": _million_entries,
    "paths": _paths,
    "body_is_a_link": _body_is_a_link,
    "laughs": _laughs,
    "quadratic": _quadratic,
    "entity_file": _external('<!ENTITY e SYSTEM "file:///etc/passwd">'),
    "entity_net": _external('<!ENTITY e SYSTEM "{url}">'),
    "entity_parameter": _external('<!ENTITY % p SYSTEM "{url}"> %p; <!ENTITY e "x">'),
    "external_parts": _external_parts,
    "deep_controls": _deep("sdt", 200),
    "deeper_than_the_parser": _deep("sdtContent", 1_000_000),
    "deep_tables": _deep_tables,
    "attributes": _attributes,
    "encrypted": lambda url: packed(BODY, _raw(zlib.compress(document().encode())), 10, flags=1),
    "sizes_lie": lambda url: packed(BODY, _raw(zlib.compress(document().encode())), 3),
    "no_deflate": lambda url: packed(BODY, b"\xff" * 5000, 5000),
    "truncated": _truncated,
    "twice": _twice,
    "styles": _styles,
    "utf16_bomb": lambda url: archive((BODY, document(PARAGRAPH * 10_000, '<?xml version="1.0"?>').encode("utf-16"))),
    "no_body": lambda url: archive((BODY, f'<w:document xmlns:w="{W}"/>')),
    "not_xml": lambda url: archive((BODY, b"\x00" * 1000)),
}
