"""Stores of growing size: built once for each version of the code, cached, and measured in new processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.speed.children import python, run
from bench.speed.kept import cache, fingerprint
from bench.speed.timing import Values

SIZES = (10_000, 100_000, 1_000_000)
_OF = ("records", "index", "text", "memory")  # the folders that determine the files on disk
_MADE = "made.json"
_PIECE = 1 << 22
_SHARED = 1_000_000  # entries from which on the memory of two processes is measured
_BUILD_SECONDS = 6 * 3600.0

Say = Callable[[str], None]


def compare(sizes: Sequence[int], repeats: int, say: Say) -> dict[str, Values]:
    """Return by number of entries how the store was built, and the measurements of each turn. The sizes alternate."""
    folders = {size: folder_of(size) for size in sizes}
    told: dict[str, Values] = {}
    for size in sizes:
        told[str(size)] = {"made": made(size, say), "turns": []}
    for size in sizes:
        if size >= _SHARED and "error" not in told[str(size)]["made"]:
            say(f"  {size:,} entries, two processes")
            read(folders[size])
            told[str(size)]["shared"] = run(python("bench.speed.growth", "share", str(folders[size]), str(size)))
    for number in range(repeats):
        for size in sizes:
            if "error" in told[str(size)]["made"]:
                continue
            say(f"  {size:,} entries, round {number + 1} of {repeats}")
            read(folders[size])
            values = run(python("bench.speed.growth", "measure", str(folders[size]), str(size)))
            told[str(size)]["turns"].append(values)
            if "error" in values:
                say(f"    {values['error']}")
    return told


def folder_of(size: int) -> Path:
    """Return the folder of the store of this size, for this version of the code."""
    return cache() / f"store-{size}-{fingerprint(_OF)}"


def read(folder: Path) -> None:
    """Read all files once, so that they are in the system's cache: the disk is not measured. Of a store that does not
    fit, the indexes are read last."""
    for path in sorted((path for path in folder.rglob("*") if path.is_file()), key=_is_index):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(_PIECE):
                    pass


def _is_index(path: Path) -> bool:
    return "sqlite" not in path.name


def made(size: int, say: Say) -> Values:
    """Return how the store of this size was built, now or in an earlier run."""
    folder = folder_of(size)
    told = folder / _MADE
    if told.exists():
        say(f"  {size:,} entries: made by an earlier run")
        values: Values = json.loads(told.read_text(encoding="utf-8"))
        return {**values, "known": True}
    for former in cache().glob(f"store-{size}-*"):
        shutil.rmtree(former)  # of another version, or incomplete
    say(f"  {size:,} entries: being made")
    values = run(python("bench.speed.growth", "build", str(folder), str(size)), seconds=_BUILD_SECONDS)
    if "error" in values:
        say(f"    {values['error']}")
    else:
        told.write_text(json.dumps(values), encoding="utf-8")
        say(f"    {size / values['followed_s']:,.0f} entries/s until they are found")
    return values
