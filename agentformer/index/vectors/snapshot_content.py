"""The content of a snapshot of the vector index."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.vectors.flat import Flat, IntArray, Rows
from agentformer.index.vectors.ivf import Ivf, Tuning
from agentformer.index.vectors.lists import ListCodes, Lists, all_joined
from agentformer.index.vectors.outliers import OutlierCodes, Outliers


class ImageCodes(NamedTuple):
    """The codes of the rows that are written to a snapshot: the number of rows of each list, and a function that yields
    the rows of each list."""

    sizes: IntArray
    read: Callable[[], Iterator[ListCodes]]


class Image(NamedTuple):
    """The content of a snapshot file: the FAISS index, its rows (the window, entry and vector number of each), and its
    state (`about`)."""

    index: Any  # a FAISS index
    rows: Rows
    lists: NDArray[np.int32] | None  # list number of each position; None for an exact index
    about: dict[str, Any]  # JSON values
    outliers: OutlierCodes | None = None
    offsets: NDArray[np.int32] | None = None  # offset of each position in its list; set if a trained index was read
    mapped: bool = False  # whether the lists of `index` are mapped from a file
    codes: ImageCodes | None = None  # the codes to write; only for a trained index


def image_of(stage: Flat | Ivf, rows: Rows) -> Image:
    """Return the content of a snapshot of an index, whose vectors are in `stage`. `rows` contains the numbers of its
    rows."""
    if isinstance(stage, Ivf):
        parts = list(stage.parts)
        live = rows.entries >= 0 if any(part.fixed for part in parts) else None
        codes = ImageCodes(stage.sizes(live), lambda: all_joined(parts, live))
        about, outliers = about_of(stage, rows), stage.outliers.codes()
        return Image(stage.index, rows, stage.list_of()[: rows.size], about, outliers, codes=codes)
    return Image(stage.index, rows, None, about_of(stage, rows))


def about_of(stage: Flat | Ivf, rows: Rows) -> dict[str, Any]:
    """Return the state of the index as JSON values, for the description of a snapshot."""
    about: dict[str, Any] = {"stage": stage.name, "rows": rows.live, "dead": rows.dead, "recall": None}
    if isinstance(stage, Ivf):
        trained = {"trained_rows": stage.trained_rows, "trained_at": stage.trained_at}
        about |= {"mapped": stage.mapped, "lists": stage.lists, **dataclasses.asdict(stage.tuning), **trained}
    return about


def stage_of(image: Image, exact_rows: int) -> Flat | Ivf:
    """Create the stage (exact or trained) of an index that was read from a snapshot. In a scope with at most
    `exact_rows` rows, a trained stage compares all rows."""
    dimension = int(image.index.d)
    if image.lists is None or image.offsets is None:
        return Flat(dimension, image.index)
    about = image.about
    tuning = Tuning(about["probes"], about["candidates"], about["recall"], about["queries"])
    parts = [Lists(image.index, 0, np.stack([image.lists, image.offsets]), mapped=image.mapped)]
    outliers = Outliers(dimension, image.outliers)
    return Ivf(parts, about["trained_rows"], about["trained_at"], exact_rows, tuning, outliers)
