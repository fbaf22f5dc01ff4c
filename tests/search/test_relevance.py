"""Relevance of hits: names, rare words, typing errors, cosines, and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.search.relevance import is_typo, relevant_hits
from agentformer.types import Hit, Hits, MemoryEntry, Query, Scope, Source
from bench import precision
from bench.data import DATA, load

FACTS = {
    "redis": ("Redis", "Redis is used as a cache in the backend."),
    "auth": ("auth service", "The auth service keeps its sessions in Redis and fails when it is down."),
    "fastify": ("Fastify", "Uses Fastify for HTTP services."),
    "vitest": ("Vitest", "Uses Vitest for all testing. Replaced Jest."),
    "kubernetes": ("Kubernetes", "Deploys services to a Kubernetes cluster."),
    "errors": ("error_handling", "Explicit error returns are used rather than exceptions."),
    "mongo": ("MongoDB", "Uses the raw driver with explicit collection types."),
    "monorepo": ("monorepo", "The workspace structure has apps and packages."),
}


def hits_of(facts: dict[str, tuple[str, str]], **aliases: Sequence[str]) -> Hits:
    """All facts as hits found by words alone, with one score for all."""
    entries = [
        MemoryEntry(id=name, content=text, title=title, metadata={"aliases": list(aliases.get(name, ()))})
        for name, (title, text) in facts.items()
    ]
    return Hits([Hit(entry, 0.5, lexical_score=1.0, lexical_rank=n) for n, entry in enumerate(entries, 1)], ("slow",))


def kept(query: str, hits: Hits) -> list[str]:
    return [hit.entry.id for hit in relevant_hits(query, hits)]


def test_a_hit_that_is_named_passes_and_those_that_mention_the_name_do_not() -> None:
    assert kept("What are we using Redis for?", hits_of(FACTS)) == ["redis"]


def test_a_hit_passes_beside_a_named_one_for_what_the_named_one_does_not_hold() -> None:
    assert kept("Why do sessions of the service fail without Redis?", hits_of(FACTS)) == ["redis", "auth"]


def test_an_alias_is_a_name() -> None:
    hits = hits_of(FACTS, kubernetes=["k8s", "kube"], mongo=("Mongo",))
    assert kept("what's my k8s story?", hits) == ["kubernetes"]
    assert kept("Mongo patterns", hits) == ["mongo"]
    assert kept("k9s pods", hits) == []


def test_aliases_that_are_no_list_of_texts_are_no_names() -> None:
    for aliases in ("Redis", 7, None, {"a": 1}, [7, None, ["x"]]):
        entry = MemoryEntry(id="a", content="Nothing of it.", metadata={"aliases": aliases})
        assert kept("Redis", Hits([Hit(entry, 0.5)])) == []


def test_one_common_word_is_no_reason() -> None:
    hits = hits_of(FACTS)
    for query in (
        "How should I structure my repository layer?",
        "what tools do we use for drawing pictures?",
        "thinking about observability and monitoring dashboards",
        "which services handle questions of customers?",
    ):
        assert kept(query, hits) == [], query


def test_a_name_that_most_hits_bear_tells_none_of_them_apart() -> None:
    notes = {f"n{n}": ("Note", f"Something about {word}.") for n, word in enumerate(["tea", "cats", "rain", "music"])}
    assert kept("the note on purple elephants in Lapland", hits_of(notes)) == []
    assert kept("the note about cats", hits_of(notes)) == ["n1"]


def test_the_title_of_a_document_is_no_name_of_its_parts() -> None:
    parts = [
        MemoryEntry(id=str(n), content=text, title="Handbook", source=Source("d", "Handbook.pdf"))
        for n, text in enumerate(["Holidays are booked in May.", "Travel is paid by the day.", "Keys are at the desk."])
    ]
    hits = Hits([Hit(part, 0.5, lexical_score=1.0, lexical_rank=1) for part in parts])
    assert kept("When are holidays booked in the handbook?", hits) == ["0"]


def test_a_typing_error_finds_the_name_that_was_meant() -> None:
    for query, expected in [
        ("how do I set up Kubernets?", ["kubernetes"]),
        ("eror handling", ["errors"]),
        ("Reedis eviction", ["redis"]),
        ("what is it that we do use it for in the Reedis", ["redis"]),
        ("mango connections", []),
        ("mongobd", ["mongo"]),
        ("Xedis", []),
    ]:
        assert kept(query, hits_of(FACTS)) == expected


def test_what_is_a_slip_and_what_another_word() -> None:
    for written, meant, typo in [
        ("typscript", "typescript", True),
        ("typsecript", "typescript", True),
        ("tpyecsript", "typescript", True),
        ("mango", "mongo", False),
        ("mongod", "mongo", True),
        ("eror", "error", True),
        ("redis", "redis", False),
        ("bedis", "redis", False),
        ("k9ssss", "k8ssss", False),
        ("2024", "2025", False),
        ("cat", "cart", False),
        ("tyokalupakki", "työkalupakki", True),
        ("kahvinkeitin", "kahvinkeittin", True),
        ("internal", "international", False),
        ("rang", "range", True),  # four letters for five
        ("cats", "acts", False),
        ("hose", "hoes", False),  # two swapped letters in a word of four
        ("horse", "hosre", True),  # and of five
        ("letter", "lettur", False),  # another letter in a word of six
        ("letters", "lettars", True),  # and of seven
        ("absolute", "absalote", False),  # two errors in a word of eight
        ("absolutes", "absalotes", True),  # and of nine
        ("abandoned", "abandon", True),
        ("abandoned", "abando", False),
    ]:
        assert is_typo(written, meant) is typo


@pytest.mark.parametrize(
    ("query", "texts", "expected"),
    [
        (
            "Missä talvirenkaat säilytetään?",
            ["Talvirenkaat säilytetään kellarissa.", "Kissan nimi on Mirri.", "Kahvia juodaan aamuisin."],
            [0],
        ),
        (
            "Var förvaras vinterdäcken?",
            ["Katten heter Missan.", "Vinterdäcken förvaras i källaren.", "Kaffe dricks på morgonen."],
            [1],
        ),
        (
            "冬タイヤはどこに保管していますか",
            ["猫の名前はミケです。", "毎朝コーヒーを飲む。", "冬タイヤは地下室に保管。"],
            [2],
        ),
        ("Where are the winter tyres kept?", ["The winter tyres are kept downstairs.", "The cat is called Tom."], [0]),
    ],
)
@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_what_answers_passes_in_every_language(
    tmp_path: Path, query: str, texts: list[str], expected: list[int], mode: str
) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    try:
        backend.store([MemoryEntry(id=str(n), content=text) for n, text in enumerate(texts)])
        hits = backend.search(Query(query, limit=30, mode=mode))  # type: ignore[arg-type]
        assert kept(query, hits) == [str(n) for n in expected]
        assert kept("zxqv", backend.search(Query("zxqv", limit=30, mode=mode))) == []  # type: ignore[arg-type]
    finally:
        backend.close()


UNRELATED = {
    "en": "The cat is called Tom.|Coffee is drunk in the morning.|The meeting is on Tuesday at ten."
    "|Anna plays the violin.|The car was serviced in March.|The invoice of the plumber was 240 euros."
    "|Snow fell on the roof last night.|Peter's birthday is on 4 June."
    "|The printer stands in the hall.|The dentist moved to Main Street.",
    "fi": "Kissan nimi on Mirri.|Kahvia juodaan aamuisin.|Kokous on tiistaina kello kymmenen.|Anna soittaa viulua."
    "|Auto huollettiin maaliskuussa.|Putkimiehen palkkio oli 240 euroa.|Katolle satoi lunta viime yönä."
    "|Pekan syntymäpäivä on 4. kesäkuuta.|Tulostin on eteisessä.|Hammaslääkäri muutti Kauppakadulle.",
    "sv": "Katten heter Missan.|Kaffe dricks på morgonen.|Mötet är på tisdag klockan tio.|Anna spelar fiol."
    "|Bilen fick service i mars.|Rörmokarens räkning var 240 euro.|Det snöade på taket i natt."
    "|Peters födelsedag är den 4 juni.|Skrivaren står i hallen.|Tandläkaren har flyttat till Storgatan.",
    "ja": "猫の名前はミケです。|毎朝コーヒーを飲む。|会議は火曜日の十時からです。|花子はバイオリンを弾く。"
    "|車は三月に点検した。|水道屋の請求書は二万円でした。|昨夜、屋根に雪が積もった。|太郎の誕生日は六月四日です。|プリンターは玄関にある。"
    "|歯医者は駅前に移転した。",
}


SHORT = [
    ("ja", "鍵", "鍵は田中さんが持っています。"),
    ("fi", "Milloin laskut lähtevät?", "Laskut lähetetään perjantaina."),
    ("fi", "avain vene", "Veneen avain on Matilla."),
    ("sv", "Var är nyckeln?", "Nyckeln hänger i köket."),
    ("en", "key to shed", "The key of the shed hangs on the nail."),
    ("en", "Where are the keys kept nowadays?", "The keys are kept in the blue cupboard."),
    ("en", "office hours", "The office hours are 9 to 15."),
    ("en", "What is the password for the internet?", "The wifi password is kala123."),
]


@pytest.fixture(scope="module", params=[pytest.param("minilm", marks=pytest.mark.model), "hashing", "lexical"])
def searched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Hits]]:
    """Search one of the memories that hold an answer of `SHORT` among unrelated facts. Its id ends with 5."""
    embedder = request.getfixturevalue("minilm") if request.param == "minilm" else HashingEmbedder()
    backend = FaissMemoryBackend(tmp_path_factory.mktemp(request.param), embedder)
    for n, (language, _, answer) in enumerate(SHORT):
        facts = UNRELATED[language].split("|")
        texts = enumerate([*facts[:5], answer, *facts[5:]])
        backend.store([MemoryEntry(id=f"{n}.{k}", content=text, namespace=f"n{n}") for k, text in texts])
    mode: Any = "lexical" if request.param == "lexical" else "hybrid"
    yield lambda n, query: backend.search(Query(query, Scope(f"n{n}"), limit=30, mode=mode))
    backend.close()


@pytest.mark.parametrize("n", range(len(SHORT)), ids=[query for _, query, _ in SHORT])
def test_the_only_fact_with_a_word_of_a_short_question_is_kept(searched: Callable[..., Hits], n: int) -> None:
    query = SHORT[n][1]
    assert kept(query, searched(n, query)) == [f"{n}.5"]


def test_one_word_of_a_short_question_is_no_reason_to_keep_a_long_text_or_one_of_several() -> None:
    long = (
        "The writing of the summer is kept apart from code, tests, notes, drafts and all the other texts of the team."
    )
    assert kept("writing habits", hits_of({**FACTS, "long": ("", long)})) == []
    assert kept("writing habits", hits_of({**FACTS, "brief": ("", "The writing is kept apart.")})) == ["brief"]
    two = {"one": ("", "The writing is kept apart."), "two": ("", "The writing is hers.")}
    assert kept("writing habits", hits_of({**FACTS, **two})) == []
    assert kept("writing habits of whales", hits_of({**FACTS, "brief": ("", "The writing is kept apart.")})) == []


LONG = "birds nest near rivers, gardens, orchards, meadows, valleys, hills, forests, lakes, fields and harbours."


def scored(rows: dict[str, tuple[str, float]]) -> Hits:
    """Hits found by words alone, each with its text and BM25 score; the hit `redis` has the title "Redis"."""
    titles = {"redis": "Redis"}
    entries = [MemoryEntry(id=name, content=text, title=titles.get(name, "")) for name, (text, _) in rows.items()]
    scores = [score for _, score in rows.values()]
    return Hits([Hit(entry, 0.5, lexical_score=score) for entry, score in zip(entries, scores, strict=True)])


@pytest.mark.parametrize(("score", "best", "ids"), [(6.0, 10.0, ["rare"]), (5.9, 6.0, []), (6.0, 10.1, [])])
def test_one_word_of_a_long_question_is_enough_if_its_score_is_high(score: float, best: float, ids: list[str]) -> None:
    rows = {"best": ("The ferry leaves.", best), "rare": (f"Quetzal {LONG}", score)}
    assert kept("museum feathers quetzal opening prices tickets", scored(rows)) == ids


def test_a_high_score_that_a_name_may_have_given_is_not_enough() -> None:
    question = "Redis feathers quetzal opening prices tickets"
    for text, ids in ((f"Quetzal {LONG}", ["redis", "other"]), (f"Redis quetzal {LONG}", ["redis"])):
        assert kept(question, scored({"redis": (f"Redis {LONG}", 9.0), "other": (text, 9.0)})) == ids


def test_a_short_or_misspelt_word_is_not_the_beginning_of_another_word() -> None:
    facts = {"a": ("", "Category theory is hard."), "b": ("", "It rained."), "c": ("Range", "Of a list.")}
    assert kept("cat", hits_of(facts)) == []
    assert kept("catego", hits_of(facts)) == ["a"]
    assert kept("rang", hits_of(facts)) == ["c"]  # four letters
    stems = {"a": ("", "The zorblaxo hums."), "b": ("", "It rained.")}
    assert kept("zorbladi", hits_of(stems)) == ["a"]  # only the last two letters differ
    assert kept("zorbludi", hits_of(stems)) == []
    short = " ".join(f"x{chr(97 + n)}z" for n in range(12))  # words of three letters are not corrected
    assert kept(f"{short} rang", hits_of(facts)) == ["c"]


def test_a_compound_holds_the_word_inside_it() -> None:
    facts = {"a": ("", "Uusi pesukone tuli eilen."), "b": ("", "Kissa nukkuu."), "c": ("", "Aamulla satoi lunta.")}
    assert kept("pesukoneet", hits_of(facts)) == ["a"]


def test_nearness_alone_is_enough_and_a_poor_cosine_is_not() -> None:
    near, far = MemoryEntry(id="near", content="Aino loves dogs."), MemoryEntry(id="far", content="It rained.")
    hits = Hits([Hit(near, 1.0, dense_score=0.71, dense_rank=1), Hit(far, 0.9, dense_score=0.2, dense_rank=2)])
    assert kept("pets?", hits) == ["near"]
    voteless = Hits([Hit(near, 1.0, dense_score=0.71)])  # the embedder does not know the language
    assert kept("pets?", voteless) == []


def test_order_and_warnings_stay_and_the_given_hits_are_not_changed() -> None:
    hits = hits_of(FACTS)
    before = list(hits)
    found = relevant_hits("Fastify and Vitest on Kubernetes", hits)
    assert [hit.entry.id for hit in found] == ["fastify", "vitest", "kubernetes"]
    assert found.warnings == ("slow",)
    assert list(hits) == before


def test_a_blank_query_asks_for_nothing() -> None:
    for query in ["", "   ", "\n\t", "\u200b"]:
        assert relevant_hits(query, hits_of(FACTS)) == []
        assert relevant_hits("Redis", Hits()) == []


_TEXT = st.text(max_size=60) | st.sampled_from(
    ["Redis", "mongo 🐱", "työkalu", "日本語の文章", "שלום עולם", "a\x00b", "_" * 50, "K8s v2.1", "\u202eabc", "𝔘𝔫𝔦"]
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_TEXT, _TEXT, _TEXT), max_size=8), _TEXT)
def test_any_text_is_judged_alike_each_time(rows: list[tuple[str, str, str]], query: str) -> None:
    hits = Hits(
        Hit(MemoryEntry(id=str(n), content=text, title=title, metadata={"aliases": [alias]}), 0.5, lexical_score=2.0)
        for n, (text, title, alias) in enumerate(rows)
    )
    found = relevant_hits(query, hits)
    assert found == relevant_hits(query, hits)
    assert all(hit in hits for hit in found)


def test_huge_texts_are_judged_in_bounded_work() -> None:
    noise = " ".join(f"word{n}x abcdefgh{n % 977}" for n in range(40_000))
    hits = hits_of({**FACTS, "huge": ("", noise), "one": ("", "a" * 900_000)})
    assert kept("Redis " + noise, hits)[0] == "redis"


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / precision.SET).is_dir(), reason="the development sets are not beside the repository")
def test_the_precision_benchmark_is_answered_without_noise() -> None:
    way = next(way for way in precision.WAYS if way.embedder == "hashing" and way.relevant_only)
    outcomes = precision.measure(load(precision.SET), way)
    assert len(outcomes) == 77
    assert fmean(o.precision for o in outcomes if o.precision is not None) > 0.95
    assert fmean(o.recall for o in outcomes if o.recall is not None) > 0.95
    assert {o.category for o in outcomes if not o.passed} <= {"Alias resolution", "Relation expansion"}


def test_a_case_is_scored_as_the_benchmark_says() -> None:
    assert precision.score(set(), set()) == (None, None)
    assert precision.score({"a"}, set()) == (0.0, None)
    assert precision.score(set(), {"a"}) == (0.0, 0.0)
    assert precision.score({"a", "b"}, {"a", "c", "d", "e"}) == (0.5, 0.25)
