"""After any damage of pages of the database file, a repair leaves a sound store: each entry in it is as it was stored,
and missing entries are reported."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreDamaged
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.memory.backends.faiss.verifier import salvage_folder as salvage
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry, Query, Scope

pytestmark = pytest.mark.fault

DAMAGES = int(os.environ.get("FAULTS_DAMAGES", "4"))
PAGE = 4096
EVERYTHING = Scope(include_archived=True)


def opened(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder(64))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, MemoryEntry]]:
    folder = tmp_path_factory.mktemp("model")
    with closing(opened(folder)) as backend:
        facts = backend.store([make_entry(f"the marmot n{n} whistles " + "far away " * 30) for n in range(150)])
        backend.update(facts[0].id, {"content": "the marmot n0 sleeps"})
        backend.consolidate(make_entry("marmots whistle", kind="summary"), [facts[3].id, facts[4].id])
        return folder, {entry.id: entry for entry in backend.list(EVERYTHING, limit=1000)}


def zeroed(page: bytearray, dice: random.Random) -> None:
    page[:] = bytes(len(page))


def torn(page: bytearray, dice: random.Random) -> None:
    page[512:] = dice.randbytes(len(page) - 512)


def flipped(page: bytearray, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 8)):
        page[dice.randrange(len(page))] ^= 1 << dice.randrange(8)


KINDS: tuple[Callable[[bytearray, random.Random], None], ...] = (zeroed, torn, flipped)


@pytest.mark.parametrize("seed", range(DAMAGES))
def test_a_repair_keeps_what_can_be_read_and_reports_what_is_missing(
    model: tuple[Path, dict[str, MemoryEntry]], tmp_path: Path, seed: int
) -> None:
    folder, stored = tmp_path / "store", model[1]
    shutil.copytree(model[0], folder)
    dice = random.Random(seed)
    path = folder / DATABASE_FILE
    data = bytearray(path.read_bytes())
    for _ in range(dice.randint(1, 3)):
        at = PAGE * dice.randrange(1, len(data) // PAGE)  # the first one tells where all tables are
        page = data[at : at + PAGE]
        KINDS[seed % len(KINDS)](page, dice)
        data[at : at + PAGE] = page
    path.write_bytes(data)
    lost: list[str] = []
    try:
        backend = opened(folder)
    except StoreDamaged:
        try:
            saved = salvage(folder)
            assert saved is not None
            lost += saved.lost
        except StoreDamaged as error:
            assert "nothing in memory.sqlite3 can be read" in str(error) and path.read_bytes() == bytes(data)
            return
        backend = opened(folder)
    with closing(backend):
        checks = backend.verify(repair=True)
        if "nothing in memory.sqlite3 can be read" in str(checks):
            assert path.read_bytes() == bytes(data)
            return
        assert [check for check in checks if check.mended < check.found] == []
        count = len(lost) + sum(check.lost for check in checks)
        assert [check for check in backend.verify() if check.found] == []
        left = {entry.id: entry for entry in backend.list(EVERYTHING, limit=1000)}
        for entry_id, entry in left.items():
            assert entry.content == stored[entry_id].content
            assert entry.metadata == stored[entry_id].metadata
        lines = [json.loads(line) for file in folder.glob("damaged-*") for line in file.open(encoding="utf-8")]
        aside = {line["row"]["id"] for line in lines if line["table"] == "entries"}
        assert stored.keys() - left.keys() <= aside and len(stored) - len(left) <= count
        for entry in [*left.values()][:: len(left) // 10 + 1]:
            hits = backend.search(Query(entry.content[:60], EVERYTHING, limit=200, mode="lexical"))
            assert entry.id in [hit.entry.id for hit in hits]
