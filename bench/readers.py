"""Every file of the PDF collection compared with its manifest: `python bench/readers.py [folder]`.

Prints one row per file. Exits with 1 if an outcome or a fragment differs without a known explanation.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path

from agentformer.errors import (
    AgentFormerError,
    CorruptDocument,
    EncryptedDocument,
    UnsupportedFormat,
)
from agentformer.readers import read

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "pdfs"
STATUS_OF: dict[type[Exception], str] = {
    CorruptDocument: "corrupt",
    EncryptedDocument: "encrypted",
    UnsupportedFormat: "not_pdf",
}
# The expected outcomes; a file of the group `resource` must only end within its limits.
ACCEPTED = {
    "text": {"ready"},
    "garbled": {"garbled"},
    "no_text": {"no_text"},
    "encrypted": {"encrypted"},
    "encrypted_empty_password_opens": {"ready", "no_text"},
    "corrupt": {"corrupt"},
    "resource": {"ready", "no_text", "corrupt"},
    "not_pdf": {"not_pdf"},
}
EXPLAINED = {
    "garbled__mozilla__issue9418.pdf": "pdfium's text is what the page shows, so it is kept",
}


def outcome(data: bytes, name: str, password: str | None = None) -> tuple[str, str, int]:
    """Return (status, folded text, pages)."""
    try:
        document = read(data, name, password=password, ocr=False)
    except AgentFormerError as error:
        return STATUS_OF.get(type(error), type(error).__name__), str(error), 0
    return document.status, " ".join(" ".join(p.text for p in document.pages).split()), len(document.pages)


def main(folder: Path) -> int:
    missed = 0
    print(f"{'file':66} {'expected':31} {'got':10} {'found':>6} {'pages':>5} {'ms':>6}")
    with (folder / "manifest.csv").open(encoding="utf-8", newline="") as manifest:
        for row in csv.DictReader(manifest):
            missed += _check(row, folder)
    print(f"{missed} unexplained")
    return 1 if missed else 0


def _check(row: dict[str, str], folder: Path) -> int:
    name = row["file"]
    data = (folder / "files" / name).read_bytes()
    start = time.perf_counter()
    status, text, pages = outcome(data, name)
    elapsed = (time.perf_counter() - start) * 1000
    fragments = json.loads(row["expected_fragments"] or "[]")
    if status == "encrypted" and fragments:
        password = row["why"].rsplit("password ", 1)[-1]
        _, text, pages = outcome(data, name, password)
    found = sum(" ".join(fragment.split()) in text for fragment in fragments)
    ok = status in ACCEPTED[row["expected"]] and found == len(fragments)
    note = "" if ok else EXPLAINED.get(name, "MISSED")
    print(f"{name:66} {row['expected']:31} {status:10} {found:>2}/{len(fragments):<3} {pages:>5} {elapsed:6.0f} {note}")
    return int(not ok and name not in EXPLAINED)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
