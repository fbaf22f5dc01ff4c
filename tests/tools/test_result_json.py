"""Hits, documents and memories as JSON: defaults, rounding, and the limits of texts that a language model gets."""

from __future__ import annotations

from datetime import UTC, datetime

from agentformer.testing import make_entry
from agentformer.tools.result_json import (
    brief_hit_json,
    brief_json,
    cut_json,
    hit_json,
    memory_hit_json,
    metadata_json,
    move_json,
    passage_json,
    report_json,
    space_json,
)
from agentformer.types import Citation, EmbeddingSpace, Hit, Reembedding, Reference, Source, SpaceState, Span, Vote

SPACE = EmbeddingSpace("hashing", "256", 256, 1000, fingerprint="AAAA")
PASSAGE = make_entry("The pier.", kind="chunk", source=Source("d1", "a.pdf", 3, "iii", 10, 19))
THIRD = 0.123456789


def test_numbers_are_rounded() -> None:
    hit = Hit(PASSAGE, THIRD, -THIRD, None, 2, None, Span(4, 8), (Vote("words", 1, THIRD),))
    scores = {
        "score": 0.123457,
        "dense_score": -0.123457,
        "lexical_score": None,
        "dense_rank": 2,
        "lexical_rank": None,
        "span": [4, 8],
        "votes": [{"name": "words", "rank": 1, "weight": 0.1235}],
    }
    assert scores.items() <= hit_json(hit).items()
    assert scores.items() <= memory_hit_json(hit).items()
    brief = brief_hit_json(hit, 100, explain=True)
    assert (brief["score"], brief["votes"]) == (0.1235, scores["votes"])
    assert "votes" not in brief_hit_json(hit, 100)
    citation = Citation(1, "a.pdf", "d1", 3, "iii", 10, 19, "The pier.", THIRD, PASSAGE.id)
    assert report_json(citation)["score"] == 0.1235
    assert report_json(Reference("boat", "b1", "e1", THIRD))["score"] == 0.123457


def test_a_hit_shows_its_place_in_the_document_or_the_whole_content() -> None:
    names = ("document", "document_id", "page", "label", "start", "end")
    for entry, place in ((PASSAGE, ["a.pdf", "d1", 3, "iii", 10, 19]), (make_entry("tea"), [None] * 4 + [0, 3])):
        shown = hit_json(Hit(entry, 1.0))
        assert [shown[name] for name in names] == place
        assert shown["span"] is None
        assert [passage_json(Hit(entry, 1.0), 9)[name] for name in ("document", "page")] == [place[0], place[2]]


def test_a_former_fact_names_the_newer_one() -> None:
    former = Hit(make_entry("I live in Turku"), 1.0, newer="id-2")
    assert hit_json(former)["newer"] == memory_hit_json(former)["newer"] == "id-2"
    assert {"former": True, "newer": "id-2"}.items() <= brief_hit_json(former, 100).items()
    assert passage_json(former, 100)["former"] is True
    current = Hit(former.entry, 1.0)
    assert hit_json(current)["newer"] is None
    assert "former" not in {**brief_hit_json(current, 100), **passage_json(current, 100)}


def test_a_text_for_a_model_is_cut_around_the_best_match() -> None:
    content = "0123456789"
    for span, most, shown in (
        (None, 10, content),
        (None, 9, "012345678"),
        (Span(0, 4), 4, "0123"),
        (Span(1, 5), 4, "1234"),
        (Span(8, 10), 4, "6789"),
        (Span(2, 4), 20, content),
        (Span(2, 11), 10, content),
    ):
        hit = Hit(make_entry(content), 1.0, span=span)
        assert passage_json(hit, most)["content"] == shown
        brief = brief_hit_json(hit, most)
        assert (brief["content"], "cut" in brief) == (shown, most < 10)
    assert [cut_json(make_entry(content), most).get("cut") for most in (10, 9)] == [
        None,
        "10 characters in total; memory_get returns all",
    ]
    assert cut_json(make_entry(content), 9)["content"] == "012345678"


def test_long_metadata_are_left_out() -> None:
    for length, shown in ((1_991, True), (1_992, False)):  # {"k": "..."} has 9 characters more
        assert ("metadata" in metadata_json({"k": "ä" * length})) == shown


def test_a_brief_memory_has_no_empty_fields() -> None:
    then, now = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
    entry = make_entry("tea", created_at=now, occurred_at=then, role="user", speaker="Aino", archived_at=now)
    brief = brief_json(entry, "t")
    assert (brief["content"], brief["at"], brief["speaker"], brief["archived"]) == (
        "t",
        "2026-01-02T00:00:00+00:00",
        "Aino",
        True,
    )
    brief = brief_json(make_entry("tea", created_at=now, role="user"), "tea")
    assert (brief["at"], brief["speaker"]) == ("2026-03-04T05:06:07+00:00", "user")
    assert not {"archived", "title", "document", "page", "superseded_by", "user_id"} & {*brief}
    assert brief_json(PASSAGE, "")["page"] == 3 and "content" not in brief_json(PASSAGE, "")


def test_the_fingerprint_of_a_space_is_not_shown() -> None:
    shown = space_json(SpaceState(SPACE, "active", 2, 2048))
    assert (shown["spec"], shown["fingerprint"], shown["vectors"], shown["bytes"]) == (SPACE.spec, "", 2, 2048)
    moved = move_json(Reembedding(SPACE, SPACE, True, overlap=0.5))
    assert (moved["former"], moved["space"]["fingerprint"], moved["overlap"]) == (moved["space"], "", 0.5)
    assert move_json(Reembedding(None, SPACE, True))["former"] is None
