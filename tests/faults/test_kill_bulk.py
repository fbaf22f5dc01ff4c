"""`kill -9` in the middle of a bulk load, while another process writes the word index: every acknowledged batch is
there, each batch is whole or missing, and the indexes agree with the records."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentformer.memory.backends import all_entries
from agentformer.types import Scope
from tests import forked
from tests.faults.load_bulk import BATCH, name_of, opened

pytestmark = [pytest.mark.process, pytest.mark.fault]

KILLS = int(os.environ.get("FAULTS_KILLS", "1"))


def started(*arguments: Path) -> Any:
    process = forked.script(Path(__file__).with_name("load_bulk.py"), *arguments)
    assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)[1]
    return process


def acknowledged(log: Path) -> list[int]:
    return [*map(int, log.read_text().split("\n")[:-1])] if log.exists() else []


def wait_for(log: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(acknowledged(log)) < count:
        assert time.monotonic() < deadline, "no batch was acknowledged"
        time.sleep(0.01)


def end(process: Any) -> None:
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.slow
def test_a_killed_bulk_load_leaves_whole_batches_and_all_that_were_acknowledged(tmp_path: Path) -> None:
    for kill in range(KILLS):
        folder, log = tmp_path / str(kill), tmp_path / f"{kill}.log"
        loading, following = started(folder, log), started(folder)
        try:
            wait_for(log, 3 + kill)
            time.sleep(0.037 * (kill % 7))  # so that the kills meet different moments of a batch
        finally:
            end(loading)
            end(following)
        promised = acknowledged(log)
        with opened(folder) as af:
            entries = [*all_entries(af.backend, Scope())]
            stored = Counter(entry.content.split()[0] for entry in entries)
            assert {*stored.values()} == {BATCH}
            assert {*map(name_of, promised)} <= stored.keys()
            assert len(stored) <= len(promised) + 1  # the last one may be stored without an acknowledgement
            assert len(af.memory.search(name_of(promised[-1]), mode="lexical", limit=2 * BATCH)) == BATCH
            assert len(af.memory.search("numbat", mode="dense", limit=2 * BATCH)) == 2 * BATCH
            assert not [check for check in af.backend.verify() if check.found]
