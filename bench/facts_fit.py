"""Fit the weights by which `search.replacement_classifier` decides whether a newer statement replaces an older one:
`python -m bench.facts_fit [--write]`.

The data are `fact_statements.txt`, which was written for this fit, and `tests/search/fact_pairs.jsonl`. A statement is
also paired with random newer statements of its language, and a message of `locomo_dev` with older ones of its speaker,
which replace nothing. `facts_update` is not used.

The table shows pairs that were judged without their own source: the data are fitted to the other sources. "written" is
fitted in five parts. `--write` fits the weights to all data and writes the files of `search/replacement_classifier.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import agentformer
from agentformer.search import replacement_classifier as replacement
from agentformer.search.replacement_classifier import Weights, centred, cosine_features
from agentformer.text.facts.replacement_features import FEATURES, features
from agentformer.text.facts.statement_words import keys
from agentformer.text.languages.detection import detect_language
from bench.data import DATA
from bench.facts import OWN

Floats = np.ndarray[Any, np.dtype[np.float64]]
CHAT, LEFT_OUT_CHAT = "chat", "other chats"
STATEMENTS = Path(__file__).with_name("fact_statements.txt")
EMBEDDERS = ("", *replacement.HEADS)
_PARTS = 5  # of the written statements
_RANDOM = 3  # random newer statements of each pair
_RANDOM_WEIGHT = 0.8  # of such a pair, and of a pair of messages
_POSITIVE = 0.7  # weight of all replacements together, relative to all others
_STEPS = 12  # of Newton's method
_LEAST_PAIRS = 8  # a product of two features is used if so many pairs have it
# Scales of the features before a ridge of 1: a smaller scale is a stronger regularisation.
_PLAIN, _PRODUCTS, _COSINE = 1.0, 0.4, 1.0
_VECTORS = {"minilm": 0.5, "multilingual": 1.0}


class Pair(NamedTuple):
    source: str
    group: str
    older: str
    newer: str
    language: str
    replaces: bool
    random: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the weights")
    parser.add_argument("--without", default="", help="leave out the pairs of this source")
    parser.add_argument("--embedders", nargs="+", default=EMBEDDERS)
    chosen = parser.parse_args()
    every = [pair for pair in (*written(), *own()) if pair.source != chosen.without]
    every += [*with_random(every), *chats()]
    if not chosen.write:
        print(
            "| weights | source | pairs | right | precision | recall | unrelated pairs |\n|---|---|---|---|---|---|---|"
        )
    for name in chosen.embedders:
        data = Data(every, name)
        if chosen.write:
            data.fit(np.array([pair.source != LEFT_OUT_CHAT for pair in every])).write(name)
        for source in sorted({pair.source for pair in every} - {CHAT}) if not chosen.write else ():
            report(name or "plain", source, data, data.left_out(source))


def written() -> Iterator[Pair]:
    """Yield the pairs of `fact_statements.txt`."""
    language = older = group = ""
    for number, line in enumerate(STATEMENTS.read_text("utf-8").splitlines()):
        if line.startswith(("+", "-")):
            yield Pair("written", group, older, line[2:], language, line[0] == "+")
        elif line and line[0] != "#":
            language, older, _ = (part.strip() for part in line.split("|"))
            group = f"written {number}"


def own() -> Iterator[Pair]:
    """Yield the pairs of the tests."""
    for number, line in enumerate(OWN.read_text("utf-8").splitlines()):
        pair = json.loads(line)
        source = {"test": "development"}.get(pair["half"], pair["half"])
        yield Pair(source, f"own {number}", pair["first"], pair["second"], pair["language"], pair["expect"] == "second")


def chats() -> Iterator[Pair]:
    """Yield pairs of messages that one speaker of `locomo_dev` has written, each with the older message with which it
    has most words in common, and with another one. Hardly any of them replaces the other. The first conversation is
    not used for the fit."""
    chance = random.Random(1)
    said: defaultdict[tuple[str, str], list[tuple[str, frozenset[str]]]] = defaultdict(list)
    for line in (DATA / "locomo_dev" / "corpus.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if words := frozenset(keys(row["text"], "en")):
            said[row["meta"]["conv"], row["meta"]["speaker"]].append((row["text"], words))
    for number, messages in enumerate(said.values()):
        source = LEFT_OUT_CHAT if number < 2 else CHAT
        for n, (text, words) in enumerate(messages[1:], 1):
            nearest = sorted(messages[:n], key=lambda older: -len(words & older[1]))[:2]
            for older in sorted({chance.choice(messages[:n])[0], *(each[0] for each in nearest)} - {text}):
                yield Pair(source, f"chat {number}", older, text, "en", replaces=False, random=True)


def with_random(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield pairs of unrelated statements. Most of the newer ones report a change of something else."""
    chance = random.Random(1)
    groups: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.source, pair.language].append(pair)
    for group in groups.values():
        changes = [pair for pair in group if pair.replaces] or group
        for pair in group:
            for n in range(_RANDOM):
                other = chance.choice(changes if n else group)
                if other.group != pair.group:
                    yield pair._replace(
                        newer=other.newer if n < _RANDOM - 1 else other.older, replaces=False, random=True
                    )


class Data:
    """The features of pairs with the vectors of an embedder, or without vectors if its name is ""."""

    def __init__(self, pairs: Sequence[Pair], name: str) -> None:
        self.pairs, self.name = pairs, name
        self.replaces = np.array([pair.replaces for pair in pairs])
        codes = [(detect_language(pair.older), detect_language(pair.newer)) for pair in pairs]
        plain = [features(pair.older, pair.newer, code) for pair, code in zip(pairs, codes, strict=True)]
        self.compared = np.array([bool(values) for values in plain])
        rows = np.array([values or (0.0,) * len(FEATURES) for values in plain])
        products = rows[:, replacement.PRODUCTS[0]] * rows[:, replacement.PRODUCTS[1]]
        products *= (products > 0).sum(0) >= _LEAST_PAIRS
        self.rows: Floats = np.hstack([rows * _PLAIN, products * _PRODUCTS])
        self.scales = np.repeat([_PLAIN, _PRODUCTS], [rows.shape[1], products.shape[1]])
        self.mean = np.zeros(0, np.float32)
        if name:
            older, newer, self.mean = embedded(pairs, name)
            blocks = [cosine_features(older, newer), newer, older, np.abs(older - newer)]
            scales = [_COSINE, *[_VECTORS[name]] * 3]
            self.rows = np.hstack([self.rows, *(block * scale for block, scale in zip(blocks, scales, strict=True))])
            sizes = [block.shape[1] for block in blocks]
            self.scales = np.concatenate([self.scales, np.repeat(scales, sizes)])
        self.rows = np.hstack([self.rows, np.ones((len(pairs), 1))])
        self.scales = np.append(self.scales, 1.0)
        self.weights = np.where([pair.random for pair in pairs], _RANDOM_WEIGHT, 1.0) * self.compared

    def left_out(self, source: str) -> Floats:
        """Return the scores of the pairs of a source, fitted without it (or without a fifth of the written pairs)."""
        of_source = np.array([pair.source == source for pair in self.pairs])
        scores = np.zeros(len(self.pairs))
        parts = np.array([zlib.crc32(pair.group.encode()) % _PARTS for pair in self.pairs])
        for part in range(_PARTS) if source == "written" else [-1]:
            out = of_source & ((parts == part) | (part < 0))
            used = ~out & np.array([pair.source != LEFT_OUT_CHAT for pair in self.pairs])
            scores[out] = self.rows[out] @ self._solve(used)
        return np.where(self.compared, scores, -np.inf)

    def fit(self, used: np.ndarray[Any, np.dtype[np.bool_]]) -> Weights:
        """Return the weights that are fitted to these pairs."""
        return Weights.of(self.mean, self._solve(used) * self.scales)

    def _solve(self, used: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
        """Return the coefficients of a logistic regression with a ridge of 1, by Newton's method."""
        varies = self.rows[used].any(0)
        rows, right, weights = self.rows[used][:, varies], self.replaces[used], self.weights[used].copy()
        weights[right] *= _POSITIVE * weights[~right].sum() / weights[right].sum()
        ridge = np.ones(rows.shape[1])
        ridge[-1] = 1e-6  # of the constant
        found = np.zeros(rows.shape[1])
        for _ in range(_STEPS):
            likely = 1 / (1 + np.exp(-rows @ found))
            gradient = rows.T @ (weights * (likely - right)) + ridge * found
            curvature = (rows * (weights * likely * (1 - likely))[:, None]).T @ rows + np.diag(ridge)
            step = np.linalg.solve(curvature, gradient)
            found -= step
            if np.abs(step).max() < 1e-4:
                break
        every = np.zeros(len(varies))
        every[varies] = found
        return every


def embedded(pairs: Sequence[Pair], name: str) -> tuple[Any, Any, Any]:
    """Return the centred vectors of the older and of the newer statements, and the mean."""
    texts = sorted({text for pair in pairs for text in (pair.older, pair.newer)})
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder=name) as af,
    ):
        rows = np.concatenate([af.embedder.embed_documents(texts[n : n + 64]) for n in range(0, len(texts), 64)])
    mean = rows.mean(0).astype(np.float16).astype(np.float32)
    places = {text: n for n, text in enumerate(texts)}
    vectors = centred(rows, mean)
    return vectors[[places[pair.older] for pair in pairs]], vectors[[places[pair.newer] for pair in pairs]], mean


def report(name: str, source: str, data: Data, scores: Floats) -> None:
    """Print the line of a source."""
    own = np.array([pair.source == source and not pair.random for pair in data.pairs])
    unrelated = np.array([pair.source == source and pair.random for pair in data.pairs])
    for least in (0.0, replacement.LEAST):
        found = scores > least
        right = found & data.replaces & own
        cells = (
            f"{np.mean(found[own] == data.replaces[own]):.2f} | {right.sum() / max(1, found[own].sum()):.2f} | "
            f"{right.sum() / data.replaces[own].sum():.2f}"
            if own.any()
            else "| |"
        )
        print(
            f"| {name} | {source} (score above {least}) | {own.sum()} | {cells} | {found[unrelated].mean():.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
