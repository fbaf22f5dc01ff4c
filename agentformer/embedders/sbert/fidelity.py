"""Fixed texts that tell whether two ways to compute a model compute the same one."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from agentformer.embedders.sbert.runtime import Read
from agentformer.types import Matrix, Vector

PROBE = "The quick brown fox, 42 työkalua på svenska: 日本語."
# Cosine, on average over the probes, from which on vectors of two runtimes may meet in one index.
SAME_SPACE = 0.9999
# Between an int8 model and itself on another processor: rounding differs, a swapped model is far below.
SAME_INT8 = 0.99
# Of int8 to fp32: below it the model does not bear quantisation, whatever its retrieval is on some set.
LEAST_INT8 = 0.97
QUICK = 4  # probes that are tried at every load; the first ones, and short

PROBES = (
    PROBE,
    "Who holds the keys of the harbour?",
    "Kuka säilyttää sataman avaimia, ja missä ne ovat yöllä?",
    "Invoice 2024-117: 1 234,50 € due on 3 March; see https://example.org/terms?id=7#fees.",
    "x",
    "Nyckeln ligger hos hamnkaptenen. Fyren släcks klockan sex, och båten går först när dimman har lättat.",
    "灯台の鍵は港長が保管しています。夜は事務所の金庫に入れてあります。",
    "Der Leuchtturmwärter übergab die Schlüssel dem Hafenmeister, nachdem der Sturm die Mole beschädigt hatte.",
    "def keys(harbour):\n    return {door: lock.number for door, lock in harbour.doors.items() if lock.closed}",
    "The harbour master keeps the keys of the lighthouse in a locked cabinet beside the window, and signs each of them "
    "out in a book that goes back to 1911. Visitors who want to climb the tower ask at the office, leave a name and a "
    "deposit, and bring the key back before the evening boat. In winter the stairs are closed after the first frost; "
    "whoever needs to reach the lamp then goes with two others and a rope. The rules have been changed three times, "
    "the last time when a storm took the roof of the boathouse and the spare keys with it.",
)


def fingerprint(probe: Vector) -> str:
    """What a space keeps of the embedding of `PROBE`."""
    return base64.b64encode(probe.astype("<f2").tobytes()).decode()


def unit(rows: Matrix) -> Matrix:
    """Rows of length 1, divided in fp32: what bf16 calls a unit row is up to a thousandth longer."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return np.asarray(rows / lengths, dtype=np.float32)


def fitting(reads: Sequence[Read], longest: int) -> list[Read]:
    """Those that a model of so many tokens reads whole."""
    return [read for read in reads if read.length <= longest]


def agreement(rows: Matrix, reference: Matrix) -> float:
    """Mean cosine of the rows of two runtimes; -1.0 where they have no common shape or are not finite."""
    if rows.shape != reference.shape or not np.isfinite(rows).all():
        return -1.0
    return float((unit(rows) * unit(reference)).sum(axis=1).mean())
