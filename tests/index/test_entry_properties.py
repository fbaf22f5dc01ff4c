"""What is derived from entries and kept beside them: it equals what the entries show, and it is never stale."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable
from agentformer.index import entry_properties, property_threads
from agentformer.index.property_threads import DerivedRenewal
from agentformer.index.words.fields import AnalyzedEntry
from agentformer.search import boosts
from agentformer.text import analysis
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.languages.detection import detect_language
from agentformer.types import Matrix, MemoryEntry, Query, Source, new_id

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)
TEXTS = (
    "",
    "We met last week on the beach.",
    "Nähdään ensi viikolla, ellei sada; viime vuonna satoi.",
    "Vi sågs i förrgår, on 3 May 2023 and in 2021.",
    "Ich war vorgestern dort. Wann kommst du?",
    "昨日は海で泳ぎました。",
    "Mercury (planet)\n\nMercury was seen on 7.5.2023, two weeks before 1 June 2023.",
    "yesterday",
    "Da er jeg hjemme i morgen, og i overmorgen",
    "on the 5th of May or on Monday; May 20 people come?",
    "What did she say?",
    "ok",
    "Anna lives in Oslo. Phone: 040 123",
    "# Minutes\n" + "The board met on Tuesday. " * 120 + "It meets again tomorrow.",
)


def entries(**given: object) -> list[MemoryEntry]:
    common = {"created_at": NOON, "updated_at": NOON, "occurred_at": NOON}
    return [MemoryEntry(id=new_id(), content=text, **{**common, **given}) for text in TEXTS]


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        yield af


def rows(af: agentformer.AgentFormer) -> dict[str, entry_properties.Derived]:
    with af.backend._database.reading() as connection:
        ids = dict(connection.execute("SELECT num, id FROM entries").fetchall())
        return {ids[num]: row for num, row in entry_properties.read(connection, [*ids]).items()}


def execute(af: agentformer.AgentFormer, statement: str) -> None:
    with af.backend._database.writing() as connection:
        connection.execute(statement)


def filled(af: agentformer.AgentFormer) -> dict[str, entry_properties.Derived]:
    """Search once, wait for the background thread, and return the rows."""
    af.memory.search("Tuesday")
    af.backend._open().pipeline._renewal.wait()
    return rows(af)


@pytest.mark.parametrize("occurred_at", [NOON, None])
def test_what_is_kept_equals_what_the_entry_shows(af: agentformer.AgentFormer, occurred_at: datetime | None) -> None:
    said = entries(kind="message", tier="episodic", session_id="s", occurred_at=occurred_at)
    facts = entries(metadata={"language": "fi"}, occurred_at=occurred_at)
    af.backend.store([*said, *facts])
    kept, on = rows(af), date(2023, 5, 8) if occurred_at else None
    for entry in (*said, *facts):
        row, start = kept[entry.id], entry.content[:2000]
        language = row.analyzed.language
        assert language == detect_language(entry.content, str(entry.metadata.get("language", "")))
        assert row.days == entry_properties.named_days(entry.content, on)
        found = find_date_ranges(start, on, detect_language(start))
        assert {*row.days} == {(days.first, days.last) for days in found}
        assert row.analyzed == (language, entry_properties.fact_keys(entry, lambda language=language: language))
        assert row.title == entry_properties.own_title("", entry.content[:102])
    for entry in said:
        message, text = kept[entry.id].message, entry.content[:1000]
        assert message.question == text.endswith("?") or text == TEXTS[6]


def test_the_ranking_with_kept_rows_is_the_ranking_without(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = entries(kind="message", tier="episodic", session_id="s")
    said = [
        MemoryEntry(**{**vars_of(entry), "speaker": ("Anna", "Ben")[n % 2], "occurred_at": NOON + timedelta(hours=n)})
        for n, entry in enumerate(said)
    ]
    pages = [
        MemoryEntry(**{**vars_of(entry), "source": Source("d", "d.pdf", 1, "", n, n + 9), "kind": "chunk"})
        for n, entry in enumerate(entries())
    ]
    titled = entries(title="The board (of Ben)")
    af.backend.store([*said, *titled, *pages])
    questions = ("When did the board meet?", "Milloin satoi?", "What did Anna say last week?", "Mercury in May 2023")
    asked = [Query(text, limit=30, at=NOON) for text in questions]
    assert len(filled(af)) == 3 * len(TEXTS)
    with_rows = [found(af, query) for query in asked]
    with monkeypatch.context() as patched:
        patched.setattr(entry_properties, "read", lambda connection, nums: {})
        assert [found(af, query) for query in asked] == with_rows
    assert all(with_rows)


def vars_of(entry: MemoryEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def found(af: agentformer.AgentFormer, query: Query) -> list[tuple[str, float, tuple[object, ...]]]:
    return [(hit.entry.id, hit.score, hit.votes) for hit in af.backend.search(query)]


def test_a_search_with_kept_rows_reads_no_dates(af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    af.backend.store(entries(kind="message", tier="episodic", session_id="s"))
    boosts._named_days.cache_clear()
    monkeypatch.setattr(entry_properties, "find_date_ranges", lambda *_: pytest.fail("a text was searched for dates"))
    assert af.memory.search("When did we meet on 7 May 2023?")
    assert boosts._named_days.cache_info().currsize == 0


def test_the_word_index_takes_the_language_from_the_kept_row(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = af.backend.store([*entries(), *entries(metadata={"language": "fi"})])
    detected = [AnalyzedEntry.of(n, entry) for n, entry in enumerate(stored)]
    kept = rows(af)
    with monkeypatch.context() as patched:
        patched.setattr(analysis, "detect_language", lambda *_: pytest.fail("a language was detected again"))
        assert [AnalyzedEntry.of(n, entry, derived=kept[entry.id]) for n, entry in enumerate(stored)] == detected
        af.backend._open().words.flush(af.backend._database)
        with pytest.raises(pytest.fail.Exception):  # the language of a message depends on the messages around it
            AnalyzedEntry.of(0, stored[1], around=["Onko se siellä?"], derived=kept[stored[1].id])
    assert af.memory.search("Nähdään ensi viikolla", mode="lexical")[0].entry.content == TEXTS[2]


def test_a_changed_entry_has_a_new_row_and_a_removed_one_has_none(af: agentformer.AgentFormer) -> None:
    entry = af.memory.store("We met yesterday.", occurred_at=NOON)
    assert rows(af)[entry.id].days == ((date(2023, 5, 7), date(2023, 5, 7)),)
    af.memory.update(entry.id, content="Tapasimme siellä eilen illalla ja tänään.")
    assert rows(af)[entry.id].analyzed.language == "fi"
    af.memory.remove(entry.id)
    with af.backend._database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM derived").fetchone()[0] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE derived SET days = '738000 738001'",  # damaged
        "UPDATE derived SET version = version + 1",  # of another analysis
        "UPDATE entries SET checksum = checksum + 1",  # of another state of the entry
        "DELETE FROM derived",
    ],
)
def test_a_row_that_does_not_fit_is_not_used(af: agentformer.AgentFormer, statement: str) -> None:
    af.memory.store("We met yesterday.", occurred_at=NOON)
    execute(af, statement)
    assert rows(af) == {}


def test_rows_of_many_entries_and_of_an_older_analysis_are_written_in_the_background(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(property_threads, "_ANALYSIS_PAUSE", 60.0)  # the vectors are computed before the first analysis
    stored = [entry for _ in range(3) for entry in entries()]
    af.backend.store([*stored, MemoryEntry(id=new_id(), content="page", kind="page", created_at=NOON, updated_at=NOON)])
    assert len(stored) > entry_properties.INLINE and rows(af) == {}
    assert filled(af).keys() == {entry.id for entry in stored}  # no search finds a page
    monkeypatch.setattr(entry_properties, "VERSION", entry_properties.VERSION + 1)
    af.backend._open().pipeline._renewal._again_at = 0.0
    assert rows(af) == {} and filled(af).keys() == {entry.id for entry in stored}


def test_many_entries_are_analyzed_while_their_vectors_are_computed(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = HashingEmbedder.embed_documents

    def embed_slowly(self: HashingEmbedder, texts: Sequence[str]) -> Matrix:
        for thread in threading.enumerate():
            if thread.name == "agentformer-analysis":
                thread.join(20)
        return embed(self, texts)

    monkeypatch.setattr(HashingEmbedder, "embed_documents", embed_slowly)
    stored = [entry for _ in range(3) for entry in entries()]
    stored[7] = dataclasses.replace(stored[6], id=new_id())  # a copy with equal text
    page = MemoryEntry(id=new_id(), content="page", kind="page", created_at=NOON, updated_at=NOON)
    af.backend.store([*stored, page])
    kept = rows(af)
    assert kept.keys() == {entry.id for entry in stored}
    for entry in stored:
        assert kept[entry.id].days == entry_properties.named_days(entry.content, NOON.date())
    assert not [thread for thread in threading.enumerate() if thread.name == "agentformer-analysis"]


def test_the_background_thread_waits_for_running_searches_but_not_for_ever(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(property_threads, "_ANALYSIS_PAUSE", 60.0)
    af.backend.store([entry for _ in range(3) for entry in entries()])
    asked = list[int]()
    renewal = DerivedRenewal(lambda: asked.append(1) is None and len(asked) % 4 > 0)  # three of four times
    renewal.start(af.backend._database, [1])
    renewal.wait()
    assert len(rows(af)) == 3 * len(TEXTS) and len(asked) > 4 * len(rows(af))  # each row waited for three searches
    execute(af, "DELETE FROM derived")
    monkeypatch.setattr(property_threads, "_YIELD_SECONDS", 0.001)
    renewal = DerivedRenewal(lambda: True)
    renewal.start(af.backend._database, [1])
    renewal.wait()
    assert len(rows(af)) == 3 * len(TEXTS)


def test_an_analysis_ends_with_the_embedding_when_the_embedder_fails() -> None:
    stored = [entry for _ in range(9) for entry in entries()]
    with pytest.raises(EmbedderUnavailable), property_threads.analyzing(stored) as analyses:
        raise EmbedderUnavailable("away")
    assert len(analyses) < len(stored)
    assert not [thread for thread in threading.enumerate() if thread.name == "agentformer-analysis"]


def test_the_version_is_that_of_the_analysis() -> None:
    """If the analysis has changed on purpose, raise `entry_properties.VERSION` and write the new digest. Values that
    are merely left out need no new version: `Derived.message` reads the longer rows of before."""
    told = []
    for text, kind in itertools.product(TEXTS, ("fact", "message")):
        entry = MemoryEntry(id="1", content=text, kind=kind, session_id="s", occurred_at=NOON)
        told.append(entry_properties.analyze(entry))
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:16]
    assert (entry_properties.VERSION, digest) == (3, "2ba16c40515e4dd9")
