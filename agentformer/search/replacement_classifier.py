"""The classifier that decides whether a newer statement replaces an older one. Its features are those of
`text.facts.replacement_features`, and for the packaged encoders also the vectors of both statements: such vectors show
whether a text reports a change or a present state, or a wish, a question, the past, or something about another
person.

The weights are in `replacement_weights`, one file for each encoder, and one without vectors, for all other embedders
and for statements without a vector. `python -m bench.facts_fit --write` writes them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.text.facts.replacement_features import FEATURES
from agentformer.types import Matrix, Vector

Floats = NDArray[np.floating[Any]]
HEADS = {"minilm": "all-MiniLM-L6-v2", "multilingual": "multilingual-e5-small"}  # name of an encoder -> its model
LEAST = 0.2  # least score of a replacement; of the pairs that are left out of the fit, .9 of those above it are right
_FOLDER = Path(__file__).with_name("replacement_weights")
LEAST_BY_VECTORS = -1.5  # pairs with a lower score by their vectors are no replacement, whatever their words are
NEAR_COSINE = 0.2  # cosine of centred vectors; below it, statements without a common word are not compared
PRODUCTS = np.triu_indices(len(FEATURES), 1)  # the two features of each product
_LOW_COSINE = 0.4  # below this cosine, two statements are hardly about the same thing


class Weights(NamedTuple):
    """The weights of the features. `mean` is the mean of the vectors of an encoder; it has 0 elements if no vectors are
    used. `products` are the weights of the products of two plain features."""

    mean: Vector
    plain: Floats
    products: Floats
    cosines: Floats
    newer: Floats
    older: Floats
    distance: Floats
    constant: float

    @property
    def vectors(self) -> bool:
        """True if vectors are used."""
        return len(self.mean) > 0

    @classmethod
    def of(cls, mean: Vector, values: Floats) -> Weights:
        """Split the weights of all features, in the order of the fields."""
        sizes = [len(FEATURES), len(PRODUCTS[0]), *([2, *[len(mean)] * 3] if len(mean) else [0] * 4)]
        plain, products, cosines, newer, older, distance = np.split(values[:-1], np.cumsum(sizes)[:-1])
        matrix = np.zeros((len(FEATURES), len(FEATURES)), np.float32)
        matrix[PRODUCTS] = products
        return cls(mean, plain, matrix, cosines, newer, older, distance, float(values[-1]))

    def write(self, name: str) -> None:
        """Write the weights for an encoder, or those without vectors if the name is empty, in half precision."""
        rest = self.cosines, self.newer, self.older, self.distance, [self.constant]
        values = np.concatenate([self.mean, self.plain, self.products[PRODUCTS], *rest])
        np.save(_FOLDER / f"{name or 'plain'}.npy", values.astype(np.float16))

    def by_words(self, plain: Floats) -> Floats:
        """Return the part of the scores that the words of pairs of statements give. The score of a pair is the log odds
        that the newer one replaces the older one. `plain` are the features, float[n, len(FEATURES)]."""
        scores: Floats = plain @ self.plain + ((plain @ self.products) * plain).sum(1) + self.constant
        return scores

    def by_vectors(self, older: Matrix, newer: Matrix) -> Floats:
        """Return the other part of the scores. `older` and `newer` are centred vectors, float32[n, dimension]."""
        scores: Floats = cosine_features(older, newer) @ self.cosines + newer @ self.newer + older @ self.older
        scores += np.abs(older - newer) @ self.distance
        return scores


@cache
def weights(name: str) -> Weights:
    """Return the weights for an encoder, or those without vectors if the name is empty."""
    values = np.load(_FOLDER / f"{name or 'plain'}.npy", allow_pickle=False).astype(np.float32)
    size = (len(values) - len(FEATURES) - len(PRODUCTS[0]) - 3) // 4 if name else 0
    return Weights.of(values[:size], values[size:])


def weights_of(encoder: tuple[str, str] | None) -> Weights:
    """Return the weights for the vectors of an encoder (its provider and its model), or those without vectors."""
    return weights(encoder[0] if encoder and HEADS.get(encoder[0]) == encoder[1] else "")


def centred(rows: Matrix, mean: Vector) -> Matrix:
    """Return vectors minus the mean vector of the encoder, normalised. They show differences that are small in the
    space of an encoder whose vectors all have one direction in common."""
    moved = rows - mean
    directions: Matrix = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-6)
    return directions


def cosine_features(older: Matrix, newer: Matrix) -> Floats:
    """Return the features of the cosines of pairs of centred vectors, float[n, 2]."""
    cosines = np.einsum("ij,ij->i", older, newer)
    return np.stack([cosines, np.maximum(0.0, _LOW_COSINE - cosines) * 10], axis=1)
