"""A cross-encoder from a folder: what it reads, and what it says where it cannot be loaded."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentformer.errors import RerankerUnavailable, install_command
from agentformer.rerankers import cross_encoder as adapter
from agentformer.rerankers.cross_encoder import CrossEncoderReranker
from agentformer.testing import RerankerConformance
from agentformer.types import Reranker
from tests.embedders.sbert_models import bert
from tests.rerankers.cross_models import READS, cross_encoder, plain_bert

# The library is only looked for, because the import takes seconds that other runs need not wait for.
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="the extra `sbert` is not installed"),
]

QUESTION = "keys of the lighthouse"
TEXTS = ["the harbour master keeps the keys", "teapot", "of the volcano"]


class TestCrossEncoder(RerankerConformance):
    understands = False

    @pytest.fixture(autouse=True, scope="class")
    def _load(self, request: pytest.FixtureRequest, model: Path) -> None:
        request.cls._reranker = CrossEncoderReranker(str(model))

    def make(self) -> Reranker:
        return self._reranker


def logits(model: Path, pairs: list[tuple[str, str]]) -> Any:
    """What the library says of pairs that fit, by itself."""
    from sentence_transformers import CrossEncoder
    from torch import nn

    return CrossEncoder(str(model), device="cpu").predict(pairs, activation_fn=nn.Identity())


def test_scores_are_the_models_own_before_any_squashing(model: Path) -> None:
    scores = CrossEncoderReranker(str(model)).scores(QUESTION, TEXTS)
    assert np.allclose(scores, logits(model, [(QUESTION, text) for text in TEXTS]), atol=1e-5)
    assert scores.min() < 0 or scores.max() > 1


def test_of_a_long_text_the_best_window_counts_and_every_token_is_in_one(model: Path) -> None:
    reranker = CrossEncoderReranker(str(model))
    seen: list[tuple[str, str]] = []
    predict = reranker._model.predict

    def watched(pairs: list[tuple[str, str]], **options: Any) -> Any:
        seen.extend(pairs)
        return predict(pairs, **options)

    reranker._model.predict = watched
    text = " ".join(f"filler {number} {TEXTS[0]} volcano." for number in range(10, 46))
    (score,) = reranker.scores(QUESTION, [text])
    windows = sorted((passage for _, passage in seen), key=text.index)
    assert len(windows) > 2
    assert "".join(windows).replace(" ", "") == text.replace(" ", "")
    assert all(len(reranker._tokenizer(QUESTION, window)["input_ids"]) <= READS for window in windows)
    assert score == pytest.approx(max(logits(model, seen)), abs=1e-5)


def test_a_long_question_is_read_in_parts_that_are_averaged(model: Path) -> None:
    reranker = CrossEncoderReranker(str(model))
    parts = ["filler " * 40 + "keys.", "volcano " * 40 + "teapot."]
    assert [part.strip() for part in reranker._query_parts(" ".join(parts))] == [part.strip() for part in parts]
    expected = np.mean([reranker.scores(part, TEXTS) for part in parts], axis=0)
    assert np.allclose(reranker.scores(" ".join(parts), TEXTS), expected, atol=1e-4)


def test_work_is_bounded_and_what_is_passed_over_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = CrossEncoderReranker(str(model))
    seen: list[tuple[str, str]] = []
    read: list[str] = []
    predicted, spans = reranker._predict, reranker._spans
    monkeypatch.setattr(reranker, "_predict", lambda pairs: (seen.extend(pairs), predicted(pairs))[1])
    monkeypatch.setattr(reranker, "_spans", lambda text: (read.append(text), spans(text))[1])
    huge = "bakery " + "filler " * 5_000 + "tea"
    asked = "keys " + "harbour " * 1_000 + "teapot"
    scores, warnings = reranker.judged(asked, [huge, *TEXTS, huge + " of"])
    assert len(seen) == 4 * (16 + len(TEXTS) + 16) and np.isfinite(scores).all()
    assert read.count(huge) == 1
    questions, passages = {question for question, _ in seen}, [passage for _, passage in seen]
    assert any(each.startswith("keys") for each in questions) and any(each.endswith("teapot") for each in questions)
    assert sum(each.startswith("bakery") for each in passages) == 8
    assert sum(each.endswith("tea") for each in passages) == 4 and sum(each.endswith(" of") for each in passages) == 4
    assert warnings == (
        "the reranker read only 16 parts of each very long passage; very long passages: 2",
        f"the question is very long: the reranker read only 4 of its {len(reranker._query_parts(asked))} parts",
    )
    assert reranker.judged(QUESTION, [*TEXTS, "filler " * 300])[1] == ()


def test_only_a_passage_of_more_than_16_windows_is_read_in_part(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = CrossEncoderReranker(str(model))
    monkeypatch.setattr(reranker, "_predict", lambda pairs: np.zeros(len(pairs)))
    for count, warned in ((16, False), (17, True)):
        windows = [adapter._Window(0, "tea", 1)] * count
        monkeypatch.setattr(reranker, "_windows", lambda index, text, limit, windows=windows: iter(windows))
        assert bool(reranker.judged(QUESTION, ["tea"])[1]) is warned


def test_items_at_equal_distances_include_the_first_and_the_last() -> None:
    for length, count, indexes in (
        (1, 4, [0]),
        (4, 4, [0, 1, 2, 3]),
        (5, 4, [0, 1, 2, 4]),
        (31, 16, [*range(0, 31, 2)]),
    ):
        assert [*adapter._evenly_spaced(range(length), count)] == indexes


def test_a_window_that_is_too_long_for_a_batch_is_a_batch() -> None:
    windows = [adapter._Window(number, "", tokens) for number, tokens in enumerate((1, 40, 5, 6, 5))]
    reranker = SimpleNamespace(_batch_tokens=20)
    batches = [*CrossEncoderReranker._batches(reranker, windows, 4)]  # type: ignore[arg-type]
    assert [[window.tokens for window in batch] for batch in batches] == [[40], [6, 5], [5, 1]]


def test_a_model_without_room_reads_one_token_at_a_time(model: Path) -> None:
    reranker = CrossEncoderReranker(str(model))
    reranker._limit = reranker._overhead
    assert [part.strip() for part in reranker._query_parts("keys tea")] == ["keys", "t", "e", "a"]
    assert [window[1:] for window in reranker._windows(7, "keys filler", 0)] == [("keys", 1), ("filler", 1)]
    assert [*reranker._windows(7, " ", 9)] == [adapter._Window(7, " ", 0)]


def test_a_model_on_the_processor_uses_few_threads_and_full_precision(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForSequenceClassification

    folder = Path(shutil.copytree(model, tmp_path / "model"))
    BertForSequenceClassification.from_pretrained(str(folder)).half().save_pretrained(str(folder))
    calls: list[str] = []
    monkeypatch.setattr(adapter, "limit_torch_threads", lambda: calls.append("limited"))
    reranker = CrossEncoderReranker(str(folder), device="cpu")
    assert calls == ["limited"]
    assert {str(weights.dtype) for weights in reranker._model.parameters()} == {"torch.float32"}


def test_a_short_call_does_not_wait_for_all_of_a_long_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = CrossEncoderReranker(str(model), batch_tokens=READS)
    predict, begun, order = reranker._model.predict, threading.Event(), []

    def watched(pairs: list[tuple[str, str]], **options: Any) -> Any:
        order.append("short" if pairs[0][1] == "teapot" else "long")
        if len(order) == 1:
            begun.set()
        return predict(pairs, **options)

    monkeypatch.setattr(reranker._model, "predict", watched)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(reranker.scores, QUESTION, ["filler " * 300] * 16)
        assert begun.wait(30)
        pool.submit(reranker.scores, QUESTION, ["teapot"]).result(30)
        long.result(60)
    assert len(order) > 40 and order.index("short") < len(order) - 1


def test_a_batch_is_bounded_by_its_tokens(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = CrossEncoderReranker(str(model), batch_tokens=200)
    forward, sizes = type(reranker._model).forward, []

    def watched(self: Any, features: Any, **options: Any) -> Any:
        sizes.append(features["input_ids"].numel())
        return forward(self, features, **options)

    monkeypatch.setattr(type(reranker._model), "forward", watched)
    reranker.scores(QUESTION, [*TEXTS * 8, "filler " * 30])
    assert len(sizes) > 3 and max(sizes) <= 200
    sizes.clear()
    reranker.scores(QUESTION, ["filler " * 600])
    assert len(sizes) > 3 and min(sizes[:-1]) > 200 - READS  # the next window of the text had no place in the batch


def test_nothing_is_cut_even_where_lengths_were_misjudged(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = CrossEncoderReranker(str(model))
    monkeypatch.setattr(reranker, "_limit", 4 * READS)
    with pytest.raises(Exception, match=r".+"):
        reranker.scores(QUESTION, ["filler " * 300])


@pytest.mark.parametrize("damage", ["missing", "no weights", "half of the weights", "no configuration", "empty"])
def test_a_model_that_is_not_whole_is_told(model: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    if damage == "empty":
        folder.mkdir()
    elif damage != "missing":
        shutil.copytree(model, folder)
        weights = folder / "model.safetensors"
        if damage == "no weights":
            weights.unlink()
        elif damage == "half of the weights":
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        else:
            (folder / "config.json").write_text("{")
    with pytest.raises(RerankerUnavailable, match="could not be loaded"):
        CrossEncoderReranker(str(folder))


def test_a_model_that_would_get_a_random_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RerankerUnavailable, match="its architecture is BertModel"):
        CrossEncoderReranker(str(plain_bert(tmp_path / "plain")))
    with pytest.raises(RerankerUnavailable):
        CrossEncoderReranker(str(bert(tmp_path / "embedder")))


def test_a_model_that_sorts_pairs_into_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RerankerUnavailable, match="with 3 classes"):
        CrossEncoderReranker(str(cross_encoder(tmp_path, labels=3)))


def test_a_model_goes_on_without_its_folder(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    reranker = CrossEncoderReranker(str(folder))
    before = reranker.scores(QUESTION, TEXTS)
    shutil.rmtree(folder)
    assert np.array_equal(reranker.scores(QUESTION, TEXTS), before)


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(RerankerUnavailable, match=re.escape(install_command("sbert"))):
        CrossEncoderReranker("somebody/model")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who asks for a name or a connection; none gets one. The hub's client believes that it may."""
    from huggingface_hub import constants

    attempts: list[str] = []

    def refuse(*arguments: Any, **_: Any) -> Any:
        attempts.append(str(arguments))
        raise OSError("no network in this test")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_the_hub_is_not_asked_where_that_is_forbidden(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(RerankerUnavailable, match="could not be loaded"):
        CrossEncoderReranker("somebody/a-model-that-is-not-here")
    assert asked == []


@pytest.mark.parametrize("name", ["cross-encoder/small", "small"])
def test_what_the_hubs_cache_holds_is_read_without_asking(
    asked: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kept = tmp_path / "models--cross-encoder--small"
    shutil.copytree(model, kept / "snapshots" / "0123")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(CrossEncoderReranker(name).scores(QUESTION, TEXTS)) == 3
    assert asked == []


def test_the_hub_is_not_asked_for_a_folder_whose_name_is_like_a_models(
    asked: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model, tmp_path / "somebody" / "model")
    monkeypatch.chdir(tmp_path)
    assert len(CrossEncoderReranker("somebody/model").scores(QUESTION, TEXTS)) == 3
    assert asked == []
