"""A journal of measurements: a file with one line per configuration. A crash at any moment does not damage the journal.

The first line describes the passages, questions, model and version that the measurements depend on. If one of these has
changed, the journal starts empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from agentformer.errors import StoreFull
from agentformer.evaluation.optimizing.space import Configuration, key
from agentformer.records.files import read_file, write_atomically

Half = Literal["development", "test"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one configuration on one half.

    `ranks` has an item for each question, in order: the ranks of its relevant passages, counted from 1. The rank is
    None if a passage is not among the first ten. `seconds` is the total time. If a configuration cannot run on this
    machine, it has no ranks, and `skipped` is the reason. The journal does not store such a result, because the missing
    part may be installed later.
    """

    configuration: Configuration
    half: Half
    ranks: tuple[tuple[int | None, ...], ...]
    seconds: float
    skipped: str = ""


class Journal:
    """The measurements in a file. `fresh` is the reason why the journal starts empty, or "" if it continues. Raises
    `StoreFull` if the file cannot be written."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self._measurements: dict[tuple[str, Half], Measured] = {}
        about = json.loads(json.dumps(about))
        self.reset_reason = ""
        try:
            header, measured, whole = _read(path)
            if header != about:
                self.reset_reason = _changed(header, about) if header else "nothing was measured before"
                write_atomically(path, _line(about))
            else:
                self._measurements = {(key(one.configuration), one.half): one for one in measured}
                os.truncate(path, whole)  # a line that was incomplete when the process ended
            self._file = path.open("ab")
        except OSError as error:
            raise StoreFull(
                f"{path} cannot be written ({error.strerror or error}); choose another folder with --work"
            ) from error

    def find(self, configuration: Configuration, half: Half) -> Measured | None:
        """Return the measurement of a configuration on a half, or None."""
        return self._measurements.get((key(configuration), half))

    def add(self, measured: Measured) -> None:
        """Append a measurement. It is on disk when this method returns."""
        self._measurements[key(measured.configuration), measured.half] = measured
        try:
            self._file.write(_line(_as_json(measured)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be written ({error.strerror or error})") from error

    def __iter__(self) -> Iterator[Measured]:
        """Iterate over the measurements in the order in which they were made."""
        return iter(self._measurements.values())

    def __len__(self) -> int:
        return len(self._measurements)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _read(path: Path) -> tuple[dict[str, Any], Sequence[Measured], int]:
    """Return the header, the measurements, and the length of both in bytes. If the file is missing or not a journal,
    return nothing."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return {}, (), 0
    header: dict[str, Any] = {}
    measured: list[Measured] = []
    whole = 0
    for number, line in enumerate(data.splitlines(keepends=True)):
        try:
            given = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(given, dict):
                break
            if number:
                measured.append(_measured(given))
            else:
                header = given
        except (ValueError, KeyError, TypeError):
            break
        whole += len(line)
    return header, measured, whole


def _as_json(measured: Measured) -> dict[str, Any]:
    return {
        "configuration": dict(measured.configuration),
        "half": measured.half,
        "seconds": round(measured.seconds, 3),
        "ranks": measured.ranks,
    }


def _measured(given: Mapping[str, Any]) -> Measured:
    ranks = tuple(
        tuple(None if rank is None else int(rank) for rank in question_ranks) for question_ranks in given["ranks"]
    )
    return Measured(given["configuration"], given["half"], ranks, float(given["seconds"]))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _changed(header: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*header, *about} if header.get(name) != about.get(name))
    return f"changed since: {', '.join(names)}"
