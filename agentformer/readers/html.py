"""Read HTML with the parser of lxml, without network access. The text is divided into pages at headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from lxml import etree
from lxml import html as lxml_html

from agentformer.errors import CorruptDocument
from agentformer.readers.formats import ReadOptions
from agentformer.readers.plain import decode
from agentformer.readers.sections import OutlineBuilder, document_of
from agentformer.types import DocumentText

_META_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
# XHTML: `<title/>` has no content, but the HTML parser would read all that follows as the title.
_EMPTY_ELEMENT = re.compile(r"<((title|script|style|textarea|iframe|a|span|div|p|i|b|em|td|th)\b[^<>]{0,2000})/>")
_ATTRIBUTE = re.compile(r"""[\s/]*+[^\s>/][^\s=>/]*+(?:\s*+=\s*+(?:"[^"]*+(?:"|$)|'[^']*+(?:'|$)|[^\s>]*+))?+""")
_TAG = re.compile(rf"<[A-Za-z][^\s/>]*+(?:{_ATTRIBUTE.pattern})*+")
_MOST_ATTRIBUTES = 5_000  # of one element; the parser compares each attribute with all others
_DROPPED = frozenset({
    "script", "style", "noscript", "template", "svg", "math", "head", "nav", "iframe", "object", "embed",
    "canvas", "button", "select", "dialog",
})  # fmt: skip
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header",
    "hr", "li", "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul",
})  # fmt: skip
_PARAGRAPHS = frozenset({
    "p", "div", "blockquote", "ul", "ol", "table", "pre", "section", "article", "h1", "h2", "h3", "h4", "h5",
    "h6", "figure", "dl",
})  # fmt: skip
_IN_CELLS = frozenset({"td", "th", "p", "div", "span", "a", "b", "i", "em", "strong", "sub", "sup", "code", "small"})
_SHORT_CELL = 200  # characters; longer cells are part of the page layout
_MAX_DEPTH = 400  # real pages stay below 60
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Its text comes from the `<main>` element. If there is not exactly one `<main>`, the text
    comes from the only `<article>`, or else from the whole body. Navigation is left out."""
    builder, title = outline_of(data)
    yield document_of(options.media_type, builder.pages("lxml"), options.limits, title)


def outline_of(data: bytes, charset: str = "", *, whole: bool = False) -> tuple[OutlineBuilder, str]:
    """Return the outline of an HTML file, which contains its text and headings, and the title.

    `charset` is the encoding that is declared outside of the file, such as in a mail header. By default, only the main
    content of the page is read. If `whole` is true, the whole body is read; chapters of books need this. Raises
    `CorruptDocument` if the HTML cannot be parsed."""
    declared = _META_CHARSET.search(data[:4096])
    text = decode(data, charset or (declared[1].decode("ascii") if declared else ""))
    text = _EMPTY_ELEMENT.sub(r"<\1></\2>", _XML_DECLARATION.sub("", text)) if whole else _XML_DECLARATION.sub("", text)
    _check_attributes(text)
    parser = lxml_html.HTMLParser(no_network=True, huge_tree=True, remove_comments=True, remove_pis=True)
    title, builder = "", OutlineBuilder()
    try:
        root = lxml_html.document_fromstring(text, parser=parser) if text.strip() else None
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as error:
        raise CorruptDocument("the HTML cannot be parsed; open it in a browser and save it again") from error
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):  # the parser drops the rest
        raise CorruptDocument("the HTML has too many nested elements; open it in a browser and save it as text")
    if root is not None:
        _walk(root if whole else _main_part(root), builder, 0, False)
        title = " ".join((root.findtext(".//title") or "").split())
    return builder, title


def _check_attributes(text: str) -> None:
    """Raise `CorruptDocument` if an element has so many attributes that parsing it would take too long."""
    for tag in _TAG.finditer(text):
        if tag.end() - tag.start() > 2 * _MOST_ATTRIBUTES:
            attributes = _ATTRIBUTE.finditer(text, tag.start(), tag.end())
            if next(islice(attributes, _MOST_ATTRIBUTES, None), None):
                raise CorruptDocument(
                    f"an element of the HTML has more than {_MOST_ATTRIBUTES:,} attributes; open the page in a browser "
                    "and save it as text"
                )


def _main_part(root: lxml_html.HtmlElement) -> lxml_html.HtmlElement:
    for elements in (root.findall(".//main"), root.findall(".//article")):
        if len(elements) == 1 and len(elements[0].text_content()) > 200:
            root = elements[0]
            break
    return root


def _walk(element: lxml_html.HtmlElement, out: OutlineBuilder, depth: int, verbatim: bool) -> None:
    tag = element.tag
    if not isinstance(tag, str) or tag in _DROPPED:
        return
    if "hidden" in element.attrib or _HIDDEN.search(element.get("style", "")):
        return
    if depth > _MAX_DEPTH:
        out.text(element.text_content())
        return
    if re.fullmatch(r"h[1-6]", tag):
        out.heading(" ".join(element.text_content().split()), int(tag[1]))
        return
    if tag == "tr" and (cells := _short_cells(element)):
        out.line()
        out.text(" | ".join(cells))
        out.line()
        return
    verbatim = verbatim or tag == "pre"
    if tag in _BLOCKS:
        out.line(paragraph=tag in _PARAGRAPHS)
    if tag in ("td", "th"):
        out.cell()
    elif tag == "br":
        out.line()
    elif tag == "li":
        out.text("- ")
    _add_text(element.text, out, verbatim)
    for child in element:
        _walk(child, out, depth + 1, verbatim)
        _add_text(child.tail, out, verbatim)
    if tag in _BLOCKS:
        out.line(paragraph=tag in _PARAGRAPHS)


def _short_cells(row: lxml_html.HtmlElement) -> list[str]:
    """Return the texts of the cells if a table row must be joined to one line of text: its cells are short and contain
    paragraphs, and each paragraph would otherwise become a line. Return [] for any other row."""
    cells = [cell for cell in row if cell.tag in ("td", "th")]
    inner = [element for cell in cells for element in cell.iterdescendants()]
    if len(cells) < 2 or len(cells) != len(row) or not any(element.tag in ("p", "div") for element in inner):
        return []
    if any(each.tag not in _IN_CELLS or "hidden" in each.attrib or "style" in each.attrib for each in (*cells, *inner)):
        return []
    texts = [" ".join(cell.text_content().split()) for cell in cells]
    return texts if any(texts) and max(map(len, texts)) <= _SHORT_CELL else []


def _add_text(text: str | None, out: OutlineBuilder, verbatim: bool) -> None:
    if text:
        out.text(text if verbatim else re.sub(r"[ \t\r\n\f]+", " ", text), verbatim=verbatim)
