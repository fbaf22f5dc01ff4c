"""Messages that state something are ranked before questions and short reactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.search import statements
from agentformer.text.analysis import analyze_query
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


def test_without_the_setting_the_question_is_first(tmp_path: Path) -> None:
    with opened(tmp_path, statements=0, dated=0) as af:
        talk(af)
        hits = search(af, "How long has Ben been dancing?")
        assert place(hits, TALK[0][1]) < place(hits, TALK[1][1])
        assert all(vote.name != "statements" for hit in hits for vote in hit.votes)


def test_reciprocal_ranks_and_single_lists_stay_as_they_are(tmp_path: Path) -> None:
    with opened(tmp_path, fusion="rrf") as af:  # type: ignore[arg-type]
        talk(af)
        votes = {vote.name for hit in search(af, "How long has Ben been dancing?") for vote in hit.votes}
        assert votes == {"words", "vectors"}


def test_the_speaker_that_the_query_names_is_preferred(af: AgentFormer) -> None:
    of_aino, of_ben = TALK[4][1], TALK[6][1]
    hits = search(af, "what did Aino repair")
    assert place(hits, of_aino) < place(hits, of_ben)
    hits = search(af, "what did Ben repair")
    assert place(hits, of_ben) < place(hits, of_aino)
    both = {hit.entry.content: hit.score for hit in search(af, "what did Ben and Aino repair")}
    neither = {hit.entry.content: hit.score for hit in search(af, "what did they repair")}
    assert both[of_ben] >= both[of_aino] * 0.5 and neither[of_ben] >= neither[of_aino] * 0.5


def test_a_question_for_a_time_prefers_messages_with_a_time(tmp_path: Path) -> None:
    timeless = "The mast of the boat was repaired with glue, some old screws and the help of an uncle of mine."
    dated = "The mast of the boat was repaired last week with glue, some old screws and the help of an uncle."
    ratios = {}
    for strength in (0.0, 0.5):
        with opened(tmp_path / str(strength), dated=strength) as af:
            for n, text in enumerate((dated, timeless)):
                af.memory.add_message(f"s{n}", "user", text, occurred_at="2026-03-01T12:00:00Z")
            scores = {hit.entry.content: hit.score for hit in search(af, "When was the mast of the boat repaired?")}
            ratios[strength] = scores[dated] / scores[timeless]
    assert ratios[0.5] == pytest.approx(1.5 * ratios[0.0])


def test_a_question_for_several_things_spreads_over_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "In {} Aino read a long book about the sea, and it was so good that she could not sleep before its end."
    months = {"May": "a", "June": "a", "July": "a", "August": "a", "October": "b"}
    with opened(tmp_path) as af:
        for n, (month, session) in enumerate(months.items()):
            at = f"2026-03-01T12:{10 * n:02}:00Z"
            af.memory.add_message(session, "user", said.format(month), speaker="Aino", occurred_at=at)
            af.memory.add_message(session, "user", "Bread is cheap.", speaker="Ben", occurred_at=at)

        def scores(question: str, loss: float) -> dict[str, float]:
            monkeypatch.setattr(statements, "_SESSION_LOSS", loss)
            hits = search(af, question)
            return {month: hits[place(hits, said.format(month))].score / hits[0].score for month in months}

        one, several = "What book about the sea did Aino read?", "What books about the sea did Aino read?"
        assert scores(one, 0.0) == scores(one, 0.15)
        before, after = scores(several, 0.0), scores(several, 0.15)
        best, *others = sorted((month for month in months if months[month] == "a"), key=lambda month: -before[month])
        shares = [after[month] / after[best] / (before[month] / before[best]) for month in others]
        assert shares == pytest.approx([0.85, 0.85**2, 0.85**2])
        assert after["October"] / after[best] == pytest.approx(before["October"] / before[best])


@pytest.mark.parametrize(
    ("question", "several"),
    [
        ("What books has Maria read?", True),
        ("What kinds of pottery classes did she take?", True),
        ("Which outdoor activities does John like?", True),
        ("In what ways does Maria help?", True),
        ("How many dogs does Maria have?", True),
        ("What do Jon and Gina have in common?", True),
        ("What does Maria's necklace mean?", False),
        ("What was the bus like?", False),
        ("Which class did James take?", False),
        ("What is this about?", False),
        ("Where does Maria live?", False),
        ("Mitä kirjoja Maria on lukenut?", True),
        ("Mikä kirja on paras?", False),
        ("Vilka böcker har Maria läst?", True),
        ("Hvilken bok har Maria lest?", False),
        ("Welche Bücher hat Maria gelesen?", True),
        ("Welche Farbe hat das Auto?", False),
        ("猫を何匹飼っていますか。", True),
        ("いつ会いましたか。", False),
    ],
)
def test_a_question_for_several_things_is_recognised(question: str, several: bool) -> None:
    assert statements._asks(analyze_query(question), statements._SEVERAL) is several


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
        assert scores == sorted(scores, reverse=True) and all(0 < score <= 1 for score in scores)


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
