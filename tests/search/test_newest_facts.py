"""Recency: the newest of contradicting facts is ranked first, and nothing else changes places."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import agentformer
from agentformer.factory import build_embedder
from agentformer.rag.answer import prompts
from agentformer.search.newest_facts import COMPARED, FactComparison, latest_first
from agentformer.settings import Settings
from agentformer.text.facts.statement_words import MAX_FACT_LENGTH
from agentformer.types import Hit, HitVectors, MemoryEntry, Query

PRECISION = 0.9  # least share of the found replacements that are right


def hits(*contents: str, years: tuple[int, ...] = (), **values: object) -> list[Hit]:
    """Hits in this order, each a year newer than the one before."""
    moments = [datetime(year, 5, 8, tzinfo=UTC) for year in years or range(2020, 2020 + len(contents))]
    entries = [
        MemoryEntry(str(n), text, occurred_at=at, **values)  # type: ignore[arg-type]
        for n, (text, at) in enumerate(zip(contents, moments, strict=True))
    ]
    return [Hit(entry, 1 - n / 100) for n, entry in enumerate(entries)]


def order(found: list[Hit]) -> list[str]:
    return [hit.entry.id for hit in latest_first(found)]


def test_the_newer_value_stands_first() -> None:
    for older, newer in [
        ("Anna lives in Turku", "Anna now lives in Oslo, Norway"),
        ("The rent is 800 euros", "The rent is 950 euros"),
        ("Phone: 040 123", "Phone: 050 321"),
        ("Dark mode is enabled", "Dark mode is disabled"),
        ("The project deadline is 3 March", "The deadline was moved to 24 March"),
        ("Anna eats meat", "Anna does not eat meat"),
        ("Vuokra on 800 euroa", "Vuokra on nyt 950 euroa"),
        ("Anna bor i Åbo", "Anna bor numera i Oslo"),
        ("Anna wohnt in Berlin", "Anna wohnt jetzt in Köln"),
        ("Anna vit à Lille", "Anna vit désormais à Nantes"),
        ("Ana vive en Sevilla", "Ana ahora vive en Cádiz"),
        ("会議は月曜日です。", "会議は火曜日に変更されました。"),
    ]:
        found = hits(older, "something else is said here", newer)
        assert order(found) == ["2", "1", "0"], newer
        assert order([found[2], found[1], found[0]]) == ["2", "1", "0"]


def test_what_may_both_hold_stays_where_it_is() -> None:
    for one, other in [
        ("Anna lives in Turku", "Ben lives in Oslo"),
        ("Anna likes tea", "Anna likes coffee"),
        ("Anna lives in Oslo", "Anna lives in Oslo, Norway"),
        ("Anna lives in Oslo, Norway", "Anna lives in Oslo"),
        ("Does Anna live in Turku?", "Anna lives in Oslo"),
        ("Anna lives in Turku", "Does Anna live in Oslo?"),
        ("Anna lived in Turku", "Anna lives in Oslo"),
        ("I live in Turku", "I would love to live in Oslo some day"),
        ("My sister lives in Oslo", "I moved to Turku"),
        ("The ticket costs 20 euros for adults", "The ticket costs 10 euros for children"),
        ("I have a dog called Rex", "I have a cat called Miu"),
        ("Anna osti maitoa", "Anna osti leipää"),
        ("Jag besökte Rom i maj", "Jag besökte Paris i juni"),
        ("Ich mag Kaffee", "Ich mag Tee"),
        ("兄は京都に住んでいます。", "妹は奈良に住んでいます。"),
        ("Note: call Anna", "Note: buy milk"),
    ]:
        assert order(hits(one, other)) == order(hits(one, other, years=(2021, 2020))) == ["0", "1"], other


def test_scores_stay_with_the_places_and_all_else_with_the_hits() -> None:
    found = hits("Anna lives in Turku", "Anna lives in Oslo")
    first, second = latest_first(found)
    assert (first.entry, second.entry) == (found[1].entry, found[0].entry)
    assert (first.score, second.score) == (found[0].score, found[1].score)
    assert (first.newer, second.newer) == (None, first.entry.id)


def test_each_change_is_a_step_of_its_own() -> None:
    found = hits("Anna lives in Rome", "Anna lives in Turku", "Anna lives in Oslo", years=(2022, 2020, 2024))
    assert order(found) == ["2", "0", "1"]


def test_people_speak_of_themselves_and_owners_are_apart() -> None:
    found = hits("I live in Turku", "I live in Oslo", kind="message", role="user")
    anna, ben = (Hit(MemoryEntry(**{**fields(hit.entry), "speaker": who}), hit.score)
                 for hit, who in zip(found, ("Anna", "Ben"), strict=True))  # fmt: skip
    assert order([anna, ben]) == ["0", "1"]
    assert order(found) == ["1", "0"]
    for name in ("user_id", "agent_id", "project", "title", "source_type", "source_id"):
        own, others = (Hit(MemoryEntry(**{**fields(hit.entry), name: who}), hit.score)
                       for hit, who in zip(found, ("a", "b"), strict=True))  # fmt: skip
        assert order([own, others]) == ["0", "1"]


def test_what_is_told_of_another_thing_contradicts_nothing() -> None:
    for name, values in {
        "title": ("Redis", "Postgres"),
        "source_type": ("ticket", "mail"),
        "source_id": ("1", "2"),
        "metadata": ({"host": ["a"]}, {"host": ["b"]}),
    }.items():
        one, other = hits("Phone: 040 123", "Phone: 050 321")
        told = [
            Hit(MemoryEntry(**{**fields(hit.entry), name: value}), hit.score)
            for hit, value in zip((one, other), values, strict=True)
        ]
        assert order(told) == ["0", "1"]
        same = [Hit(MemoryEntry(**{**fields(hit.entry), name: values[0]}), hit.score) for hit in (one, other)]
        assert order(same) == ["1", "0"]


def test_a_hit_takes_no_place_that_its_score_is_far_from() -> None:
    contents = ("Anna lives in Rome", "Anna lives in Turku", "Anna lives in Oslo")
    rome, turku, oslo = (hit.entry for hit in hits(*contents))
    assert order([Hit(rome, 1.0), Hit(turku, 0.16), Hit(oslo, 0.14)]) == ["1", "2", "0"]
    assert order([Hit(rome, 1.0), Hit(turku, 0.14), Hit(oslo, 0.1)]) == ["0", "2", "1"]
    assert order([Hit(rome, 1.0), Hit(turku, 0.14), Hit(oslo, 0.02)]) == ["0", "1", "2"]
    assert order([Hit(rome, 1.0), Hit(turku, 0.15)]) == ["1", "0"]
    far = latest_first([Hit(rome, 1.0), Hit(turku, 0.14)])
    assert [hit.newer for hit in far] == [turku.id, None]  # it is shown as former in any case
    assert [hit.score for hit in latest_first([Hit(rome, 1.0), Hit(turku, 0.71), Hit(oslo, 0.69)])] == [1.0, 0.71, 0.69]


def test_a_newer_fact_that_the_search_has_left_out_is_added() -> None:
    found = hits("Anna lives in Turku", "Anna likes tea", "Anna moved to Oslo")
    ordered = latest_first(found[:1], others=found)
    assert [hit.entry.id for hit in ordered] == ["2", "0"]
    assert [hit.score for hit in ordered] == [1.0, 0.98] and ordered[1].newer == "2"
    assert latest_first(found[1:2], others=found) == found[1:2]  # what replaces no hit is not added
    assert [hit.entry.id for hit in latest_first(found[2:], others=found)] == ["2"]


def test_a_question_for_the_past_or_for_the_older_value_keeps_the_order() -> None:
    def asked(question: str, older: str, newer: str) -> list[str]:
        return [hit.entry.id for hit in latest_first(hits(older, newer), question=question)]

    home = "I live in Turku", "I moved to Oslo"
    assert asked("Where do I live?", *home) == asked("Do I live in Turku?", *home) == ["1", "0"]
    for question in ("Where did I live before?", "Why do I live in Turku?", "Turku", "Where was I in 2019?"):
        assert asked(question, *home) == ["0", "1"], question
    assert asked("Missä asuin aiemmin?", "Asun Turussa", "Muutin Ouluun") == ["0", "1"]
    assert asked("以前どこに住んでいましたか？", "私は東京に住んでいます。", "私は大阪に住んでいます。") == ["0", "1"]
    budget = "The 2024 budget is 5 million", "The 2024 budget was raised to 6 million"
    assert asked("What is the 2024 budget?", *budget) == ["1", "0"]
    assert asked("Is dark mode enabled?", "Dark mode is enabled.", "Dark mode is disabled.") == ["1", "0"]


def fields(entry: MemoryEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in MemoryEntry.__dataclass_fields__}


def test_documents_and_what_stands_far_down_are_left_alone() -> None:
    assert order(hits("The office is in Turku", "The office is in Oslo", kind="chunk")) == ["0", "1"]
    many = hits("Anna lives in Turku", *["nothing of it"] * (COMPARED - 1), "Anna lives in Oslo")
    assert order(many)[0] == "0"


def test_a_search_gives_the_latest_first_also_past_its_limit(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "uploads"}
    with agentformer.connect(**folders, embedder="hashing") as af:
        older = af.memory.store("Anna lives in Turku", occurred_at="2023-01-01T00:00:00Z")
        newer = af.memory.store("Anna now lives in Oslo, Norway", occurred_at="2024-01-01T00:00:00Z")
        af.memory.store("Ben lives in Rome by the river", occurred_at="2025-01-01T00:00:00Z")
        question = "where does Anna live"
        assert af.backend.search(Query(question))[0].entry.id == older.id
        found = af.memory.search(question)
        assert found[0].entry.id == newer.id
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
        assert [hit.entry.id for hit in af.memory.search(question, limit=1)] == [newer.id]
        former = next(hit for hit in af.memory.search(question) if hit.entry.id == older.id)
        assert former.newer == newer.id
        first = af.memory.search("does Anna live in Turku?", limit=1)
        assert [hit.entry.id for hit in first] == [newer.id]


def test_an_answer_quotes_the_newer_fact_first_and_shows_the_older_one_as_former(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "uploads"}
    with agentformer.connect(**folders, embedder="hashing") as af:
        older = af.memory.store("The staging server runs Ubuntu 22.04.", occurred_at="2023-01-01T00:00:00Z")
        newer = af.memory.store("We upgraded the staging server to Ubuntu 24.04.", occurred_at="2024-01-01T00:00:00Z")
        answer = af.rag.query("Which version of Ubuntu does the staging server run?", sources=["memories"])
        assert answer.citations[0].entry_id == newer.id
        assert {each.entry_id: each.newer for each in answer.citations}.get(older.id, newer.id) == newer.id
        prompt = prompts.passages(answer.hits)
        assert 'source="fact, 2023-01-01, former"' in prompt and 'source="fact, 2024-01-01"' in prompt


def test_a_longer_text_is_more_than_one_fact() -> None:
    def replaces(length: int) -> bool:
        return order(hits("The rent is 800 euros.", "The rent is 950 euros.".ljust(length, "."))) == ["1", "0"]

    assert (replaces(MAX_FACT_LENGTH), replaces(MAX_FACT_LENGTH + 1)) == (True, False)


def share_right(pairs: Iterable[tuple[bool, bool]]) -> tuple[float, float]:
    """Precision and recall of pairs (found, expected)."""
    pairs = [*pairs]
    right = sum(found and expected for found, expected in pairs)
    return right / sum(found for found, _ in pairs), right / sum(expected for _, expected in pairs)


def own_pairs(*halves: str) -> list[dict[str, str]]:
    lines = (Path(__file__).parent / "fact_pairs.jsonl").read_text("utf-8").splitlines()
    return [pair for pair in map(json.loads, lines) if pair["half"] in halves]


def test_pairs_of_statements_without_vectors() -> None:
    """The weights were fitted to these pairs, too. `bench.facts_fit` judges each set by weights that were fitted
    without it."""
    pairs = own_pairs("development", "test", "stranger")
    found = [
        (latest_first(hits(pair["first"], pair["second"]))[0].entry.id == "1", pair["expect"] == "second")
        for pair in pairs
    ]
    precision, recall = share_right(found)
    assert len(pairs) == 180 and precision >= PRECISION and recall >= 0.7


@pytest.mark.model
@pytest.mark.parametrize("name", ["multilingual", "minilm"])
def test_pairs_that_were_not_used_for_the_weights(name: str) -> None:
    update = Path(__file__).parents[3] / "shared" / "data" / "facts_update" / "pairs.jsonl"
    if not update.exists():
        pytest.skip("needs the data set facts_update")
    embedder = build_embedder(Settings(embedder=name))
    found = []
    for pair in map(json.loads, update.read_text("utf-8").splitlines()):
        older, newer = hits(pair["first"], pair["second"])
        rows = embedder.embed_documents([pair["first"], pair["second"]])
        vectors = HitVectors((name, embedder.space.model), {"0": rows[0], "1": rows[1]})
        ordered = latest_first([older, newer], FactComparison(vectors=vectors))
        found.append((ordered[0].entry.id == "1", pair["expect"] == "second"))
    precision, recall = share_right(found)
    assert precision >= PRECISION and recall >= 0.9


def test_a_fact_that_holds_again_is_the_newest(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path, embedder="hashing", noise_floor=-1) as af:
        turku = af.memory.store("I live in Turku.", user_id="kim")
        assert af.memory.store("I live in Turku.", user_id="kim").id == turku.id
        oslo = af.memory.store("I live in Oslo.", user_id="kim")
        again = af.memory.store("I live in Turku.", user_id="kim")
        first, *others = af.memory.search("Where do I live?", user_id="kim")
        assert first.entry.id == again.id
        assert {hit.entry.id for hit in others if hit.newer} == {turku.id, oslo.id}
        assert af.memory.store("I live in Turku.", user_id="kim").repeat_count


def test_the_time_from_which_a_fact_holds_decides_which_is_newer(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path, embedder="hashing", noise_floor=-1) as af:
        now = af.memory.store("The rent is 900 euros.", valid_from="2026-06-01T00:00:00Z")
        before = af.memory.store("The rent is 800 euros.", valid_from="2025-01-01T00:00:00Z")
        hits = af.memory.search("What is the rent?")
        assert [(hit.entry.id, hit.newer) for hit in hits] == [(now.id, None), (before.id, now.id)]
