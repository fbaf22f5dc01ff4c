"""Read the parts of documents that are ZIP archives. The unpacked size is limited, and XML is parsed without entities.

The readers of Word, PowerPoint, Excel, OpenDocument and EPUB files use this module. A part is unpacked only when a
reader requests it, and only in memory. Archives inside of the archive are not opened, and macros are not read.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

from lxml import etree

from agentformer.errors import CorruptDocument, DocumentTooLarge, EncryptedDocument

MAX_UNPACKED = 200 << 20  # bytes; a thousand pages of text make about 10 MB of XML
_PIECE = 1 << 18
_OVERLAP = 200  # bytes
_SAFE: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": False}
MACROS_IGNORED = "the macros of the file are ignored"
EMBEDDED_IGNORED = "the embedded files are not read; save them as files of their own"
_EMBEDDED = re.compile(r"(?:^|/)(?:embeddings/|afchunk)\w", re.IGNORECASE)
_MACROS = re.compile(r"(?:^|/)vbaProject\.bin$|^(?:Basic|Scripts)/", re.IGNORECASE)
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError, RuntimeError),
    etree.XMLSyntaxError,
)
_RELATIONSHIP = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
# The names of Office documents in the form "Strict", and those of all others, which have the year in them.
_STRICT, _YEAR = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/"), rb"http://schemas.openxmlformats.org/\1/2006/"
_ESCAPED = re.compile(r"_x((?!D[89A-F])[\dA-F]{4})_", re.IGNORECASE)
_CORE_TITLE = "{http://purl.org/dc/elements/1.1/}title"


class DocumentKind(NamedTuple):
    """The words for a document in messages: a name, such as "Word document", and the program that can save it again."""

    name: str
    program: str


class Relation(NamedTuple):
    """A link between parts of an Office document. `kind` is the last word of its type, such as "slide"."""

    kind: str
    target: str  # the name of the other part


def unescaped(text: str) -> str:
    """Return a text of Excel or PowerPoint with its escaped characters, such as "_x000D_", decoded."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _usual_names(xml: bytes) -> bytes:
    return _STRICT.sub(_YEAR, xml)


class ZipParts:
    """The parts of a document that is a ZIP archive. All parts together may have `max_bytes` bytes when unpacked.

    Raises `CorruptDocument` if the archive is damaged, `EncryptedDocument` if a part is encrypted, and
    `DocumentTooLarge` if the limit is exceeded."""

    def __init__(self, data: bytes, kind: DocumentKind, max_bytes: int = MAX_UNPACKED) -> None:
        self._kind = kind
        self._left = self._max_bytes = max_bytes
        with self._damaged():
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            entries = self._archive.infolist()
        self._entries = {entry.filename.replace("\\", "/").lstrip("/"): entry for entry in entries}
        self._folded = {name.lower(): entry for name, entry in self._entries.items()}  # Office ignores the case

    def __contains__(self, name: str) -> bool:
        return self._entry(name) is not None

    def _entry(self, name: str) -> zipfile.ZipInfo | None:
        return self._entries.get(name) or self._folded.get(name.lower())

    @property
    def note(self) -> str:
        """A text for users about the macros and the embedded files of the document, or ""."""
        notes = {MACROS_IGNORED: _MACROS, EMBEDDED_IGNORED: _EMBEDDED}
        return "; ".join(note for note, kind in notes.items() if any(map(kind.search, self._entries)))

    def read(self, name: str) -> bytes:
        """Return the bytes of a part. Raises `CorruptDocument` if there is no such part."""
        with self._damaged():
            return b"".join(self._pieces(name))

    def _pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a part."""
        entry = self._entry(name)
        if entry is None:
            raise self.corrupt("is incomplete")
        if entry.flag_bits & 1:
            raise self.encrypted()
        if entry.file_size > self._left:
            raise self._too_large()
        with self._archive.open(entry) as stream:
            while piece := stream.read(_PIECE):
                self._left -= len(piece)  # the declared size may be wrong, so reading is bounded too
                if self._left < 0:
                    raise self._too_large()
                yield piece

    def xml(self, name: str, *, doctype: bool = False) -> etree._Element:
        """Return the root element of a part in XML. A part with a document type declaration is refused, because the
        declaration may define entities. If `doctype` is true, the part is refused only if the declaration defines
        entities."""
        content, parser = _usual_names(self.read(name)), etree.XMLParser(**_SAFE)
        with self._damaged():
            root = etree.fromstring(content, parser)
        declared = root.getroottree().docinfo.internalDTD
        if declared is not None and not (doctype and not [*declared.iterentities()]):
            raise self._entities()
        return root

    def matches(self, name: str, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
        """Yield the matches of a pattern in a large part. A match may have at most `_OVERLAP` bytes."""
        rest = b""
        left, end = self._left, 0  # the part is read twice, and counts once
        with self._damaged():
            for piece in self._pieces(name):
                piece, end = rest + piece, 0
                for found in pattern.finditer(piece):
                    end = found.end()
                    yield found
                rest = piece[max(end, len(piece) - _OVERLAP) :]
        self._left = left

    def elements(self, name: str, tag: str) -> Iterator[etree._Element]:
        """Yield the elements of a large part that have this tag, one after the other. An element is cleared when the
        next element is requested, so that little memory is used."""
        parser = etree.XMLPullParser(tag=tag, **_SAFE)
        checked = fed = False
        with self._damaged():
            for piece in self._pieces(name):
                parser.feed(piece if fed else _usual_names(piece))  # the names are in the first element
                fed = True
                for _, element in parser.read_events():
                    if not checked and element.getroottree().docinfo.internalDTD is not None:
                        raise self._entities()
                    checked = True
                    yield element
                    element.clear()
                    while element.getprevious() is not None:
                        del element.getparent()[0]
            parser.close()

    def relations(self, name: str) -> dict[str, Relation]:
        """Return a dictionary: id of a link in this part -> the link to another part. Links to places outside of the
        document are left out."""
        folder, _, file = name.rpartition("/")
        place = f"{folder}/_rels/{file}.rels".lstrip("/")
        found: dict[str, Relation] = {}
        for each in self.xml(place).iter(_RELATIONSHIP) if place in self else ():
            if each.get("TargetMode") != "External":
                link = each.get("Target", "").replace("\\", "/")
                target = posixpath.normpath(posixpath.join("/", folder, link)).lstrip("/")
                target = target if target in self else unquote(target)
                found[each.get("Id", "")] = Relation(each.get("Type", "").rpartition("/")[2], target)
        return found

    def main_part(self, usual: str) -> str:
        """Return the name of the part with the text of an Office document: the one that the document names, or
        `usual`."""
        with suppress(CorruptDocument):
            return self.related("", "officeDocument") or usual
        return usual

    def related(self, name: str, kind: str) -> str:
        """Return the name of the first part of this kind to which a part links, or ""."""
        links = self.relations(name).values()
        return next((link.target for link in links if link.kind == kind and link.target in self), "")

    def title(self) -> str:
        """Return the title in the properties of an Office document, or ""."""
        core = self.related("", "core-properties") or "docProps/core.xml"
        title = self.xml(core).findtext(_CORE_TITLE) if core in self else ""
        return " ".join((title or "").split())

    def corrupt(self, problem: str) -> CorruptDocument:
        """Return the error for a document with this problem."""
        name, program = self._kind
        return CorruptDocument(f"the {name} {problem}; open it in {program} and save it again")

    def encrypted(self) -> EncryptedDocument:
        """Return the error for an encrypted document."""
        return EncryptedDocument(f"the {self._kind.name} is encrypted; save a copy without a password")

    def _entities(self) -> CorruptDocument:
        return self.corrupt(
            f"declares XML entities, which {self._kind.program} never writes and which may be an attack"
        )

    def _too_large(self) -> DocumentTooLarge:
        limit = self._max_bytes >> 20
        return DocumentTooLarge(f"the {self._kind.name} has over {limit} MiB of text; split the document")

    @contextmanager
    def _damaged(self) -> Iterator[None]:
        """Convert the errors of damaged archives and of damaged XML to `CorruptDocument`."""
        try:
            yield
        except _DAMAGE as error:
            raise self.corrupt("is damaged or cut off") from error
