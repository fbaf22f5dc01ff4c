"""Windows smaller than the model's: all of a text is in them, with its context line, and a store may hold both."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput
from agentformer.index.embedding.windows import WindowCutter
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.settings import Settings
from agentformer.testing import CountingEmbedder, make_entry
from agentformer.types import Query, Scope

TEXT = "The harbour master counts the boats, and writes down what he sees of them. " * 40
CONTEXT = "Handbook of the harbour › Duties of the master › Every evening before the lamps are lit"


def test_no_window_is_longer_and_every_token_is_in_one() -> None:
    for window_tokens in [16, 32, 100]:
        embedder, entry = HashingEmbedder(), make_entry(TEXT, context=CONTEXT)
        cutter = WindowCutter(embedder, window_tokens=window_tokens)
        windows = cutter.cut([entry])[0]
        assert isinstance(windows, list)
        texts = [cutter.text(entry, window.span) for window in windows]
        bodies = [text.removeprefix(f"{CONTEXT}\n") for text in texts]
        assert max(len(embedder.token_spans(body)) for body in bodies) <= window_tokens
        assert all(text.startswith(f"{CONTEXT}\n") for text in texts)  # whole, however small the windows are
        spans = [window.span for window in windows]
        assert all(any(s.start <= t.start and t.end <= s.end for s in spans) for t in embedder.token_spans(TEXT))


def test_a_window_is_never_longer_than_the_model_reads() -> None:
    for window_tokens in [0, 256, 10_000]:
        entry = make_entry(TEXT, context=CONTEXT)
        whole = WindowCutter(HashingEmbedder()).cut([entry])[0]
        assert WindowCutter(HashingEmbedder(), window_tokens=window_tokens).cut([entry])[0] == whole


def opened(folder: Path, window_tokens: int, embedder: CountingEmbedder | None = None) -> FaissMemoryBackend:
    settings = Settings(index_dir=folder, window_tokens=window_tokens)
    return FaissMemoryBackend.from_settings(settings, embedder or CountingEmbedder())


def test_a_store_may_hold_windows_of_several_sizes_and_is_whole(tmp_path: Path) -> None:
    backend = opened(tmp_path, 32)
    small = make_entry(TEXT, context=CONTEXT)
    backend.store([small])
    many = backend.status()["windows"]
    backend.close()
    backend = opened(tmp_path, 0)
    backend.store([make_entry(TEXT, context=CONTEXT)])
    few = backend.status()["windows"] - many
    assert many > 2 * few > 0
    assert [check.name for check in backend.verify() if check.found] == []
    (hit, _) = backend.search(Query("harbour master", Scope(), mode="dense"))
    assert hit.entry.id == small.id and hit.span is not None
    backend.update(small.id, {"content": f"{TEXT}More."})  # is cut as the settings are now
    assert backend.status()["windows"] == 2 * few
    backend.close()


def test_a_move_to_another_model_cuts_as_the_settings_say(tmp_path: Path) -> None:
    backend = opened(tmp_path, 32)
    backend.store([make_entry(TEXT)])
    target = CountingEmbedder(HashingEmbedder(64))
    backend.reembed(target)
    assert max(len(HashingEmbedder().token_spans(text)) for text in target.documents) <= 32
    backend.close()


def test_windows_of_a_few_words_are_refused() -> None:
    for value in [-1, 1, 15]:
        with pytest.raises(InvalidInput, match="window_tokens"):
            dataclasses.replace(Settings(), window_tokens=value)
