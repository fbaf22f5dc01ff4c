"""OpenVINO in place of torch: stores of either, many threads, uploads beside questions, and torch where OpenVINO is
broken."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import agentformer
from agentformer.embedders.model_info import mean_cosine
from agentformer.embedders.sbert import openvino
from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.folder import folder_model
from agentformer.embedders.sbert.openvino import OpenVinoRuntime
from agentformer.embedders.sbert.runtime import SAME_SPACE, TorchRuntime, has_bf16
from agentformer.errors import EmbedderUnavailable, SpaceMismatch, TextTooLong
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance, make_entry
from agentformer.types import Embedder, Matrix, Query
from tests.embedders.sbert_models import bert, change_json, mpnet, xlm_roberta

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="the extra `fast` (OpenVINO) is not installed"),
]
TEXTS = (
    "the harbour master keeps keys",
    "x",
    "",
    "日本語のテキスト。",
    "word " * 100,
    "Volcano, teapot (short)! 42",
    "half a character: \ud83d",
    "lighthouse of the harbour: " * 4,
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


def fast(folder: Path, cache: Path, runtime: str = "openvino", precision: str = "") -> SbertEmbedder:
    spec = f"{folder}@{precision}" if precision else str(folder)
    return SbertEmbedder.from_settings(spec, Settings(runtime=runtime, cache_dir=cache))


def on_torch(folder: Path) -> SbertEmbedder:
    pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    return SbertEmbedder(TorchRuntime(str(folder)), str(folder))


def uses_openvino(embedder: SbertEmbedder) -> bool:
    return isinstance(embedder._runtime, OpenVinoRuntime)


def alike(rows: Matrix, reference: Matrix) -> bool:
    """Is each row the other's as closely as this processor computes: in bf16 by its cosine, else number by number?"""
    if has_bf16():
        return bool(((rows * reference).sum(axis=1) >= 0.9995).all()) and mean_cosine(rows, reference) >= SAME_SPACE
    return bool(np.allclose(rows, reference, atol=1e-4))


def in_float32(folder: Path, cache: Path) -> OpenVinoRuntime:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino, "has_bf16", lambda: False)
        return OpenVinoRuntime(folder_model(folder), cache)


class TestOwnModelOnOpenVino(EmbedderConformance):
    @pytest.fixture(autouse=True, scope="class")
    def _load(self, request: pytest.FixtureRequest, own_model: Path, cache: Path) -> None:
        request.cls._embedder = fast(own_model, cache)

    def make(self) -> Embedder:
        return self._embedder


@pytest.mark.parametrize("make", [lambda at: prompted(bert(at, pooling="cls", dense=0)), xlm_roberta, mpnet])
def test_a_model_has_the_space_and_the_tokens_that_it_has_on_torch(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = make(tmp_path)
    slow, quick = on_torch(folder), fast(folder, tmp_path / "cache")
    assert uses_openvino(quick)
    assert quick.space.difference(slow.space) == ""
    for name in ("spec", "dimension", "max_tokens", "query_prefix", "document_prefix", "languages"):
        assert getattr(quick.space, name) == getattr(slow.space, name)
    assert quick.space.query_prefix == ("keeps: " if make not in (xlm_roberta, mpnet) else "")
    assert quick.token_counts(TEXTS) == slow.token_counts(TEXTS)
    for text in (*TEXTS, "the keys " * 300):
        assert alike(quick.embed_query(text)[None], slow.embed_query(text)[None])
        assert quick.token_spans(text) == slow.token_spans(text)
    with pytest.raises(TextTooLong, match="reads at most 128"):
        quick.embed_documents(["word " * 200])


def prompted(folder: Path) -> Path:
    """The model, with a prefix for questions in its configuration."""
    change_json(folder / "config_sentence_transformers.json", prompts={"query": "keeps: ", "document": ""})
    return folder


def test_a_store_made_with_torch_is_used_with_openvino(own_model: Path, cache: Path, tmp_path: Path) -> None:
    first = FaissMemoryBackend(tmp_path, on_torch(own_model))
    first.store([make_entry("the keys of the harbour"), make_entry("a volcano")])
    first.close()
    other = FaissMemoryBackend(tmp_path, fast(own_model, cache))
    other.store([make_entry("the teapot")])
    hits = other.search(Query("the keys of the harbour", mode="dense"))
    assert len(hits) == 3 and hits[0].entry.content == "the keys of the harbour"
    assert hits[0].dense_score is not None and hits[0].dense_score > 0.9999
    other.close()


def test_int8_and_fp32_never_meet_and_auto_reopens_int8_as_such(
    own_model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_CACHE_DIR", str(cache))
    with agentformer.connect(index_dir=tmp_path, embedder=f"sbert:{own_model}@int8") as af:
        af.memory.store("the keys of the harbour")
        assert af.embedder.space.spec == f"sbert:{own_model}@int8"
        rows, limit = af.embedder.embed_documents(TEXTS), af.embedder.space.max_tokens
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
        assert 0.97 < mean_cosine(rows, fast(own_model, cache).embed_documents(TEXTS)) < 0.999999
        af.embedder.embed_documents(["word " * limit])
        with pytest.raises(TextTooLong):
            af.embedder.embed_documents(["word " * (limit + 1)])
    whole = FaissMemoryBackend(tmp_path, fast(own_model, cache))
    with pytest.raises(SpaceMismatch):
        whole.store([make_entry("the teapot")])
    with pytest.raises(SpaceMismatch):
        whole.search(Query("keys"))
    whole.close()
    with agentformer.connect(index_dir=tmp_path, embedder="auto") as af:
        assert af.memory.search("keys", mode="dense")[0].entry.content == "the keys of the harbour"
        assert af.embedder.space.model.endswith("@int8")


def test_many_threads_get_the_rows_that_one_gets(own_model: Path, cache: Path) -> None:
    embedder = fast(own_model, cache)
    texts = [f"{text} {at}" for at in range(8) for text in TEXTS]
    alone = np.stack([embedder.embed_query(text) for text in texts])
    with ThreadPoolExecutor(8) as threads:
        together = np.stack(list(threads.map(embedder.embed_query, texts)))
    assert np.allclose(alone, together, atol=1e-6)


def test_queries_of_one_call_have_the_rows_that_they_have_alone(own_model: Path, cache: Path) -> None:
    embedder = fast(own_model, cache)
    texts = ["keys", "the keys", "where are the keys", "", "word " * 2_000, "x" * 300, "the keys"]
    together = embedder.embed_queries(texts)
    assert np.allclose(together, [embedder.embed_query(text) for text in texts], atol=1e-6)
    assert np.array_equal(together[1], together[6])
    assert alike(on_torch(own_model).embed_queries(texts[:3]), together[:3])


def test_the_tokens_of_a_query_that_was_embedded_are_not_computed_again(
    own_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, question = fast(own_model, cache), "where are the keys"
    ((vector, spans, rows),) = fast(own_model, cache).embed_tokens([question], query=True) or []
    embedder.embed_queries(["x", question])
    row = embedder.embed_query(question)
    monkeypatch.setattr(embedder._runtime, "_computed", None)  # any inference would fail
    ((kept, kept_spans, kept_rows),) = embedder.embed_tokens([question], query=True) or []
    assert np.array_equal(kept, row) and np.allclose(kept, vector, atol=1e-6)
    assert kept_spans == spans and len(spans) == len(rows) and np.allclose(kept_rows, rows, atol=1e-6)


def test_the_tokens_of_only_the_last_short_queries_are_kept(own_model: Path, cache: Path) -> None:
    embedder = fast(own_model, cache)
    runtime = embedder._runtime
    assert isinstance(runtime, OpenVinoRuntime)
    embedder.embed_query("word " * 100)
    assert not runtime._kept
    questions = [f"{one} {two}" for one in "abcdefghi" for two in "abcdefghi"][: openvino._KEPT_QUERIES + 3]
    for question in questions:
        embedder.embed_query(question)
    ids = [tuple(item.content) for item in runtime.tokenize(questions)]
    assert list(runtime._kept) == ids[3:]


def test_a_small_model_uses_two_threads_for_each_batch() -> None:
    found = {count: openvino._streams(384, count) for count in (1, 2, 3, 4, 64)}
    assert found == {1: (1, 1), 2: (1, 2), 3: (1, 3), 4: (2, 4), 64: (8, 16)}
    assert openvino._streams(1024, 6) == (1, 6)


def test_batches_that_are_computed_at_the_same_time_have_the_rows_of_one_after_another(
    own_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = in_float32(own_model, cache)
    monkeypatch.setattr(openvino, "_SMALL", 1_000)
    monkeypatch.setattr(openvino, "usable_cpus", lambda: 4)
    several = in_float32(own_model, cache)
    texts = [[f"{text} {at}" for text in TEXTS[: 1 + at]] for at in range(7)]
    batches = [one.tokenize(batch) for batch in texts]
    alone = [one.rows(batch) for batch in batches]

    def equal(found: Iterable[Matrix]) -> bool:
        return all(np.allclose(rows, other, atol=1e-6) for rows, other in zip(found, alone, strict=True))

    assert equal(several.rows_of(batches))
    with ThreadPoolExecutor(4) as threads:  # more threads than requests of the model
        assert all(threads.map(lambda _: equal(several.rows_of(batches)), range(8)))
    next(iter(several.rows_of(batches)))  # the rest is not read
    with pytest.raises(ValueError, match="max"):
        list(several.rows_of([batches[0], []]))
    assert several._requests.qsize() == 3
    assert equal(several.rows_of(batches))


def test_questions_have_a_stream_beside_an_upload(
    own_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "_SMALL", 1_000)
    monkeypatch.setattr(openvino, "usable_cpus", lambda: 4)
    monkeypatch.setattr(openvino, "_ASKED_SECONDS", 0.0)
    runtime = in_float32(own_model, cache)
    batches = [runtime.tokenize([f"{text} {at}" for text in TEXTS[:2]]) for at in range(7)]
    uploaded = runtime.rows_of(batches)
    next(iter(uploaded))  # it has started as many batches as it may
    assert runtime._requests.empty()
    with ThreadPoolExecutor(1) as threads:
        rows = threads.submit(runtime.rows, batches[0]).result(timeout=60)
    assert np.allclose(rows, runtime.rows(batches[0]), atol=1e-6)
    monkeypatch.setattr(openvino, "_ASKED_SECONDS", math.inf)  # a question was just asked
    assert len(list(uploaded)) == 6 and runtime._requests.qsize() == 3
    uploaded = runtime.rows_of(batches)
    next(iter(uploaded))
    assert runtime._requests.qsize() == 2


def test_a_batch_is_computed_in_pieces_while_questions_wait_for_the_only_stream(
    own_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "_SMALL", 1_000)
    monkeypatch.setattr(openvino, "usable_cpus", lambda: 2)
    monkeypatch.setattr(openvino, "_ASKED_SECONDS", 0.0)
    runtime = in_float32(own_model, cache)
    texts = ["keys", *(f"keys and mail {at}" for at in range(5))]
    batches = [runtime.tokenize(texts), runtime.tokenize(texts[1:3])]
    width = runtime.padded(max(item.length for item in batches[0]))
    monkeypatch.setattr(openvino, "_PIECE_TOKENS", 2 * width)
    whole = list(runtime.rows_of(batches))
    assert [len(rows) for rows in whole] == [6, 2]
    pieces = runtime.rows_of(batches)
    monkeypatch.setattr(openvino, "_ASKED_SECONDS", math.inf)  # a question was just asked
    runtime.rows(batches[1])
    found = list(pieces)
    assert [len(rows) for rows in found] == [2, 2, 2, 2]
    assert np.allclose(np.concatenate(found), np.concatenate(whole), atol=1e-6)
    monkeypatch.setattr(openvino, "_PIECE_TOKENS", 1)  # a text that is longer than a piece is a piece
    assert [len(rows) for rows in runtime.rows_of(batches)] == [1] * 8


def test_weights_that_are_not_numbers_are_refused(
    own_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = fast(own_model, cache)
    monkeypatch.setattr(embedder._runtime, "rows", lambda batch: np.full((len(batch), 768), np.nan, dtype=np.float32))
    with pytest.raises(EmbedderUnavailable, match="not finite"):
        embedder.embed_documents(["the keys"])


def test_a_broken_openvino_means_torch_with_one_warning(
    own_model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = on_torch(own_model).space
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").write_text("raise ImportError('libopenvino.so: cannot open shared object')")
    monkeypatch.delitem(sys.modules, "openvino")
    monkeypatch.syspath_prepend(tmp_path)
    embedders = [fast(own_model, cache, runtime="auto") for _ in range(2)]
    assert not any(uses_openvino(embedder) for embedder in embedders)
    assert embedders[0].space == expected
    reason = "not on the faster OpenVINO: the package openvino cannot be imported (ImportError: libopenvino.so"
    assert caplog.text.count(reason) == 1
    with pytest.raises(EmbedderUnavailable, match="cannot run on OpenVINO: the package openvino cannot be imported"):
        fast(own_model, cache)
    with pytest.raises(EmbedderUnavailable, match="the package openvino cannot be imported"):
        SbertEmbedder.multilingual("", Settings(cache_dir=cache))


def test_a_package_that_reads_other_tokenizers_may_be_missing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    folder = xlm_roberta(tmp_path)
    with pytest.raises(EmbedderUnavailable, match=r"cannot run on OpenVINO: the tokenizer .*\[fast\]"):
        fast(folder, cache)
    with pytest.raises(EmbedderUnavailable, match="sentence-transformers is not installed"):
        fast(folder, cache, runtime="auto")
    assert uses_openvino(fast(bert(tmp_path / "own"), cache))  # BERT's tokenizer needs no package


def test_a_device_that_is_named_is_torchs_and_auto_takes_no_int8(own_model: Path, cache: Path) -> None:
    on_torch(own_model)
    assert not uses_openvino(SbertEmbedder.from_settings(str(own_model), Settings(device="cpu:0", cache_dir=cache)))
    assert not uses_openvino(fast(own_model, cache, runtime="torch"))
    assert "int8" not in fast(own_model, cache, runtime="auto").space.model
