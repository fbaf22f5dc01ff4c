"""Models of sentence-transformers, on torch and on OpenVINO: the packaged one, and a small one that the test makes
itself. Without torch or OpenVINO, the tests of this runtime are skipped."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.runtime import TorchRuntime
from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra, SpaceMismatch, TextTooLong
from agentformer.factory import build_embedder
from agentformer.index.embedding.active import ActiveEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance, make_entry
from agentformer.types import Embedder, Query, Scope, TokenEmbedder

pytestmark = pytest.mark.model

KEYS = "the harbour keys: "


class TestMiniLM(EmbedderConformance):
    # Two smaller models see long texts, without seconds of real weights.
    test_windows_of_a_long_text_fit = test_a_long_query_is_not_cut = None

    @pytest.fixture(autouse=True)
    def _load(self, minilm: Embedder) -> None:
        self._embedder = minilm

    def make(self) -> Embedder:
        return self._embedder


class TestOwnModelOnTorch(EmbedderConformance):
    @pytest.fixture(autouse=True, scope="class")
    def _load(self, request: pytest.FixtureRequest, own_model: Path) -> None:
        need("torch")
        request.cls._embedder = SbertEmbedder(TorchRuntime(str(own_model), bf16=False), str(own_model))

    def make(self) -> Embedder:
        return self._embedder


Load = Callable[[Path], Embedder]


def need(runtime: str) -> None:
    """Skip the test if the runtime is not installed."""
    package, extra = ("sentence_transformers", "sbert") if runtime == "torch" else ("openvino", "fast")
    pytest.importorskip(package, reason=f"the extra `{extra}` is not installed")


@pytest.fixture(params=["openvino", "torch"])
def runtime(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture
def load(runtime: str, cache: Path) -> Load:
    def loaded(folder: Path) -> Embedder:
        embedder = build_embedder(Settings(embedder=f"sbert:{folder}", runtime=runtime, cache_dir=cache))
        assert isinstance(embedder, ActiveEmbedder)
        return embedder

    return loaded


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


def configured(model: Path, folder: Path, **values: object) -> Path:
    """A copy of the model with these values in its configuration."""
    shutil.copytree(model, folder)
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return folder


def test_a_folder_is_loaded_with_its_own_shape(load: Load, own_model: Path) -> None:
    space = load(own_model).space
    assert (space.provider, space.model, space.dimension, space.max_tokens) == ("sbert", str(own_model), 768, 126)
    assert space.normalised and space.fingerprint
    assert load(own_model).space == space


def test_a_text_over_128_tokens_is_refused_not_cut(load: Load, own_model: Path) -> None:
    embedder = load(own_model)
    assert embedder.embed_documents(["word " * 126]).shape == (1, 768)
    with pytest.raises(TextTooLong, match=r"129 tokens.* reads at most 128"):
        embedder.embed_documents(["word", "word " * 127])


def test_a_long_entry_is_embedded_in_windows_that_fit(load: Load, own_model: Path, tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, load(own_model))
    text = "the master keeps the keys. " * 80
    backend.store([make_entry(text + "volcano", context="the lighthouse of the harbour")])
    assert backend.pending(Scope()) == 0
    assert backend.status()["windows"] >= 4
    (hit,) = backend.search(Query("volcano", mode="dense"))
    assert hit.dense_score is not None and -1 <= hit.dense_score <= 1
    backend.close()


def test_the_space_tells_the_packaged_model(minilm: Embedder) -> None:
    space = minilm.space
    assert (space.provider, space.model, space.dimension, space.max_tokens) == ("minilm", "all-MiniLM-L6-v2", 384, 254)
    assert space.languages != "*"


def test_meaning_is_nearer_than_words(minilm: Embedder) -> None:
    rows = minilm.embed_documents(["The physician examined the child.", "The bank of the river is steep."])
    scores = rows @ minilm.embed_query("A doctor looked at a young patient")
    assert scores[0] > 0.4 > scores[1]


def test_tokens_have_positions_and_vectors_in_their_context(minilm: Embedder) -> None:
    assert isinstance(minilm, TokenEmbedder)
    river, money, empty = minilm.embed_tokens(["a bank of the river", "a bank account", ""]) or []
    words = ["a bank of the river"[span.start : span.end] for span in river.spans]
    assert words == ["a", "bank", "of", "the", "river"]
    assert river.rows.shape == (5, minilm.space.dimension)
    assert np.allclose(np.linalg.norm(river.rows, axis=1), 1, atol=1e-4)
    assert 0.2 < float(river.rows[1] @ money.rows[1]) < 0.9
    assert (len(empty.spans), empty.rows.shape) == (0, (0, minilm.space.dimension))
    assert np.allclose(river.vector, minilm.embed_documents(["a bank of the river"])[0], atol=1e-2)


def test_a_prefix_is_read_but_has_no_tokens(load: Load, own_model: Path, tmp_path: Path) -> None:
    model = load(configured(own_model, tmp_path / "prompted", prompts={"query": "query: ", "document": "passage: "}))
    assert isinstance(model, TokenEmbedder)
    (plain,), (query,) = model.embed_tokens(["keys"]) or [], model.embed_tokens(["keys"], query=True) or []
    assert plain.spans == query.spans
    assert {(span.start, span.end) for span in query.spans} <= {(a, b) for a in range(4) for b in range(1, 5)}
    assert not np.allclose(plain.rows, query.rows, atol=1e-3)
    with pytest.raises(TextTooLong):
        model.embed_tokens(["keys " * 300])


def test_a_question_of_many_windows_is_the_mean_of_its_parts(minilm: Embedder) -> None:
    question = "Who holds the keys of the harbour? " * 80
    single = minilm.embed_query("Who holds the keys of the harbour?")
    assert float(minilm.embed_query(question) @ single) > 0.8


def test_a_model_that_is_not_there_is_unavailable_and_named() -> None:
    need("torch")
    embedder = build_embedder(Settings(embedder="sbert:no-such-organisation/no-such-model"))
    with pytest.raises(EmbedderUnavailable, match="no-such-organisation/no-such-model"):
        embedder.embed_query("x")


def test_a_folder_without_a_model_is_unavailable(load: Load, tmp_path: Path) -> None:
    with pytest.raises(EmbedderUnavailable):
        load(tmp_path).embed_query("x")


def test_weights_that_are_not_numbers_are_refused(own_model: Path) -> None:
    need("torch")
    runtime = TorchRuntime(str(own_model))
    embedder = SbertEmbedder(runtime, "own")
    dense: Any = runtime.model[2].linear
    dense.weight.data[0, 0] = float("nan")
    with pytest.raises(EmbedderUnavailable, match="not finite"):
        embedder.embed_documents(["the keys"])
    with pytest.raises(EmbedderUnavailable, match="not finite"):
        embedder.embed_query("the keys")


def test_another_model_under_the_same_name_is_noticed(
    load: Load, own_model: Path, other_model: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(own_model, tmp_path / "model"))
    backend = FaissMemoryBackend(tmp_path, load(place))
    backend.store([make_entry("the keys of the harbour")])
    backend.close()
    shutil.rmtree(place)
    shutil.copytree(other_model, place)
    swapped = FaissMemoryBackend(tmp_path, load(place))
    with pytest.raises(SpaceMismatch, match="another model"):
        swapped.store([make_entry("the teapot")])
    with pytest.raises(SpaceMismatch, match="another model"):
        swapped.search(Query("keys"))
    assert swapped.count(Scope()) == 1
    swapped.close()


def test_a_model_that_was_moved_is_still_the_same(load: Load, own_model: Path, tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path / "store", load(own_model))
    backend.store([make_entry("the keys of the harbour")])
    backend.close()
    moved = FaissMemoryBackend(tmp_path / "store", load(Path(shutil.copytree(own_model, tmp_path / "elsewhere"))))
    assert [hit.dense_rank for hit in moved.search(Query("the keys"))] == [1]
    moved.close()


def test_auto_finds_the_folder_that_a_store_was_made_with(own_model: Path, tmp_path: Path, runtime: str) -> None:
    with agentformer.connect(index_dir=tmp_path, embedder=f"sbert:{own_model}", runtime=runtime) as af:
        af.memory.store("the keys of the harbour")
    with agentformer.connect(index_dir=tmp_path, embedder="auto", runtime=runtime) as af:
        assert af.memory.search("keys", mode="dense")[0].entry.content == "the keys of the harbour"


def test_another_models_vectors_are_never_compared(load: Load, own_model: Path, tmp_path: Path) -> None:
    backend = FaissMemoryBackend(tmp_path, load(own_model))
    (entry,) = backend.store([make_entry("the keys of the harbour")])
    backend.close()
    other = FaissMemoryBackend(tmp_path, HashingEmbedder(768))
    with pytest.raises(SpaceMismatch, match=r"sbert:.*model"):
        other.store([make_entry("the teapot")])
    with pytest.raises(SpaceMismatch, match=r"sbert:.*model"):
        other.update(entry.id, {"content": "the teapot"})
    assert [e.content for e in other.list(Scope())] == ["the keys of the harbour"]
    other.close()


def test_prompts_of_the_model_are_its_prefixes_and_count(load: Load, own_model: Path, tmp_path: Path) -> None:
    embedder = load(configured(own_model, tmp_path / "prompted", prompts={"query": "keeps: ", "document": KEYS}))
    plain = load(own_model)
    assert (embedder.space.query_prefix, embedder.space.document_prefix) == ("keeps: ", KEYS)
    assert embedder.space.max_tokens == 126 - len(plain.token_spans(KEYS))
    assert np.allclose(embedder.embed_documents(["volcano"]), plain.embed_documents([KEYS + "volcano"]), atol=1e-5)
    assert np.allclose(embedder.embed_query("volcano"), plain.embed_query("keeps: volcano"), atol=1e-5)
    spaces = (
        dataclasses.replace(embedder.space, model="", fingerprint=""),
        dataclasses.replace(plain.space, model="", fingerprint=""),
    )
    assert spaces[0] != spaces[1]


def test_a_default_prompt_of_the_model_is_not_put_before_texts_unseen(
    load: Load, own_model: Path, tmp_path: Path
) -> None:
    prompts = {"query": "keeps: ", "document": ""}
    folder = configured(own_model, tmp_path / "default", prompts=prompts, default_prompt_name="query")
    embedder, plain = load(folder), load(own_model)
    assert (embedder.space.query_prefix, embedder.space.document_prefix) == ("keeps: ", "")
    assert embedder.space.fingerprint == plain.space.fingerprint
    assert np.allclose(embedder.embed_documents(["volcano"]), plain.embed_documents(["volcano"]), atol=1e-5)
    assert np.allclose(embedder.embed_query("volcano"), plain.embed_query("keeps: volcano"), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "configuration", "prefixes"),
    [
        ("multilingual-e5-small", {}, ("query: ", "passage: ")),
        ("e5-large-v2", {"prompts": {"query": "", "document": ""}}, ("query: ", "passage: ")),
        ("e5-base", {"prompts": {"query": "keeps: "}}, ("keeps: ", "")),
        ("multilingual-e5-large-instruct", {}, ("", "")),
        ("not-e5-small", {}, ("", "")),
    ],
)
def test_a_model_that_needs_prefixes_its_configuration_lacks_gets_them(
    load: Load, own_model: Path, tmp_path: Path, name: str, configuration: dict[str, object], prefixes: tuple[str, str]
) -> None:
    space = load(configured(own_model, tmp_path / name, **configuration)).space
    assert (space.query_prefix, space.document_prefix) == prefixes


def test_a_model_in_bf16_is_the_same_and_its_rows_are_of_unit_length(own_model: Path) -> None:
    need("torch")
    half = SbertEmbedder(TorchRuntime(str(own_model), bf16=True), "own")
    whole = SbertEmbedder(TorchRuntime(str(own_model), bf16=False), "own")
    texts = ["the harbour master keeps keys", "volcano", "word " * 100]
    rows = half.embed_documents(texts)
    assert np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-6
    assert (rows * whole.embed_documents(texts)).sum(axis=1).mean() > 0.999
    assert half.space == whole.space
    assert not np.array_equal(rows, whole.embed_documents(texts))


def test_a_runtime_that_is_not_installed_names_its_extra(own_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else find(name))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"openvino.*\[fast\]"):
        SbertEmbedder.from_settings(str(own_model), Settings(runtime="openvino"))
    with pytest.raises(MissingExtra, match=r"\[fast\]"):
        SbertEmbedder.minilm("int8", Settings())
    with pytest.raises(MissingExtra, match=r"\[fast\]"):
        SbertEmbedder.multilingual("", Settings())
    with pytest.raises(EmbedderUnavailable, match=r"sentence-transformers is not installed.*\[sbert\]"):
        SbertEmbedder.from_settings(str(own_model), Settings())


def test_int8_is_nothing_that_torch_computes(own_model: Path) -> None:
    with pytest.raises(EmbedderUnavailable, match="int8 needs the setting runtime"):
        SbertEmbedder.minilm("int8", Settings(runtime="torch"))
    with pytest.raises(EmbedderUnavailable, match="int8 needs the setting runtime"):
        SbertEmbedder.from_settings(f"{own_model}@int8", Settings(runtime="torch"))


def test_the_packaged_models_take_no_other_name() -> None:
    with pytest.raises(InvalidInput, match="minilm:int8"):
        SbertEmbedder.minilm("int4", Settings())
    with pytest.raises(InvalidInput, match="multilingual is always multilingual-e5-small"):
        SbertEmbedder.multilingual("multilingual-e5-large", Settings())


def test_int8_is_a_space_of_its_own_however_near_it_is(minilm: Embedder) -> None:
    space = minilm.space
    int8 = dataclasses.replace(space, model=f"{space.model}@int8")
    assert int8.spec == "minilm:all-MiniLM-L6-v2@int8"
    assert space.difference(int8) == int8.difference(space) == "other"
    moved = dataclasses.replace(int8, provider="sbert", model="/elsewhere/all-MiniLM-L6-v2@int8")
    assert int8.difference(moved) == ""


def test_half_a_character_is_read_as_a_question_mark(load: Load, own_model: Path) -> None:
    embedder = load(own_model)
    broken, whole = "the keys \ud83d of the harbour", "the keys ? of the harbour"
    assert embedder.token_spans(broken) == embedder.token_spans(whole)
    assert np.array_equal(embedder.embed_documents([broken]), embedder.embed_documents([whole]))
