"""Reads the folder of a model of sentence-transformers: its weights, what its configuration says, and its tokenizer.
Only the families BERT, XLM-RoBERTa and MPNet are read here, since `graph` builds them. Other models raise
`UnknownFamily`, and run on torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentformer.embedders.sbert.graph import Dense, Encoder, Layer, Norm, build
from agentformer.embedders.sbert.openvino import Model
from agentformer.embedders.sbert.tokenizer import read_tokenizer
from agentformer.embedders.sbert.weights import Array, read_safetensors
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
    files: list[Path] = []

    def read(name: str) -> dict[str, Any]:
        files.extend(file for file in [folder / name] if file.exists())
        return dict(_read_json(folder / name, dict))

    config = read("config.json")
    for name in ("model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UnknownFamily(f"it has no file {name}")
        files.append(folder / name)
    encoder = _encoder(folder, config, read)
    tokenizer = read("tokenizer_config.json")
    limits = (read("sentence_bert_config.json").get("max_seq_length"), tokenizer.get("model_max_length"))
    prompts = read("config_sentence_transformers.json").get("prompts") or {}
    return Model(
        files=files,
        graph=lambda: build(encoder, int8=bool(precision)),
        tokenizer=lambda: read_tokenizer(folder / "tokenizer.json", int(config.get("pad_token_id") or 0)),
        max_tokens=min(int(limits[0] or limits[1] or _LARGEST), len(encoder.positions)),
        vocabulary=int(config["vocab_size"]),
        prompts={name: text for name, text in prompts.items() if text},
        precision=precision,
    )


def _encoder(folder: Path, config: Mapping[str, Any], read: Callable[[str], dict[str, Any]]) -> Encoder:
    """Return the weights of all modules of the model. `read` reads a JSON file of the folder."""
    family = str(config.get("model_type", "unknown"))
    if family not in _FAMILIES:
        raise UnknownFamily(f"its family is {family!r}")
    if config.get("hidden_act") != "gelu" or config.get("position_embedding_type", "absolute") != "absolute":
        raise UnknownFamily("its configuration is unusual")
    pooling, last = _modules(folder, read)
    try:
        transformer = _transformer(read_safetensors(folder / "model.safetensors"), config)
    except (KeyError, TypeError, ValueError) as error:
        raise EmbedderUnavailable(
            f"the model in {folder} is damaged: its weights do not fit its configuration ({error}); download it again"
        ) from error
    return transformer._replace(pooling=pooling, last=last)


def _modules(folder: Path, read: Callable[[str], dict[str, Any]]) -> tuple[str, list[tuple[Dense, bool]]]:
    """Return the kind of pooling and the dense layers, from the list of the model's modules. A model without such a
    list has mean pooling, as sentence-transformers assumes."""
    modules = _read_json(folder / "modules.json", list)
    if not modules:
        return "mean", []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if (
        kinds[:2] != ["Transformer", "Pooling"]
        or not set(kinds[2:]) <= {"Dense", "Normalize"}
        or modules[0].get("path")
    ):
        raise UnknownFamily(f"it consists of the modules {', '.join(kinds)}")
    pooling = read(f"{modules[1]['path']}/config.json")
    modes = [mode for mode, flag in _POOLING.items() if pooling.get(flag) or pooling.get("pooling_mode") == mode]
    others = [flag for flag, on in pooling.items() if flag.startswith("pooling_mode_") and on is True]
    if len(modes) != 1 or len(others) > 1 or not pooling.get("include_prompt", True):
        raise UnknownFamily("its pooling is unusual")
    return modes[0], [
        _dense_module(folder / module["path"], read(f"{module['path']}/config.json"))
        for module, kind in zip(modules, kinds, strict=True)
        if kind == "Dense"
    ]


def _dense_module(folder: Path, config: Mapping[str, Any]) -> tuple[Dense, bool]:
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    if activation not in ("Tanh", "Identity") or not (folder / "model.safetensors").exists():
        raise UnknownFamily("it has an unusual dense layer")
    arrays = read_safetensors(folder / "model.safetensors")
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

    positions = arrays[f"{prefix}embeddings.position_embeddings.weight"]
    if family != "bert":  # the first positions are for padding
        positions = positions[int(config.get("pad_token_id", 1)) + 1 :]
    if family != "mpnet":  # all tokens have the type 0
        positions = positions + arrays[f"{prefix}embeddings.token_type_embeddings.weight"][:1]
    encoder = Encoder(
        words=arrays[f"{prefix}embeddings.word_embeddings.weight"],
        positions=positions,
        norm=norm("embeddings.LayerNorm"),
        layers=[layer(number) for number in range(int(config["num_hidden_layers"]))],
        heads=int(config["num_attention_heads"]),
        epsilon=float(config["layer_norm_eps"]),
        distances=arrays[f"{prefix}encoder.relative_attention_bias.weight"] if family == "mpnet" else None,
    )
    _check_shapes(encoder, int(config["hidden_size"]), int(config["intermediate_size"]), int(config["vocab_size"]))
    return encoder


def _check_shapes(encoder: Encoder, hidden: int, inner: int, vocabulary: int) -> None:
    """Raise `ValueError` if an array has another shape than the configuration says."""
    square = (hidden, hidden)
    expected = [(encoder.words, (vocabulary, hidden)), (encoder.norm.scale, (hidden,))]
    for layer in encoder.layers:
        expected += [(each.weight, square) for each in (layer.query, layer.key, layer.value, layer.attended)]
        expected += [(layer.inner.weight, (inner, hidden)), (layer.outer.weight, (hidden, inner))]
        expected += [(each.scale, (hidden,)) for each in (layer.attended_norm, layer.outer_norm)]
    for weight, shape in expected:
        if weight.shape != shape:  # type: ignore[union-attr]
            raise ValueError(f"an array has the shape {weight.shape}, not {shape}")  # type: ignore[union-attr]
    if hidden % encoder.heads:
        raise ValueError(f"{hidden} numbers cannot be divided among {encoder.heads} heads")


def _read_json(file: Path, kind: type[Any]) -> Any:
    """Return the JSON value in a file of the model, or an empty one if there is no such file. Raise
    `EmbedderUnavailable` if the file is damaged."""
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
    return content
