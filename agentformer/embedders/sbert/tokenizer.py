"""The tokenizer of a model: what a runtime needs of it, and how it is read from the file `tokenizer.json`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentformer.embedders.sbert.runtime import replace_surrogates
from agentformer.embedders.sbert.subwords import Encoding, Offsets, WordPiece
from agentformer.errors import MissingExtra

_BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
_WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
_LITERAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


class Tokenizer(Protocol):
    """Splits texts into the tokens of a model. No text is cut. A lone surrogate is read as "?". Thread-safe."""

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, or None if it is not known."""

    @property
    def special_tokens(self) -> int:
        """The number of tokens that are added to every text."""

    @property
    def vocabulary(self) -> int:
        """The highest id of a token, plus 1."""

    def ids(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text, special tokens included."""

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the tokens of each text, special tokens included."""

    def encode(self, text: str) -> Encoding:
        """Return the tokens of a text with their offsets, special tokens included."""

    def offsets(self, text: str) -> Offsets:
        """Return the start and the end of each token in the text. Special tokens are left out."""


class PackageTokenizer:
    """Any tokenizer that the package `tokenizers` reads from a file. `pad_id` is the id of the padding token. Raises
    `MissingExtra` if the package is missing or broken, and an error of any class if the file is damaged."""

    def __init__(self, file: Path, pad_id: int) -> None:
        try:
            package = importlib.import_module("tokenizers")
        except Exception as error:  # a broken package can raise anything
            reason = error if isinstance(error, ImportError) else ImportError(f"{type(error).__name__}: {error}")
            raise MissingExtra("fast", f"the tokenizer {file}", reason) from error
        self._tokenizer: Any = package.Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.pad_id = pad_id
        self.unknown_id: int | None = None
        self.special_tokens = int(self._tokenizer.num_special_tokens_to_add(is_pair=False))
        self.vocabulary = max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def ids(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text, special tokens included."""
        ids: list[int] = self._tokenizer.encode(replace_surrogates(text)).ids
        return ids

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the tokens of each text, special tokens included."""
        if len(texts) == 1:  # the threads of a batch would make a single text slower
            return [self.ids(texts[0])]
        return [item.ids for item in self._tokenizer.encode_batch_fast([replace_surrogates(text) for text in texts])]

    def encode(self, text: str) -> Encoding:
        """Return the tokens of a text with their offsets, special tokens included."""
        item = self._tokenizer.encode(replace_surrogates(text))
        return Encoding(item.ids, item.offsets, item.special_tokens_mask)

    def offsets(self, text: str) -> Offsets:
        """Return the start and the end of each token in the text. Special tokens are left out."""
        return list(self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False).offsets)


def read_tokenizer(file: Path, pad_id: int) -> Tokenizer:
    """Read the tokenizer of a model from its file `tokenizer.json`. A WordPiece tokenizer as that of BERT for texts
    without case is read without the package `tokenizers`. Raises as `PackageTokenizer` does for any other."""
    content = file.read_bytes()
    known = _word_piece(json.loads(content), pad_id) if b'"WordPiece"' in content else None
    return known or PackageTokenizer(file, pad_id)


def _word_piece(content: Mapping[str, Any], pad_id: int) -> WordPiece | None:
    """Return the tokenizer that `content` describes, or None if this is not exactly BERT's for texts without case."""
    model, normalizer = content["model"], content.get("normalizer") or {}
    added: list[dict[str, Any]] = content.get("added_tokens") or []
    vocabulary = model["vocab"]
    special = _special_tokens(content.get("post_processor") or {})
    known = (
        model.get("type") == "WordPiece"
        and _WORD_PIECE.items() <= model.items()
        and _BERT.items() <= normalizer.items()
        and normalizer.get("strip_accents") in (None, True)
        and content.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and special is not None
        and len(special) == WordPiece.special_tokens
        and all(
            _LITERAL.items() <= token.items() and vocabulary.get(token["content"]) == token["id"] for token in added
        )
        and sorted(vocabulary.values()) == list(range(len(vocabulary)))
        and {*special.items(), (model["unk_token"], vocabulary.get(model["unk_token"]))} <= vocabulary.items()
        and 0 <= pad_id < len(vocabulary)
    )
    if not known or special is None:
        return None
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    begin, end = special
    return WordPiece(
        pieces,
        begin=begin,
        end=end,
        pad=pieces[pad_id],
        unknown=model["unk_token"],
        literals=[token["content"] for token in added],
    )


def _special_tokens(processor: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the special token before each text and the one after it, with their ids. Return None for any other
    template."""
    if processor.get("type") == "BertProcessing":
        return dict([processor["cls"], processor["sep"]])
    match processor.get("single"):
        case [
            {"SpecialToken": {"id": str(begin), "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": str(end), "type_id": 0}},
        ]:
            special = processor["special_tokens"]
            return {token: special[token]["ids"][0] for token in (begin, end)}
    return None
