"""Read EPUB books: the chapters in reading order. A chapter is one page, or several pages if it has long sections. A
chapter without a heading gets its name from the table of contents. Books with copy protection are refused."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import unquote

from lxml import etree

from agentformer.errors import DocumentError
from agentformer.readers.encodings import decode
from agentformer.readers.formats import ReadOptions
from agentformer.readers.html import declared_encoding, outline_of
from agentformer.readers.sections import document_of
from agentformer.readers.zip_parts import DocumentKind, ZipParts
from agentformer.types import DocumentText, Page

_KIND = DocumentKind("EPUB book", "an EPUB editor")
_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_C = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_O = "{http://www.idpf.org/2007/opf}"
_N = "{http://www.daisy.org/z3986/2005/ncx/}"
_X = "{http://www.w3.org/1999/xhtml}"
_TITLE = ".//{http://purl.org/dc/elements/1.1/}title"
_METHOD = "{http://www.w3.org/2001/04/xmlenc#}EncryptionMethod"
_OF_FONTS = frozenset({"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"})  # encrypt only fonts
_NCX, _CHAPTERS = "application/x-dtbncx+xml", frozenset({"application/xhtml+xml", "text/html"})


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Raises `EncryptedDocument` if the book has copy protection, and `CorruptDocument` if a
    chapter is missing."""
    parts = ZipParts(data, _KIND)
    if _ENCRYPTION in parts:
        methods = parts.xml(_ENCRYPTION, doctype=True).iter(_METHOD)
        if any(method.get("Algorithm") not in _OF_FONTS for method in methods):
            raise parts.encrypted()
    root_file = next(parts.xml(_CONTAINER, doctype=True).iter(f"{_C}rootfile"), None)
    if root_file is None:
        raise parts.corrupt("has no list of chapters")
    place = root_file.get("full-path", "")
    package = parts.xml(place, doctype=True)
    items = {each.get("id", ""): each for each in package.iter(f"{_O}item")}
    names = _contents(parts, items, place)
    chapters = (items.get(each.get("idref", "")) for each in package.iter(f"{_O}itemref"))
    hrefs = [
        _path(place, each.get("href", ""))
        for each in chapters
        if each is not None and each.get("media-type") in _CHAPTERS and "nav" not in each.get("properties", "").split()
    ]
    pages = _pages(parts, hrefs, names)
    title = " ".join((package.findtext(_TITLE) or "").split())
    yield document_of(options.media_type, pages, options.limits, title)


def _pages(parts: ZipParts, hrefs: list[str], chapter_names: Mapping[str, str]) -> Iterator[Page]:
    number = 0
    for href in hrefs:
        if href not in parts:
            raise parts.corrupt(f"is incomplete: the chapter {posixpath.basename(href)[:80]} is missing")
        content = parts.read(href)
        builder, _ = outline_of(decode(content, declared_encoding(content)), whole=True)
        for page in builder.pages("epub"):
            number += 1
            yield replace(page, number=number, label=page.label or chapter_names.get(href, ""))


def _contents(parts: ZipParts, items: Mapping[str, etree._Element], place: str) -> dict[str, str]:
    """Return a dictionary: path of a chapter -> its name in the table of contents. `items` are the entries of the
    manifest; their links are relative to `place`, the path of the manifest. A damaged table of contents is ignored."""
    names: dict[str, str] = {}
    for item in items.values():
        path = _path(place, item.get("href", ""))
        if path not in parts:
            continue
        try:
            if item.get("media-type") == _NCX:
                points = parts.xml(path, doctype=True).iter(f"{_N}navPoint")
                found = [(each.find(f"{_N}content"), each.findtext(f"{_N}navLabel/{_N}text")) for each in points]
                links = [(link.get("src", ""), text) for link, text in found if link is not None]
            elif "nav" in item.get("properties", "").split():
                anchors = parts.xml(path, doctype=True).iter(f"{_X}a")
                links = [(each.get("href", ""), "".join(each.itertext())) for each in anchors]
            else:
                continue
        except DocumentError:
            continue
        for href, text in links:
            if text and text.strip():
                names.setdefault(_path(path, href), " ".join(text.split()))
    return names


def _path(base: str, href: str) -> str:
    """Return the path in the archive to which the link `href` in the file `base` leads."""
    path = unquote(href.partition("#")[0])
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(base), path)).lstrip("/")
