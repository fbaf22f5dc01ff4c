"""Development sets: folders with `corpus.jsonl` and `queries.jsonl`, in a folder beside the repository."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("AGENTFORMER_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@dataclass(frozen=True)
class Row:
    """A passage or a question; `relevant` has the ids of the passages that answer it."""

    id: str
    text: str
    relevant: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    name: str
    corpus: list[Row]
    queries: list[Row]


def load(name: str) -> DataSet:
    """Return a set by its folder's name, such as `squad_fi` or `xquad/en`. Raises `FileNotFoundError`."""
    folder = DATA / name
    return DataSet(name, list(_rows(folder / "corpus.jsonl")), list(_rows(folder / "queries.jsonl")))


def _rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            values = json.loads(line)
            yield Row(values["id"], values["text"], tuple(values.get("relevant", ())), values.get("meta", {}))
