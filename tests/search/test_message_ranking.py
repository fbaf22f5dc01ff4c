"""Messages that state something are ranked before questions and short reactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.text.splitting import ends_with_question, stated
from agentformer.types import Hit, Query

TALK = (
    ("Aino", "Hello Ben, how long have you been dancing?"),
    ("Ben", "Since I was eleven or so; my grandmother took me to her village hall every single Friday evening."),
    ("Aino", "Wow, dancing!"),
    ("Ben", "The hall has a new roof now, and the band there plays until two in the morning on most weekends."),
    ("Aino", "I would rather go sailing. In March I repaired the mast of my boat, and next week I paint it all."),
    ("Ben", "Did you repair the mast?"),
    ("Ben", "We repaired the barn roof together with the neighbours, and then everybody had some of the soup."),
)


def opened(path: Path, **options: float) -> AgentFormer:
    folders = {"index_dir": path / "index", "upload_dir": path / "up"}
    return agentformer.connect(**folders, embedder="hashing", clean_every=0, **options)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with opened(tmp_path) as memory:
        talk(memory)
        yield memory


def talk(af: AgentFormer, session: str = "s", *, first: int = 0) -> None:
    for n, (who, text) in enumerate(TALK):
        af.memory.add_message(session, "user", text, speaker=who, occurred_at=f"2026-03-01T12:{first + n:02}:00Z")


def search(af: AgentFormer, text: str) -> list[Hit]:
    return list(af.backend.search(Query(text, limit=20)))


def place(hits: list[Hit], text: str) -> int:
    return next(n for n, hit in enumerate(hits) if hit.entry.content == text)


def test_the_answer_precedes_its_question_and_the_reaction(af: AgentFormer) -> None:
    hits = search(af, "How long has Ben been dancing?")
    assert hits[0].entry.content == TALK[1][1]
    assert place(hits, TALK[1][1]) < place(hits, TALK[0][1])
    assert place(hits, TALK[1][1]) < place(hits, TALK[2][1])
    vote = {vote.name: vote for vote in hits[0].votes}["statements"]
    assert (vote.rank, vote.weight) == (1, 1.0)


def test_reciprocal_ranks_and_single_lists_stay_as_they_are(tmp_path: Path) -> None:
    with opened(tmp_path, fusion="rrf") as af:  # type: ignore[arg-type]
        talk(af)
        votes = {vote.name for hit in search(af, "How long has Ben been dancing?") for vote in hit.votes}
        assert votes == {"words", "vectors"}


def test_what_the_person_states_precedes_the_long_answer_of_the_assistant(tmp_path: Path) -> None:
    said = "I run a bakery in Turku with two ovens. Can you plan the baking of rye bread for my ovens?"
    answer = (
        "To plan the baking of rye bread in ovens, heat them first. " + "Rye bread in ovens needs time. " * 29 + "Done."
    )
    for role, speaker in (("assistant", ""), ("user", "Assistant")):
        with opened(tmp_path / role) as af:
            af.memory.add_message("s", "user", said, occurred_at="2026-03-01T12:00:00Z")
            af.memory.add_message("s", role, answer, speaker=speaker, occurred_at="2026-03-01T12:00:01Z")
            hits = search(af, "How many ovens does the bakery have for its rye bread?")
            assert [hit.entry.content for hit in hits] == [said, answer]
            assert all(vote.name != "statements" for hit in hits for vote in hit.votes)


def test_the_question_of_a_person_to_an_assistant_gains_nothing_for_the_reply(af: AgentFormer) -> None:
    before = {hit.entry.content: hit.score for hit in search(af, "How long has Ben been dancing?")}
    af.memory.add_message("s", "assistant", "Dancing is healthy.", occurred_at="2026-03-01T13:00:00Z")
    after = {hit.entry.content: hit.score for hit in search(af, "How long has Ben been dancing?")}
    assert after[TALK[1][1]] < before[TALK[1][1]]


def test_facts_and_messages_of_other_sessions_get_no_credit(af: AgentFormer) -> None:
    af.memory.store("Dancing is taught in the village hall.")
    af.memory.add_message("other", "user", "Bread is cheap.", occurred_at="2026-03-01T12:00:30Z")  # between in time
    hits = search(af, "How long has Ben been dancing?")
    assert hits[0].entry.content == TALK[1][1]
    credited = {hit.entry.content for hit in hits if any(vote.name == "statements" for vote in hit.votes)}
    assert not credited & {"Dancing is taught in the village hall.", "Bread is cheap."}


def test_only_the_next_message_gets_the_credit_of_a_question(af: AgentFormer) -> None:
    def score(hits: list[Hit]) -> float:
        return next(hit.score for hit in hits if hit.entry.content == TALK[1][1])

    before = score(search(af, "How long has Ben been dancing?"))
    af.memory.add_message("s", "user", "Sorry, dancing, a call.", speaker="Ben", occurred_at="2026-03-01T12:00:30Z")
    hits = search(af, "How long has Ben been dancing?")
    assert score(hits) < before


def test_scores_lie_within_0_and_1_and_fall(af: AgentFormer) -> None:
    for text in ("How long has Ben been dancing?", "When did Aino repair the mast?", "roof", "soup"):
        scores = [hit.score for hit in search(af, text)]
        assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How are you?", True),
        ("Fine. And you? 😊", True),
        ('She said: "Why?"', True),
        ("いつ行きますか？", True),
        ("How are you? I am fine.", False),
        ("Look at https://example.org/?page", False),
        ("", False),
    ],
)
def test_a_question_ends_with_its_mark(text: str, expected: bool) -> None:
    assert ends_with_question(text) is expected


def test_a_text_states_what_is_not_asked() -> None:
    assert stated("") == 0 and stated("Why? And when?") == pytest.approx(0, abs=0.02)
    assert stated("Yes. " * 4) == pytest.approx(0.2) and stated("Yes. " * 40) == 1
    assert stated("Yes. " * 4 + "And why did you go there?") == pytest.approx(0.2, abs=0.02)
    assert stated("昨日は海で泳ぎました。") > stated("I swam there")  # a character is worth more
