"""The findings of a check, the quarantine file, and leases."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.errors import StoreDamaged, StoreFull
from agentformer.records import meta
from agentformer.records.integrity.findings import MAX_REPORTED, REPAIR_ADVICE, Findings
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.sqlite.database import Database
from agentformer.types import Check


def test_findings_report_the_first_ones_in_words_with_advice() -> None:
    findings = Findings("words", "asked", looked_at=40)
    assert findings.to_check() == Check("words", "asked", 40)
    findings.add_all((f"entry {n}", n) for n in range(MAX_REPORTED + 5))
    findings.note("a remark")
    check = findings.to_check()
    assert (check.found, check.mended, len(check.findings)) == (MAX_REPORTED + 5, 0, MAX_REPORTED + 1)
    assert check.findings[0] == f"entry 0; {REPAIR_ADVICE}"
    assert check.findings[MAX_REPORTED - 1 :] == (f"entry {MAX_REPORTED - 1}; {REPAIR_ADVICE}", "a remark")
    assert findings.keys == [*range(MAX_REPORTED + 5)]


def test_findings_tell_repaired_ones_from_the_others() -> None:
    findings = Findings("words", "asked").add_all([("one", 1), ("two", 2)])
    findings.mark_repaired(0, "nothing")
    assert findings.to_check().findings[0] == f"one; {REPAIR_ADVICE}"
    findings.mark_repaired(1, "rebuilt")
    assert findings.to_check().findings[0] == f"one; 1 of 2: rebuilt; for the others: {REPAIR_ADVICE}"
    findings.mark_repaired(1, "rebuilt")
    assert (findings.to_check().mended, findings.to_check().findings[0]) == (2, "one; rebuilt")
    findings.mark_repaired(1, "rebuilt")
    assert findings.to_check().mended == 2


def test_an_error_of_reading_is_a_finding_and_an_error_of_repairing_is_advice() -> None:
    findings = Findings("words", "asked")
    with findings.reading(OSError):
        raise OSError("disk\nfailure")
    with findings.reading():
        raise StoreDamaged("torn")
    with pytest.raises(KeyError), findings.reading(OSError):
        raise KeyError
    with findings.repairing():
        raise StoreFull("no room")
    check = findings.to_check()
    assert findings.incomplete and check.found == 2
    assert check.findings[0] == "some data cannot be read: disk failure; it could not be repaired: no room"


def test_the_quarantine_file_has_a_row_per_line_and_is_private(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    assert not quarantine.path.exists()
    quarantine.add("entries", {"id": "a", "content": b"text", "data": b"\xff"}, "checksum")
    quarantine.add("history", {"entry": 1}, "checksum")
    lines = [json.loads(line) for line in quarantine.path.read_text().splitlines()]
    assert lines[0] == {
        "table": "entries",
        "why": "checksum",
        "row": {"id": "a", "content": "text", "data": {"hex": "ff"}},
    }
    assert (len(lines), quarantine.rows) == (2, 2)
    assert stat.S_IMODE(quarantine.path.stat().st_mode) == 0o600


def test_a_lease_is_exclusive_until_it_ends_or_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)

    def take(holder: str, at: timedelta) -> bool:
        monkeypatch.setattr(meta, "now", lambda: moment + at)
        with database.writing() as connection:
            return meta.take_lease(connection, "cleaner", holder, 10.0)

    database = Database(tmp_path / "m.sqlite3")
    assert take("a", timedelta())
    assert not take("b", timedelta())
    assert not take("b", timedelta(seconds=10) - timedelta(microseconds=1))
    assert take("b", timedelta(seconds=10))
    assert take("b", timedelta(seconds=12))  # extends it
    assert not take("a", timedelta(seconds=21))
    assert take("a", timedelta(seconds=11))  # more than ten seconds are left: a clock was set back
    with database.writing() as connection:
        meta.release_lease(connection, "cleaner", "b")
    assert not take("b", timedelta(seconds=11))
    with database.writing() as connection:
        meta.release_lease(connection, "cleaner", "a")
    assert take("b", timedelta(seconds=11))
    database.close()
