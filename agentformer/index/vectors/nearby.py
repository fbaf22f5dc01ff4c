"""The windows nearest to a query, before exact rescoring."""

from __future__ import annotations

from typing import NamedTuple

from agentformer.index.vectors import Near
from agentformer.types import Vector


class Nearby(NamedTuple):
    """Windows that the index holds to be nearest to a query, of at least as many entries as were asked for."""

    query: Vector
    limit: int
    near: Near
