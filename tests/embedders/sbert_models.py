"""Small models with random weights, of the shapes that real ones have, in the files that sentence-transformers saves.
Neither torch nor transformers is needed to make them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentformer.embedders.sbert.weights import read_safetensors

LETTERS = "abcdefghijklmnopqrstuvwxyzäöåéï0123456789.,!?\"'()—“”€日本語のテキスト。"
WORDS = (
    "the",
    "harbour",
    "master",
    "keeps",
    "keys",
    "of",
    "lighthouse",
    "filler",
    "word",
    "volcano",
    "teapot",
    "short",
)
HIDDEN, INNER, HEADS, LAYERS, POSITIONS = 32, 64, 2, 2, 160
Arrays = dict[str, NDArray[np.float32]]
_BERT = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
_CLASSES = {
    "bert": "BertModel",
    "mpnet": "MPNetModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
}
_MPNET = ("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o")


def bert(folder: Path, seed: int = 1, pooling: str = "mean", dense: int = 768, activation: str = "Tanh") -> Path:
    """WordPiece and BERT: 768 dimensions by a dense layer (0: 32 without one), 128 tokens."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    model = _folder(folder, "bert", _wordpiece(special, ("[CLS]", "[SEP]")), special, pooling)
    _weights(model, seed, "bert", _BERT, len(special))
    if dense:
        _dense(model, seed, dense, activation)
    return model


def xlm_roberta(folder: Path, seed: int = 1, pooling: str = "mean", family: str = "xlm-roberta") -> Path:
    """Unigram pieces as SentencePiece makes them, no token types, positions that begin behind the padding."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *dict.fromkeys(LETTERS), *(f"▁{word}" for word in WORDS)]
    tokenizer = {
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": _template("<s>", 0, "</s>", 2),
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {
            "type": "Unigram",
            "unk_id": 3,
            "vocab": [[piece, -float(at)] for at, piece in enumerate(pieces)],
            "byte_fallback": False,
        },
    }
    model = _folder(folder, family, tokenizer, ("<pad>", "<unk>", "<s>", "</s>", "<s>"), pooling)
    _weights(model, seed, family, _BERT, 5, pieces=len(pieces))
    return model


def mpnet(folder: Path, seed: int = 1, pooling: str = "mean") -> Path:
    """Relative positions, and no token types."""
    special = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
    named = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
    model = _folder(folder, "mpnet", _wordpiece(special, ("<s>", "</s>"), "[UNK]"), named, pooling)
    _weights(model, seed, "mpnet", _MPNET, len(special))
    return model


def write_safetensors(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        kind = {"float64": "F64", "float32": "F32", "float16": "F16", "uint16": "BF16"}[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))


def change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | values), encoding="utf-8")


def change_weights(model: Path, change: Callable[[dict[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]) -> Path:
    """Write the weights again as `change` returns them, in a new file."""
    file = model / "model.safetensors"
    arrays = {name: array.copy() for name, array in read_safetensors(file).items()}
    file.unlink()
    write_safetensors(file, change(arrays))
    return model


def _vocabulary(special: Sequence[str]) -> list[str]:
    characters = dict.fromkeys(LETTERS)
    return [*special, *characters, *(f"##{c}" for c in characters), *WORDS]


def _wordpiece(special: Sequence[str], around: tuple[str, str], unknown: str = "[UNK]") -> dict[str, Any]:
    vocabulary = {piece: at for at, piece in enumerate(_vocabulary(special))}
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(around[0], vocabulary[around[0]], around[1], vocabulary[around[1]]),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _template(begin: str, begin_id: int, end: str, end_id: int) -> dict[str, Any]:
    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [token(begin), {"Sequence": {"id": "A", "type_id": 0}}, token(end)],
        "pair": [token(begin), {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ((begin, begin_id), (end, end_id))
        },
    }


def _folder(
    folder: Path, family: str, tokenizer: dict[str, Any], special: tuple[str, str, str, str, str], pooling: str
) -> Path:
    """Write everything but the weights, and return the folder of the model."""
    model = folder / "model"
    (model / "1_Pooling").mkdir(parents=True)
    pad, unknown, begin, end, mask = special
    vocabulary = tokenizer["model"]["vocab"]
    numbers = vocabulary if isinstance(vocabulary, dict) else {piece: at for at, (piece, _) in enumerate(vocabulary)}
    added = [
        {"id": numbers[name], "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for name in sorted(set(special), key=numbers.__getitem__)
    ]
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    files = {
        "tokenizer.json": base | tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 128,
            "model_input_names": ["input_ids", *(["token_type_ids"] if family == "bert" else []), "attention_mask"],
            **{"pad_token": pad, "unk_token": unknown, "cls_token": begin, "sep_token": end, "mask_token": mask},
            **({"bos_token": begin, "eos_token": end} if family != "bert" else {}),
        },
        "config.json": {
            "model_type": family,
            "architectures": [_CLASSES[family]],
            "hidden_act": "gelu",
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": POSITIONS,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "pad_token_id": numbers[pad],
            "type_vocab_size": 1 if "roberta" in family else 2,
            "vocab_size": len(numbers),
            "relative_attention_num_buckets": 32,
        },
        "modules.json": [
            _module(0, "Transformer", ""),
            _module(1, "Pooling", "1_Pooling"),
        ],
        "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": None},
        "1_Pooling/config.json": {
            "word_embedding_dimension": HIDDEN,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": pooling == "max",
        },
    }
    for name, content in files.items():
        (model / name).write_text(json.dumps(content), encoding="utf-8")
    return model


def _module(number: int, kind: str, path: str) -> dict[str, Any]:
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _weights(model: Path, seed: int, family: str, attention: Sequence[str], special: int, pieces: int = 0) -> None:
    random = np.random.default_rng(seed)

    def array(*shape: int) -> NDArray[np.float32]:
        return random.normal(scale=0.2, size=shape).astype(np.float32)

    def norm() -> Arrays:
        return {"weight": 1 + array(HIDDEN), "bias": array(HIDDEN)}

    def linear(outputs: int, inputs: int) -> Arrays:
        return {"weight": array(outputs, inputs), "bias": array(outputs)}

    pieces = pieces or special + 2 * len(dict.fromkeys(LETTERS)) + len(WORDS)
    parts: dict[str, Arrays] = {
        "embeddings.word_embeddings": {"weight": array(pieces, HIDDEN)},
        "embeddings.position_embeddings": {"weight": array(POSITIONS, HIDDEN)},
        "embeddings.LayerNorm": norm(),
    }
    if family == "mpnet":
        parts["encoder.relative_attention_bias"] = {"weight": 5 * array(32, HEADS)}
    else:
        parts["embeddings.token_type_embeddings"] = {"weight": array(1 if "roberta" in family else 2, HIDDEN)}
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        parts |= {f"{at}.{name}": linear(HIDDEN, HIDDEN) for name in attention}
        parts[f"{at}.attention.{'' if family == 'mpnet' else 'output.'}LayerNorm"] = norm()
        parts[f"{at}.intermediate.dense"] = linear(INNER, HIDDEN)
        parts[f"{at}.output.dense"] = linear(HIDDEN, INNER)
        parts[f"{at}.output.LayerNorm"] = norm()
    arrays = {f"{part}.{name}": values for part, named in parts.items() for name, values in named.items()}
    write_safetensors(model / "model.safetensors", arrays)


def _dense(model: Path, seed: int, outputs: int, activation: str) -> None:
    folder = model / "2_Dense"
    folder.mkdir()
    random = np.random.default_rng(seed + 1000)
    weight = random.normal(scale=0.2, size=(outputs, HIDDEN)).astype(np.float32)
    bias = random.normal(scale=0.2, size=outputs).astype(np.float32)
    write_safetensors(folder / "model.safetensors", {"linear.weight": weight, "linear.bias": bias})
    module = "linear" if activation == "Identity" else "activation"
    config = {
        "in_features": HIDDEN,
        "out_features": outputs,
        "bias": True,
        "activation_function": f"torch.nn.modules.{module}.{activation}",
    }
    (folder / "config.json").write_text(json.dumps(config))
    modules = json.loads((model / "modules.json").read_text())
    (model / "modules.json").write_text(json.dumps([*modules, _module(2, "Dense", "2_Dense")]))
