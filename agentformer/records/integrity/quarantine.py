"""What a repair takes out of the records is kept in a file beside them: nothing is destroyed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer.errors import StoreFull
from agentformer.records.files import sync_folder


class Aside:
    """`damaged-DATE.jsonl`, made with the first row: one row a line, with its table, why it was set aside, and its
    columns as far as they could be read. Bytes that are no text stand as {"hex": "..."}. Only its owner can read it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"damaged-{datetime.now(UTC):%Y-%m-%d}.jsonl"
        self.rows = 0

    def keep(self, table: str, row: Mapping[str, Any], why: str) -> None:
        """Add a row; it has reached the disk when this returns. Raises `StoreFull`."""
        line = {"table": table, "why": why, "row": {name: _readable(value) for name, value in row.items()}}
        new = not self.path.exists()
        try:
            with open(self.path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreFull(
                f"{self.path} cannot be written ({error.strerror or error}), so nothing is taken out of the records; "
                "free space or check permissions"
            ) from error
        if new:
            sync_folder(self.path.parent)
        self.rows += 1


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    return value
