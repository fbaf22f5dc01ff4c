"""A language model of 140 kB with random weights, which llama.cpp loads: it babbles letters, digits and spaces.

Its hidden states have one large constant component, so the column of the output matrix that belongs to it decides how
likely each token is: never a raw byte, and never the end of the text, which a grammar or `max_tokens` brings.
"""

from __future__ import annotations

import string
from pathlib import Path

import gguf
import numpy as np

WIDTH, HIDDEN, HEADS, CONTEXT = 32, 64, 2, 512
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_SPACE = "\u2581"  # as SentencePiece writes it


def write(path: Path) -> None:
    """The model's file. The same bytes every time."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), _SPACE, *string.printable[:94]]
    kinds = gguf.TokenType
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
    types += [kinds.NORMAL] * (len(tokens) - len(types))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("babble")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([int(kind) for kind in types])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in _tensors(len(tokens)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def small(*shape: int) -> np.ndarray:
        return random.normal(0, 0.02, shape).astype(np.float32)

    embedded, out = small(vocabulary, WIDTH), small(vocabulary, WIDTH)
    embedded[:, 0] = 1.0  # after the last norm this component is about sqrt(WIDTH) = 5.7 in every state
    out[:, 0] = 0.0
    out[:259, 0] = -4.0
    out[2, 0] = -4.0
    out[259, 0] = 0.05
    ones = np.ones(WIDTH, np.float32)
    return {
        "token_embd.weight": embedded,
        "output.weight": out,
        "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.attn_{part}.weight": small(WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": small(HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": small(HIDDEN, WIDTH),
        "blk.0.ffn_down.weight": small(WIDTH, HIDDEN),
    }
