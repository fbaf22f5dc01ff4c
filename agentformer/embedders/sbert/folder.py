"""Reads the folder of a model of sentence-transformers: its weights, what its configuration says, and its tokenizer.
Only the families BERT, XLM-RoBERTa and MPNet are read here, since `graph` builds them. Other models raise
`UnknownFamily`, and run on torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentformer.embedders.sbert.graph import Dense, Encoder, Layer, Norm, build
from agentformer.embedders.sbert.openvino import Model
from agentformer.embedders.sbert.tokenizer import read_tokenizer
from agentformer.embedders.sbert.weights import Array, FourBits, Weight, check_numbers, read_safetensors
from agentformer.errors import EmbedderUnavailable

_POOLING = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens"}
_LARGEST = 1_000_000_000  # a greater limit of tokens means that the tokenizer knows none

# The names of the weights of a layer in the families.
_BERT = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "attended_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "outer_norm": "output.LayerNorm",
}
_MPNET = _BERT | {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "attended": "attention.attn.o",
    "attended_norm": "attention.LayerNorm",
}
_FAMILIES = {"bert": _BERT, "roberta": _BERT, "xlm-roberta": _BERT, "mpnet": _MPNET}


class UnknownFamily(Exception):
    """Raised if a model has a family, a part or a file that only sentence-transformers can read."""


def folder_model(folder: Path, precision: str = "") -> Model:
    """Return the model in the folder. With the precision "int8", its weights are rounded to 8 bits. Raise
    `UnknownFamily` if the model cannot be built here, and `EmbedderUnavailable` if a file is damaged."""
    try:
        return _model(_Files(folder), precision)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise EmbedderUnavailable(
            f"the model in {folder} is damaged: its files do not fit each other ({reason}); download it again"
        ) from error


class _Files:
    """The files of a model. `used` are those that were read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: list[Path] = []

    def json(self, name: str, kind: type[Any] = dict) -> Any:
        """Return the JSON value in a file of the model, or an empty one if there is no such file. Raise
        `EmbedderUnavailable` if the file is damaged."""
        file = self.folder / name
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return kind()
        except (OSError, ValueError, RecursionError) as error:
            raise EmbedderUnavailable(
                f"the file {file} of the model cannot be read ({error}); download it again"
            ) from error
        if not isinstance(content, kind):
            raise EmbedderUnavailable(f"the file {file} of the model is damaged; download it again")
        self.used.append(file)
        return content

    def file(self, name: str) -> Path:
        """Return the path of a file. Raise `UnknownFamily` if there is no such file."""
        if not (self.folder / name).is_file():
            raise UnknownFamily(f"it has no file {name}")
        self.used.append(self.folder / name)
        return self.used[-1]


def _model(files: _Files, precision: str) -> Model:
    config = files.json("config.json")
    tokenizer = files.file("tokenizer.json")
    encoder = _encoder(files, config)
    limits = [
        files.json("sentence_bert_config.json").get("max_seq_length"),
        files.json("tokenizer_config.json").get("model_max_length"),
    ]
    prompts = files.json("config_sentence_transformers.json").get("prompts") or {}
    return Model(
        files=files.used,
        graph=lambda: build(encoder, int8=bool(precision)),
        tokenizer=lambda: read_tokenizer(tokenizer, int(config.get("pad_token_id") or 0)),
        max_tokens=min(int(limits[0] or limits[1] or _LARGEST), len(encoder.positions)),
        vocabulary=int(config["vocab_size"]),
        prompts={name: str(text) for name, text in prompts.items() if text},
        precision=precision,
        check=lambda: check_numbers([file for file in files.used if file.suffix == ".safetensors"]),
    )


def _encoder(files: _Files, config: Mapping[str, Any]) -> Encoder:
    """Return the weights of all modules of the model."""
    family = str(config.get("model_type", "unknown"))
    if family not in _FAMILIES:
        raise UnknownFamily(f"its family is {family!r}")
    usual = config.get("hidden_act") == "gelu" and not config.get("is_decoder")
    if not usual or config.get("position_embedding_type", "absolute") != "absolute":
        raise UnknownFamily("its configuration is unusual")
    pooling, last = _modules(files)
    transformer = _transformer(read_safetensors(files.file("model.safetensors")), config)
    inputs = len(transformer.norm.scale)
    for dense, _ in last:
        inputs = _check_dense(dense, len(dense.bias), inputs)
    return transformer._replace(pooling=pooling, last=last)


def _modules(files: _Files) -> tuple[str, list[tuple[Dense, bool]]]:
    """Return the kind of pooling and the dense layers, from the list of the model's modules. A model without such a
    list has mean pooling, as sentence-transformers assumes."""
    modules = files.json("modules.json", list)
    if not modules:
        return "mean", []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if (
        kinds[:2] != ["Transformer", "Pooling"]
        or not set(kinds[2:]) <= {"Dense", "Normalize"}
        or modules[0].get("path")
    ):
        raise UnknownFamily(f"it consists of the modules {', '.join(kinds)}")
    pooling = files.json(f"{modules[1]['path']}/config.json")
    modes = [mode for mode, flag in _POOLING.items() if pooling.get(flag) or pooling.get("pooling_mode") == mode]
    others = [flag for flag, on in pooling.items() if flag.startswith("pooling_mode_") and on is True]
    if len(modes) != 1 or len(others) > 1 or not pooling.get("include_prompt", True):
        raise UnknownFamily("its pooling is unusual")
    return modes[0], [
        _dense_module(files, module["path"]) for module, kind in zip(modules, kinds, strict=True) if kind == "Dense"
    ]


def _dense_module(files: _Files, folder: str) -> tuple[Dense, bool]:
    activation = str(files.json(f"{folder}/config.json").get("activation_function", "")).rpartition(".")[2]
    if activation not in ("Tanh", "Identity"):
        raise UnknownFamily("it has an unusual dense layer")
    arrays = read_safetensors(files.file(f"{folder}/model.safetensors"))
    if "linear.bias" not in arrays:
        raise UnknownFamily("it has a dense layer without a bias")
    return Dense(arrays["linear.weight"], arrays["linear.bias"]), activation == "Tanh"


def _transformer(arrays: Mapping[str, Array], config: Mapping[str, Any]) -> Encoder:
    family = config["model_type"]
    names = _FAMILIES[family]
    prefix = next((p for p in ("", f"{family}.", "roberta.") if f"{p}embeddings.word_embeddings.weight" in arrays), "")

    def dense(name: str) -> Dense:
        return Dense(arrays[f"{prefix}{name}.weight"], arrays[f"{prefix}{name}.bias"])

    def norm(name: str) -> Norm:
        return Norm(*dense(name))  # type: ignore[arg-type]

    def layer(number: int) -> Layer:
        parts = {part: dense(f"encoder.layer.{number}.{name}") for part, name in names.items()}
        norms = {part: Norm(*parts.pop(part)) for part in ("attended_norm", "outer_norm")}  # type: ignore[arg-type]
        return Layer(**parts, **norms)  # type: ignore[arg-type]

    hidden = int(config["hidden_size"])
    positions = arrays[f"{prefix}embeddings.position_embeddings.weight"]
    _check_shape(positions, len(positions), hidden)
    if family != "bert":  # the first positions are for padding
        positions = positions[int(config.get("pad_token_id", 1)) + 1 :]
    if family != "mpnet":  # all tokens have the type 0
        types = arrays[f"{prefix}embeddings.token_type_embeddings.weight"]
        _check_shape(types, len(types), hidden)
        positions = positions + types[:1]
    encoder = Encoder(
        words=arrays[f"{prefix}embeddings.word_embeddings.weight"],
        positions=positions,
        norm=norm("embeddings.LayerNorm"),
        layers=[layer(number) for number in range(int(config["num_hidden_layers"]))],
        heads=int(config["num_attention_heads"]),
        epsilon=float(config["layer_norm_eps"]),
        distances=arrays[f"{prefix}encoder.relative_attention_bias.weight"] if family == "mpnet" else None,
    )
    _check_shapes(encoder, hidden, int(config["intermediate_size"]), int(config["vocab_size"]))
    return encoder


def _check_shapes(encoder: Encoder, hidden: int, inner: int, vocabulary: int) -> None:
    """Raise `ValueError` if an array has another shape than the configuration says. OpenVINO would repeat some arrays
    that are too small."""
    _check_shape(encoder.words, vocabulary, hidden)
    norms = [encoder.norm]
    for layer in encoder.layers:
        for each in (layer.query, layer.key, layer.value, layer.attended):
            _check_dense(each, hidden, hidden)
        _check_dense(layer.inner, inner, hidden)
        _check_dense(layer.outer, hidden, inner)
        norms += [layer.attended_norm, layer.outer_norm]
    for array in (array for norm in norms for array in norm):
        _check_shape(array, hidden)
    if encoder.distances is not None:
        _check_shape(encoder.distances, len(encoder.distances), encoder.heads)
    if encoder.heads < 1 or hidden % encoder.heads or not encoder.layers:
        raise ValueError(f"{hidden} numbers, {encoder.heads} heads, {len(encoder.layers)} layers")


def _check_dense(dense: Dense, outputs: int, inputs: int) -> int:
    """Raise `ValueError` if the map has other sizes. Return the number of outputs."""
    _check_shape(dense.weight, outputs, inputs)
    _check_shape(dense.bias, outputs)
    return outputs


def _check_shape(array: Weight, *shape: int) -> None:
    if isinstance(array, FourBits) or array.shape != shape:
        raise ValueError(f"an array has not the shape {shape}")
