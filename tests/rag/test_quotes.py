"""The choice of quotes: what is asked decides, and a quote is whole."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.calibration import Calibration
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.embedders.recent import RecentVectors
from agentformer.errors import EmbedderUnavailable
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.citations import in_marks
from agentformer.rag.answer.evidence import Evidence
from agentformer.rag.answer.passages import read_passages
from agentformer.rag.answer.quote_text import MAX_QUOTE
from agentformer.rag.answer.quotes import RankedSentence, choose_quotes, rank_sentences
from agentformer.rag.answer.sources import Found
from agentformer.rag.chunks import CARRIED
from agentformer.text.analysis import analyze_query
from agentformer.text.facts.unsupported_claims import Vocabulary, inner_names
from agentformer.types import Analyzed, Hit, Hits, Matrix, MemoryEntry, Source, Span, TokenVectors, Vector
from tests.rag.models import HITS, hit


def ranked(question: str, *hits: Hit) -> list[RankedSentence]:
    return rank_sentences(analyze_query(question), read_passages(hits or HITS))


BRIDGE = (
    "The old bridge of Turku was built by the city. Anna Berg designed the bridge. The bridge was opened in 1921. "
    "The bridge was closed because the ice was too heavy. The bridge cost 40 million marks."
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who designed the bridge?", "Anna Berg"),
        ("When was the bridge opened?", "1921"),
        ("Why was the bridge closed?", "the ice"),
        ("How much did the bridge cost?", "40 million"),
        ("When could people use the bridge?", "1921"),
        ("Why could nobody cross the bridge?", "the ice"),
        ("How expensive was the bridge?", "40 million"),
    ],
)
def test_the_type_of_the_question_chooses_between_sentences_with_the_same_words(question: str, answer: str) -> None:
    assert answer in ranked(question, hit(BRIDGE, 1))[0].text


def test_the_language_that_the_search_knows_is_not_detected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Hits([hit(BRIDGE, 1), hit(BRIDGE, 2)], analyzed={hit(BRIDGE, 1).entry.id: Analyzed("sv")})
    request = Evidence(Found("Who designed the bridge?", found), None, RecentVectors())
    assert [passage.language for passage in request.passages] == ["sv", "en"]


def test_the_sentences_of_a_passage_that_is_found_again_are_kept_unless_it_is_long() -> None:
    first, again = (read_passages([hit(BRIDGE, 1)])[0] for _ in range(2))
    assert first.sentence_terms is again.sentence_terms and first.sentences is again.sentences
    first, again = (read_passages([hit(BRIDGE * 30, 1)])[0] for _ in range(2))
    assert first.sentence_terms is not again.sentence_terms and first.sentence_terms == again.sentence_terms


def test_the_sentence_before_comes_with_a_pronoun() -> None:
    text = "Dogs are not allowed. The keys belong to the caretaker. He keeps them in the blue cupboard. Tea is at four."
    first = ranked("Where does the caretaker keep the keys?", hit(text, 1))[0]
    assert first.text == "The keys belong to the caretaker. He keeps them in the blue cupboard."
    assert text[first.span.start : first.span.end] == first.text


def test_a_pronoun_after_a_pronoun_comes_with_the_sentence_that_names_the_subject() -> None:
    text = "Dogs wait outside. The mill stands by the river. It was built by Anna Berg. It grinds rye for the bakery."
    first = ranked("What does it grind for the bakery?", hit(text, 1))[0]
    assert first.text == text[text.index("The mill") :]
    assert text[first.span.start : first.span.end] == first.text


def test_a_repeated_sentence_is_quoted_once() -> None:
    text = "The mill stands by the river. " + "It is free for members. " * 20
    found = ranked("Who pays nothing for the mill, is it free for members?", hit(text, 1))
    assert max(each.text.count("It is free for members.") for each in found) == 1
    assert found[0].text == "The mill stands by the river. It is free for members."


@pytest.mark.parametrize(
    ("question", "last"),
    [
        ("When did John Smith move the mill?", "He moved it in 1960."),
        ("When did John Smith close the mill?", "He closed it in 1970."),
        ("When did John Smith retire?", "He retired in 1980."),
    ],
)
def test_in_a_row_of_pronouns_the_sentence_with_the_question_s_verb_is_quoted(question: str, last: str) -> None:
    text = "John Smith bought the mill in 1950. He moved it in 1960. He closed it in 1970. He retired in 1980."
    quote = ranked(question, hit(text, 1))[0].text
    assert quote.startswith("John Smith bought") and quote.endswith(last)


def test_pronouns_are_known_in_a_text_of_unknown_language() -> None:
    passages = read_passages([hit("Karl Berg kom 1920. Hon gick.", 1), hit("The keys hang here. He has one.", 2)])
    assert {passage.language for passage in passages} >= {""}
    sentences = rank_sentences(analyze_query("Vem gick?"), [each for each in passages if not each.language])
    assert all(each.text.startswith(("Karl Berg kom", "The keys hang")) for each in sentences)


def test_the_subject_of_a_far_pronoun_stands_before_the_quote() -> None:
    between = f"It was built by Anna Berg{' and by her brother' * 30}."
    text = f"The mill stands by the river. {between} It grinds rye for the bakery."
    first = ranked("What does it grind for the bakery?", hit(text, 1))[0]
    assert first.text == "The mill stands by the river. … It grinds rye for the bakery."
    assert text[first.span.start : first.span.end] == "It grinds rye for the bakery."
    assert len(between) > MAX_QUOTE - len("It grinds rye for the bakery.")


def test_a_repeated_sentence_is_no_competitor_of_itself() -> None:
    sentence = "The harbour office opens at nine."
    once, often = (
        Answerer(None, HashingEmbedder()).answer(Found("When does the harbour office open?", [hit(" ".join(text), 1)]))
        for text in ([sentence], [sentence] * 40)
    )
    assert [citation.quote for citation in often.citations] == [sentence]
    assert often.confidence == pytest.approx(once.confidence, abs=0.1)


def test_a_sentence_that_needs_nothing_is_quoted_alone() -> None:
    assert ranked("What does the crane cost?")[0].text == "The crane costs 95 euros."


def test_a_list_item_comes_with_its_lead_in() -> None:
    text = "The office lends these things to members:\n- a blue boat for the summer\n- a heavy hammer for builders\n"
    assert ranked("Who gets a blue boat?", hit(text, 1))[0].text == text[: text.index("\n- a heavy")]
    later = ranked("Who gets a heavy hammer?", hit(text, 1))[0]
    assert later.text == "The office lends these things to members: … - a heavy hammer for builders"
    assert text[later.span.start : later.span.end] == "- a heavy hammer for builders"


def test_a_lead_in_comes_with_its_items() -> None:
    text = "Dogs wait outside. The agenda of the meeting:\n- the election of the chair\n- the budget\n\nTea is served."
    quote = ranked("What is on the agenda of the meeting?", hit(text, 1))[0].text
    assert quote == "The agenda of the meeting:\n- the election of the chair\n- the budget"


def test_a_lead_in_late_in_a_passage_comes_with_the_items_that_fit_in_a_quote() -> None:
    before = "Dogs wait outside. Bikes stand at the wall. " * 7
    agenda = "The agenda of the meeting:\n- the election of the chair\n- the budget"
    quote = ranked("What is on the agenda of the meeting?", hit(f"{before}{agenda}\n\nTea is served.", 1))[0].text
    assert quote == agenda
    shown = "The agenda of the meeting:\n- the election of the chair"
    long = f"{shown}\n- the budget {'of the harbour and its boats ' * 20}\n- the tea"
    assert ranked("What is on the agenda of the meeting?", hit(f"{before}{long}", 1))[0].text == shown


@pytest.mark.parametrize(
    ("carried", "content", "quote"),
    [
        (
            "The keys of the boat are kept",
            "in the blue cupboard. Tea.",
            "The keys of the boat are kept in the blue cupboard.",
        ),
        (
            "The keys of the boat are in the cup-",
            "board of the office.",
            "The keys of the boat are in the cupboard of the office.",
        ),
        ("The keys of the boat", "They hang in the cupboard.", "They hang in the cupboard."),
    ],
)
def test_a_sentence_over_a_page_break_is_joined(carried: str, content: str, quote: str) -> None:
    source = Source("d", "a.pdf", 2, "2", 0, len(content))
    entry = MemoryEntry("e", content, kind="chunk", context=f"Rules{CARRIED}{carried}", source=source)
    answer = Answerer(None, None, abstain=0.0).answer(
        Found("Where in the cupboard are the keys of the boat?", [Hit(entry, 1.0)])
    )
    citation = answer.citations[0]
    assert answer.text.startswith(f"“{quote}” [1]")
    assert citation.quote == content[citation.start : citation.end]
    assert citation.headings == quote.removesuffix(citation.quote).strip()
    assert quote.endswith(content[citation.start : citation.end])


def test_the_part_on_the_page_before_is_left_out_if_the_quote_would_be_too_long() -> None:
    before, content = "The keys of the boat are kept", f"in the blue cupboard{' of the office' * 40}."
    assert len(content) < MAX_QUOTE < len(before) + len(content)
    source = Source("d", "a.pdf", 2, "2", 0, len(content))
    entry = MemoryEntry("e", content, kind="chunk", context=f"Rules{CARRIED}{before}", source=source)
    answer = Answerer(None, None, abstain=0.0).answer(Found("Where are the keys of the boat?", [Hit(entry, 1.0)]))
    assert [citation.quote for citation in answer.citations] == [content]


def test_names_come_with_the_sentence_that_announces_them() -> None:
    text = "The menu has three large keys. Home, Help and Stop. The cupboard is blue and stands in the office."
    assert ranked("Which keys does the menu have?", hit(text, 1))[0].text == text[: text.index(" The cupboard")]


def test_captions_and_numbered_headings_are_not_quoted() -> None:
    text = "4.2 Keys of the office\n\nThe keys hang in the cupboard.\n\nFigure 3: Keys of the office\n\nTea is at four."
    quotes = [sentence.text for sentence in ranked("Where are the keys of the office?", hit(text, 1))]
    assert quotes == ["The keys hang in the cupboard.", "Tea is at four."]


def test_the_number_of_a_paragraph_is_not_the_number_that_is_asked_for() -> None:
    text = "§8.3 The keys of the members are counted by the caretaker. §8.4 Members get 2 keys from the caretaker."
    assert "get 2 keys" in ranked("How many keys do members get?", hit(text, 1))[0].text


def test_equal_quotes_are_given_once() -> None:
    twins = [hit("The caretaker keeps the keys.", page) for page in (1, 2)]
    answer = Answerer(None, None).answer(Found("Who keeps the keys?", twins))
    assert [(c.page, c.quote) for c in answer.citations] == [(1, "The caretaker keeps the keys.")]


def test_quotes_of_one_passage_do_not_overlap() -> None:
    text = "The keys belong to the caretaker. He keeps the keys here. He lends the keys to members."
    quotes = choose_quotes(ranked("Who keeps the keys?", hit(text, 1)), 3)
    spans = sorted((quote.span.start, quote.span.end) for quote in quotes)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_sentence_is_quoted_only_if_it_is_nearly_as_probable_as_the_first() -> None:
    first, *_, second = ranked("Who keeps the keys?")
    assert first.hit != second.hit
    for share, count in ((0.06, 1), (0.08, 2)):
        assert len(choose_quotes([first, dataclasses.replace(second, score=share * first.score)], 3)) == count


def test_scores_are_probabilities() -> None:
    scores = [sentence.score for sentence in ranked("Who keeps the keys?")]
    assert sum(scores) == pytest.approx(1.0)
    assert scores == sorted(scores, reverse=True)


class Counting(HashingEmbedder):
    """Records what it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.questions: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self.batches.append(list(texts))
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        self.questions.append(text)
        return super().embed_query(text)


def test_the_words_of_the_question_in_the_same_order_count() -> None:
    text = "The keeper of the light lives in Turku. A light is on for the keeper in Turku."
    first, second = sorted(ranked("Where is the keeper of the light?", hit(text, 1)), key=lambda each: each.span.start)
    assert first.features is not None and second.features is not None
    assert first.features.phrase > second.features.phrase >= 0.0


def test_few_sentences_are_embedded_in_one_batch_and_kept() -> None:
    text = " ".join(f"The keys number {n} hang in cupboard number {n} of the second office." for n in range(40))
    embedder, vectors, query = (
        Counting(),
        RecentVectors(),
        analyze_query("Where do the spare keys of this test hang?"),
    )
    found = rank_sentences(query, read_passages([hit(text, 1)]), embedder, vectors)
    assert [len(batch) for batch in embedder.batches] == [5]
    assert sum(sentence.cosine is not None for sentence in found) == 5
    again = rank_sentences(query, read_passages([hit(text, 1)]), embedder, vectors)
    assert len(embedder.batches) == embedder.questions.count(query.text) == 1
    assert [(each.text, each.score) for each in again] == [(each.text, each.score) for each in found]


class Tokens(Counting):
    """Words of one group have one vector, and all other words are at right angles to each other."""

    groups: tuple[tuple[str, ...], ...] = (("founded", "established"), ("harbour", "port"))

    def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
        self.batches.append(list(texts))
        return [self._read(text) for text in texts]

    def _read(self, text: str) -> TokenVectors:
        words = list(re.finditer(r"\w+|[^\w\s]", text))
        rows = np.zeros((len(words), self.space.dimension), dtype=np.float32)
        for n, word in enumerate(words):
            name = next((group[0] for group in self.groups if word[0].casefold() in group), word[0].casefold())
            rows[n, sum(map(ord, name)) % self.space.dimension] = 1.0
        return TokenVectors(super().embed_query(text), tuple(Span(*word.span()) for word in words), rows)


TOKENS = {"tokens": {"": (0.1510, 0.6754)}}  # those of MiniLM
OTHER_WORDS = (
    "Aino Laine wrote about the harbour in a letter. Maija Virtanen established the port. The piers are of stone."
)


def test_the_sentence_with_tokens_near_to_those_of_the_question_is_first() -> None:
    query, passages, known = (
        analyze_query("Who founded the harbour?"),
        [hit(OTHER_WORDS, 1)],
        Calibration.from_json(TOKENS),
    )
    embedder, vectors = Tokens(), RecentVectors()
    found = rank_sentences(query, read_passages(passages), embedder, vectors, known)
    assert found[0].text == "Maija Virtanen established the port."
    assert found[0].features is not None
    assert found[0].features.likeness == pytest.approx((0.3 * 0.75 + 0.5 + 0.2 * 0.0 - 0.0974) / (1 - 0.0974), abs=0.1)
    assert found[0].cosine is None  # the space has no scale for texts
    assert [len(batch) for batch in embedder.batches] == [1, 1]  # the question, and neighbors in one window
    rank_sentences(query, read_passages(passages), embedder, vectors, known)
    assert len(embedder.batches) == 2


def test_tokens_are_not_compared_if_the_model_reads_letters_or_none() -> None:
    class Letters(Tokens):
        def _read(self, text: str) -> TokenVectors:
            spans = tuple(Span(n, n + 1) for n in range(len(text)))
            return TokenVectors(super().embed_query(text), spans, np.ones((len(text), self.space.dimension)) / 16)

    class Without(Tokens):
        def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
            return None

    query, passages = analyze_query("Who founded the harbour?"), [hit(OTHER_WORDS, 1)]
    by_words = rank_sentences(query, read_passages(passages))
    for embedder in (Letters(), Without(), Counting()):
        found = rank_sentences(query, read_passages(passages), embedder, calibration=Calibration.from_json(TOKENS))
        assert [(each.text, each.score) for each in found] == [(each.text, each.score) for each in by_words]


def test_the_cache_counts_the_vectors_of_tokens() -> None:
    embedder = Tokens()
    vectors = RecentVectors(values=5 * embedder.space.dimension)  # two words and their text are three vectors
    for text in ("one two", "three four", "one two"):
        (read,) = vectors.tokens([text], embedder) or []
        assert read.rows.shape == (2, embedder.space.dimension)
        assert read.rows.dtype == np.float32
    assert embedder.batches == [["one two"], ["three four"], ["one two"]]


def test_an_embedder_that_is_down_leaves_the_choice_to_the_words() -> None:
    class Down(HashingEmbedder):
        def embed_documents(self, texts: Any) -> Matrix:
            raise EmbedderUnavailable("away")

    found = rank_sentences(analyze_query("Who keeps the keys?"), read_passages(HITS), Down())
    assert [each.text for each in found] == [each.text for each in ranked("Who keeps the keys?")]


TABLE = (
    "The ferries carried more cars.\n\nCash flows\n(in millions)\nYear Ended December 31,\n2016 2017\n"
    "Net income 2,371 3,033\nPurchases of property and equipment (6,737) (11,955)\nProceeds from incentives 1,067 1,897"
    "\n\nThe crew grew, too."
)


def test_a_row_of_a_table_is_quoted_with_its_headers() -> None:
    first = ranked("How much were the purchases of property and equipment in 2017?", hit(TABLE, 1))[0]
    assert first.text == (
        "Purchases of property and equipment | December 31, 2016: (6,737) | 2017: (11,955) | in millions"
    )
    assert TABLE[first.span.start : first.span.end] == "Purchases of property and equipment (6,737) (11,955)"


def test_headers_of_tables_are_not_quoted() -> None:
    quotes = [sentence.text for sentence in ranked("Which cash flows are there in 2017?", hit(TABLE, 1))]
    assert len(quotes) == 5
    assert not any(quote.startswith(("Cash flows", "Year", "(in")) for quote in quotes)


def test_neighbors_that_are_about_as_probable_are_one_quote() -> None:
    text = "The keys hang in the cupboard. The keys lie in the drawer. Dogs wait outside."
    first, second, *_ = ranked("Where are the keys?", hit(text, 1))
    alike = [first, dataclasses.replace(second, score=first.score * 0.9)]
    assert [quote.text for quote in choose_quotes(alike, 3)] == [text[: text.index(" Dogs")]]
    unlike = [first, dataclasses.replace(second, score=first.score * 0.2)]
    assert [quote.text for quote in choose_quotes(unlike, 3)] == [first.text, second.text]


@pytest.mark.parametrize(
    ("quote", "shown"),
    [
        ("The keys are  here.", "“The keys are here.”"),
        ("“The keys are here,” she said.", "«“The keys are here,” she said.»"),
        ("Is it “here”?", "«Is it “here”?»"),
        ("“The keys are here.”", "“The keys are here.”"),
    ],
)
def test_a_quote_has_no_doubled_quotation_marks(quote: str, shown: str) -> None:
    assert in_marks(quote) == shown


def test_a_sentence_over_a_page_break_is_found_by_its_beginning() -> None:
    content = "mean that the ferry may go first. The gap is narrow. Dogs wait outside."
    entry = MemoryEntry("e", content, kind="chunk", context=f"Rules{CARRIED}Two red lights on the tower")
    first = ranked("What do two red lights on the tower mean?", Hit(entry, 1.0))[0]
    assert first.text == "Two red lights on the tower mean that the ferry may go first."


def test_numbered_headings_below_each_other_are_not_quoted() -> None:
    text = "§1 Keys\n§2 The name of the office\n\nThe office is called Poiju."
    assert [sentence.text for sentence in ranked("What is the name of the office?", hit(text, 1))] == [
        "The office is called Poiju."
    ]


def test_a_pronoun_brings_the_whole_sentence_of_the_page_before() -> None:
    content = "mean that the ferry may go first. They are lit by the harbour office. Dogs wait outside."
    entry = MemoryEntry("e", content, kind="chunk", context=f"Rules{CARRIED}Two red lights on the tower")
    first = ranked("Which office lights two red lights on the tower of the harbour?", Hit(entry, 1.0))[0]
    assert first.text == (
        "Two red lights on the tower mean that the ferry may go first. They are lit by the harbour office."
    )


def test_a_title_above_a_paragraph_is_not_quoted() -> None:
    text = "The keys are here.\n\nKeys of the office\n\nThe caretaker lends the keys of the office to members.\n\nKeys"
    quotes = {sentence.text for sentence in ranked("Who lends the keys of the office?", hit(text, 1))}
    assert quotes == {"The caretaker lends the keys of the office to members.", "The keys are here.", "Keys"}


def test_a_word_of_the_headers_does_not_hide_the_row_with_this_word() -> None:
    text = (
        "EBITDA and net income\nFirst half\nNet income of the group 805 1,048\nTax expense 300 193\n"
        "Adjusted EBITDA of the year 2,117 2,018\nDepreciation of the group 579 569"
    )
    first = ranked("What was the adjusted EBITDA of the group?", hit(text, 1))[0]
    assert text[first.span.start : first.span.end] == "Adjusted EBITDA of the year 2,117 2,018"


def test_lines_of_dots_dashes_or_numbers_are_not_quoted() -> None:
    contents = (
        "What does the DEA do ............................. 4\n\nThe DEA does . . . . . . . . . . . . . . . . . . 7\n\n"
    )
    ruled = "DEA ------------------------------\n\n2019 2020 2021 2022 2023\n\n"
    body = "The DEA enforces the laws on controlled substances of the country."
    found = ranked("What does the DEA do?", hit(contents + ruled + body, 1))
    assert [sentence.text for sentence in found] == [body]


def test_short_answers_with_numbers_and_hyphens_are_quoted() -> None:
    texts = ["The fee is 95-120 euros.", "12.03.2024", "See A-1, B-2, C-3 and D-4 ..."]
    found = ranked("What is the fee?", hit("\n\n".join(texts), 1))
    assert {sentence.text for sentence in found} == set(texts)


def test_a_passage_of_only_a_table_of_contents_can_be_quoted() -> None:
    assert ranked("What does the DEA do?", hit("What the DEA does ............................. 4", 1))


@pytest.mark.parametrize("form", ["Q: {}\nA: {}", "**{}**\n\n{}", "1. {}\n\n{}", "{} {}"])
def test_a_question_in_a_text_is_quoted_with_its_answer(form: str) -> None:
    pairs = [("Why was the fence removed?", "Neighbours complained."), ("Who paints the boats?", "Ask in May.")]
    text = "\n\n".join(form.format(*pair) for pair in pairs)
    first = ranked("Why was the fence removed?", hit(text, 1))[0]
    assert first.text.endswith("Neighbours complained.") and "Why was the fence removed?" in first.text
    assert "May" not in first.text


def test_a_question_without_an_answer_is_quoted_last_and_not_sure() -> None:
    asks, answers = hit("Who has the spare key?", 1), hit("Matti keeps the spare key in Lahti.", 2)
    assert ranked("Who has the spare key?", asks, answers)[0].text == answers.entry.content
    alone = Answerer(None, None).answer(Found("Who has the spare key?", [asks]))
    assert alone.confidence is not None and alone.confidence < 0.15


def test_a_message_does_not_answer_its_own_question() -> None:
    asks = hit("Who picks up the cake? I am away.", 1)
    asks = dataclasses.replace(asks, entry=dataclasses.replace(asks.entry, kind="message"))
    answers = hit("Liisa picks up the cake at three.", 2)
    assert ranked("Who picks up the cake?", asks, answers)[0].text == answers.entry.content


def test_headers_of_a_table_count_as_words_of_the_passage() -> None:
    table = "| Ship | Passengers | Cars |\n|---|---|---|\n| Borealis | 1,900 | 350 |\n| Aurora | 800 | 90 |"
    (passage,) = read_passages([hit(table, 1)], "en")
    assert {"en~passeng", "en~car"} <= passage.stems


def test_a_word_for_a_unit_of_time_is_no_name_in_german() -> None:
    known = Vocabulary(["Der Strom ist teuer."], "de")
    assert [*inner_names("Was kostete der Strom seit Jahr 2026?", "de", known)] == []
    assert [*inner_names("Was kostete der Strom in Turku?", "de", known)] == ["Turku"]
