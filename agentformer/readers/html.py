"""Read HTML with the parser of lxml, without network access. The text is divided into pages at headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from lxml import etree
from lxml import html as lxml_html

from agentformer.errors import CorruptDocument
from agentformer.readers.encodings import decode
from agentformer.readers.formats import ReadOptions
from agentformer.readers.grid import Cell, table_lines
from agentformer.readers.numerals import numeral, superscript
from agentformer.readers.office.equations import annotation, equation_text
from agentformer.readers.sections import OutlineBuilder, document_of
from agentformer.types import DocumentText

_META_CHARSET = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*+=\s*+[\"']?\s*+([\w.:-]+)", re.IGNORECASE
)
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
_MARKER = "agentformer-marker"  # attribute of a list item: its number
_STYLES = {
    **{("lower", "alpha"): "a", ("lower", "latin"): "a", ("lower", "roman"): "i"},
    **{("upper", "alpha"): "A", ("upper", "latin"): "A", ("upper", "roman"): "I"},
}
_LIST_STYLE = re.compile(r"list-style(?:-type)?\s*:[^;]*?(lower|upper)-(alpha|latin|roman)")
_LONGEST_STYLE = 500  # characters
_NOT_IN_DATA = frozenset({"table", "h1", "h2", "h3", "h4", "h5", "h6"})
_MAX_ROWS = 65_534  # rows that a merged cell may cover
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Its text comes from the `<main>` element. If there is not exactly one `<main>`, the text
    comes from the only `<article>`, or else from the whole body. Navigation is left out."""
    builder, title = outline_of(decode(data, declared_encoding(data)))
    yield document_of(options.media_type, builder.pages("lxml"), options.limits, title)


def declared_encoding(data: bytes) -> str:
    """Return the encoding that an HTML file declares, or ""."""
    declared = _META_CHARSET.search(data[:4096])
    return declared[1].decode("ascii") if declared else ""


def outline_of(text: str, *, whole: bool = False) -> tuple[OutlineBuilder, str]:
    """Return the outline of an HTML file, which contains its text and headings, and the title.

    By default, only the main content of the page is read. If `whole` is true, the whole body is read; chapters of books
    need this. Raises `CorruptDocument` if the HTML cannot be parsed."""
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
        for raised in root.iter("sup"):
            raised.text = superscript(raised.text or "")
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
    """Add the text of an element to `out`. White space stays as it is if `verbatim` is true, as inside `<pre>`."""
    tag = element.tag
    if tag == "math":
        out.text(annotation(element) or equation_text(element))
    if not isinstance(tag, str) or tag in _DROPPED or _is_hidden(element):
        return
    if depth > _MAX_DEPTH:
        out.text(" ".join(text.strip() for text in element.itertext() if text.strip()))
    elif re.fullmatch(r"h[1-6]", tag):
        out.heading(" ".join(element.text_content().split()), int(tag[1]))
    elif lines := _lines_of_table(element, depth):
        out.line(paragraph=True)
        for line in lines:
            out.text(line)
            out.line()
        out.line(paragraph=True)
    elif tag == "tr" and (cells := _short_cells(element)):
        out.line()
        out.text(" | ".join(cells))
        out.line()
    else:
        _walk_inside(element, out, depth, verbatim or tag == "pre")


def _is_hidden(element: lxml_html.HtmlElement) -> bool:
    # KaTeX writes each equation twice, the second time letter by letter.
    return bool(
        "hidden" in element.attrib or _HIDDEN.search(element.get("style", "")) or element.get("class") == "katex-html"
    )


def _walk_inside(element: lxml_html.HtmlElement, out: OutlineBuilder, depth: int, verbatim: bool) -> None:
    """Add the content of an element to `out`, with line ends around it if the element is a block."""
    tag = element.tag
    if tag in _BLOCKS:
        out.line(paragraph=tag in _PARAGRAPHS)
    if tag in ("td", "th"):
        out.cell()
    elif tag == "br":
        out.line()
    elif tag == "li":
        out.text(element.get(_MARKER, "- "))
    elif tag == "ol":
        _number_items(element)
    _add_text(element.text, out, verbatim)
    for child in element:
        _walk(child, out, depth + 1, verbatim)
        _add_text(child.tail, out, verbatim)
    if tag in _BLOCKS:
        out.line(paragraph=tag in _PARAGRAPHS)


def _number_items(items: lxml_html.HtmlElement) -> None:
    """Write the number of each item of an ordered list into its attribute `_MARKER`."""
    found = [item for item in items if item.tag == "li"]
    step = -1 if "reversed" in items.attrib else 1
    number = _whole(items.get("start", ""), len(found) if step < 0 else 1)
    style = _LIST_STYLE.search(items.get("style", "")[:_LONGEST_STYLE].lower())
    kind = items.get("type") or (_STYLES[style[1], style[2]] if style else "1")
    for item in found:
        number = _whole(item.get("value", ""), number)
        item.set(_MARKER, f"{numeral(number, item.get('type') or kind)}. ")
        number += step


def _whole(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"\s*-?\d{1,9}\s*", text, re.ASCII) else default


def _lines_of_table(table: lxml_html.HtmlElement, depth: int) -> list[str]:
    """Return the lines of a table with merged cells or with several rows of headers. Return [] for other elements, and
    for tables that are the layout of a page: they contain tables or headings."""
    if table.tag != "table":
        return []
    parts = [part for part in table if part.tag in ("thead", "tbody", "tfoot")]
    rows = [row for part in (parts or [table]) for row in part if row.tag == "tr"]
    heads = sum(row.getparent().tag == "thead" for row in rows)
    grid = [[cell for cell in row if cell.tag in ("td", "th") and not _is_hidden(cell)] for row in rows]
    spans = any(_span(cell, name) > 1 for cells in grid for cell in cells for name in ("rowspan", "colspan"))
    if not (spans or heads > 1) or max(map(len, grid), default=0) < 2 or depth > _MAX_DEPTH // 2:
        return []
    if any(each.tag in _NOT_IN_DATA for each in table.iterdescendants()):
        return []
    captions = [_as_line(each, depth) for each in table if each.tag == "caption"]
    return captions + table_lines(
        [
            [Cell(_as_line(cell, depth), _span(cell, "colspan"), _span(cell, "rowspan")) for cell in cells]
            for cells in grid
        ],
        heads,
    )


def _as_line(element: lxml_html.HtmlElement, depth: int) -> str:
    builder = OutlineBuilder()
    _walk_inside(element, builder, depth, False)
    return builder.as_line().removeprefix("| ").replace(" | ", " ¦ ")


def _span(cell: lxml_html.HtmlElement, name: str) -> int:
    """Return the number of rows or columns of a cell. 0 rows are all rows below."""
    return _whole(cell.get(name, ""), 1) or _MAX_ROWS


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
