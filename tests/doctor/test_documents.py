"""Documents with parts in another backend: a change that is in one of the two only is no damage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.factory import AgentFormer, connect
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import SIDECAR_FILE, JsonFileStore
from agentformer.memory.backends.sidecar import SidecarStore
from agentformer.memory.routing import RoutedBackend
from agentformer.rag.originals import Originals
from agentformer.rag.verify import StoreParts, verify
from agentformer.settings import Route
from agentformer.types import Check, MemoryEntry, MemorySnapshot, Scope

TEXT = b"Boats are lifted in October. The caretaker keeps the keys."
ROUTE = Route("local_json", kinds=("page", "chunk"))
PARTS = Scope(kinds=("page", "chunk"))


def opened(folder: Path) -> AgentFormer:
    return connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing:64", routes=(ROUTE,))


class Busy(JsonFileStore):
    """The second of two backends. `meanwhile` runs in another thread after the first backend has taken its snapshot and
    before this one does."""

    meanwhile: Callable[[], object]

    @contextmanager
    def snapshot(self) -> Iterator[MemorySnapshot]:  # type: ignore[override]
        other = threading.Thread(target=self.meanwhile)
        other.start()
        other.join()
        with super().snapshot() as snapshot:
            yield snapshot


def repaired(folder: Path, meanwhile: Callable[[], object]) -> list[Check]:
    """Return the findings of a repair during another change."""

    def no_reading(document: MemoryEntry) -> None:
        raise AssertionError(f"{document.content} is sound")

    parts = Busy(folder / "i")
    parts.meanwhile = meanwhile
    backends: dict[str, Any] = {
        "most": FaissMemoryBackend(folder / "i", HashingEmbedder(64)),
        "parts": SidecarStore(parts, folder / "i" / SIDECAR_FILE),
    }
    routed = RoutedBackend((Route("parts", kinds=("page", "chunk")),), backends, "most")
    with closing(routed):
        places = StoreParts(routed, Originals(folder / "u", routed), folder / "i")
        return [check for check in verify(places, no_reading, repair=True) if check.found]  # type: ignore[arg-type]


def test_an_upload_between_two_snapshots_is_no_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        assert repaired(tmp_path, lambda: af.rag.upload(TEXT, name="rules.txt")) == []
        assert af.backend.count(PARTS) == 2
        assert af.rag.query("Who keeps the keys?").citations
        assert repaired(tmp_path, lambda: None) == []


def test_a_removal_between_two_snapshots_is_no_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        document = af.rag.upload(TEXT, name="rules.txt")
        assert repaired(tmp_path, lambda: af.rag.remove(document.id)) == []
        assert af.rag.documents() == [] and af.backend.count(PARTS) == 0


def test_parts_of_a_missing_document_are_moved_to_quarantine(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        document = af.rag.upload(TEXT, name="rules.txt")
        first: AbstractContextManager[FaissMemoryBackend] = closing(
            FaissMemoryBackend(tmp_path / "i", HashingEmbedder(64))
        )
        with first as backend:
            backend.remove([document.id])
        (check,) = repaired(tmp_path, lambda: None)
        assert (check.name, check.found, check.mended, check.lost) == ("parts", 2, 2, 2)
        assert "2 set aside in damaged-" in check.findings[0] and af.backend.count(PARTS) == 0
