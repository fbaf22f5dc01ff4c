"""HTML, Markdown and text files that mean harm, and files of two types at once, each made by a function."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

from .hostile_docx import BODY, archive, document
from .hostile_pdf import one_page

Make = Callable[[str], bytes]

PIER = "<p>Ships lie at the pier.</p>"


def page(body: str, head: str = "") -> bytes:
    return f"<!doctype html><html><head>{head}</head><body>{body}{PIER}</body></html>".encode()


def _active(url: str) -> bytes:
    return page(
        f"<script>CANARY</script><style>CANARY</style><iframe src='{url}'>CANARY</iframe><img src='{url}' "
        f"onerror='CANARY()'><object data='{url}'>CANARY</object><a href='javascript:CANARY()'>a link</a>"
        f"<svg><script>CANARY</script></svg><template>CANARY</template><noscript>CANARY</noscript>"
        f"<p onclick='CANARY' style='background:url({url})'>text</p><div hidden>CANARY</div>"
        f"<math><annotation>CANARY</annotation></math><link rel=stylesheet href='{url}'>"
        "<!-- CANARY --><!--[if IE]>CANARY<![endif]-->",
        f"<meta http-equiv=refresh content='0;url={url}'><base href='{url}'><script src='{url}'></script>",
    )


def _doctype(url: str) -> bytes:
    entities = f'<!DOCTYPE html [<!ENTITY e SYSTEM "file:///etc/passwd"><!ENTITY n SYSTEM "{url}">]>'
    return f"{entities}<html><body><p>x&e;&n;</p>{PIER}</body></html>".encode()


def _laughs(url: str) -> bytes:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return f'<!DOCTYPE html [<!ENTITY l0 "lol">{levels}]><html><body><p>&l9;</p>{PIER}'.encode()


def _deep(tag: str, depth: int) -> Make:
    return lambda url: page(f"<{tag}>" * depth + "deep")


def _comments(url: str) -> bytes:
    """Every way to tell them apart is tried by a careless expression, before any parser is there."""
    return b"<!---->" * 500 + b"<p>x"


def _marks(kind: str) -> Make:
    """Accents in the wrong order: sorting them takes the square of their number."""
    return lambda url: ("a" + "\u0301" * 200_000 + "\u0316" * 200_000).encode(kind)


def _tricks(url: str) -> bytes:
    bidi, invisible = "\u202a\u202b\u202d\u202e\u2066\u2067\u2069\u200f\u061c", "\u200b\u2060\ufeff\u00ad"
    return (f"a\x00b\x1b[2J\x1b]0;title\x07\x9b31m\x7f{bidi}{invisible}" + "\U000e0041 end\n").encode()


def _surrogates(url: str) -> bytes:
    return b"half \xed\xa0\x80 and \xed\xb0\x80 text " * 50


def _random(url: str) -> bytes:
    return random.Random(7).randbytes(1 << 20)


def _both(first: bytes, second: bytes) -> bytes:
    return first + second


HTMLS: dict[str, Make] = {
    "active": _active,
    "doctype": _doctype,
    "laughs": _laughs,
    "deep_divs": _deep("div", 1_000_000),
    "deep_inline": _deep("b", 300_000),
    "deep_tables": _deep("table><tr><td", 20_000),
    "deep_lists": _deep("ul><li", 100_000),
    "unclosed": lambda url: page("<p <p <p <a href='" * 100_000),
    "attributes": lambda url: page("<p " + "".join(f"a{n}='{'x' * 90}' " for n in range(100_000)) + ">text</p>"),
    "long_attribute": lambda url: page(f"<p title='{'x' * (20 << 20)}'>text</p>"),
    "data_address": lambda url: page(f"<img src='data:image/png;base64,{base64.b64encode(bytes(9 << 20)).decode()}'>"),
    "comment_that_never_ends": lambda url: page("<!-- " + "-" * (5 << 20)),
    "cdata": lambda url: page("<![CDATA[" * 100_000 + "]]>"),
    "utf7": lambda url: b"<html><head><meta charset=utf-7></head><body>+ADw-script+AD4-x+ADw-/script+AD4- ships</body>",
    "charset_unknown": lambda url: b"<html><head><meta charset='" + b"z" * 290 + b"'></head><body>\xe4 ships</body>",
    "charset_of_python": lambda url: b"<html><meta charset=unicode_escape><body>\\x41\xe4 ships \\ud800</body>",
    "numbers": lambda url: page("&#0;&#27;[2J&#x110000;&#xD800;&#x202E;&#99999999999999999999;" * 1000),
    "headings": lambda url: page("".join(f"<h{n % 6 + 1}>{n}</h{n % 6 + 1}>" for n in range(200_000))),
    "breaks": lambda url: page("x" + "<br>" * 500_000),
    "hidden": lambda url: page("<div style='" + "display :" * 100_000 + "'>x</div>"),
}
TEXTS: dict[str, Make] = {
    "comments": _comments,
    "marks": _marks("utf-8"),
    "marks_utf16": _marks("utf-16-le"),
    "tricks": _tricks,
    "surrogates": _surrogates,
    "surrogate_utf16": lambda url: b"\xff\xfe" + b"a\x00\x00\xd8" * 5000,
    "line_of_10_million": lambda url: b"x" * 10_000_000,
    "words_of_10_million": lambda url: "ä ".encode() * 3_500_000,
    "form_feeds": lambda url: b"\x0c" * (64 << 20),
    "broken_utf8": lambda url: "Ääkkönen ".encode() * 1000 + b"\xff\xfe\xfa" + "öljy ".encode() * 1000,
    "nuls": lambda url: b"a" * 1000 + bytes(1 << 20),
    "random": _random,
    "escape_codes": lambda url: b"\x1b$B" + bytes(range(33, 127)) * 5000,
    "mark_alone": lambda url: b"\xef\xbb\xbf",
    "odd_utf16": lambda url: b"\xff\xfea",
    "utf32_lies": lambda url: b"\xff\xfe\x00\x00" + b"\xff" * 4000,
}
MARKDOWNS: dict[str, Make] = {
    "quotes": lambda url: b">" * 1_000_000 + b" text",
    "brackets": lambda url: b"# " + b"[" * 500_000 + b"](" * 500_000 + b"\n\ntext",
    "emphasis": lambda url: b"# " + b"*_`" * 500_000 + b"x\n\ntext",
    "fences": lambda url: b"```\n" * 500_000 + b"text",
    "headings": lambda url: b"# x\n" * 300_000,
    "front_matter": lambda url: b"---\n" + b"title: '" * 200_000 + b"\n" * 200_000 + b"text",
    "underlines": lambda url: b"x\n" + b"=\n-\n" * 300_000,
    "blanks": lambda url: b"#" + b" \t" * 1_000_000 + b"x",
}
# Named as one thing, and another; what stands first counts.
TWO_TYPES: dict[str, tuple[str, Make]] = {
    "pdf_named_txt": ("a.txt", lambda url: one_page()),
    "docx_named_pdf": ("a.pdf", lambda url: archive((BODY, document()))),
    "html_named_docx": ("a.docx", lambda url: page("")),
    "zip_named_docx": ("a.docx", lambda url: archive(("readme.txt", "x"))),
    "zip_that_mentions_word": ("a.docx", lambda url: archive(("readme.txt", BODY), ("x" + BODY, "x"))),
    "program_named_pdf": ("a.pdf", lambda url: b"\x7fELF" + one_page()),
    "image_named_txt": ("a.txt", lambda url: b"GIF89a" + b"%PDF-1.4 1 0 obj" + bytes(99)),
    "pdf_then_zip": ("a.pdf", lambda url: _both(one_page(), archive((BODY, document())))),
    "zip_then_pdf": ("a.pdf", lambda url: _both(archive((BODY, document())), one_page())),
    "pdf_then_html": ("a.html", lambda url: _both(one_page(), page(""))),
    "html_then_pdf": ("a.html", lambda url: _both(b"<html><script>CANARY</script>\n", one_page())),
    "pdf_utf16": ("a.txt", lambda url: one_page().decode("latin-1").encode("utf-16")),
    "script": ("a.txt", lambda url: b"#!/bin/sh\necho ships\n"),
}
