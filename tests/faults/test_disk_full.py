"""No room: each file gets its own outcome, nothing is half-stored, and what was there stays usable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytest.importorskip("resource", reason="this system has no limit on the size of files")

ROOM = 500_000  # bytes that any one file may have: an empty store's log has over 200,000


def run(folder: Path, *arguments: str, limited: bool) -> Any:
    where = ("--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", "hashing", "--json")
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, {ROOM}))" if limited else ""
    done = forked.ended(forked.command(*arguments, *where, before=limit))
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def test_a_file_too_many_is_refused_alone(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "a.txt").write_text("The keys hang in the blue cupboard.")
    (documents / "b.txt").write_text("\n\n".join(f"Paragraph {n} speaks of boats. " * 8 for n in range(500)))
    (documents / "c.txt").write_text("Tea is served at four.")

    first = run(tmp_path, "ingest", str(documents), limited=True)["documents"]
    assert [(d["name"].rsplit("/")[-1], d["status"]) for d in first] == [
        ("a.txt", "ready"),
        ("b.txt", "failed"),
        ("c.txt", "ready"),
    ]
    assert "free space" in first[1]["reason"] or "cannot" in first[1]["reason"]
    assert "blue cupboard" in run(tmp_path, "ask", "Where are the keys?", limited=True)["answer"]
    assert len(list((tmp_path / "u").rglob("*.bin"))) == 2

    again = run(tmp_path, "ingest", str(documents), limited=False)["documents"]
    assert [(d["status"], d["unchanged"]) for d in again] == [("ready", True), ("ready", False), ("ready", True)]
    assert "four" in run(tmp_path, "ask", "When is tea served?", limited=False)["answer"]


CHILD = """
import resource, sys
from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreFull
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import Query

backend = FaissMemoryBackend(Path(sys.argv[1]), HashingEmbedder())
backend.store([make_entry(f"numbat {n} under lantern {n * n} in room {n * 7}") for n in range(200)])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for _ in range(2):
    hits = backend.search(Query("numbat 3 under lantern 9", limit=5))
    assert len(hits) == 5 and "only vectors" in hits.warnings[0], hits
    try:
        backend.search(Query("numbat", mode="lexical"))
    except StoreFull as error:
        assert "disk space" in str(error)
    else:
        raise AssertionError("found")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
hits = backend.search(Query("numbat 3 under lantern 9", limit=5))
assert len(hits) == 5 and not hits.warnings and hits[0].lexical_score, hits
assert len(backend.search(Query("numbat", limit=500, mode="lexical"))) == 200
backend.close()
"""


@pytest.mark.parametrize("room", [0, 600, 3_000])
def test_where_the_words_cannot_be_written_vectors_answer_alone(tmp_path: Path, room: int) -> None:
    done = forked.ended(forked.program(CHILD, tmp_path, room))
    assert done.returncode == 0, done.stderr
