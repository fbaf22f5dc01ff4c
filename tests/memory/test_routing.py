"""Routes: each write goes where the first fitting rule says, and every read sees all of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, InvalidInput, NotFound, NotOffered
from agentformer.factory import connect
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.routing import RoutedBackend
from agentformer.settings import Route, load_settings, parse_routes
from agentformer.testing import make_entry
from agentformer.types import Query, Scope
from tests.narrow_store import narrow

_DAY = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, FaissMemoryBackend]:
    return {name: FaissMemoryBackend(tmp_path / name, HashingEmbedder()) for name in ("main", "notes", "diary")}


@pytest.fixture
def routed(parts: dict[str, FaissMemoryBackend]) -> RoutedBackend:
    routes = parse_routes("namespace:private=diary; kind:decision,core=notes; core=notes")
    return RoutedBackend(routes, parts, "main")


def test_the_first_route_that_fits_decides(routed: RoutedBackend, parts: dict[str, FaissMemoryBackend]) -> None:
    routed.store(
        [
            make_entry("main fact"),
            make_entry("main decision", kind="decision"),  # the rule wants tier core too
            make_entry("core decision", kind="decision", tier="core"),
            make_entry("core block", tier="core", kind="block"),
            make_entry("diary block", tier="core", namespace="private"),
        ]
    )
    inside = {
        name: sorted(e.content for ns in ("default", "private") for e in backend.list(Scope(ns)))
        for name, backend in parts.items()
    }
    assert inside == {
        "main": ["main decision", "main fact"],
        "notes": ["core block", "core decision"],
        "diary": ["diary block"],
    }
    assert sorted(e.content for e in routed.list(Scope())) == sorted(inside["main"] + inside["notes"])
    assert routed.count(Scope()) == 4 and routed.namespaces() == ["default", "private"]


def test_reads_see_all_backends_in_one_order(routed: RoutedBackend) -> None:
    entries = [
        make_entry(f"the okapi number {n}", tier="core" if n % 2 else "semantic", occurred_at=_DAY + timedelta(days=n))
        for n in range(9)
    ]
    routed.store(entries)
    assert [e.id for e in routed.list(Scope(), limit=4)] == [e.id for e in entries[:4]]
    assert [e.id for e in routed.list(Scope(), after=entries[3].id)] == [e.id for e in entries[4:]]
    assert [e.id for e in routed.latest(Scope(), limit=3)] == [e.id for e in entries[:5:-1]]
    assert [e.id for e in routed.get([entries[1].id, "missing", entries[0].id])] == [entries[1].id, entries[0].id]
    hits = routed.search(Query("okapi number", limit=6))
    assert len(hits) == 6 and hits[0].score == 1.0
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert {hit.entry.tier for hit in hits[:2]} == {"core", "semantic"}
    assert routed.remove(Scope()) == 9 and routed.count(Scope()) == 0


def test_changes_find_the_backend_that_has_the_entry(routed: RoutedBackend) -> None:
    fact, block = routed.store([make_entry("fact"), make_entry("block", tier="core")])
    for entry in (fact, block):
        routed.update(entry.id, {"content": "changed"})
        assert [old.content for old in routed.history(entry.id)] == [entry.content]
    with pytest.raises(NotFound):
        routed.update("missing", {"content": "x"})
    assert routed.remove([fact.id, block.id]) == 2


def test_a_summary_is_kept_beside_its_originals(routed: RoutedBackend, parts: dict[str, FaissMemoryBackend]) -> None:
    originals = routed.store([make_entry(f"day {n}", namespace="private", tier="episodic") for n in range(2)])
    fact = routed.store([make_entry("a fact of main")])[0]
    with pytest.raises(Conflict):
        routed.consolidate(make_entry("both", kind="summary"), [originals[0].id, fact.id])
    summary = routed.consolidate(
        make_entry("two days", namespace="private", kind="summary"), [entry.id for entry in originals]
    )
    assert [e.id for e in parts["diary"].list(Scope("private"))] == [summary.id]
    assert list(routed.restore(summary.id)) == list(originals)


def test_a_part_that_cannot_be_stored_takes_the_others_back(routed: RoutedBackend) -> None:
    taken = routed.store([make_entry("taken", tier="core")])[0]
    with pytest.raises(Conflict):
        routed.store([make_entry("fact"), make_entry("usurper", id=taken.id, tier="core")])
    assert [e.content for e in routed.list(Scope())] == ["taken"]


def test_replacing_reaches_what_an_older_route_put_elsewhere(parts: dict[str, FaissMemoryBackend]) -> None:
    parts["notes"].store([make_entry("old", source_type="ticket", source_id="1")])
    routed = RoutedBackend([], parts, "main")
    routed.store(
        [make_entry("new", source_type="ticket", source_id="1")], replacing=[Scope(source_type="ticket", source_id="1")]
    )
    assert [e.content for e in routed.list(Scope())] == ["new"]


def test_what_one_of_the_stores_does_not_offer_is_named_or_done_without(
    parts: dict[str, FaissMemoryBackend], tmp_path: Path
) -> None:
    stores = {"main": parts["main"], "notes": narrow(tmp_path / "narrow")}
    routed = RoutedBackend(parse_routes("core=notes"), stores, "main")
    routed.store([make_entry("a fact"), make_entry("a block", tier="core")])
    assert (routed.pending(Scope()), [space.vectors for space in routed.spaces()]) == (0, [1])
    assert routed.status()["backends"]["notes"]["kinds"] == {"fact": 1}
    assert routed.lease("clean", "A", 60) and not routed.lease("clean", "B", 60)
    assert [check.name for check in routed.verify() if check.name.startswith("notes")] == ["notes store"]
    for call in (lambda: routed.snapshot().__enter__(), lambda: routed.backup(tmp_path / "copy")):
        with pytest.raises(NotOffered, match="store NarrowStore offers no"):
            call()
    assert not (tmp_path / "copy").exists()


def test_routes_are_read_from_text_and_checked() -> None:
    assert parse_routes("core,working=hierarchical; kind:decision,namespace:a=local_json;*=faiss;") == (
        Route("hierarchical", tiers=("core", "working")),
        Route("local_json", kinds=("decision",), namespaces=("a",)),
        Route("faiss"),
    )
    for wrong in ("core", "=faiss", "core=", "nonsense=faiss", "tier:core=faiss"):
        with pytest.raises(InvalidInput) as refused:
            load_settings({}, {"AGENTFORMER_ROUTES": wrong})
        assert refused.value.field == "routes"


def test_connect_builds_what_the_routes_name(tmp_path: Path) -> None:
    with connect(
        index_dir=tmp_path, embedder="hashing", routes="kind:decision=local_json", hierarchical_backend="local_json"
    ) as af:
        af.memory.store("We take the ferry.", tier="episodic", kind="decision")
        af.memory.store("The ferry leaves at nine.")
        assert {hit.entry.kind for hit in af.memory.search("ferry")} == {"decision", "fact"}
    assert "We take the ferry." in next(tmp_path.glob("memory-*.json")).read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="known names are"):
        connect(index_dir=tmp_path, embedder="hashing", routes="core=nowhere")


def test_a_store_that_the_settings_do_not_read_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(index_dir=tmp_path, embedder="hashing", backend="local_json") as af:
        af.memory.store("kept in a file")
    assert caplog.messages == []
    with connect(index_dir=tmp_path, embedder="hashing") as af:
        assert af.memory.list() == []
    assert "also holds a store of the backend local_json" in caplog.text
    caplog.clear()
    with connect(index_dir=tmp_path, embedder="hashing", routes="core=local_json"):
        assert caplog.messages == []


def test_parts_go_with_their_document_wherever_they_are(tmp_path: Path) -> None:
    parts = Scope(kinds=("page", "chunk"), include_archived=True)
    routes = (Route("local_json", kinds=("page", "chunk")),)
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing:64", routes=routes) as af:
        other = af.rag.upload(b"Aino has a boat.", name="other.txt")
        first = af.rag.upload(b"Boats are lifted in October.", name="rules.txt")
        second = af.rag.upload(b"Boats are lifted in May.", name="rules.txt")
        assert {each.source.document_id for each in af.backend.list(parts) if each.source} == {other.id, second.id}
        assert af.backend.get([first.id]) == []
        assert af.backend.remove([second.id]) == 3
        assert {each.source.document_id for each in af.backend.list(parts) if each.source} == {other.id}
        assert af.backend.remove(Scope(kinds=("document",))) == 3
        assert af.backend.count(parts) == 0
