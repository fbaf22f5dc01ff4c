"""Damage in the database is told, and never answered from.

`FAULTS_DAMAGES` says how many copies are damaged, `FAULTS_DAMAGES_SEED` where the numbers begin.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forked

DAMAGES = int(os.environ.get("FAULTS_DAMAGES", "4"))
SEED = int(os.environ.get("FAULTS_DAMAGES_SEED", "1"))
_CHILD = Path(__file__).with_name("damaging.py")
_PATIENCE = 60 + 10 * DAMAGES  # seconds: what takes longer hangs


def child(*arguments: object) -> list[dict[str, Any]]:
    """SQLite must not crash, either, so it works in a process of its own."""
    done = forked.ended(forked.script(_CHILD, *arguments), _PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("damaged")
    child("build", folder)
    return child("ask", folder, *range(SEED, SEED + DAMAGES))


def test_what_is_answered_is_what_was_stored_or_an_error_that_says_what_to_do(reports: list[dict[str, Any]]) -> None:
    assert len(reports) == DAMAGES
    assert [report for report in reports if report["broken"]] == []


def test_what_an_answer_lacks_is_found_by_who_looks_for_damage(reports: list[dict[str, Any]]) -> None:
    missed = [report for report in reports if report["lacking"] and not report["found"]]
    assert not missed


def test_most_damage_is_noticed(reports: list[dict[str, Any]]) -> None:
    """Or nothing would have been tested: some of it lies where nothing is."""
    assert sum(bool(report["raised"] or report["found"]) for report in reports) > DAMAGES // 2
