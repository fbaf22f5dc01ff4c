"""The real PDFs, where they are at hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from agentformer.errors import AgentFormerError
from agentformer.readers import read
from tests.faults.long_form import LONG

pytestmark = pytest.mark.process


def test_no_file_of_the_collection_surprises(collection: Path) -> None:
    with (collection / "manifest.csv").open(encoding="utf-8", newline="") as manifest:
        rows = list(csv.DictReader(manifest))
    for row in rows if LONG else rows[::9]:
        try:
            document = read((collection / "files" / row["file"]).read_bytes(), row["file"], ocr=False)
        except AgentFormerError as error:
            assert str(error)
            continue
        for page in document.pages:
            assert (page.status == "text") == bool(page.text)
            assert page.text or page.reason
            if page.body is not None:
                assert 0 <= page.body.start < page.body.end <= len(page.text)
            assert all(0 <= heading.start <= len(page.text) for heading in page.headings)
