"""Windows and their vectors: each text is embedded once, few vectors are in memory, and a refusal loses nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.index.embedding.queue import EmbeddingQueue, queue_lock
from agentformer.index.embedding.windows import GROUP, Refused, WindowCutter, WindowEmbedder, WindowTable
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.codec import now
from agentformer.records.sqlite.database import Database
from agentformer.records.vectors import Rows, Window, text_hash
from agentformer.testing import make_entry
from agentformer.types import EmbeddingSpace, Matrix, MemoryEntry, Span, Vector


class Watched:
    """Hashing, with all that it was asked for; and with `counting`, how many of the arrays that it gave are alive when
    it is asked again."""

    def __init__(self, refuses: str = "", dies_at: int = 0, *, counting: bool = False) -> None:
        self._inner = HashingEmbedder()
        self._refuses = refuses
        self._dies_at = dies_at
        self._counting = counting
        self._given: list[weakref.ref[Matrix]] = []
        self.texts: list[str] = []
        self.most_alive = 0
        self.calls = 0
        self.counted: list[str] = []

    @property
    def space(self) -> EmbeddingSpace:
        return self._inner.space

    def token_spans(self, text: str) -> list[Span]:
        self.counted.append(text)
        return self._inner.token_spans(text)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self.calls += 1
        if self.calls == self._dies_at:
            raise EmbedderUnavailable("the server is gone")
        if self._refuses and any(self._refuses in text for text in texts):
            raise TextTooLong("that one not")
        if self._counting:
            gc.collect()
        self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self._given))
        rows = self._inner.embed_documents(texts)
        self._given.append(weakref.ref(rows))
        self.texts += texts
        return rows

    def embed_query(self, text: str) -> Vector:
        return self._inner.embed_query(text)


class Shelf:
    """Keeps what is finished: `known` and `keep` of a vectorizer."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def known(self, hashes: Sequence[bytes]) -> set[bytes]:
        return set(hashes) & set(self.kept)

    def keep(self, rows: Rows) -> None:
        assert len(rows.hashes) == len(rows.matrix)
        self.kept += rows.hashes


def many(count: int, context: str = "") -> list[MemoryEntry]:
    moment = now()
    return [
        make_entry(f"The harbour has {n} boats.", context=context, created_at=moment, updated_at=moment)
        for n in range(count)
    ]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "memory.sqlite3")
    yield opened
    opened.close()


def test_no_more_than_a_batch_of_vectors_is_held_however_many_there_are() -> None:
    for count in [5 * GROUP, 20 * GROUP]:
        embedder, shelf = Watched(counting=True), Shelf()
        vectorizer = WindowEmbedder(embedder, shelf.known, shelf.keep)
        gc.freeze()  # what other tests have left is not looked through each time
        try:
            cuts = vectorizer.embed(many(count))
        finally:
            gc.unfreeze()
        assert embedder.most_alive <= 1
        assert len(vectorizer.rows.hashes) == GROUP
        assert vectorizer.embedded == len(embedder.texts) == len(cuts) == count


def test_what_was_kept_is_not_handed_out_again() -> None:
    shelf = Shelf()
    vectorizer = WindowEmbedder(Watched(), shelf.known, shelf.keep)
    cuts = vectorizer.embed(many(3 * GROUP + 5))
    handed = vectorizer.rows.hashes
    assert len(shelf.kept) == 3 * GROUP
    assert len(handed) == 5
    wanted = {window.hash for windows in cuts for window in windows if isinstance(window, Window)}
    assert {*shelf.kept, *handed} == wanted


def test_rows_belong_to_their_hashes() -> None:
    seen: dict[bytes, np.ndarray] = {}

    def keep(rows: Rows) -> None:
        seen.update(zip(rows.hashes, rows.matrix, strict=True))

    vectorizer = WindowEmbedder(HashingEmbedder(), lambda hashes: set(), keep)
    entries = [make_entry("boat " * (n % 90 + 1) + f"number {n}") for n in range(3 * GROUP)]
    vectorizer.embed(entries)
    keep(vectorizer.rows)
    for entry in entries:
        assert np.array_equal(seen[text_hash(entry.content)], HashingEmbedder().embed_query(entry.content))


def test_a_text_that_many_entries_share_is_embedded_once() -> None:
    embedder, shelf = Watched(), Shelf()
    vectorizer = WindowEmbedder(embedder, shelf.known, shelf.keep)
    vectorizer.embed([make_entry(f"There are {n % 10} boats.") for n in range(1_000)])
    assert sorted(embedder.texts) == [f"There are {n} boats." for n in range(10)]


def test_batches_are_of_like_length_over_the_whole_call() -> None:
    embedder, shelf = Watched(), Shelf()
    lengths = [(n * 37) % 230 + 1 for n in range(4 * GROUP)]
    WindowEmbedder(embedder, shelf.known, shelf.keep).embed(
        [make_entry("a " * n + f"{i}") for i, n in enumerate(lengths)]
    )
    assert [*map(len, embedder.texts)] == sorted(map(len, embedder.texts))


def test_a_refused_text_holds_up_no_neighbour_and_every_entry_that_has_it() -> None:
    embedder, shelf = Watched(refuses="blasted"), Shelf()
    entries = [*many(2 * GROUP), make_entry("The blasted rock."), *many(GROUP), make_entry("The blasted rock.")]
    vectorizer = WindowEmbedder(embedder, shelf.known, shelf.keep)
    cuts = vectorizer.embed(entries)
    refused = [n for n, windows in enumerate(cuts) if isinstance(windows, Refused)]
    assert refused == [2 * GROUP, 3 * GROUP + 1]
    assert {*shelf.kept, *vectorizer.rows.hashes} == {text_hash(entry.content) for entry in many(2 * GROUP)}


def test_what_was_finished_before_the_server_went_is_kept() -> None:
    embedder, shelf = Watched(dies_at=3), Shelf()
    with pytest.raises(EmbedderUnavailable):
        WindowEmbedder(embedder, shelf.known, shelf.keep).embed(many(5 * GROUP))
    assert len(shelf.kept) == 2 * GROUP
    again = Watched()
    WindowEmbedder(again, shelf.known, shelf.keep).embed(many(5 * GROUP))
    assert len(again.texts) == 3 * GROUP


def test_a_context_line_is_counted_once_and_a_short_text_never() -> None:
    embedder = Watched()
    WindowCutter(embedder).cut(many(200, context="Harbour handbook"))
    assert embedder.counted == ["Harbour handbook"]


def test_a_text_is_counted_if_it_could_exceed_the_model() -> None:
    for length, context, counted in [(254, "", 0), (255, "", 1), (249, "Log: 1 2", 1), (250, "Log: 1 2", 2)]:
        embedder = Watched()  # reads 256 tokens, two of which the model may add itself
        WindowCutter(embedder).cut([make_entry("x" * length, context=context)])
        assert len(embedder.counted) == counted, (length, context)
    embedder = Watched()
    WindowCutter(embedder, window_tokens=10).cut([make_entry("x" * 8), make_entry("x" * 9), make_entry("ä" * 8)])
    assert embedder.counted == ["x" * 9, "ä" * 8]


def test_a_context_line_has_at_most_a_quarter_of_a_window() -> None:
    cutter, short, long = WindowCutter(HashingEmbedder()), " ".join(["a"] * 64), " ".join(["a"] * 65)
    for context, line in ((short, f"{short}\n"), (long, f"{short}\n"), (" \n ", "")):
        assert cutter.text(make_entry("Boats.", context=context), Span(0, 6)) == f"{line}Boats."


def test_the_text_of_a_window_is_what_was_hashed() -> None:
    entry = make_entry("Boats come and go, and the harbour master counts them all. " * 60, context="Log of the day")
    cutter = WindowCutter(HashingEmbedder())
    windows = cutter.cut([entry])[0]
    assert isinstance(windows, list)
    assert len(windows) > 2
    assert [text_hash(cutter.text(entry, window.span)) for window in windows] == [window.hash for window in windows]


def test_columns_give_back_what_was_put_into_them() -> None:
    key = [bytes([n]) * 31 + b"\0" for n in range(3)]
    cuts = WindowTable()
    cuts.append([Window(Span(0, 5), key[2]), Window(Span(6, 9), key[0])])
    cuts.append([])
    cuts.append([Window(Span(1, 2), key[2])])
    cuts.append([Window(Span(3, 4), key[1])])
    cuts.replace(3, Refused("no"))
    assert [*cuts] == [[(Span(0, 5), key[2]), (Span(6, 9), key[0])], [], [(Span(1, 2), key[2])], Refused("no")]
    assert [*cuts.select([3, 0])] == [cuts[3], cuts[0]]
    assert cuts.owners().tolist() == [0, 0, 2, 3]
    first, text = cuts.texts()
    assert (first.tolist(), text.tolist()) == ([0, 1, 3], [0, 1, 0, 2])


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue stores finished vectors after each batch, as with a slow model."""
    monkeypatch.setattr("agentformer.index.embedding.queue._KEEP_SECONDS", 0.0)


def test_of_a_long_call_each_vector_is_written_once(database: Database, tmp_path: Path, keeping: None) -> None:
    entries = many(3 * GROUP)
    embedding = EmbeddingQueue(partial(queue_lock, tmp_path), database, HashingEmbedder())
    prepared = embedding.embed(entries)
    with database.reading() as connection:
        kept = set(store.vector_ids(connection, 1, {text_hash(entry.content) for entry in entries}))
    assert len(kept) == 2 * GROUP
    assert kept.isdisjoint(prepared.vectors.hashes)
    with database.writing() as connection:
        embedding.commit(connection, records.insert(connection, entries), entries, prepared)
        assert connection.execute("SELECT count(DISTINCT vector) FROM windows").fetchone()[0] == 3 * GROUP
        assert store.pending_count(connection) == 0


def test_the_vectors_of_a_fast_model_are_stored_with_the_entries(database: Database, tmp_path: Path) -> None:
    entries = many(3 * GROUP)
    prepared = EmbeddingQueue(partial(queue_lock, tmp_path), database, HashingEmbedder()).embed(entries)
    assert len(prepared.vectors.hashes) == 3 * GROUP
    with database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM vectors").fetchone()[0] == 0


def test_a_long_call_stores_many_vectors_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentformer.index.embedding.windows._MOST_UNSTORED", 2 * GROUP)
    shelf = Shelf()
    vectorizer = WindowEmbedder(HashingEmbedder(), shelf.known, shelf.keep, keep_seconds=3600.0)
    vectorizer.embed(many(5 * GROUP))
    assert (len(shelf.kept), len(vectorizer.rows.hashes)) == (4 * GROUP, GROUP)


def test_an_entry_whose_kept_vector_went_meanwhile_waits_and_is_embedded_later(
    database: Database, tmp_path: Path, keeping: None
) -> None:
    entries = many(3 * GROUP)
    embedding = EmbeddingQueue(partial(queue_lock, tmp_path), database, HashingEmbedder())
    prepared = embedding.embed(entries)
    with database.writing() as connection:
        lost = connection.execute("DELETE FROM vectors WHERE id <= 7").rowcount
        embedding.commit(connection, records.insert(connection, entries), entries, prepared)
        assert (lost, store.pending_count(connection)) == (7, 7)
    assert embedding.catch_up() == 0
    with database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM windows").fetchone()[0] == 3 * GROUP


def test_progress_only_grows_to_the_total_also_where_texts_are_refused() -> None:
    told: list[tuple[int, int]] = []
    entries, embedder = many(5 * GROUP), Watched(refuses=" 7 ")

    def tell(done: int, total: int) -> None:
        assert done <= len(embedder.texts) + 1  # the refused one
        told.append((done, total))

    WindowEmbedder(embedder, Shelf().known, Shelf().keep, tell).embed(entries)
    done = [done for done, _ in told]
    assert done == sorted(set(done))
    assert {total for _, total in told} == {5 * GROUP} == {done[-1]}
