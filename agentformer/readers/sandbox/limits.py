"""What one file may cost. A file over a limit is refused; the others of the same upload go on."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

MAX_BYTES = 256 * MIB  # scanned books reach 200 MB
MAX_PAGES = 10_000  # the longest legal and medical works have about 5,000
MAX_CHARS = 50_000_000  # twenty times the Bible: beyond, it is a data dump, not a document
WALL_SECONDS = 120.0  # 3,000 pages take about 10 s; what needs longer hangs
MEMORY_BYTES = 2048 * MIB  # address space of the child; the largest honest PDFs take a quarter
OUTPUT_BYTES = 384 * MIB  # all drafts together: `MAX_CHARS` of three bytes twice, and room
FILE_BYTES = 128 * MIB  # a page's image on its way to tesseract: `ocr.MAX_PIXELS` in three bytes
OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of one `read`. `wall_seconds` covers text and OCR together; `memory_bytes` holds for the reader and for
    each program that it starts, which is tesseract alone."""

    max_bytes: int = MAX_BYTES
    max_pages: int = MAX_PAGES
    max_chars: int = MAX_CHARS
    wall_seconds: float = WALL_SECONDS
    memory_bytes: int = MEMORY_BYTES
    output_bytes: int = OUTPUT_BYTES


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What an adapter is told beside the bytes. `deadline` is a `time.monotonic()` of the adapter's process."""

    name: str
    media_type: str
    password: str | None = None
    ocr: bool = True
    limits: ReadLimits = ReadLimits()
    deadline: float = float("inf")
    engines: tuple[str, ...] = ("pdfium", "pypdf")  # a second attempt leaves out the one that crashed
    folder: str = ""  # where the reader may write, and then start tesseract; "": nowhere
