"""Damaged files: each ends as text or as a typed error, in a reader within its memory; the store they go into stays
sound and goes on answering.

Eight in the normal suite; `FAULTS_MUTANTS=2000` for more, `FAULTS_MUTANTS_SEED` for the same ones. One of
them is made again by `mutate.py KIND 0 SEED --write FOLDER NUMBER`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

from mutate import KINDS, LIMITS, MORE_KINDS, PIER, mutant

from agentformer import connect
from tests import forked

BOUND = 3600.0
COUNT = int(os.environ.get("FAULTS_MUTANTS", "5"))
SEED = int(os.environ.get("FAULTS_MUTANTS_SEED", random.randrange(10**6)))
SHARES = {"pdf": 0.6, "docx": 0.2, "html": 0.2, **dict.fromkeys(MORE_KINDS, 0.05)}
TRIED = (*KINDS, *MORE_KINDS) if "FAULTS_MUTANTS" in os.environ else KINDS


def test_every_damaged_file_ends_as_text_or_as_a_typed_error() -> None:
    for kind in TRIED:
        count = max(1, round(COUNT * SHARES[kind]))
        ran = forked.ended(forked.script(Path(__file__).with_name("mutate.py"), kind, count, SEED), BOUND)
        assert ran.returncode == 0, (SEED, ran.stderr[-3000:])
        told: dict[str, Any] = json.loads(ran.stdout)
        print(ran.stdout)
        assert told["failures"] == []
        assert sum(told["seen"].values()) == count
        if sys.platform == "linux":
            assert told["peak_bytes_of_a_reader"] <= LIMITS.memory_bytes


def test_a_damaged_file_is_made_again_by_its_seed_and_number() -> None:
    for kind in TRIED:
        assert mutant(kind, 7, 3) == mutant(kind, 7, 3)
        assert len({mutant(kind, 7, number) for number in range(20)}) > 15


def test_a_store_takes_damaged_files_and_answers_meanwhile(tmp_path: Path) -> None:
    """A tenth of them, through the whole of an upload."""
    count = max(3, COUNT // 10)
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", read_seconds=15) as af:
        af.rag.upload(PIER.encode(), name="pier.txt")
        wrong: list[Any] = []
        asked = 0
        done = threading.Event()

        def ask() -> None:
            nonlocal asked
            while not done.is_set():
                asked += 1
                try:
                    af.rag.query("Where does the caretaker keep the keys?")
                except Exception as error:
                    wrong.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            statuses = [
                af.rag.upload(mutant(kind, SEED, number), name=f"{number}.{kind}").status
                for number in range(count)
                for kind in (KINDS[number % 3],)
            ]
        finally:
            done.set()
            asking.join()
        assert wrong == [], SEED
        assert asked > 0 and set(statuses) <= {"ready", "no_text", "garbled", "encrypted", "failed"}
        assert [check for check in af.backend.verify() if check.found] == [], SEED
        kept = {path.stem for path in (tmp_path / "u").rglob("*.bin")}
        assert kept == {document.sha256 for document in af.rag.documents() if document.status == "ready"}
