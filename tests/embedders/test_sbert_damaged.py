"""Damaged files of a model: each is an `EmbedderUnavailable` with advice, and never a crash or a wrong vector. What was
measured at a first load is measured again where its file is damaged, or where the model is another one."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.openvino import OpenVinoRuntime
from agentformer.embedders.sbert.runtime import TorchRuntime
from agentformer.errors import EmbedderUnavailable
from agentformer.settings import Settings
from tests.embedders.sbert_models import (
    HIDDEN,
    bert,
    change_json,
    change_weights,
    mpnet,
    write_safetensors,
    xlm_roberta,
)

pytestmark = pytest.mark.model
pytest.importorskip("openvino", reason="the extra `fast` (OpenVINO) is not installed")


@pytest.fixture
def model(own_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(own_model, tmp_path / "model"))


def load(folder: Path, cache: Path, runtime: str = "openvino") -> SbertEmbedder:
    return SbertEmbedder.from_settings(str(folder), Settings(runtime=runtime, cache_dir=cache, device="cpu"))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(EmbedderUnavailable, match=message):
        load(folder, folder.parent / "cache").embed_documents(["the keys"])


def only_measured(cache: Path) -> Path:
    (file,) = cache.glob("models/*")
    return file


def header(content: Any, data: int = 1_000) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def tensor(**changed: Any) -> bytes:
    return header({"w": {"dtype": "F32", "shape": [10, 25], "data_offsets": [0, 1_000]} | changed})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"PK\x03\x04" * 1_000,
        b"version https://git-lfs.example/spec/v1\noid sha256:0123\nsize 91\n",
        struct.pack("<Q", 2**63) + bytes(100),
        struct.pack("<Q", 10**9) + bytes(100),
        header(b"[" * 5_000_000),
        header(b'{"a":' * 1_000_000),
        header(b"\xff" * 100),
        header("text"),
        header(5),
        header([]),
        header(None),
        header({"w": 5}),
        tensor(dtype="X9"),
        tensor(dtype=["F32"]),
        tensor(shape=[-1, 25]),
        tensor(shape=["10", 25]),
        tensor(shape=[10**18, 10**18]),
        tensor(shape=[10, 24]),
        tensor(data_offsets=[-1_000, 0]),
        tensor(data_offsets=[0, 2_000]),
        tensor(data_offsets=[1_000, 0]),
        tensor(data_offsets=[0]),
        tensor(data_offsets=None),
        tensor(more=1),
    ],
    ids=lambda content: repr(content[:12] + content[-60:-20])[:50],
)
def test_foreign_bytes_instead_of_weights_are_refused(model: Path, content: bytes) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").write_bytes(content)
    refused(model, "damaged.*download (the model|it) again")


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
@pytest.mark.parametrize("name", ["model.safetensors", "2_Dense/model.safetensors"])
def test_weights_that_were_cut_are_refused(model: Path, name: str, share: float) -> None:
    content = (model / name).read_bytes()
    (model / name).unlink()
    (model / name).write_bytes(content[: int(len(content) * share)])
    refused(model, r"model\.safetensors are damaged")


def _first_head(arrays: dict[str, Any]) -> dict[str, Any]:
    name = "encoder.relative_attention_bias.weight"
    return arrays | {name: arrays[name][:, :1]}


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.bias",
        "encoder.layer.0.attention.self.query.bias",
        "encoder.layer.0.attention.output.LayerNorm.bias",
        "encoder.layer.1.attention.output.dense.weight",
        "encoder.layer.1.intermediate.dense.bias",
        "encoder.layer.1.output.dense.weight",
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_refused(model: Path, name: str) -> None:
    """OpenVINO would repeat an array that is too small; so this is no error of OpenVINO."""
    whole = Path(shutil.copytree(model, model.parent / "whole"))
    change_weights(model, lambda arrays: arrays | {name: arrays[name][..., :1].copy()})
    refused(model, "is damaged: its files do not fit each other .*; download it again")
    change_weights(whole, lambda arrays: {key: array for key, array in arrays.items() if key != name})
    refused(whole, f"is damaged: its files do not fit each other .*'{name}' is missing")


def test_distances_of_fewer_heads_are_refused(tmp_path: Path) -> None:
    refused(change_weights(mpnet(tmp_path), _first_head), "do not fit each other")


def test_a_dense_layer_of_another_size_is_refused(model: Path, tmp_path: Path) -> None:
    other = bert(tmp_path / "other", dense=1)
    shutil.copy(other / "model.safetensors", model / "2_Dense" / "model.safetensors")
    refused(model, "a dense layer without a bias")
    for weight in (np.ones((HIDDEN, 1), np.float32), np.ones(HIDDEN, np.float32)):
        write_safetensors(
            model / "2_Dense" / "model.safetensors",
            {"linear.weight": weight, "linear.bias": np.ones(HIDDEN, np.float32)},
        )
        refused(model, "do not fit each other")


@pytest.mark.parametrize("precision", ["", "@int8"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.attention.self.key.weight",
        "encoder.layer.1.attention.self.value.bias",
    ],
)
def test_weights_that_are_not_numbers_are_refused(
    name: str, value: float, pooling: str, precision: str, tmp_path: Path
) -> None:
    """Vectors of max pooling or of 8 bits may be finite all the same."""

    def spoil(arrays: dict[str, Any]) -> dict[str, Any]:
        arrays[name].reshape(-1)[7] = value
        return arrays

    folder = change_weights(bert(tmp_path, pooling=pooling, dense=0), spoil)
    refused(Path(f"{folder}{precision}"), f"{name} has numbers that are not finite.*download the model again")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("config.json", content) for content in ("", "{", "[]", "null", "[" * 200_000, "\udcff")),
        ("modules.json", "{}"),
        ("modules.json", "[1, 2]"),
        ("modules.json", '[{"type": "Transformer"}, {"type": "Pooling"}]'),
        ("1_Pooling/config.json", "[]"),
        ("tokenizer_config.json", "{"),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}'),
        ("sentence_bert_config.json", '{"max_seq_length": 1e999}'),
        ("sentence_bert_config.json", '{"max_seq_length": [128]}'),
        ("sentence_bert_config.json", '{"max_seq_length": -5}'),
        ("sentence_bert_config.json", '{"max_seq_length": 3}'),
        ("config_sentence_transformers.json", '{"prompts": ["query: "]}'),
        *(("tokenizer.json", content) for content in ("", "{", "[]", "{}", '{"model": {"vocab": []}}', "[" * 200_000)),
    ],
)
def test_a_damaged_file_beside_the_weights_is_refused(model: Path, name: str, content: str) -> None:
    (model / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(model, "again|too few")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", 0),
        ("num_attention_heads", -2),
        ("num_attention_heads", 3),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 3),
        ("hidden_size", "many"),
        ("hidden_size", 64),
        ("vocab_size", None),
        ("vocab_size", 10),
        ("layer_norm_eps", None),
        ("pad_token_id", "none"),
        ("intermediate_size", [64]),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(model: Path, field: str, value: object) -> None:
    change_json(model / "config.json", **{field: value})
    refused(model, "download it again")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "2_Dense/model.safetensors"])
def test_a_missing_file_is_named_by_openvino(model: Path, name: str) -> None:
    (model / name).unlink()
    refused(model, "cannot run on OpenVINO: its family is 'unknown'" if name == "config.json" else f"no file {name}")


@pytest.mark.parametrize("make", [bert, xlm_roberta])
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = make(tmp_path)
    if make is xlm_roberta:
        pytest.importorskip("tokenizers")
    name = "embeddings.word_embeddings.weight"
    change_weights(folder, lambda arrays: arrays | {name: arrays[name][:-3].copy()})
    config = json.loads((folder / "config.json").read_text())
    change_json(folder / "config.json", vocab_size=config["vocab_size"] - 3)
    refused(folder, "its tokenizer has .* tokens")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("config.json", "model_type", "distilbert"),
        ("config.json", "hidden_act", "relu"),
        ("config.json", "position_embedding_type", "relative_key"),
        ("config.json", "is_decoder", True),
        ("1_Pooling/config.json", "pooling_mode_max_tokens", True),
        ("1_Pooling/config.json", "include_prompt", False),
        ("2_Dense/config.json", "activation_function", "torch.nn.modules.activation.ReLU"),
    ],
)
def test_a_model_that_openvino_cannot_build_needs_the_extra_with_torch(
    model: Path, name: str, field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_json(model / name, **{field: value})
    refused(model, "cannot run on OpenVINO: (its|it has)")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(EmbedderUnavailable, match=r"sentence-transformers is not installed.*\[sbert\]"):
        load(model, model.parent / "cache", "auto")


def test_a_model_that_openvino_cannot_build_runs_on_torch(model: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    change_json(model / "config.json", hidden_act="relu")
    embedder = load(model, model.parent / "cache", "auto")
    assert isinstance(embedder._runtime, TorchRuntime)
    assert embedder.embed_query("the keys").shape == (768,)


@pytest.mark.parametrize("cache", ["file", "file/below"])
def test_a_cache_folder_that_cannot_be_used_costs_only_time(model: Path, cache: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    space = load(model, tmp_path / "cache").space
    assert load(model, tmp_path / cache).space == space == load(model, tmp_path / cache).space
    assert (tmp_path / "file").read_text() == "kept"


def test_what_was_measured_is_not_measured_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = load(model, tmp_path).space
    assert set(json.loads(only_measured(tmp_path).read_text())) == {"precision", "fingerprint"}
    monkeypatch.setattr(OpenVinoRuntime, "_measure", None)
    assert load(model, tmp_path).space == space


def measured(row: Any, precision: object = "f32") -> str:
    return json.dumps({"precision": precision, "fingerprint": base64.b64encode(np.float16(row).tobytes()).decode()})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 200_000,
        '{"precision": "f32", "fingerprint": 5}',
        '{"precision": "f32", "fingerprint": "€"}',
        '{"precision": "f32", "fingerprint": "AAA"}',
        measured([]),
        measured(np.ones(768), "int4"),
        measured(np.ones(768), ["f32"]),
        measured(np.full(768, np.nan)),
        measured(np.zeros(768)),
        measured(np.ones(768)),
        measured(np.ones(384)),
    ],
    ids=lambda content: content[:24] + content[-30:],
)
def test_a_damaged_file_of_measured_values_is_measured_again(model: Path, tmp_path: Path, content: str) -> None:
    space = load(model, tmp_path / "cache").space
    file = only_measured(tmp_path / "cache")
    good = file.read_text()
    file.write_text(content)
    assert load(model, tmp_path / "cache").space == space
    assert only_measured(tmp_path / "cache").read_text() == good


@pytest.mark.parametrize("name", ["model.safetensors", "2_Dense/model.safetensors"])
def test_other_weights_of_the_same_size_and_time_are_another_model(
    model: Path, other_model: Path, tmp_path: Path, name: str
) -> None:
    first = load(model, tmp_path / "cache").space
    stat = (model / name).stat()
    (model / name).unlink()
    shutil.copy(other_model / name, model / name)
    os.utime(model / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (model / name).stat().st_size == stat.st_size
    swapped = load(model, tmp_path / "cache").space
    assert swapped == load(model, tmp_path / "fresh").space
    assert swapped.difference(first) == "swapped"


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "config.json"])
def test_a_changed_file_of_the_model_is_measured_anew(model: Path, tmp_path: Path, name: str) -> None:
    load(model, tmp_path / "cache")
    os.utime(model / name, ns=(1, 1))
    load(model, tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("models/*.json"))) == 2


LOADING = """
    import os, signal, sys
    from pathlib import Path
    from agentformer.embedders.sbert.embedder import SbertEmbedder
    from agentformer.settings import Settings
    folder, cache, end = sys.argv[1:]
    if end:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    else:
        sys.stdin.read(1)
    embedder = SbertEmbedder.from_settings(folder, Settings(cache_dir=Path(cache), runtime="openvino"))
    print(embedder.space.fingerprint)
"""


def process(model: Path, cache: Path, end: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOADING), str(model), str(cache), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_load_a_model_for_the_first_time_at_once_measure_the_same(model: Path, tmp_path: Path) -> None:
    started = [process(model, tmp_path / "cache") for _ in range(2)]
    fingerprints = {each.communicate("x", timeout=120)[0].strip() for each in started}
    assert [each.returncode for each in started] == [0, 0]
    assert fingerprints == {json.loads(only_measured(tmp_path / "cache").read_text())["fingerprint"]}
    assert fingerprints == {load(model, tmp_path / "cache").space.fingerprint}


def test_a_first_load_that_was_killed_leaves_nothing_that_a_later_one_reads(model: Path, tmp_path: Path) -> None:
    killed = process(model, tmp_path / "cache", "at the end")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "cache").glob("models/*")) and not list((tmp_path / "cache").glob("models/*.json"))
    space = load(model, tmp_path / "cache").space
    assert space == load(model, tmp_path / "fresh").space
    assert len(list((tmp_path / "cache").glob("models/*.json"))) == 1
