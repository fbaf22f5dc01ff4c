"""A corpus in a memory: as a user would have stored it, and told by its own ids."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import InvalidInput
from agentformer.evaluation.corpus_loader import PASSAGE, scope_of
from agentformer.evaluation.dataset import Dataset, Passage, Question, parse_moment
from agentformer.factory import connect
from agentformer.types import MemoryEntry, Query, Scope
from tests.evaluation.conftest import Opens

_LAST = "9999-12-31T23:59:59.999999"
LONG = "\n\n".join(f"Section {n} is about the {word}. " + f"It says more of the {word}. " * 12 for n, word in enumerate(
    ("harbour", "lighthouse", "boathouse", "pier", "crane", "sauna", "workshop", "office")
))  # fmt: skip


def corpus(*passages: Passage) -> Dataset:
    return Dataset("test", passages)


def entries(opened: Any, namespace: str = "default", **scope: Any) -> list[MemoryEntry]:
    return list(opened.backend.list(Scope(namespace, **scope), limit=1000))


def test_turns_are_messages_of_their_session_in_order_as_add_message_keeps_them(opens: Opens) -> None:
    meta = {"conv": "c1", "session": 1, "speaker": "Aino", "date_time": "1:56 pm on 8 May, 2023"}
    turns = [
        Passage("t1", "The boat  is\u00adgone.", meta),
        Passage("t2", "Thanks!", {**meta, "speaker": "Eino"}),
        Passage("t3", "Thanks!", {**meta, "speaker": "Eino"}),
        Passage("t4", "Elsewhere.", {**meta, "conv": "c2", "session": "s2"}),
    ]
    opened = opens()
    opened.load(corpus(*turns))
    told = opened.memory.transcript("1", namespace="conversation-c1")
    assert [each.metadata[PASSAGE] for each in told] == ["t1", "t2", "t3"]  # the same words twice are two turns
    assert told[0].content == turns[0].text  # as it was said
    told = entries(opened, "conversation-c1")
    added = opened.memory.add_message(
        "1",
        "user",
        turns[0].text,
        speaker="Aino",
        occurred_at=datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        namespace="own",
    )
    for name in ("content", "raw", "kind", "tier", "role", "speaker", "context", "occurred_at", "session_id"):
        assert getattr(told[0], name) == getattr(added, name), name
    assert [each.metadata[PASSAGE] for each in entries(opened, "conversation-c2", session_id="s2")] == ["t4"]


def test_a_message_without_a_date_has_its_place_in_the_file_and_the_same_moment_each_time(opens: Opens) -> None:
    dates = [None, "05/08/2023", "2023-05-08T10:00", "", None, "2023-05-09", None]
    turns = [Passage(f"a{n}", f"Turn {n}.", {"session": "a", "date": date}) for n, date in enumerate(dates)]
    turns += [Passage("b0", "Elsewhere.", {"session": "b"}), Passage("c0", "End.", {"session": "c", "date": _LAST})]
    turns += [Passage("c1", "After it.", {"session": "c"})]
    told = []
    for _ in range(2):
        opened = opens()
        opened.load(corpus(*turns))
        told.append({each.metadata[PASSAGE]: each.occurred_at for each in entries(opened)})
        order = [each.metadata[PASSAGE] for each in opened.memory.transcript("a")]
        assert order == [f"a{n}" for n in range(len(dates))]
    assert told[0] == told[1]
    assert all(each is not None and each.year != datetime.now(UTC).year for each in told[0].values())
    moments = [told[0][f"a{n}"].isoformat(timespec="milliseconds")[:23] for n in range(len(dates))]
    assert moments == [
        "2000-01-01T00:00:00.001",
        "2000-01-01T00:00:00.002",
        "2023-05-08T10:00:00.000",
        "2023-05-08T10:00:00.001",
        "2023-05-08T10:00:00.002",
        "2023-05-09T00:00:00.000",
        "2023-05-09T00:00:00.001",
    ]
    assert told[0]["b0"].year == 2000 and told[0]["c0"] == told[0]["c1"]


def test_messages_of_several_transactions_have_one_order(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentformer.evaluation.corpus_loader._BATCH", 2)
    opened = opens()
    opened.load(corpus(*(Passage(str(n), f"Turn {n}.", {"session": "s"}) for n in range(5))))
    moments = [each.occurred_at for each in opened.memory.transcript("s")]
    assert moments == sorted(set(moments)) and len(moments) == 5


def test_no_message_of_a_long_session_becomes_a_summary(opens: Opens) -> None:
    opened = opens(clean_every=2, clean_batch=2)
    opened.load(corpus(*(Passage(str(n), f"The boat number {n} was painted.", {"session": "s"}) for n in range(30))))
    assert [each.kind for each in entries(opened)] == ["message"] * 30


@pytest.mark.parametrize(
    ("meta", "role", "speaker", "session"),
    [
        ({"session_id": "s", "role": "assistant"}, "assistant", "", "s"),
        ({"session_id": "s", "role": "Captain"}, "user", "Captain", "s"),
        ({"conversation": "c", "speaker": "Aino"}, "user", "Aino", "c"),
        ({"conversation": "c"}, "", "", None),
        ({"speaker": "Aino"}, "", "", None),
    ],
)
def test_what_makes_a_message_is_a_session_or_a_speaker_in_a_conversation(
    opens: Opens, meta: dict[str, Any], role: str, speaker: str, session: str | None
) -> None:
    opened = opens()
    opened.load(corpus(Passage("p", "The boat is gone.", meta)))
    [entry] = entries(opened, "conversation-c" if "conversation" in meta else "default")
    assert (entry.role, entry.speaker, entry.session_id) == (role, speaker, session)


def test_a_conversation_is_searched_apart(opens: Opens) -> None:
    opened = opens()
    opened.load(corpus(
        Passage("a", "The boat is blue.", {"conv": "x" * 500}), Passage("b", "The boat is red.", {"conversation": 7}),
        Passage("c", "The boat is green."),
    ))  # fmt: skip
    for conversation, found in (("x" * 500, "a"), (7, "b"), (None, "c")):
        question = Question("q", "boat", (found,), {"conversation": conversation})
        hits = opened.backend.search(Query("boat", scope_of(question)))
        assert [hit.entry.metadata[PASSAGE] for hit in hits] == [found]


def test_titles_names_dates_and_languages_are_those_of_the_entry(opens: Opens) -> None:
    opened = opens()
    meta = {"title": "Boats", "aliases": ["ships"], "timestamp": 1_700_000_000, "lang": "fi", "other": {"x": 1}}
    opened.load(corpus(Passage("p", "Kala.", meta)))
    [entry] = entries(opened)
    assert (entry.title, entry.context) == ("Boats", "Boats, ships")
    assert entry.metadata == {PASSAGE: "p", "language": "fi", "aliases": ["ships"]}
    assert entry.occurred_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert opened.backend.search(Query("ships", Scope(), mode="lexical"))


def test_a_long_text_is_cut_as_an_upload_of_it(opens: Opens, tmp_path: Path) -> None:
    opened = opens(chunk_tokens=60, chunk_overlap=10)
    opened.load(corpus(Passage("rules.txt", LONG, {"title": ""}), Passage("short", "The boat is gone.")))
    chunks = entries(opened, kinds=("chunk",))
    with connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", chunk_tokens=60, chunk_overlap=10
    ) as af:
        af.rag.upload(LONG.encode(), name="rules.txt")
        uploaded = list(af.backend.list(Scope(kinds=("chunk",)), limit=1000))
    assert len(chunks) > 5
    for name in ("content", "context", "title"):
        assert [getattr(each, name) for each in chunks] == [getattr(each, name) for each in uploaded]
    assert {each.metadata[PASSAGE] for each in chunks} == {"rules.txt"}
    assert [each.content for each in entries(opened, kinds=("fact",))] == ["The boat is gone."]


def test_the_title_of_a_long_text_stands_beside_each_chunk(opens: Opens) -> None:
    opened = opens(chunk_tokens=60, chunk_overlap=10)
    opened.load(corpus(Passage("p1", LONG, {"title": "St. Anna's quay"})))
    assert {each.context for each in entries(opened, kinds=("chunk",))} == {"St. Anna's quay"}


def test_equal_texts_of_two_passages_are_two_passages(opens: Opens) -> None:
    opened = opens()
    opened.load(corpus(Passage("a", "The boat is gone."), Passage("b", "The boat is gone."), Passage("c", " ")))
    assert sorted(each.metadata[PASSAGE] for each in entries(opened)) == ["a", "b"]


def test_many_passages_are_stored_in_a_few_transactions_and_told(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentformer.evaluation.corpus_loader._BATCH", 40)
    opened, told = opens(), []
    opened.load(corpus(*(Passage(str(n), f"Boat {n}.") for n in range(100))), lambda *each: told.append(each))
    assert told == [(40, 100), (80, 100), (100, 100)] and len(entries(opened)) == 100


def test_a_passage_that_cannot_be_stored_is_named(opens: Opens) -> None:
    with pytest.raises(InvalidInput, match="the passage 'p' cannot be stored: metadata"):
        opens().load(corpus(Passage("p", "x", {"aliases": [float("nan")]})))
    with pytest.raises(InvalidInput, match="the passage 'm' cannot be stored: session_id"):
        opens().load(corpus(Passage("m", "x", {"session": "s" * 300})))
    with pytest.raises(InvalidInput, match="the passage 'blank' cannot be stored: the file contains only white space"):
        opens(chunk_tokens=50, chunk_overlap=0).load(corpus(Passage("blank", "\u200b \ufeff " * 200)))


def test_moments_are_read_as_corpora_write_them() -> None:
    for value, said in [
        ("1:56 pm on 8 May, 2023", "2023-05-08T13:56"),
        ("12:05 am on 1 January, 2024", "2024-01-01T00:05"),
        ("2023-05-08", "2023-05-08T00:00"),
        ("2023-05-08T10:00:00+03:00", "2023-05-08T07:00"),
        ("2023-05-08T10:00:00Z", "2023-05-08T10:00"),
        ("2023-05-08 10:30", "2023-05-08T10:30"),
        ("8.5.2023 klo 13.56", "2023-05-08T13:56"),
        ("8. toukokuuta 2023", "2023-05-08T00:00"),
        ("May 8, 2023 at 2 p.m.", "2023-05-08T14:00"),
        ("2023年5月8日 13:56", "2023-05-08T13:56"),
        (1_683_554_160, "2023-05-08T13:56"),
        (1_683_554_160_000, "2023-05-08T13:56"),
        ("1683554160", "2023-05-08T13:56"),
        ("May 2023", None),
        ("8 May", None),
        ("05/08/2023", None),
        ("8 May 2023 and 9 May 2023", None),
        ("13 pm on 8 May, 2023", "2023-05-08T00:00"),
        ("yesterday", None),
        ("", None),
        (7, None),
        (True, None),
        (float("inf"), None),
        ({"year": 2023}, None),
        ("9" * 5_000, None),
    ]:
        found = parse_moment(value)
        assert (found and found.isoformat(timespec="minutes")) == (said and f"{said}+00:00")
