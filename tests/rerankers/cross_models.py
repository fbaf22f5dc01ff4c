"""Small cross-encoders with random weights, saved as sentence-transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyzäöåéï0123456789.,!?\"'()—“”€日本語のテキスト。"
WORDS = ("the", "harbour", "master", "keeps", "keys", "of", "lighthouse", "filler", "volcano", "teapot", "bakery")
READS = 96  # tokens of a pair


def cross_encoder(folder: Path, seed: int = 3, labels: int = 1) -> Path:
    """BERT with a head of `labels` scores, whose weights are large enough for scores to differ."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import BertForSequenceClassification

    base = _base(folder, seed)
    model = BertForSequenceClassification(_config(base, num_labels=labels))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=0.3)
    model.save_pretrained(str(base))
    CrossEncoder(str(base), device="cpu").save_pretrained(str(folder / "model"))
    return folder / "model"


def plain_bert(folder: Path) -> Path:
    """An encoder that no head for pairs belongs to."""
    from transformers import BertModel

    base = _base(folder, 3)
    BertModel(_config(base)).save_pretrained(str(base))
    return base


def _base(folder: Path, seed: int) -> Path:
    import torch
    from transformers import BertTokenizerFast

    torch.manual_seed(seed)
    base = folder / "base"
    base.mkdir(parents=True)
    characters = dict.fromkeys(LETTERS)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters), *WORDS]
    (base / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(base / "vocab.txt"), model_max_length=READS).save_pretrained(str(base))
    return base


def _config(base: Path, **values: Any) -> Any:
    from transformers import BertConfig

    size = len((base / "vocab.txt").read_text(encoding="utf-8").splitlines())
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertConfig(vocab_size=size, max_position_embeddings=READS, **shape, **values)
