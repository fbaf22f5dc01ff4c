"""What the audit finds, and what it leaves alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.audit import Auditor, AuditReport, merge_duplicates
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.contradictions import block_contradictions
from agentformer.memory.near_duplicates import Text, find_near_duplicates
from agentformer.testing import make_entry
from agentformer.text.facts.numbers_and_dates import number_values
from agentformer.types import MemoryEntry, Scope, Source, Use

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
OLD = NOW - timedelta(days=100)
BLOCK_TOKENS = 20
TEA = "Aino prefers green tea in the morning."


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaissMemoryBackend]:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    yield backend
    backend.close()


def look(backend: FaissMemoryBackend, **options: Any) -> AuditReport:
    auditor = Auditor(backend, lambda text: len(text.split()), BLOCK_TOKENS)
    return auditor.run(**{"namespace": "default", "at": NOW, **options})


def groups(*texts: str) -> list[tuple[int, ...]]:
    return [group.keys for group in find_near_duplicates([Text(n, "", text) for n, text in enumerate(texts)])]


def clashes(*contents: str) -> list[str]:
    blocks = [make_entry(content, tier="core", title=f"block {n}") for n, content in enumerate(contents)]
    return [found.about for found in block_contradictions(blocks)[0]]


def test_an_empty_memory_has_nothing_to_look_at(backend: FaissMemoryBackend) -> None:
    assert look(backend) == AuditReport("default", 0, {"texts": 0, "facts": 0, "core_blocks": 0})


def test_equal_entries_are_duplicates_and_merging_keeps_the_oldest(backend: FaissMemoryBackend) -> None:
    one, two, three = (make_entry(TEA, created_at=OLD) for _ in range(3))
    backend.store([one, two, three])
    report = look(backend)
    assert [(group.ids, group.similarity) for group in report.duplicates] == [((one.id, two.id, three.id), 1.0)]
    assert report.near_duplicates == ()
    merged = merge_duplicates(backend, report)
    assert [(entry.id, entry.superseded_by) for entry in merged] == [(two.id, one.id), (three.id, one.id)]
    assert [entry.id for entry in backend.list(Scope())] == [one.id]
    assert backend.count(Scope(include_archived=True)) == 3
    assert look(backend).duplicates == () and merge_duplicates(backend, report) == []


def test_the_same_words_with_other_details_are_alike_and_never_merged(backend: FaissMemoryBackend) -> None:
    plain = make_entry(TEA)
    dated = make_entry(TEA, metadata={"seen": "kitchen"})
    other_session = make_entry(TEA, session_id="s")
    backend.store([plain, dated, other_session])
    report = look(backend)
    assert report.duplicates == ()
    assert [(g.ids, g.similarity) for g in report.near_duplicates] == [((plain.id, dated.id, other_session.id), 1.0)]
    assert merge_duplicates(backend, report) == []


def test_two_spellings_of_a_text_are_merged_but_no_text_with_other_marks(backend: FaissMemoryBackend) -> None:
    texts = ("The gate code is 5512.", "the  gate code is 5512", "He writes C.", "He writes C++.", "It is -5.")
    entries = [make_entry(text, created_at=OLD) for text in texts]
    backend.store(entries)
    report = look(backend)
    assert [(group.ids, group.similarity) for group in report.duplicates] == [((entries[0].id, entries[1].id), 1.0)]
    assert [entry.id for entry in merge_duplicates(backend, report)] == [entries[1].id]
    assert look(backend).duplicates == ()


def test_an_entry_that_says_less_is_a_duplicate_of_an_older_one_that_says_more(backend: FaissMemoryBackend) -> None:
    rich, poor = make_entry(TEA, metadata={"seen": "kitchen"}), make_entry(TEA)
    backend.store([rich, poor])
    assert [group.ids for group in look(backend).duplicates] == [(rich.id, poor.id)]


def test_the_excerpt_is_the_beginning_of_the_oldest_entry(backend: FaissMemoryBackend) -> None:
    long = "The harbour  master keeps the keys. " * 8
    backend.store([make_entry(text, created_at=OLD) for text in (TEA, f"{TEA[:-1]}, too", long, long)])
    report = look(backend)
    assert [group.excerpt for group in report.near_duplicates] == [TEA]
    assert [group.excerpt for group in report.duplicates] == [" ".join(long.split())[:200]]


def test_nothing_is_a_duplicate_across_namespaces_users_agents_and_projects(backend: FaissMemoryBackend) -> None:
    places: list[dict[str, Any]] = [
        {},
        *({"user_id": name} for name in ("a", "b", "None")),
        {"agent_id": "a"},
        {"project": "a"},
    ]
    backend.store([make_entry(TEA, **place) for place in places] + [make_entry(TEA, namespace="other")])
    report = look(backend)
    assert (report.entries, report.duplicates, report.near_duplicates) == (6, (), ())


def test_messages_documents_and_what_is_not_live_are_no_duplicates(backend: FaissMemoryBackend) -> None:
    source = Source("d", "rules.pdf", 1)
    backend.store([make_entry(TEA, tier="episodic", kind="message", role="user", session_id="s") for _ in range(2)])
    backend.store([make_entry(TEA, kind="chunk", source=source) for _ in range(2)])
    newer = make_entry("newer")
    backend.store([newer])
    backend.store([make_entry(TEA), make_entry(TEA, archived_at=NOW), make_entry(TEA, superseded_by=newer.id)])
    report = look(backend)
    assert (report.duplicates, report.near_duplicates) == ((), ())


def test_merging_leaves_alone_what_was_changed_since(backend: FaissMemoryBackend) -> None:
    one, two, three, four = backend.store([make_entry(TEA) for _ in range(4)])
    report = look(backend)
    backend.update(two.id, {"content": "Aino prefers coffee."})
    backend.consolidate(make_entry("A summary.", kind="summary"), [four.id])
    assert [entry.id for entry in merge_duplicates(backend, report)] == [three.id]
    backend.remove([one.id])
    assert merge_duplicates(backend, report) == []
    assert [entry.content for entry in backend.list(Scope())] == ["Aino prefers coffee.", TEA, "A summary."]


def test_merging_gives_back_what_was_merged_into_an_entry_that_went_meanwhile(backend: FaissMemoryBackend) -> None:
    one, two, _ = backend.store([make_entry(TEA) for _ in range(3)])
    report = look(backend)

    class Forgetful:
        """The oldest is forgotten by somebody else once the first of the others was merged into it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        def update(self, entry_id: str, changes: Any, expected_version: int | None = None) -> MemoryEntry:
            changed = backend.update(entry_id, changes, expected_version)
            if entry_id == two.id and changes["superseded_by"]:
                backend.remove([one.id])
            return changed

    assert merge_duplicates(Forgetful(), report) == []  # type: ignore[arg-type]
    assert backend.count(Scope()) == 2


def test_near_duplicates_are_found_in_any_script() -> None:
    cases: list[tuple[str, str]] = [
        (TEA, "aino prefers green tea, in the morning"),
        (TEA, "Aino prefers green tea in the mornings."),
        ("Aino juo aamuisin vihreää teetä kotona.", "Aino juo aamuisin vihreää teetä kotonaan."),
        ("会議は月曜日の午前九時に始まります。", "会議は月曜日の午前九時に始まります"),
        (
            "Möte klockan 9:00 i det stora rummet på övervåningen",
            "Möte klockan 9.00 i det stora rummet på övervåningen",
        ),
        ("😀 🎉", "😀  🎉"),
        ("اجتماع الفريق يوم الإثنين في المكتب", "اجتماع الفريق يوم الإثنين في المكتب."),
    ]
    for one, other in cases:
        assert groups("Something else altogether.", one, other) == [(1, 2)]


def test_texts_that_state_something_else_are_no_near_duplicates() -> None:
    cases: list[tuple[str, str]] = [
        ("Room 12 at 9:00", "Room 14 at 9:00"),
        ("The meeting of the board is held in room B at 9:00", "The meeting of the board is held in room B at 9:30"),
        ("The annual fee of the harbour is 1,250 euros", "The annual fee of the harbour is 1,350 euros"),
        ("Kokous pidetään keväällä maanantaina klubitalolla", "Kokous pidetään keväällä tiistaina klubitalolla"),
        ("The annual general meeting is on 8 May in Turku", "The annual general meeting is on 8 June in Turku"),
        ("Aino drinks green tea in the morning at home", "Aino never drinks green tea in the morning at home"),
        ("Aino juo vihreää teetä aamuisin kotonaan", "Aino ei juo vihreää teetä aamuisin kotonaan"),
        ("The sensor in the cellar reads 5 degrees today", "The sensor in the cellar reads -5 degrees today"),
        ("Aino knows C++ well", "Aino knows C# well"),
        ("Aino likes tea.", "Matti owns a boat."),
        ("", "x"),
    ]
    for one, other in cases:
        assert groups(one, other) == []


def test_banding_finds_every_pair_that_comparing_all_finds() -> None:
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäö", k=6)) for _ in range(500)]
    texts = [" ".join(rng.choices(words, k=25)) for _ in range(300)]
    copies = {n: f"{texts[n]} {rng.choice(words)}" for n in range(0, 300, 3)}
    found = groups(*texts, *copies.values())
    assert found == [(original, 300 + n) for n, original in enumerate(copies)]


def test_every_member_of_a_group_is_like_its_first() -> None:
    """A chain of small changes does not make its ends duplicates."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    chain = [" ".join(letters[n + k] * 6 for k in range(12)) for n in range(14)]
    found = find_near_duplicates([Text(n, "", text) for n, text in enumerate(chain)])
    assert len(found) > 1 and all(group.similarity >= 0.8 for group in found)


def test_hostile_texts_are_compared_in_their_time() -> None:
    cases: list[str] = ["a" * 300_000, "\x00\x01 \x00", "1" * 50_000, "9:" * 20_000, "‮" * 5000, "no " * 20_000]
    for content in cases:
        assert groups(content, "else", content) == [(0, 2)]


def test_a_number_is_the_same_however_it_is_written() -> None:
    cases: list[tuple[str, set[str]]] = [
        ("1,234.50 or 1 234,5 or 1.234,50", {"1234.5"}),
        ("5 pm, 17:00, 17", {"17"}),
        ("9:30 and 9.30", {"9:30"}),
        ("SKU-1234, v1.2.3", {"1234", "1.2.3"}),
        ("٣ rooms", {"3"}),
        ("at -5", {"-5"}),
    ]
    for text, expected in cases:
        assert number_values(text) == expected


def test_core_blocks_that_exclude_each_other_are_named() -> None:
    cases: list[tuple[str, str, str]] = [
        ("The office closes at 17.", "The office closes at 18.", "number"),
        ("The office closes at 5 pm.", "Office closes at 18:00.", "number"),
        ("She has two dogs.", "She has three dogs.", "number"),
        ("Mötet börjar klockan tre.", "Mötet börjar klockan fyra.", "number"),
        ("Anna's birthday is 8 May.", "Anna's birthday is 9 June.", "date"),
        ("Sisareni syntyi 8.5.1985.", "Sisareni syntyi 9.5.1985.", "date"),
        ("Kokous on maanantaina.", "Kokous on tiistaina.", "date"),
        ("Mötet är på måndag.", "Mötet är på tisdag.", "date"),
        ("Aino drinks coffee.", "Aino doesn't drink coffee.", "negation"),
        ("Aino pitää teestä.", "Aino ei pidä teestä.", "negation"),
        ("Ulla dricker kaffe.", "Ulla dricker inte kaffe.", "negation"),
        ("Kjell spiser fisk.", "Kjell spiser ikke fisk.", "negation"),
        ("Lotte spiser kød.", "Lotte spiser aldrig kød.", "negation"),
        ("Hans trinkt Bier.", "Hans trinkt kein Bier.", "negation"),
    ]
    for one, other, about in cases:
        assert clashes(one, other) == [about]
        assert clashes(f"{one} {other}") == [about]  # within one block too


def test_core_blocks_that_can_both_hold_are_not() -> None:
    cases: list[tuple[str, str]] = [
        ("The office closes at 17.", "The office closes at 17 on Fridays."),
        ("The office closes at 5 pm.", "The office closes at 17:00."),
        ("Born 8.5.1985.", "Born 8 May 1985."),
        ("The price is 1,200 euros.", "The price is 1200 euros."),
        ("Room 12 has a projector.", "Room 14 has a projector."),
        ("In 2023 the fee was 23 euros.", "In 2024 the fee was 24 euros."),
        ("Monday: open 9-17.", "Tuesday: open 10-18."),
        ("Aino drinks coffee.", "Matti does not smoke."),
        ("Aino likes tea.", "Aino likes green tea."),
    ]
    for one, other in cases:
        assert clashes(one, other) == []


def test_blocks_of_different_users_do_not_contradict_each_other(backend: FaissMemoryBackend) -> None:
    ours, theirs = "The user drinks 2 cups a day.", "The user drinks 5 cups a day."
    anna = make_entry(ours, tier="core", title="habits", user_id="anna")
    backend.store([anna, make_entry(theirs, tier="core", title="habits", user_id="ben")])
    assert look(backend).contradictions == ()
    everybody = make_entry(theirs, tier="core", title="all")
    backend.store([everybody])
    (found,) = look(backend).contradictions
    assert (found.ids, found.titles) == ((anna.id, everybody.id), ("habits", "all"))
    assert (found.about, found.sentences) == ("number", (ours, theirs))


@pytest.mark.slow
def test_a_core_of_thousands_of_sentences_is_cut_with_a_note() -> None:
    block = make_entry(" ".join(f"The fee of the boat is {n} euros." for n in range(3000)), tier="core")
    found, notes = block_contradictions([block])
    assert (len(found), len(notes)) == (100, 2)


def test_blocks_near_their_limit_are_named(backend: FaissMemoryBackend) -> None:
    backend.store([make_entry(" ".join(["word"] * n), tier="core", title=f"{n}") for n in (16, 17, 21)])
    assert [(b.title, b.tokens, b.limit) for b in look(backend).oversized] == [("17", 17, 20), ("21", 21, 20)]


def test_entries_never_used_are_counted_and_the_oldest_named(backend: FaissMemoryBackend) -> None:
    unread = [make_entry(f"fact of the matter {chr(97 + n)}", created_at=OLD) for n in range(25)]
    found, read = (make_entry(text, created_at=OLD) for text in ("found", "read"))
    fresh, core = make_entry("fresh", created_at=NOW), make_entry("core", tier="core", created_at=OLD)
    backend.store([*unread, found, read, fresh, core, make_entry("log", kind="event", created_at=OLD)])
    backend.touch([Use(found.id, NOW, matches=1), Use(read.id, NOW, reads=1)])
    report = look(backend)
    assert (report.unread.count, report.unread.kinds, report.unread.days) == (26, {"event": 1, "fact": 25}, 30)
    assert report.unread.ids == tuple(entry.id for entry in unread[:20])
    assert look(backend, at=OLD + timedelta(days=29)).unread.count == 0


def test_the_audit_changes_nothing(backend: FaissMemoryBackend) -> None:
    backend.store([make_entry(TEA) for _ in range(3)] + [make_entry("x" * 200, tier="core", title="b")])
    before = (list(backend.list(Scope(include_archived=True))), backend.status()["changes"])
    look(backend)
    assert (list(backend.list(Scope(include_archived=True))), backend.status()["changes"]) == before
