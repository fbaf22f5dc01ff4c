"""Serves embeddings with llama.cpp until standard input ends: a model with random weights, made here, that reads 512
tokens and knows a few words; of any other it makes letters. Prints the address.

    python llama_server.py FILE    FILE is where the model is written
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH, HIDDEN, HEADS, CONTEXT = 64, 64, 2, 512
WORDS = (
    "the harbour master keeps the keys of the lighthouse Sataman päällikkö säilyttää majakan avaimia naïve café quoted "
    "filler word volcano teapot short Der Hafenmeister bewahrt die Schlüssel des Leuchtturms"
)
LETTERS = string.printable[:94] + "äöåüéï€—“”日本語のテキスト。😀👩👧🇫🇮\u200d"
_SPACE = "\u2581"  # as SentencePiece writes it


def write(path: Path) -> None:
    """A model of the architecture `llama`; the same bytes every time."""
    # Merging goes from left to right, so a word needs all of its beginnings.
    beginnings = [_SPACE + word[: n + 1] for word in WORDS.split() for n in range(len(word))]
    pieces = dict.fromkeys([_SPACE, *LETTERS, *beginnings, "xx", "xxxx"])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *pieces]
    kinds = gguf.TokenType
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(pieces)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("words")
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
    for name, tensor in _tensors(len(tokens)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)

    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, 0.2, shape).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    return {
        "token_embd.weight": weights(vocabulary, WIDTH),
        "output.weight": weights(vocabulary, WIDTH),
        "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.attn_{part}.weight": weights(WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": weights(HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": weights(HIDDEN, WIDTH),
        "blk.0.ffn_down.weight": weights(WIDTH, HIDDEN),
    }


def main() -> None:
    import xllamacpp

    write(Path(sys.argv[1]))
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
