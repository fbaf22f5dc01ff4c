"""Chunks of pages, sentences of passages and markers of citations at the level of one function."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentformer.embedders import recent
from agentformer.embedders.guarded import estimated_spans
from agentformer.rag import chunks
from agentformer.rag.answer import citations, confidence, model_output, quote_text
from agentformer.rag.answer.passages import read_passages
from agentformer.rag.answer.quotes import rank_sentences
from agentformer.text.analysis import QueryTerms
from agentformer.text.table_rows import tables_of
from agentformer.types import DocumentText, Heading, Page, PageTable, Span
from tests.rag.models import HITS, hit


def words(text: str) -> list[Span]:
    return [Span(match.start(), match.end()) for match in re.finditer(r"\w+", text)]


def cut(*pages: Page, title: str = "") -> list[tuple[str, str]]:
    """Return the text and the context of the chunks of at most four words."""
    document = DocumentText("text/plain", pages, title)
    return [(chunk.text, chunk.context) for chunk in chunks.cut(document, "folder/name.txt", words, 4, 0)]


def test_a_first_line_of_3_to_100_characters_may_be_a_title() -> None:
    for line, is_title in (
        ("abc", True),
        ("ab", False),
        ("a" * 100, True),
        ("a" * 101, False),
        ("#abc", False),
        ("a  b", False),
        *((f"abc{mark}", False) for mark in ".,;:"),
        ("abc?", True),
    ):
        assert chunks._first_line([Page(1, f"\n {line} \nmore")]) == (line if is_title else "")
    assert chunks._first_line([Page(1, ""), Page(2, "Second")]) == chunks._first_line([]) == ""


def test_an_unfinished_sentence_is_carried_to_the_next_page() -> None:
    for text, following, number, carried in (
        ("One. Two goes", "on here.", 2, "Two goes"),
        ("One. Two\ngoes", "on here.", 2, "Two goes"),
        ("One. Two goes.", "on here.", 2, ""),
        ("One. Two goes", "on here.", 3, ""),
        ("", "on here.", 2, ""),
        ("x" * 900, "on here.", 2, "x" * 200),
    ):
        assert chunks._carried(Page(1, text), Page(number, following)) == carried
    headed = Page(2, "Head here", headings=(Heading("Head", 1, 0),))
    assert chunks._carried(Page(1, "One. Two goes"), headed) == ""


def test_the_context_of_a_chunk_has_the_title_and_the_headings() -> None:
    headings = (Heading("Head", 1, 4), Heading("Next", 1, 13))
    text = "run Head a b Next c foot"
    assert cut(Page(1, text, body=Span(4, 19), headings=headings), title="T") == [
        ("Head a b", "name › T › Head"),
        ("Next c", "name › T › Next"),
    ]
    deeper = (Heading("Head", 1, 4), Heading("Sub", 2, 13))
    assert cut(Page(1, text, body=Span(4, 19), headings=deeper), title="T")[1] == ("Next c", "name › T › Head › Sub")
    assert cut(Page(1, "a title here\nword goes"), Page(2, "on. Then more")) == [
        ("a title here", "name › a title here"),
        ("word goes", "name › a title here"),
        ("on. Then more", "name › a title here … a title here word goes"),
    ]
    assert cut(Page(1, "x", status="no_text"), Page(2, "lower.")) == [("lower", "name")]
    assert cut(Page(1, "lower."), title="t" * 301) == [("lower", f"name › {'t' * 300}")]


def test_the_context_has_the_words_of_the_file_name_unless_the_title_has_them() -> None:
    for name, title, names in (
        ("AMAZON_2017_10K.pdf", "Annual report", ["AMAZON 2017 10K", "Annual report"]),
        ("annual-report.pdf", "Annual Report 2017", ["Annual Report 2017"]),
        ("AMAZON_2017_10K.pdf", "", ["AMAZON 2017 10K"]),
        ("2017.pdf", "Annual report", ["Annual report"]),
        ("2017.pdf", "", ["2017"]),
    ):
        assert chunks._names(title, name) == names


def test_a_chunk_that_begins_inside_a_table_has_its_headers_in_the_context() -> None:
    text = "Cash 2018 2017\nBoats 5 6\nSails 7 8\nTar 9 1\nThe end."
    table = PageTable(15, 41, ("2018", "", "2017"), "in millions")
    assert cut(Page(1, text, tables=(table,)), title="T") == [
        ("Cash 2018 2017", "name › T"),
        ("Boats 5 6", "name › T"),
        ("Sails 7 8", "name › T › 2018 | 2017 (in millions)"),
        ("Tar 9 1", "name › T › 2018 | 2017 (in millions)"),
        ("The end", "name › T"),
    ]


def test_a_long_sentence_is_cut_at_600_characters_or_a_word() -> None:
    for text, span, shortened in (
        ("a" * 700, (0, 600), (0, 600)),
        ("a " * 400, (0, 600), (0, 600)),
        ("a" * 700, (0, 601), (0, 600)),
        ("a " * 400, (1, 700), (1, 599)),
        (f"ab {'c' * 800}", (2, 800), (2, 602)),
    ):
        assert quote_text.shortened(text, Span(*span)) == Span(*shortened)


class Small:
    """An embedder that reads ten words."""

    class space:
        max_tokens = 10

    def token_spans(self, text: str) -> Sequence[Span]:
        return words(text)


def test_only_the_beginning_of_a_long_sentence_is_embedded() -> None:
    for count, read in ((9, 9), (10, 9), (20, 9)):  # nine tenths of the tokens that the model reads
        assert len(words(recent._fitting(Small(), "a " * count))) == read  # type: ignore[arg-type]


def test_terms_have_the_length_of_their_stems() -> None:
    assert [confidence._length(term) for term in ("fi~talo", "talo")] == [4, 4]


def test_numbers_of_a_marker() -> None:
    for marker, numbers in (
        ("1", [1]),
        ("1, 2", [1, 2]),
        ("1-3", [1, 2, 3]),
        ("3-1", [3, 1]),
        ("2-2", [2]),
        ("5-24", [*range(5, 25)]),
        ("5-25", [5, 25]),
        ("^1", [1]),
        ("1–2, 2; 4", [1, 2, 4]),
    ):
        assert citations._numbers(marker) == numbers


def test_letters_beside_a_marker() -> None:
    assert citations._beside("abc defgh [1] ijkl mn", 10, 13) == (("before", "abcdefgh"), ("after", "ijklmn"))
    (_, before), (_, after) = citations._beside("x" * 300 + "[1]" + "y" * 300, 300, 303)
    assert (before, after) == ("x" * 24, "y" * 24)
    assert citations._beside("[1]", 0, 3) == (("before", ""), ("after", ""))
    assert [citations._nearest(side, "abcdefghij") for side in ("before", "after")] == ["cdefghij", "abcdefgh"]
    assert citations._letters("A-b [1] 2") == "ab2"


def test_a_reference_that_a_model_copied_is_taken_out() -> None:
    paper = "Tides are strong near the pier [2]. Boats wait."
    for near, copied in (("near the pier", (2,)), ("by pier", ())):  # eight equal letters before the marker
        cited = citations.cite(f"Tides are strong {near} [2].", read_passages([hit(paper, 1), *HITS[1:]]))
        assert cited.copied == copied


def test_the_position_of_a_citation_is_in_its_page() -> None:
    (first, *_) = rank_sentences(QueryTerms.of("What costs 95 euros?"), read_passages(HITS))
    citation = citations.citation(7, first)
    assert (citation.number, citation.page, citation.start, citation.end) == (7, 2, 40 + 29, 40 + 54)


def test_a_refusal_may_follow_a_few_marks() -> None:
    for text, may_refuse in (
        (" " * 16 + "NO", True),
        (" " * 17 + "NO", False),
        ("**NO ANS", True),
        ("NO\\_A", True),
        ("NO_ANSWERS", False),
        ("no", False),
    ):
        assert model_output._may_refuse(text) is may_refuse


def test_the_host_of_an_unknown_address_is_shown_up_to_40_characters() -> None:
    known = model_output._KnownAddresses(["see https://a.example/x"])
    assert known.misses(f"https://{'h' * 50}/p?q") and not known.misses("https://a.example/x")
    assert [*known.missing_hosts] == ["h" * 40]
    assert model_output.link_warnings([]) == []


def test_the_beginning_of_an_image_is_held_back() -> None:
    links = model_output.LinkFilter()
    shown = [links.feed(piece) for piece in ("a!", "[x](y)", "![1", "] b", "<im", "g src=x>", "c!")]
    assert shown == ["a", "! [x](y)", "", "![1] b", "", "‹img src=x>", "c"]
    assert (links.rest(), links.rest()) == ("!", "")


def test_a_chunk_of_a_table_of_cells_has_whole_rows_and_its_headers() -> None:
    rows = [f"Boat {n} | lies at pier {n}. It is blue | {n}" for n in range(1, 60)]
    text = "\n".join(["name | place | fee", *rows])
    page = Page(1, text, tables=tables_of(text))
    made = list(chunks.cut(DocumentText("text/csv", (page,)), "boats.csv", estimated_spans, 100, 20))

    assert len(made) > 5
    assert all(line in {"name | place | fee", *rows} for chunk in made for line in chunk.text.split("\n"))
    assert [chunk.context for chunk in made[1:]] == ["boats › name | place | fee"] * (len(made) - 1)
    assert made[1].text.split("\n")[0] == made[0].text.split("\n")[-1]  # a shared row
