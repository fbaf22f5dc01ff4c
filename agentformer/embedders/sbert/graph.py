"""Builds the computation of a sentence encoder as a graph of OpenVINO: a transformer encoder (Vaswani et al., 2017) in
the form of BERT (Devlin et al., 2019), then pooling of the token vectors, then further dense layers of a few models.
XLM-RoBERTa (Conneau et al., 2020) is BERT with other positions; MPNet (Song et al., 2020) adds a bias to the attention
that depends on the distance of two tokens.

The graph has two inputs of the shape (texts, tokens): `input_ids` and `attention_mask`, which is 0 for padding. It has
two outputs: the vectors of the texts, (texts, dimension), and the vectors of their tokens, (texts, tokens, hidden). No
vector is scaled to the length 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agentformer.embedders.sbert.weights import BLOCK, Array, FourBits, Weight

Node = Any  # a node of an OpenVINO graph


class Dense(NamedTuple):
    """An affine map: `weight` has the shape (outputs, inputs)."""

    weight: Weight
    bias: Array


class Norm(NamedTuple):
    """The scale and the shift of a layer normalisation."""

    scale: Array
    shift: Array


class Layer(NamedTuple):
    """The weights of one layer of a transformer."""

    query: Dense
    key: Dense
    value: Dense
    attended: Dense
    attended_norm: Norm
    inner: Dense
    outer: Dense
    outer_norm: Norm


class Encoder(NamedTuple):
    """The weights of a sentence encoder, and what its configuration says about their use. `words` and `positions` are
    the vectors of the vocabulary and of the positions, from the first one that a token can have. `distances` are the
    attention biases of MPNet, (buckets, heads), or None. `pooling` is mean, cls or max. `last` are the dense layers
    after the pooling, each with whether tanh follows."""

    words: Weight
    positions: Array
    norm: Norm
    layers: Sequence[Layer]
    heads: int
    epsilon: float
    pooling: str = "mean"
    distances: Array | None = None
    last: Sequence[tuple[Dense, bool]] = ()


def build(encoder: Encoder, *, int8: bool = False) -> Any:
    """Return the graph of an encoder, an `openvino.Model`. With `int8`, the large matrices are rounded to 8 bits, with
    a scale for each row."""
    return _Builder(encoder, int8).model()


def pooled(tokens: Node, mask: Node, pooling: str) -> Node:
    """Return the vectors of the texts from the vectors of their tokens. `mask` is the input `attention_mask`."""
    from openvino import opset13 as op

    if pooling == "cls":
        return op.gather(tokens, _integer(0), _integer(1))
    keep = op.unsqueeze(op.convert(mask, "f32"), _integer(-1))
    if pooling == "max":
        return op.reduce_max(op.select(op.convert(keep, "boolean"), tokens, _number(-1e9)), _integers(1), False)
    total = op.reduce_sum(op.multiply(tokens, keep), _integers(1), False)
    return op.divide(total, op.maximum(op.reduce_sum(keep, _integers(1), False), _number(1e-9)))


class _Builder:
    """Builds the graph of one encoder."""

    def __init__(self, encoder: Encoder, int8: bool) -> None:
        from openvino import opset13

        self.op: Any = opset13
        self.encoder = encoder
        self.int8 = int8
        self.hidden = len(encoder.norm.scale)

    def model(self) -> Any:
        """Return the graph as a model of OpenVINO."""
        import openvino as ov

        op, encoder = self.op, self.encoder
        ids = op.parameter([-1, -1], np.int64, name="input_ids")
        mask = op.parameter([-1, -1], np.int64, name="attention_mask")
        bias = self.attention_bias(mask)
        states = self.embeddings(ids)
        for layer in encoder.layers:
            attended = self.dense(self.attention(states, layer, bias), layer.attended)
            states = self.normalised(op.add(attended, states), layer.attended_norm)
            inner = op.gelu(self.dense(states, layer.inner), "ERF")
            states = self.normalised(op.add(self.dense(inner, layer.outer), states), layer.outer_norm)
        vectors = pooled(states, mask, encoder.pooling)
        for last, tanh in encoder.last:
            vectors = self.dense(vectors, last)
            vectors = op.tanh(vectors) if tanh else vectors
        model = ov.Model([op.result(vectors), op.result(states)], [ids, mask], "encoder")
        for given in (ids, mask):
            given.output(0).get_tensor().set_names({given.friendly_name})
        return model

    def embeddings(self, ids: Node) -> Node:
        """Return the sum of the vectors of the tokens and of their positions, normalised."""
        op = self.op
        words = op.gather(self.matrix(self.encoder.words), ids, _integer(0))
        places = op.range(_integer(0), self.length(ids), _integer(1), "i64")
        positions = op.gather(_constant(self.encoder.positions), places, _integer(0))
        return self.normalised(op.add(words, positions), self.encoder.norm)

    def attention_bias(self, mask: Node) -> Node:
        """Return what is added to the products of queries and keys: a number so low that padding gets no attention, and
        the bias for the distance of the tokens in MPNet. The shape is (texts, 1 or heads, tokens, tokens)."""
        op = self.op
        allowed = op.convert(op.unsqueeze(op.unsqueeze(mask, _integer(1)), _integer(1)), "f32")
        padding = op.multiply(op.subtract(_number(1), allowed), _number(-65504.0))  # the lowest number of float16
        length = op.unsqueeze(self.length(mask), _integer(0))
        texts = op.gather(op.shape_of(mask, "i64"), _integers(0), _integer(0))
        padding = op.broadcast(padding, op.concat([texts, _integers(1), length, length], 0))
        if self.encoder.distances is None:
            return padding
        table = _distance_biases(self.encoder.distances, len(self.encoder.positions))
        places = op.range(_integer(0), self.length(mask), _integer(1), "i64")
        distance = op.subtract(op.unsqueeze(places, _integer(0)), op.unsqueeze(places, _integer(1)))
        rows = op.add(distance, _integer(len(self.encoder.positions) - 1))
        biases = op.transpose(op.gather(_constant(table), rows, _integer(0)), _integers(2, 0, 1))
        return op.add(padding, op.unsqueeze(biases, _integer(0)))

    def attention(self, states: Node, layer: Layer, bias: Node) -> Node:
        """Return the scaled dot-product attention of all heads, side by side."""
        op, heads = self.op, self.encoder.heads
        split, merge = _integers(0, 0, heads, self.hidden // heads), _integers(0, 0, self.hidden)
        swap = _integers(0, 2, 1, 3)
        query, key, value = (
            op.transpose(op.reshape(self.dense(states, each), split, True), swap)
            for each in (layer.query, layer.key, layer.value)
        )
        found = op.scaled_dot_product_attention(query, key, value, bias)
        return op.reshape(op.transpose(found, swap), merge, True)

    def normalised(self, states: Node, norm: Norm) -> Node:
        """Return the states after a layer normalisation."""
        op = self.op
        states = op.mvn(states, _integers(-1), True, self.encoder.epsilon, "INSIDE_SQRT")
        return op.add(op.multiply(states, _constant(norm.scale)), _constant(norm.shift))

    def dense(self, states: Node, dense: Dense) -> Node:
        return self.op.add(self.op.matmul(states, self.matrix(dense.weight), False, True), _constant(dense.bias))

    def matrix(self, weight: Weight) -> Node:
        """Return a matrix in float32. OpenVINO keeps the rounded numbers, and multiplies them as they are."""
        import openvino as ov

        op = self.op
        if isinstance(weight, FourBits):
            rows, blocks = weight.scales.shape
            packed = ov.Tensor(
                np.ascontiguousarray(weight.nibbles).reshape(-1), ov.Shape([rows, blocks, BLOCK]), ov.Type.u4
            )
            numbers = op.subtract(
                op.convert(op.constant(packed, shared_memory=False), "f32"),
                op.convert(_constant(np.array([[[8]]], np.uint8)), "f32"),
            )
            scales = _constant(weight.scales.astype(np.float32)[:, :, None])
            return op.reshape(op.multiply(numbers, scales), _integers(rows, blocks * BLOCK), False)
        if not self.int8:
            return _constant(weight)
        scale = np.maximum(np.abs(weight).max(axis=1, keepdims=True), 1e-12).astype(np.float32) / 127
        return op.multiply(op.convert(_constant(np.rint(weight / scale).astype(np.int8)), "f32"), _constant(scale))

    def length(self, given: Node) -> Node:
        """Return the number of tokens, padding included."""
        return self.op.gather(self.op.shape_of(given, "i64"), _integer(1), _integer(0))


def _distance_biases(biases: Array, most: int) -> Array:
    """Return the attention biases of MPNet for each distance from 1 - `most` to `most` - 1, in order. Distances share
    buckets, as in T5 (Raffel et al., 2020): half of the buckets are for one direction; the nearest distances have a
    bucket of their own, and farther ones share buckets whose widths grow, up to a distance of 128."""
    half = len(biases) // 2
    exact = half // 2
    distance = np.arange(1 - most, most)
    far = np.abs(distance)
    share = np.log(np.maximum(far, 1) / exact) / math.log(128 / exact)
    bucket = np.where(far < exact, far, np.minimum(exact + (share * (half - exact)).astype(np.int64), half - 1))
    return np.ascontiguousarray(biases[bucket + np.where(distance > 0, half, 0)], dtype=np.float32)


def _constant(values: Array) -> Node:
    """Return a constant of the graph. It shares the memory of the array if the array has no gaps."""
    from openvino import opset13 as op

    values = np.asarray(values, np.float32) if values.dtype.kind == "f" else values
    return op.constant(np.require(values, requirements=["C", "A", "W"]), shared_memory=True)


def _integer(value: int) -> Node:
    from openvino import opset13 as op

    return op.constant(np.int64(value))


def _integers(*values: int) -> Node:
    from openvino import opset13 as op

    return op.constant(np.array(values, np.int64))


def _number(value: float) -> Node:
    from openvino import opset13 as op

    return op.constant(np.float32(value))
