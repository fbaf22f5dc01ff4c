"""Fusion of words and vectors: scores, weights, votes, and the boosts by title and by document."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentformer
from agentformer import AgentFormer
from agentformer.search.fusion import RankedList, Ranking
from agentformer.types import Hit, Query

falling = st.lists(st.floats(0, 50), min_size=1, max_size=8).map(lambda scores: sorted(scores, reverse=True))


# ------------------------------------------------------------------ what a list says


def test_what_leads_every_list_scores_one_and_all_lie_between() -> None:
    order = Ranking(
        [RankedList("vectors", [7, 8, 9], 0.7, [0.9, 0.5, 0.1]), RankedList("words", [7, 9, 8], 1.0, [12.0, 3.0, 1.0])]
    ).order
    assert order[0] == (7, pytest.approx(1.0))
    assert all(0 < score < 1 for _, score in order[1:])


@given(falling, falling)
def test_scores_fall_within_0_and_1_and_a_list_alone_keeps_its_order(one: list[float], other: list[float]) -> None:
    sides = [RankedList("a", range(len(one)), 1.0, one), RankedList("b", range(len(other))[::-1], 0.4, other)]
    assert all(0 <= score <= 1 + 1e-9 for _, score in Ranking(sides).order)
    assert [item for item, _ in Ranking(sides[:1]).order] == [*range(len(one))]


def test_a_first_that_stands_out_says_more_than_one_of_many_alike() -> None:
    """Both lead their list and the other's order is the same: the list that is sure of its first decides."""
    sure = RankedList("vectors", [1, 2, 3], 1.0, [0.9, 0.2, 0.1])
    unsure = RankedList("words", [2, 1, 3], 1.0, [5.02, 5.01, 5.0])
    assert next(item for item, _ in Ranking([sure, unsure]).order) == 1
    turned = [
        RankedList("vectors", [1, 2, 3], 1.0, [0.22, 0.21, 0.1]),
        RankedList("words", [2, 1, 3], 1.0, [9.0, 5.01, 5.0]),
    ]
    assert next(item for item, _ in Ranking(turned).order) == 2


def test_how_many_are_asked_for_changes_nothing_within_the_first_hundred() -> None:
    scores = [1 - n / 300 for n in range(300)]
    short = [RankedList("a", range(100), 1.0, scores[:100]), RankedList("b", range(99, -1, -1), 0.8, scores[:100])]
    long = [
        RankedList("a", range(300), 1.0, scores),
        RankedList("b", [*range(99, -1, -1), *range(100, 300)], 0.8, scores),
    ]
    assert Ranking(short).order[:50] == [(item, pytest.approx(score)) for item, score in Ranking(long).order[:50]]


def test_equal_scores_and_no_scores_and_no_lists() -> None:
    assert [item for item, _ in Ranking([RankedList("a", [3, 1], 1.0, [2.0, 2.0])]).order] == [3, 1]
    assert [item for item, _ in Ranking([RankedList("a", [3, 1], 1.0)]).order] == [3, 1]
    assert (
        Ranking([]).order
        == Ranking([RankedList("a", [], 1.0)]).order
        == Ranking([RankedList("a", [1], 0.0)]).order
        == []
    )


# ------------------------------------------------------------------ a search


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as opened:
        yield opened


def votes(hit: Hit) -> dict[str, tuple[int, float]]:
    return {vote.name: (vote.rank, vote.weight) for vote in hit.votes}


def test_a_hit_tells_which_lists_hold_it_at_which_rank_and_weight(af: AgentFormer) -> None:
    af.memory.store_many([f"The {name} sleeps on shelf {n}." for n, name in enumerate(("numbat", "fossa", "urial"))])
    (first, *_) = hits = af.backend.search(Query("where does the fossa sleep"))
    told = votes(first)
    assert told["vectors"][0] == first.dense_rank == 1 and told["words"] == (first.lexical_rank, 1.0) == (1, 1.0)
    assert len({weight for hit in hits for name, (_, weight) in votes(hit).items() if name == "vectors"}) == 1
    assert votes(af.backend.search(Query("fossa", mode="lexical"))[0]) == {"words": (1, 1.0)}
    assert votes(af.backend.search(Query("fossa", mode="dense"))[0]) == {"vectors": (1, 1.0)}


def test_an_embedder_that_does_not_know_the_language_has_no_vote(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    af.memory.store_many(["Sataman vartija lukitsee portin.", "Numbat sleeps in the shed.", "Portti on kiinni."])
    monkeypatch.setattr("agentformer.search.vector_weight.LanguageCoverage.varies", True)
    monkeypatch.setattr("agentformer.search.vector_weight.LanguageCoverage.of", lambda self, texts: 0.0)
    hits = af.backend.search(Query("kuka lukitsee sataman portin"))
    assert hits and all(set(votes(hit)) == {"words"} for hit in hits)
    assert all(hit.dense_rank is None and hit.dense_score is None for hit in hits)


@pytest.fixture
def english(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> AgentFormer:
    """A memory whose embedder knows English alone."""
    space = dataclasses.replace(af.embedder.space, languages="en")
    monkeypatch.setattr(af.backend._open().pipeline._coverage, "_embedder", SimpleNamespace(space=space))
    return af


def test_a_question_in_a_language_that_the_embedder_does_not_know_is_not_answered_by_its_guess(
    english: AgentFormer,
) -> None:
    english.memory.store_many(["The doctor sees patients on Thursdays.", "The keys hang in the blue cupboard."])
    assert english.backend.search(Query("Vem har nycklarna till det stora huset?")) == []
    assert english.backend.search(Query("Where do we see the patients?"))
    assert english.backend.search(Query("physicain")), "a slip tells no language, and the vectors may try"


def test_a_name_that_another_language_shares_does_not_silence_the_vectors(english: AgentFormer) -> None:
    english.memory.store_many(
        [
            "The doctor sees the patients on Thursdays and on Fridays.",
            "Pekka asuu Tampereella ja hän on töissä varikolla.",
            "Pekka juo kahvia aamuisin ennen kuin hän lähtee töihin.",
        ]
    )
    hits = english.backend.search(Query("When is the doctor there to see Pekka and his patients?"))
    assert any("vectors" in votes(hit) for hit in hits)
    finnish = english.backend.search(Query("Missä se Pekka on ja mitä hän juo?"))
    assert finnish and not any("vectors" in votes(hit) for hit in finnish)


@pytest.mark.parametrize("fusion", ["adaptive", "rrf"])
def test_a_fixed_weight_of_nought_leaves_the_words_alone(tmp_path: Path, fusion: str) -> None:
    options = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with agentformer.connect(**options, fusion=fusion, dense_weight=0) as af:
        af.memory.store_many(["The numbat sleeps.", "The fossa wakes.", "The urial eats."])
        alone = [hit.entry.id for hit in af.backend.search(Query("fossa sleeps", mode="lexical"))]
        hits = af.backend.search(Query("fossa sleeps"))
        assert [hit.entry.id for hit in hits] == alone
        assert all(set(votes(hit)) == {"words"} for hit in hits)


def test_plain_fusion_is_reciprocal_ranks_of_both_sides(tmp_path: Path) -> None:
    options = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with agentformer.connect(**options, fusion="rrf") as af:
        af.memory.store_many([f"The {name} sleeps on shelf {n}." for n, name in enumerate(("numbat", "fossa"))])
        for hit in af.backend.search(Query("fossa on a shelf")):
            expected = (1 / (60 + (hit.dense_rank or 0)) + 1 / (60 + (hit.lexical_rank or 0))) * 61 / 2
            assert hit.score == pytest.approx(expected)
            assert {vote.weight for vote in hit.votes} == {1.0}


# ------------------------------------------------------------------ what the first hits name


def test_an_entry_that_the_best_hit_names_comes_up(af: AgentFormer) -> None:
    af.memory.store("The Tin Lighthouse is a film of 1931, directed by Ottilie Brandt.", title="The Tin Lighthouse")
    af.memory.store("She was born in Vaasa, where her mother built boats.", title="Ottilie Brandt")
    for n in range(30):
        af.memory.store(f"The director of film number {n} was born in town {n}.", title=f"Somebody {n}")
    hits = af.backend.search(Query("Where was the director of The Tin Lighthouse born?"))
    named = next(hit for hit in hits[:2] if hit.entry.title == "Ottilie Brandt")
    assert votes(named)["mentions"] == (1, 0.8)
    assert hits[0].entry.title == "The Tin Lighthouse"


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Otto", "Met Ottokar and the crew in the harbour."),  # part of a word
        ("otto", "Met Otto and the crew in the harbour."),  # a name is written as it is
        ("Ann", "Met Ann and the crew in the harbour."),  # too short to tell
    ],
)
def test_what_only_looks_like_a_name_is_none(af: AgentFormer, title: str, text: str) -> None:
    af.memory.store_many([{"content": text, "title": "Log"}, {"content": "Likes the harbour.", "title": title}])
    hits = af.backend.search(Query("who was met in the harbour with the crew"))
    assert len(hits) == 2 and all("mentions" not in votes(hit) for hit in hits)


def test_a_first_line_is_a_title_and_one_that_many_have_is_none(af: AgentFormer) -> None:
    af.memory.store("# Sea trials\nBegun in May with the Blue Heron by the crew.")
    af.memory.store("Blue Heron\nA ketch of 1962 that the yard in Oulu built.")
    hits = af.backend.search(Query("sea trials in May by the crew of the yard"))
    assert "mentions" in votes(next(hit for hit in hits if hit.entry.content.startswith("Blue")))
    for n in range(3):
        af.memory.store(f"Blue Heron\nLog {n} of the yard.")
    hits = af.backend.search(Query("sea trials in May by the crew of the yard"))
    assert len(hits) == 5 and all("mentions" not in votes(hit) for hit in hits)


@pytest.mark.parametrize("form", ["{}", "What do we know about {}?", "Which of the things here belongs to {} today?"])
def test_a_code_that_one_entry_has_finds_it_first(af: AgentFormer, form: str) -> None:
    chosen = random.Random(3)
    codes = [f"{chosen.getrandbits(40):010x}" for _ in range(60)]
    things = ("The pump has the serial number {}.", "Order {} contains a lift and a door.", "Device {} is here today.")
    af.memory.store_many([things[n % 3].format(code) for n, code in enumerate(codes)])
    for code in codes[::6]:
        (first, *_) = af.backend.search(Query(form.format(code)))
        assert code in first.entry.content and votes(first)["identifiers"][0] == 1


_DIGITS, _LETTERS, _HEX = "0123456789", "ABCDEFGHJKLMNPQRSTUVWXYZ", "0123456789abcdef"
_OFFICE_WORDS = (
    "pump",
    "valve",
    "customer",
    "repaired",
    "arrived",
    "office",
    "meeting",
    "report",
    "shipment",
    "budget",
)
# "d" is a digit, "L" a letter, "x" a hexadecimal digit; other characters stay.
SHAPES = (
    *("INV/2026/dddd", "LLddLd", "SKU-ddddd", "xxxxxxxxxx", "LLL-ddd", "L.dd.d.dd", "dddddddddddd", "#dddddd"),
    *("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "ERR_LL_ddd", "Vd.dd.dd", "FIdd dddd dddd dddd dd"),
)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_code_of_any_shape_finds_its_text_of_any_length_among_others_like_it(af: AgentFormer, shape: str) -> None:
    chosen = random.Random(shape)
    kinds = {"d": _DIGITS, "L": _LETTERS, "x": _HEX}
    codes = list(dict.fromkeys("".join(chosen.choice(kinds.get(c, c)) for c in shape) for _ in range(60)))

    def text(code: str) -> str:
        said = [
            " ".join(chosen.choices(_OFFICE_WORDS, k=8)).capitalize()
            for _ in range(chosen.choice((1, 2, 5, 20, 60, 100)))
        ]
        said[chosen.randrange(len(said))] += f" {code}"
        return ". ".join(said) + "."

    ids = [entry.id for entry in af.memory.store_many(list(map(text, codes)))]
    for entry_id, code in list(zip(ids, codes, strict=True))[::6]:
        for query in (code, code.lower(), f"What happened with {code}?"):
            assert af.memory.search(query, limit=3)[0].entry.id == entry_id, query


@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_a_name_is_no_rarer_in_an_entry_of_unknown_language(tmp_path: Path, backend: str) -> None:
    known = ["Aino lives in Helsinki.", "Aino plays chess.", "Aino owns a boat.", "Matti works at the harbour."]
    english = [{"content": text, "metadata": {"language": "en"}} for text in known]
    places = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(embedder="hashing", backend=backend, **places) as af:
        af.memory.store_many(["Aino prefers tea.", *english])
        found = [hit.entry.content for hit in af.memory.search("Where is Aino?", mode="lexical")]
    assert len(found) == 4 and found.index("Aino plays chess.") < found.index("Aino prefers tea.")


# ------------------------------------------------------------------ passages of one document


def long_document(subject: str, parts: int, *, others: str = "Ropes and knots. ") -> bytes:
    """A text of so many passages, of which all say what they are about, and one more that does not."""
    said = "\n\n".join(f"# Part {n}\n\n{subject} at berth {n}. " + others * 140 for n in range(parts))
    return said.encode()


@pytest.mark.process
def test_passages_of_a_long_document_of_which_several_are_good_come_before_one_of_another(af: AgentFormer) -> None:
    af.rag.upload(long_document("The crane lifts boats", 4), name="crane.md")
    af.rag.upload(long_document("Boats", 4), name="boats.md")
    hits = af.backend.search(Query("the crane lifts boats", limit=20))
    worst = {hit.entry.source.name: votes(hit)["document"] for hit in hits if hit.entry.source}
    assert worst["crane.md"][0] < worst["boats.md"][0] and worst["boats.md"][1] == 0.5


@pytest.mark.process
def test_length_is_no_merit_beside_a_short_document(af: AgentFormer) -> None:
    af.rag.upload(long_document("The crane lifts boats", 4), name="crane.md")
    af.rag.upload(b"The crane lifts boats.", name="short.md")
    assert all("document" not in votes(hit) for hit in af.backend.search(Query("the crane lifts boats", limit=20)))


@pytest.mark.process
def test_one_document_does_not_vote_for_itself(af: AgentFormer) -> None:
    af.rag.upload(("# One\n\nThe crane lifts.\n\n# Two\n\nThe crane rests. " + "Knots. " * 200).encode(), name="one.md")
    af.memory.store("The crane is a fact.")
    assert all("document" not in votes(hit) for hit in af.backend.search(Query("the crane")))


SCRIPT = 'def read_{0}_rows(path):\n    """Return the rows of the {0}."""\n    return open(path).read().split()\n'


def test_the_factors_of_a_search_explain_the_weight_of_its_vectors(tmp_path: Path) -> None:
    options = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with agentformer.connect(**options) as af:
        af.memory.store_many([SCRIPT.format(name) for name in ("harbour", "lighthouse", "island")], namespace="code")
        af.memory.store_many(["The harbour has a keeper.", "The island has none."], namespace="short")
        for namespace, query, wanted in [
            ("code", "how are the rows of a harbour read", True),
            ("code", "read_harbour_rows", False),
            ("short", "who keeps the harbour", False),
        ]:
            hits = af.backend.search(Query(query, agentformer.Scope(namespace)))
            factors = {factor.name: factor.value for factor in hits.factors}
            assert ("code" in factors) is wanted, query
            weights = {vote.weight for hit in hits for vote in hit.votes if vote.name == "vectors"}
            assert [*weights] == [pytest.approx(math.prod(factors.values()))]
            assert not af.backend.search(Query(query, agentformer.Scope(namespace), mode="dense")).factors
    with agentformer.connect(**options, fusion="rrf") as af:
        hits = af.backend.search(Query("how are the rows of a harbour read", agentformer.Scope("code")))
        assert [factor.name for factor in hits.factors] == ["setting", "language"]
