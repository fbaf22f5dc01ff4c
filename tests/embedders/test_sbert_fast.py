"""OpenVINO in place of torch: the same vectors from an export, the same guards, and torch where it cannot be had."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentformer
from agentformer.embedders.model_info import mean_cosine
from agentformer.embedders.sbert import SbertEmbedder, export, openvino
from agentformer.embedders.sbert.export import export_in_process
from agentformer.embedders.sbert.openvino import BadExport, OpenVinoRuntime, OpenVinoUnavailable
from agentformer.embedders.sbert.runtime import SAME_SPACE, TorchRuntime, has_bf16
from agentformer.errors import EmbedderUnavailable, SpaceMismatch, TextTooLong
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.faiss.indexes import Indexes
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance, make_entry
from agentformer.types import Embedder, Matrix, Query
from tests.embedders.sbert_models import bert, mpnet, xlm_roberta

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
def own(own_model: Path) -> Path:
    return own_model


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, own: Path) -> Path:
    """With the fp32 export of `own` in it."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        export_here(patch)
        fast(own, folder)
    return folder


@pytest.fixture(autouse=True)
def _export_here(monkeypatch: pytest.MonkeyPatch) -> None:
    export_here(monkeypatch)


def export_here(patch: pytest.MonkeyPatch) -> None:
    """Make all exports in this process, which has torch already: it saves seconds for each. The exports of
    test_sbert_quiet.py are made as users have them made, by a process of their own."""
    patch.setitem(sys.modules, "openvino_telemetry", None)
    patch.setattr("agentformer.embedders.sbert.export_in_process", export.export)


def fast(folder: Path, cache: Path, runtime: str = "openvino", precision: str = "") -> SbertEmbedder:
    spec = f"{folder}@{precision}" if precision else str(folder)
    return SbertEmbedder.from_settings(spec, Settings(runtime=runtime, cache_dir=cache))


def on_torch(folder: Path) -> SbertEmbedder:
    return SbertEmbedder(TorchRuntime(str(folder)), str(folder))


def uses_openvino(embedder: SbertEmbedder) -> bool:
    return isinstance(embedder._runtime, OpenVinoRuntime)


def alike(rows: Matrix, reference: Matrix) -> bool:
    """Is each row the other's as closely as this processor computes: in bf16 by its cosine, else number by number?"""
    if has_bf16():
        return bool(((rows * reference).sum(axis=1) >= 0.9995).all()) and mean_cosine(rows, reference) >= SAME_SPACE
    return bool(np.allclose(rows, reference, atol=1e-4))


def only_export(cache: Path) -> Path:
    (place,) = (path.parent for path in cache.glob("models/*/whole.json"))
    return place


def fp32_export(cache: Path) -> Path:
    return next(path.parent for path in cache.glob("models/*/facts.json") if "int8" not in path.read_text())


class TestOwnModelOnOpenVino(EmbedderConformance):
    @pytest.fixture(autouse=True, scope="class")
    def _load(self, request: pytest.FixtureRequest, own: Path, cache: Path) -> None:
        request.cls._embedder = fast(own, cache)

    def make(self) -> Embedder:
        return self._embedder


@pytest.mark.parametrize("shape", ["bert", "cls without a dense layer", "xlm-roberta", "mpnet"])
def test_every_shape_of_model_gives_the_rows_that_torch_gives(
    shape: str, own: Path, cache: Path, tmp_path: Path
) -> None:
    match shape:
        case "bert":
            folder = own
        case "cls without a dense layer":
            folder = prompted(bert(tmp_path, pooling="cls", dense=0))
        case "xlm-roberta":
            folder = xlm_roberta(tmp_path)
        case _:
            folder = mpnet(tmp_path)
    quick, slow = fast(folder, cache if folder == own else tmp_path / "cache"), on_torch(folder)
    assert uses_openvino(quick)
    assert quick.space == slow.space
    assert quick.space.query_prefix == ("keeps: " if shape.startswith("cls") else "")
    assert alike(quick.embed_documents(TEXTS), slow.embed_documents(TEXTS))
    for text in (*TEXTS, "the keys " * 300):
        assert alike(quick.embed_query(text)[None], slow.embed_query(text)[None])
        assert quick.token_spans(text) == slow.token_spans(text)
    with pytest.raises(TextTooLong, match="reads at most 128"):
        quick.embed_documents(["word " * 200])


def prompted(folder: Path) -> Path:
    """The model, with a prefix for questions in its configuration."""
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"prompts": {"query": "keeps: ", "document": ""}}))
    return folder


def test_a_store_made_with_torch_is_used_with_openvino(own: Path, cache: Path, tmp_path: Path) -> None:
    first = FaissMemoryBackend(tmp_path, on_torch(own), Indexes)
    first.store([make_entry("the keys of the harbour"), make_entry("a volcano")])
    first.close()
    other = FaissMemoryBackend(tmp_path, fast(own, cache), Indexes)
    other.store([make_entry("the teapot")])
    hits = other.search(Query("the keys of the harbour", mode="dense"))
    assert len(hits) == 3 and hits[0].entry.content == "the keys of the harbour"
    assert hits[0].dense_score is not None and hits[0].dense_score > 0.9999
    other.close()


def test_int8_and_fp32_never_meet_and_auto_reopens_int8_as_such(
    own: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nncf")
    monkeypatch.setenv("AGENTFORMER_CACHE_DIR", str(cache))
    with agentformer.connect(index_dir=tmp_path, embedder=f"sbert:{own}@int8") as af:
        af.memory.store("the keys of the harbour")
        assert af.embedder.space.spec == f"sbert:{own}@int8"
        rows, limit = af.embedder.embed_documents(TEXTS), af.embedder.space.max_tokens
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
        assert 0.97 < mean_cosine(rows, fast(own, cache).embed_documents(TEXTS)) < 0.999999
        af.embedder.embed_documents(["word " * limit])
        with pytest.raises(TextTooLong):
            af.embedder.embed_documents(["word " * (limit + 1)])
    whole = FaissMemoryBackend(tmp_path, fast(own, cache), Indexes)
    with pytest.raises(SpaceMismatch):
        whole.store([make_entry("the teapot")])
    with pytest.raises(SpaceMismatch):
        whole.search(Query("keys"))
    whole.close()
    with agentformer.connect(index_dir=tmp_path, embedder="auto") as af:
        assert af.memory.search("keys", mode="dense")[0].entry.content == "the keys of the harbour"
        assert af.embedder.space.model.endswith("@int8")


def test_many_threads_get_the_rows_that_one_gets(own: Path, cache: Path) -> None:
    embedder = fast(own, cache)
    texts = [f"{text} {at}" for at in range(8) for text in TEXTS]
    alone = np.stack([embedder.embed_query(text) for text in texts])
    with ThreadPoolExecutor(8) as threads:
        together = np.stack(list(threads.map(embedder.embed_query, texts)))
    assert np.allclose(alone, together, atol=1e-6)


def test_queries_of_one_call_have_the_rows_that_they_have_alone(own: Path, cache: Path) -> None:
    embedder = fast(own, cache)
    texts = ["keys", "the keys", "where are the keys", "", "word " * 2_000, "x" * 300, "the keys"]
    together = embedder.embed_queries(texts)
    assert np.allclose(together, [embedder.embed_query(text) for text in texts], atol=1e-6)
    assert np.array_equal(together[1], together[6])
    assert np.allclose(on_torch(own).embed_queries(texts[:3]), together[:3], atol=1e-3)


def test_the_tokens_of_a_query_that_was_embedded_are_not_computed_again(
    own: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, question = fast(own, cache), "where are the keys"
    ((vector, spans, rows),) = fast(own, cache).embed_tokens([question], query=True) or []
    embedder.embed_queries(["x", question])
    row = embedder.embed_query(question)
    monkeypatch.setattr(embedder._runtime, "_computed", None)  # any inference would fail
    ((kept, kept_spans, kept_rows),) = embedder.embed_tokens([question], query=True) or []
    assert np.array_equal(kept, row) and np.allclose(kept, vector, atol=1e-6)
    assert kept_spans == spans and len(spans) == len(rows) and np.allclose(kept_rows, rows, atol=1e-6)


def test_the_tokens_of_only_the_last_short_queries_are_kept(own: Path, cache: Path) -> None:
    embedder = fast(own, cache)
    runtime = embedder._runtime
    assert isinstance(runtime, OpenVinoRuntime)
    embedder.embed_query("word " * 100)
    assert not runtime._kept
    questions = [f"{one} {two}" for one in "abcdefghi" for two in "abcdefghi"][: openvino._KEPT_QUERIES + 3]
    for question in questions:
        embedder.embed_query(question)
    ids = [tuple(item.content[0]) for item in runtime.tokenize(questions)]
    assert list(runtime._kept) == ids[3:]


def test_a_small_model_uses_two_threads_for_each_batch() -> None:
    found = {count: openvino._streams(384, count) for count in (1, 2, 3, 4, 64)}
    assert found == {1: (1, 1), 2: (1, 2), 3: (1, 3), 4: (2, 4), 64: (8, 16)}
    assert openvino._streams(1024, 6) == (1, 6)


def test_batches_that_are_computed_at_the_same_time_have_the_rows_of_one_after_another(
    own: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OpenVinoRuntime(fp32_export(cache), "")
    monkeypatch.setattr(openvino, "_SMALL", 1_000)
    monkeypatch.setattr(openvino, "usable_cpus", lambda: 4)
    several = OpenVinoRuntime(fp32_export(cache), "")
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


def test_questions_have_a_stream_beside_an_upload(own: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "_SMALL", 1_000)
    monkeypatch.setattr(openvino, "usable_cpus", lambda: 4)
    monkeypatch.setattr(openvino, "_ASKED_SECONDS", 0.0)
    runtime = OpenVinoRuntime(fp32_export(cache), "")
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
    own: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "_SMALL", 1_000)
    monkeypatch.setattr(openvino, "usable_cpus", lambda: 2)
    monkeypatch.setattr(openvino, "_ASKED_SECONDS", 0.0)
    runtime = OpenVinoRuntime(fp32_export(cache), "")
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


def test_weights_that_are_not_numbers_are_refused(own: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = fast(own, cache)
    monkeypatch.setattr(embedder._runtime, "rows", lambda batch: np.full((len(batch), 768), np.nan, dtype=np.float32))
    with pytest.raises(EmbedderUnavailable, match="not finite"):
        embedder.embed_documents(["the keys"])


def test_an_export_of_another_model_is_refused_and_made_anew(
    own: Path, other_model: Path, cache: Path, tmp_path: Path
) -> None:
    former = fp32_export(cache)
    shutil.copytree(former, tmp_path / "cache" / "models" / former.name)
    fast(other_model, tmp_path / "others")
    place, other = only_export(tmp_path / "cache"), only_export(tmp_path / "others")
    for name in ("model.xml", "model.bin"):
        (place / name).write_bytes((other / name).read_bytes())
    with pytest.raises(BadExport, match="different vectors: the mean cosine"):
        OpenVinoRuntime(place, "")
    again = fast(own, tmp_path / "cache")
    assert uses_openvino(again)
    assert alike(again.embed_documents(TEXTS), on_torch(own).embed_documents(TEXTS))


@pytest.mark.parametrize("name", ["model.xml", "model.bin", "tokenizer.json", "facts.json", "probes.npy"])
def test_a_damaged_export_is_noticed(own: Path, cache: Path, tmp_path: Path, name: str) -> None:
    place = Path(shutil.copytree(fp32_export(cache), tmp_path / "export"))
    content = (place / name).read_bytes()
    (place / name).write_bytes(bytes(len(content)))
    with pytest.raises(BadExport):
        OpenVinoRuntime(place, "")


def test_where_nothing_can_be_cached_torch_is_used_with_one_warning(
    own: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, logger="agentformer"):
        embedders = [fast(own, tmp_path / "file", runtime="auto") for _ in range(2)]
    assert not any(uses_openvino(embedder) for embedder in embedders)
    assert embedders[0].space == on_torch(own).space
    assert [record.message for record in caplog.records if "cache folder" in record.message] == [
        f"{own} runs on torch, not on the faster OpenVINO: the cache folder {tmp_path / 'file'} cannot be used "
        "(Not a directory)"
    ]
    with pytest.raises(EmbedderUnavailable, match="cannot be used in int8: the cache folder"):
        fast(own, tmp_path / "file", precision="int8")


def test_a_broken_openvino_means_torch_with_one_warning_and_the_export_stays(
    own: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = {file: file.stat().st_mtime_ns for file in cache.glob("models/*/model.*")}
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").write_text("raise ImportError('libopenvino.so: cannot open shared object')")
    monkeypatch.delitem(sys.modules, "openvino")
    monkeypatch.syspath_prepend(tmp_path)
    embedders = [fast(own, cache, runtime="auto") for _ in range(2)]
    assert not any(uses_openvino(embedder) for embedder in embedders)
    reason = "not on the faster OpenVINO: the package openvino cannot be imported (ImportError: libopenvino.so"
    assert caplog.text.count(reason) == 1
    assert before and before == {file: file.stat().st_mtime_ns for file in cache.glob("models/*/model.*")}


def test_a_model_that_cannot_be_exported_runs_on_torch(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OpenVinoUnavailable("it could not be exported (some layer)")

    monkeypatch.setattr("agentformer.embedders.sbert.export_in_process", fail)
    embedder = fast(own, tmp_path / "cache", runtime="auto")
    assert not uses_openvino(embedder)
    assert "runs on torch, not on the faster OpenVINO: it could not be exported (some layer)" in caplog.text


def test_a_broken_exporter_is_told_by_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OpenVinoUnavailable, match=r"could not be exported .*could not be loaded"):
        export_in_process(tmp_path, tmp_path, "")


def test_a_device_that_is_named_is_torchs_and_auto_takes_no_int8(own: Path, cache: Path) -> None:
    assert not uses_openvino(SbertEmbedder.from_settings(str(own), Settings(device="cpu:0", cache_dir=cache)))
    assert not uses_openvino(fast(own, cache, runtime="torch"))
    assert "int8" not in fast(own, cache, runtime="auto").space.model
