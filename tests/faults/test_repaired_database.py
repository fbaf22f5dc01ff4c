"""After a repair of any damage, each row has its value, or it is counted and named and the exit code is 1.

`FAULTS_DAMAGES` says how many copies are damaged, `FAULTS_DAMAGES_SEED` where the numbers begin.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytestmark = [pytest.mark.fault, pytest.mark.slow]

DAMAGES = int(os.environ.get("FAULTS_DAMAGES", "8"))
SEED = int(os.environ.get("FAULTS_DAMAGES_SEED", "1"))
_CHILD = Path(__file__).with_name("repairing.py")
_PATIENCE = 60 + 10 * DAMAGES  # seconds: what takes longer hangs


def child(*arguments: object) -> list[dict[str, Any]]:
    """SQLite must not crash, either, so it works in a process of its own."""
    done = forked.ended(forked.script(_CHILD, *arguments), _PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("repaired")
    child("build", folder)
    reports = child("repair", folder, *range(SEED, SEED + DAMAGES))
    assert len(reports) == DAMAGES
    return reports


def test_a_repaired_store_opens_and_has_no_damage_left(reports: list[dict[str, Any]]) -> None:
    assert [each for each in reports if each["broken"] or each["code"] not in (0, 1)] == []
    assert [each for each in reports if "unopened" in each or "again" in each] == []


def test_no_row_has_another_value_than_was_stored(reports: list[dict[str, Any]]) -> None:
    assert [each for each in reports if each["wrong"]] == []


def test_each_lost_row_is_named_and_in_the_quarantine_file(reports: list[dict[str, Any]]) -> None:
    assert [each for each in reports if each["unnamed"]] == []


def test_the_exit_code_is_1_only_if_a_row_is_lost(reports: list[dict[str, Any]]) -> None:
    assert [each for each in reports if (each["code"] == 1) != bool(each["gone"] or each["versions"])] == []


def test_some_rows_are_lost_and_some_damage_costs_nothing(reports: list[dict[str, Any]]) -> None:
    """Or nothing would have been tested."""
    assert 0 < sum(each["code"] for each in reports) < DAMAGES
