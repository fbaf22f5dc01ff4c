"""The newest changes are found by words before they are on disk, with the scores that the index would give."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tantivy

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreBusy
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.words import fields as word_fields
from agentformer.index.words import index as words
from agentformer.index.words.query import Change, CommittedIndex, Memtable, View
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.records.fields import MAX_LIMIT
from agentformer.records.sqlite.database import Database
from agentformer.settings.access import file_lock
from agentformer.testing import make_entry
from agentformer.text.analysis import analyze_query, query_terms
from agentformer.types import NOT_INDEXED, Query, Scope

ANIMALS = ("numbat", "kakapo", "quokka", "axolotl", "pangolin", "tarsier", "fossa")
DEEDS = ("sleeps in the hollow log", "eats at night", "was seen by the old rangers", "läuft durch die Wälder")
SECONDS = 60


def open_store(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder(16))


def said(n: int) -> str:
    return f"{ANIMALS[n % 7]} {n} {DEEDS[n % 4]} {'again and ' * (n % 5)}"


def found(backend: FaissMemoryBackend, text: str, scope: Scope | None = None) -> list[str]:
    hits = backend.search(Query(text, scope or Scope(), limit=MAX_LIMIT, mode="lexical"))
    return [hit.entry.content for hit in hits]


def written(folder: Path) -> int:
    """Return the change up to which the index on disk has followed."""
    seq = json.loads((folder / "words" / "manifest.json").read_bytes())["state"]["seq"]
    assert isinstance(seq, int)
    return seq


def test_entries_in_memory_score_as_in_the_index() -> None:
    schema = word_fields.schema()
    entries = [word_fields.AnalyzedEntry.of(n, make_entry(said(n) * (1 + n % 40))) for n in range(200)]
    index = tantivy.Index(schema)
    writer = index.writer(15_000_000, 1)
    for entry in entries:
        writer.add_document(entry.document())
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    stored = CommittedIndex(index.searcher(), schema)
    recent = Memtable().with_changes([Change(n, n) for n in range(200)], {entry.num: entry for entry in entries})
    for text in ("numbat 7", "the old rangers sleep", "Wälder", "kakapo quokka again"):
        asked = word_fields.weighted_terms(query_terms(text, stored.languages))
        held = {(field, term): stored.frequency(field, term) for field, term, _ in asked}
        query: Any = tantivy.Query.boolean_query(
            [
                (
                    tantivy.Occur.Should,
                    tantivy.Query.boost_query(tantivy.Query.term_query(schema, field, term, "freq"), weight),
                )
                for field, term, weight in asked
            ]
        )
        hits = index.searcher().search(query, limit=200, count=False).hits
        nums = index.searcher().fast_field_values("num", [address for _, address in hits])
        expected = dict(zip(nums, (score for score, _ in hits), strict=True))
        assert expected
        assert recent.scores(asked, held, stored.statistics(asked)) == pytest.approx(expected, rel=1e-5)


def test_the_share_of_a_query_that_the_best_entry_has_is_equal_on_disk_and_in_memory(tmp_path: Path) -> None:
    schema, text = word_fields.schema(), "Which old rangers saw the numbat and the unicorn?"
    entries = [word_fields.AnalyzedEntry.of(n, make_entry(said(n))) for n in range(60)]
    index = tantivy.Index(schema)
    writer = index.writer(15_000_000, 1)
    for entry in entries:
        writer.add_document(entry.document())
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    empty = tantivy.Index(schema)
    views = (
        View(CommittedIndex(index.searcher(), schema), Memtable()),
        View(
            CommittedIndex(empty.searcher(), schema),
            Memtable().with_changes([Change(n, n) for n in range(60)], {entry.num: entry for entry in entries}),
        ),
    )
    mask = ScopeMask(np.ones(60, dtype=np.bool_), 60)
    shares = [view.search(analyze_query(text), Scope(), 10, mask).covered for view in views]
    rarities = {"en~old": 1.0, "en~numbat": 2.0, "en~unicorn": 4.0}
    numbat_seen = next(n for n in range(60) if "numbat" in said(n) and "old" in said(n))
    assert views[0].committed.stem_sums([numbat_seen], rarities) == [3.0]
    assert views[0].committed.stem_sums([], rarities) == views[0].committed.stem_sums([0], {}) == []
    assert 0.2 < shares[0] < 0.8, "no entry has the unicorn, which is the rarest word"
    whole = [view.search(analyze_query("old rangers"), Scope(), 10, mask).covered for view in views]
    assert whole == pytest.approx([1.0, 1.0])
    assert views[0].search(analyze_query("unicorn"), Scope(), 10, mask).covered == 0.0


def test_a_few_changes_are_found_without_a_commit_and_are_on_disk_after_closing(tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    entries = backend.store([make_entry(said(n)) for n in range(400)])
    assert len(found(backend, "numbat")) == 58
    before = written(tmp_path)
    backend.store([make_entry("a numbat that came late")])
    backend.remove([entries[0].id])
    backend.update(entries[7].id, {"content": "no longer that animal"})
    late = found(backend, "numbat")
    assert len(late) == 57
    assert "a numbat that came late" in late
    assert found(backend, "longer animal")[0] == "no longer that animal"
    assert written(tmp_path) == before
    backend.close()
    assert written(tmp_path) > before
    backend = open_store(tmp_path)
    assert sorted(found(backend, "numbat")) == sorted(late)
    backend.close()


def test_equal_scores_on_disk_and_in_memory_are_in_the_order_of_storing(tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    backend.store([make_entry(said(n)) for n in range(400)])
    early = backend.store([make_entry("an aardvark digs") for _ in range(3)])
    assert len(found(backend, "numbat")) == 58
    backend.close()
    backend = open_store(tmp_path)
    assert len(found(backend, "aardvark")) == 3
    before = written(tmp_path)
    late = backend.store([make_entry("an aardvark digs") for _ in range(3)])
    hits = backend.search(Query("aardvark digs", mode="lexical"))
    assert written(tmp_path) == before
    assert [hit.lexical_rank for hit in hits] == [1, 2, 3, 4, 5, 6]
    assert [hit.entry.id for hit in hits] == [entry.id for entry in (*early, *late)]
    backend.close()


@pytest.mark.slow
def test_many_changes_are_written_in_the_background_until_closing(tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    backend.store([make_entry(said(n)) for n in range(600)])
    assert found(backend, "numbat")
    before = written(tmp_path)
    for n in range(40):
        backend.store([make_entry(f"wombat {n}")])
        assert len(found(backend, "wombat")) == n + 1
    assert written(tmp_path) > before
    backend.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentformer-words"]
    assert len(list((tmp_path / "words").glob("*.idx"))) < 20
    backend = open_store(tmp_path)
    assert len(found(backend, "wombat")) == 40
    backend.close()


@pytest.mark.parametrize("indexed", [0, 100])
def test_a_search_waits_a_bounded_time_for_the_index_and_finds_the_newest_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, indexed: int
) -> None:
    backend = open_store(tmp_path)
    if indexed:
        backend.store([make_entry(f"kakapo {n} sleeps") for n in range(indexed)])
        assert len(found(backend, "kakapo")) == indexed
    backend.store([make_entry(f"wombat {n} eats") for n in range(30)])
    newest = backend.store([make_entry("numbat sleeps"), make_entry("numbat and wombat"), make_entry("fossa")])
    monkeypatch.setattr(words, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(words, "_MAX_SCANNED", 3)
    with file_lock(str(tmp_path / "words.lock")).acquire():  # as if another process were writing the index
        hits = backend.search(Query("numbat", limit=50, mode="lexical"))
        again = backend.search(Query("wombat", limit=50, mode="lexical"))
        old = found(backend, "kakapo")
        mixed = backend.search(Query("numbat", limit=50))
    assert sorted(hit.entry.id for hit in hits) == sorted(entry.id for entry in newest[:2])
    assert [hit.entry.content for hit in again] == ["numbat and wombat"] and len(old) == indexed
    for answer in (hits, again, mixed):
        assert [warning for warning in answer.warnings if warning.startswith(NOT_INDEXED) and " 30 " in warning]
    assert "in which 30 changes are missing" in caplog.text
    assert backend.embed_pending() == 0  # waits for the index
    hits = backend.search(Query("wombat", limit=50, mode="lexical"))
    assert (len(hits), hits.warnings) == (31, ())
    backend.close()


def test_closing_does_not_wait_for_another_process_that_writes_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(words, "_LOCK_SECONDS", 0.01)
    database = Database(tmp_path / "memory.sqlite3")
    index = words.WordIndex(tmp_path / "words", database.store_id)
    with file_lock(str(tmp_path / "words.lock")).acquire():
        assert index.view(database).missing == 0
        index.close(database)
        with pytest.raises(StoreBusy, match="another process is writing the word index"):
            index.view(database)
    database.close()


def test_restored_records_replace_entries_in_memory(tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    backend.store([make_entry(said(n)) for n in range(400)])
    assert found(backend, "numbat")
    backend.close()
    old = (tmp_path / "memory.sqlite3").read_bytes()
    backend = open_store(tmp_path)
    assert found(backend, "numbat")
    backend.store([make_entry("a lost dugong")])
    assert found(backend, "dugong") == ["a lost dugong"]
    backend.close()
    (tmp_path / "memory.sqlite3").write_bytes(old)
    backend = open_store(tmp_path)
    backend.store([make_entry("a kept manatee")])
    assert found(backend, "dugong") == []
    assert found(backend, "manatee") == ["a kept manatee"]
    backend.close()


def write_in_turn(folder: str, name: str, mine: Any, theirs: Any) -> None:
    backend = open_store(Path(folder))
    for n in range(12):
        assert mine.acquire(timeout=SECONDS)
        assert len(found(backend, "wombat")) == 2 * n + (name == "second")
        backend.store([make_entry(f"wombat {n} of the {name}")])
        assert len(found(backend, "wombat")) == 2 * n + 1 + (name == "second")
        theirs.release()
    backend.close()


@pytest.mark.process
def test_two_processes_that_write_in_turn_see_each_other_at_once(tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    backend.store([make_entry(said(n)) for n in range(300)])
    assert found(backend, "numbat")
    backend.close()
    context = multiprocessing.get_context("spawn")
    first, second = context.Semaphore(1), context.Semaphore(0)
    other = context.Process(target=write_in_turn, args=(str(tmp_path), "second", second, first))
    other.start()
    write_in_turn(str(tmp_path), "first", first, second)
    other.join(SECONDS)
    if other.is_alive():
        other.kill()
    assert other.exitcode == 0
    backend = open_store(tmp_path)
    assert len(found(backend, "wombat")) == 24
    backend.close()


@pytest.mark.slow
def test_a_small_scope_in_a_large_namespace_is_searched_as_one_of_its_own(tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    backend.store(
        [
            make_entry(
                said(n),
                session_id=f"s{n % 50}",
                user_id="u",
                metadata={"part": n % 50, "name": f"n{n % 50}", "flag": n % 50 == 3},
            )
            for n in range(1000)
        ]
    )
    everything = backend.search(Query("numbat of the rangers", limit=MAX_LIMIT, mode="lexical"))
    expected = [hit.entry.id for hit in everything if hit.entry.session_id == "s3"]
    assert expected
    for scope in (
        Scope(session_id="s3"),
        Scope(user_id="u", session_id="s3"),
        Scope(metadata={"part": 3}),
        Scope(metadata={"part": 3.0, "name": "n3"}),
        Scope(kinds=("fact",), tiers=("semantic",), metadata={"flag": True}),
        Scope(user_id="u", or_nobody=True, metadata={"part": 3}),
    ):
        hits = backend.search(Query("numbat of the rangers", scope, limit=5, mode="lexical"))
        assert [hit.entry.id for hit in hits] == expected[:5], scope
    backend.close()


def test_a_common_term_is_left_out_if_rarer_ones_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_store(tmp_path)
    backend.store([make_entry(f"station report {n} {'heron' if n % 10 else 'otter'} {said(n)}") for n in range(200)])
    text = "station report otter fossa"
    best = found(backend, text)[0]
    monkeypatch.setattr(word_fields, "_LARGE", 100)
    assert found(backend, text)[0] == best
    assert len(found(backend, text)) < 200  # those that have the common terms alone are not looked at
    assert len(found(backend, "station report")) == 200  # nothing rarer is asked for
    backend.close()


def test_only_terms_of_many_entries_are_left_out() -> None:
    holders = {("stems", "en~common"): 9_000, ("stems", "et~common"): 5, ("stems", "en~rare"): 100}
    holders |= {("stems", "rarer"): 10, ("stems", "en~missing"): 0}
    asked = [word_fields.WeightedTerm(field, term, 1.0) for field, term in holders]
    common, elsewhere, rare, rarer, missing = asked
    assert word_fields.without_common_terms(asked, holders, 20_000, "en") == [elsewhere, rare, rarer, missing]
    assert word_fields.without_common_terms([common, elsewhere, rare, missing], holders, 20_000, "en") == [
        common,
        elsewhere,
        rare,
        missing,
    ]
    assert word_fields.without_common_terms(asked, holders, 20_000, "fi") == asked
    assert word_fields.without_common_terms(asked, holders, 9_500, "en") == asked


def test_rare_languages_are_left_out_only_in_a_large_index() -> None:
    counts = {"en": 9_990, "fi": 9, "et": 1}
    assert word_fields.query_languages(counts, 9_999, "") == {"en", "fi", "et"}
    assert word_fields.query_languages(counts, 10_000, "") == {"en"}
    assert word_fields.query_languages(counts, 10_000, "et") == {"en", "et"}
    assert word_fields.query_languages(counts, 10_000, "sv") == {"en"}
    assert word_fields.query_languages(counts | {"fi": 10}, 10_000, "") == {"en", "fi"}
