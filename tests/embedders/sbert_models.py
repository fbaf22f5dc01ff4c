"""Small models with random weights, of the shapes that real ones have. Each is saved as sentence-transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 160,
}


def bert(folder: Path, seed: int = 1, pooling: str = "mean", dense: int = 768) -> Path:
    """WordPiece and BERT: 768 dimensions by a dense layer (0: 32 without one), 128 tokens."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    base = _base(folder, seed)
    vocabulary = _vocabulary("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (base / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(base / "vocab.txt"), model_max_length=128).save_pretrained(str(base))
    BertModel(BertConfig(vocab_size=len(vocabulary), **_SIZES)).save_pretrained(str(base))
    return _assembled(folder, pooling, dense)


def xlm_roberta(folder: Path, seed: int = 1) -> Path:
    """Unigram pieces as SentencePiece makes them, no token types, positions that begin behind the padding."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    base = _base(folder, seed)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *dict.fromkeys(LETTERS), *(f"▁{word}" for word in WORDS)]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(at)) for at, piece in enumerate(pieces)], unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
        **{"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>"},
    ).save_pretrained(str(base))
    config = XLMRobertaConfig(vocab_size=len(pieces), pad_token_id=1, bos_token_id=0, eos_token_id=2, **_SIZES)
    XLMRobertaModel(config).save_pretrained(str(base))
    return _assembled(folder, "mean", 0)


def mpnet(folder: Path, seed: int = 1) -> Path:
    """Relative positions, and no token types."""
    from transformers import MPNetConfig, MPNetModel, MPNetTokenizerFast

    base = _base(folder, seed)
    vocabulary = _vocabulary("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
    (base / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    MPNetTokenizerFast(str(base / "vocab.txt"), model_max_length=128).save_pretrained(str(base))
    MPNetModel(MPNetConfig(vocab_size=len(vocabulary), **_SIZES)).save_pretrained(str(base))
    return _assembled(folder, "mean", 0)


def _base(folder: Path, seed: int) -> Path:
    import torch

    torch.manual_seed(seed)
    base = folder / "base"
    base.mkdir(parents=True)
    return base


def _vocabulary(*special: str) -> list[str]:
    characters = dict.fromkeys(LETTERS)
    return [*special, *characters, *(f"##{c}" for c in characters), *WORDS]


def _assembled(folder: Path, pooling: str, dense: int) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as modules

    parts: list[Any] = [modules.Transformer(str(folder / "base"), max_seq_length=128)]
    parts.append(modules.Pooling(32, pooling_mode=pooling))
    if dense:
        parts.append(modules.Dense(32, dense))
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "model"))
    return folder / "model"
