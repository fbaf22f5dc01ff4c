"""Small files that show faults which people reported of systems like this one. Each is read as a user's file is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentformer.readers import read

FIELD = Path(__file__).resolve().parents[3] / "shared" / "data" / "field"
# Further texts that must be in the file, beside those of its cases.json, in this order.
ALSO = {
    "mail-pdf-attachment.eml": ["Subject: Certificate"],
    "mailbox-one-pdf.mbox": ["The certificate is attached."],
    "mail-two-text-parts.eml": ["The roof leaks near chimney two."],
    "mail-one-wrong-byte.eml": ["\ufffd", "the last offer."],
    "mail-calendar.eml": ["You are invited.", "2026-05-19 07:00 UTC", "Bring the pontoon estimates, please."],
    "mail-stub-plain.eml": ["Region | Sales", "North | 412000"],
    "pdf-rotated-order.pdf": ["Chapter 1 of the mooring guide", "Rule number", "Third line", "Confidential footer"],
    "docx-equation.docx": ["The kinetic energy is E=0.5mv^2 where v is the speed."],
    "docx-clause-numbers.docx": [
        "2 Delivery", "2.3 The seller insures the goods for 110 percent.",
        "3.1.1 The limit does not apply to wilful damage.",
    ],
    "xlsx-x000d.xlsx": ["first line second line"],
    "xlsx-merged-rows.xlsx": ["2 | Vaasa | Director | 120", "2 | Vaasa | Other staff | 95"],
    "html-rowspan-ol.html": ["24 Dec | Sauna | 8-11", "2. Wait for the bell."],
    "rtf-textbox.rtf": ["Body sentence about the quay.", "The box says gate nine is shut.", "End of page."],
    "text-ansi.log": ["INFO start", "ERROR disk sda1 is full"],
    "text-one-nul.txt": ["Report of the night shift"],
}  # fmt: skip
PAGES = {"mail-pdf-attachment.eml": 2, "mailbox-one-pdf.mbox": 3, "mail-two-text-parts.eml": 1}


@pytest.mark.process
@pytest.mark.parametrize("name", [*ALSO, "mail-utf8-headers.eml", "mail-iso2022jp-short.eml", "text-macroman.txt",
                                  "ooxml-strict.docx", "ooxml-strict.xlsx"])  # fmt: skip
def test_a_file_of_the_field_has_its_text(name: str) -> None:
    if not (FIELD / "cases.json").is_file():
        pytest.skip("the field cases (../shared/data/field) are not here")
    cases = json.loads((FIELD / "cases.json").read_text(encoding="utf-8"))
    document = read((FIELD / "files" / name).read_bytes(), name)
    text = "\n".join(page.text for page in document.pages)
    assert document.status == "ready" and len(document.pages) == PAGES.get(name, len(document.pages))
    bare = re.sub(r"\s", "", text)
    for part in cases[name]:
        assert re.sub(r"\s", "", part) in bare
    places = [text.index(part) for part in ALSO.get(name, [])]
    assert places == sorted(places)
    assert "\x1b" not in text and "[32m" not in text
