"""Presentations, sheets, books, mails and images made by the tests themselves."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from email.message import EmailMessage

from PIL import Image, ImageDraw, ImageFont

from agentformer.readers.formats import EPUB, ODP, ODS, ODT

A = "http://schemas.openxmlformats.org/drawingml/2006/main"
P = "http://schemas.openxmlformats.org/presentationml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
ODF = "urn:oasis:names:tc:opendocument:xmlns"
Parts = Mapping[str, str | bytes]


def zipped(parts: Parts, mimetype: str = "") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        if mimetype:
            archive.writestr("mimetype", mimetype, zipfile.ZIP_STORED)
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


def relations(*links: tuple[str, str, str]) -> str:
    items = "".join(f'<Relationship Id="{i}" Type="{R}/{kind}" Target="{target}"/>' for i, kind, target in links)
    return f'<Relationships xmlns="{RELATIONS}">{items}</Relationships>'


def shape(text: str, kind: str = "") -> str:
    holder = f'<p:ph type="{kind}"/>' if kind else ""
    paragraphs = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("\n"))
    return f"<p:sp><p:nvSpPr><p:nvPr>{holder}</p:nvPr></p:nvSpPr><p:txBody>{paragraphs}</p:txBody></p:sp>"


def slide(*shapes: str, root: str = "sld", prolog: str = "") -> str:
    tree = f"<p:cSld><p:spTree>{''.join(shapes)}</p:spTree></p:cSld>"
    return f'{prolog}<p:{root} xmlns:p="{P}" xmlns:a="{A}">{tree}</p:{root}>'


def table(*rows: Sequence[str]) -> str:
    cells = (
        "".join(f"<a:tc><a:txBody>{f'<a:p><a:r><a:t>{c}</a:t></a:r></a:p>'}</a:txBody></a:tc>" for c in r) for r in rows
    )
    lines = "".join(f"<a:tr>{row}</a:tr>" for row in cells)
    return (
        f"<p:graphicFrame><a:graphic><a:graphicData><a:tbl>{lines}</a:tbl></a:graphicData></a:graphic></p:graphicFrame>"
    )


def make_pptx(slides: Sequence[str], more: Parts | None = None) -> bytes:
    ids = "".join(f'<p:sldId id="{256 + n}" r:id="s{n}"/>' for n in range(len(slides)))
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "ppt/presentation.xml": f'<p:presentation xmlns:p="{P}" xmlns:r="{R}"><p:sldIdLst>{ids}</p:sldIdLst>'
        "</p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(
            *((f"s{n}", "slide", f"slides/slide{n + 1}.xml") for n in range(len(slides)))
        ),
        **{f"ppt/slides/slide{n + 1}.xml": content for n, content in enumerate(slides)},
        **(more or {}),
    }
    return zipped(parts)


def sheet(*rows: str, prolog: str = "") -> str:
    lines = "".join(f'<row r="{n}">{row}</row>' for n, row in enumerate(rows, 1) if row)
    return f'{prolog}<worksheet xmlns="{S}"><sheetData>{lines}</sheetData></worksheet>'


def text_cells(*values: str) -> str:
    return "".join(f'<c t="inlineStr"><is><t>{value}</t></is></c>' for value in values)


def make_xlsx(sheets: Mapping[str, str], more: Parts | None = None, properties: str = "") -> bytes:
    items = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="s{n}"/>' for n, name in enumerate(sheets))
    links = [(f"s{n}", "worksheet", f"/xl/worksheets/sheet{n}.xml") for n in range(len(sheets))]
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "xl/workbook.xml": f'<workbook xmlns="{S}" xmlns:r="{R}">{properties}<sheets>{items}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relations(*links, ("t", "sharedStrings", "sharedStrings.xml")),
        **{f"xl/worksheets/sheet{n}.xml": content for n, content in enumerate(sheets.values())},
        **(more or {}),
    }
    return zipped(parts)


def odf_content(kind: str, body: str, prolog: str = "") -> str:
    names = ("office", "text", "table", "presentation")
    spaces = "".join(f' xmlns:{name}="{ODF}:{name}:1.0"' for name in names)
    spaces += f' xmlns:draw="{ODF}:drawing:1.0"'
    content = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    return f"{prolog}<office:document-content{spaces}>{content}</office:document-content>"


def make_odf(kind: str, body: str, more: Parts | None = None, prolog: str = "") -> bytes:
    types = {"text": ODT, "spreadsheet": ODS, "presentation": ODP}
    return zipped({"content.xml": odf_content(kind, body, prolog), **(more or {})}, types[kind])


def make_epub(chapters: Sequence[str], more: Parts | None = None) -> bytes:
    items = "".join(
        f'<item id="c{n}" href="c%20{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(len(chapters))
    )
    order = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<metadata><dc:title>The harbour</dc:title></metadata><manifest>{items}<item id="n" href="toc.ncx" '
        f'media-type="application/x-dtbncx+xml"/></manifest><spine>{order}</spine></package>'
    )
    points = "".join(
        f'<navPoint><navLabel><text>Chapter {n + 1}</text></navLabel><content src="c%20{n}.xhtml#top"/></navPoint>'
        for n in range(len(chapters))
    )
    return zipped(
        {
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": package,
            "OEBPS/toc.ncx": '<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://127.0.0.1:9/ncx.dtd">'
            f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{points}</navMap></ncx>',
            **{f"OEBPS/c {n}.xhtml": chapter for n, chapter in enumerate(chapters)},
            **(more or {}),
        },
        EPUB,
    )


def make_mail(body: str, attachments: Sequence[tuple[str, bytes]] = (), **headers: str) -> bytes:
    message = EmailMessage()
    known = {"From": "Anna <anna@example.org>", "To": "board@example.org", "Date": "Tue, 24 Nov 2026 10:00:00 +0100"}
    for name, value in {**known, "Subject": "Keys", **headers}.items():
        message[name] = value
    message.set_content(body)
    for name, data in attachments:
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return message.as_bytes()


def make_image(lines: Sequence[str], kind: str, pages: int = 1) -> bytes:
    images = []
    for _ in range(pages):
        image = Image.new("L", (900, 140 + 90 * len(lines)), 255)
        for n, line in enumerate(lines):
            ImageDraw.Draw(image).text((60, 60 + 90 * n), line, fill=0, font=ImageFont.load_default(48))
        images.append(image)
    out = io.BytesIO()
    more = {"save_all": True, "append_images": images[1:]} if pages > 1 else {}
    images[0].save(out, kind, **more)
    return out.getvalue()
