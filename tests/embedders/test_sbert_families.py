"""The graphs that are built from weights compute what sentence-transformers computes: every family, every pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.model_info import unit
from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.settings import Settings
from agentformer.types import Matrix
from tests.embedders.sbert_models import bert, change_json, change_weights, mpnet, xlm_roberta

pytestmark = pytest.mark.model
pytest.importorskip("openvino", reason="the extra `fast` (OpenVINO) is not installed")

TEXTS = (
    "the harbour master keeps keys",
    "x",
    "",
    "日本語のテキスト。",
    " ".join(["word"] * 126),
    "Volcano, teapot (short)! 42",
    "lighthouse of the harbour: " * 4,
)
FAMILIES: dict[str, Callable[..., Path]] = {
    "bert": lambda folder, **given: bert(folder, dense=0, **given),
    "xlm-roberta": lambda folder, **given: unigram(folder, "xlm-roberta", **given),
    "roberta": lambda folder, **given: unigram(folder, "roberta", **given),
    "mpnet": mpnet,
}


def unigram(folder: Path, family: str, **given: Any) -> Path:
    pytest.importorskip("tokenizers", reason="the extra `fast` is not installed")
    return xlm_roberta(folder, family=family, **given)


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentformer.embedders.sbert.openvino.has_bf16", lambda: False)


def load(folder: Path, precision: str = "") -> SbertEmbedder:
    spec = f"{folder}@{precision}" if precision else str(folder)
    return SbertEmbedder.from_settings(spec, Settings(runtime="openvino", cache_dir=folder.parent / "cache"))


def reference(folder: Path, texts: Sequence[str] = TEXTS) -> Matrix:
    """The vectors that sentence-transformers computes, each text alone."""
    package = pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    model = package.SentenceTransformer(str(folder), device="cpu")
    return unit(np.concatenate([model.encode([text], show_progress_bar=False) for text in texts]))


def cosines(rows: Matrix, other: Matrix) -> Matrix:
    assert rows.shape == other.shape
    return np.asarray((rows * other).sum(axis=1))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_with_every_pooling_gives_the_rows_of_sentence_transformers(
    family: str, pooling: str, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path, pooling=pooling)
    rows, expected = load(folder).embed_documents(TEXTS), reference(folder)
    assert cosines(rows, expected).min() >= 0.9999
    assert np.allclose(rows, expected, atol=1e-4)
    assert cosines(rows[:-1], expected[1:]).max() < 0.999  # the texts are told apart


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_8_bits_give_nearly_the_rows_of_float32(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path)
    whole, rounded = load(folder), load(folder, "int8")
    rows = rounded.embed_documents(TEXTS)
    assert 0.98 <= cosines(rows, whole.embed_documents(TEXTS)).min() < 0.999999
    assert rounded.space.spec == f"{whole.space.spec}@int8"


@pytest.mark.parametrize("activation", ["Tanh", "Identity"])
def test_a_dense_layer_follows_the_pooling(activation: str, tmp_path: Path) -> None:
    folder = bert(tmp_path, dense=48, activation=activation)
    embedder = load(folder)
    assert embedder.space.dimension == 48
    assert cosines(embedder.embed_documents(TEXTS), reference(folder)).min() >= 0.9999


def test_a_model_that_sentence_transformers_saved_again_is_the_same(tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    first = bert(tmp_path, dense=48)
    package.SentenceTransformer(str(first), device="cpu").save(str(tmp_path / "saved"))
    saved = load(tmp_path / "saved")
    assert np.allclose(saved.embed_documents(TEXTS), load(first).embed_documents(TEXTS), atol=1e-5)
    assert saved.space.difference(load(first).space) == ""


@pytest.mark.parametrize(
    ("family", "prefix"),
    [("bert", "bert."), ("xlm-roberta", "roberta."), ("roberta", "roberta."), ("mpnet", "mpnet.")],
)
def test_weights_may_have_the_name_of_their_family_before_theirs(family: str, prefix: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path)
    expected = load(folder).embed_documents(TEXTS)
    change_weights(folder, lambda arrays: {f"{prefix}{name}": array for name, array in arrays.items()})
    assert np.array_equal(load(folder).embed_documents(TEXTS), expected)


@pytest.mark.parametrize(("kind", "least"), [(np.float64, 0.999999), (np.float16, 0.99999), (np.uint16, 0.999)])
def test_weights_of_other_number_types_are_read(kind: type[np.generic], least: float, tmp_path: Path) -> None:
    folder = bert(tmp_path, dense=0)
    expected = load(folder).embed_documents(TEXTS)

    def bf16(array: Matrix) -> np.ndarray:
        return ((array.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)  # the upper half, rounded

    change_weights(
        folder,
        lambda arrays: {name: bf16(a) if kind is np.uint16 else a.astype(kind) for name, a in arrays.items()},
    )
    rows = load(folder).embed_documents(TEXTS)
    assert cosines(rows, expected).min() >= least
    if kind is not np.float64:
        assert not np.array_equal(rows, expected)
        assert cosines(rows, reference_in_float32(folder)).min() >= 0.9999
    assert cosines(load(folder, "int8").embed_documents(TEXTS), rows).min() >= 0.98


def reference_in_float32(folder: Path) -> Matrix:
    package = pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    model = package.SentenceTransformer(str(folder), device="cpu").float()
    return unit(model.encode(list(TEXTS), show_progress_bar=False))


@pytest.mark.parametrize("family", ["xlm-roberta", "roberta", "mpnet"])
def test_positions_begin_behind_those_of_the_padding(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path)
    expected = load(folder).embed_documents(TEXTS)

    def without(arrays: dict[str, Matrix]) -> dict[str, Matrix]:
        arrays["embeddings.position_embeddings.weight"][:2] = 1e3  # no text may reach these
        return arrays

    assert np.array_equal(load(change_weights(folder, without)).embed_documents(TEXTS), expected)

    def swapped(arrays: dict[str, Matrix]) -> dict[str, Matrix]:
        places = arrays["embeddings.position_embeddings.weight"]
        places[[2, 3]] = places[[3, 2]]
        return arrays

    assert not np.allclose(load(change_weights(folder, swapped)).embed_documents(TEXTS), expected, atol=1e-3)


@pytest.mark.parametrize("precision", ["", "int8"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_a_batch_has_the_rows_of_one_by_one_and_padding_changes_nothing(
    family: str, pooling: str, precision: str, tmp_path: Path
) -> None:
    embedder = load(FAMILIES[family](tmp_path, pooling=pooling), precision)
    alone = np.concatenate([embedder.embed_documents([text]) for text in TEXTS])
    least = 0.999 if precision else 0.999999  # int8 rounds the numbers of a batch together
    assert cosines(embedder.embed_documents(TEXTS), alone).min() >= least
    assert cosines(embedder.embed_documents(TEXTS[::-1])[::-1], alone).min() >= least
    runtime = embedder._runtime
    padded = runtime.arrays(runtime.tokenize(TEXTS[:1]), 128)
    assert padded["attention_mask"].sum() == len(runtime.tokenize(TEXTS[:1])[0].content) < 128
    request = runtime._short.get()
    found = unit(np.array(request.infer(padded)[0], np.float32))
    runtime._short.put(request)
    assert cosines(found, alone[:1]).min() >= least


def test_the_longest_text_uses_the_last_position(tmp_path: Path) -> None:
    folder = mpnet(tmp_path)
    change_json(folder / "sentence_bert_config.json", max_seq_length=100_000)
    embedder = load(folder)
    assert embedder.space.max_tokens == 160 - 2 - 2  # the positions without those of the padding, two special tokens
    text = "word " * 156
    change_json(folder / "sentence_bert_config.json", max_seq_length=158)
    assert cosines(embedder.embed_documents([text]), reference(folder, [text])).min() >= 0.9999
