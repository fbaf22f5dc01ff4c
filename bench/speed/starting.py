"""Seconds from the start of a command to its end; the commands alternate."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from bench.speed import passages
from bench.speed.children import python, run, wall
from bench.speed.driving import PARTS
from bench.speed.timing import WARMING, Values
from bench.speed.variants import FAST, INT8, TORCH, Variant, missing

_TIMED = "import json, time; t = time.perf_counter(); {}; print(json.dumps({{'seconds': time.perf_counter() - t}}))"
_IMPORT = _TIMED.format("import agentformer")
_CONNECT = _TIMED.format("from agentformer import connect")
_QUESTION = "Who was the first to reach it?"

Say = Callable[[str], None]


def compare(work: Path, repeats: int, count: int, say: Say) -> dict[str, Values]:
    """Return the sorted seconds of each command, over a store of `count` passages for each runtime."""
    passages.write(work, count, WARMING + PARTS)
    times: dict[str, list[float]] = {}
    told: dict[str, Values] = {}
    stores: dict[Variant, Path] = {}
    for variant in (TORCH, FAST, INT8):
        folder = work / f"start-{variant.name.replace(' ', '-')}"
        reason = missing(variant)
        if not reason and not (folder / "indexes").exists():
            made = run(python("bench.speed.ours", "ingest", str(work), str(folder), variant.name))
            reason = made.get("error", "")
        if reason:
            told[f"search, {variant.name}"] = {"error": reason}
        else:
            stores[variant] = folder
    for number in range(repeats):
        say(f"  round {number + 1} of {repeats}")
        for name, measure in _commands(stores).items():
            times.setdefault(name, []).append(measure())
    return told | {
        name: {"seconds": sorted(values), "p50": statistics.median(values)} for name, values in times.items()
    }


def _commands(stores: dict[Variant, Path]) -> dict[str, Callable[[], float]]:
    """Return the measured commands by name."""
    plain = next(iter(stores.items()))
    commands: dict[str, Callable[[], float]] = {
        "python, nothing else": lambda: wall([sys.executable, "-c", "pass"]),
        "import agentformer": lambda: float(run([sys.executable, "-c", _IMPORT])["seconds"]),
        "from agentformer import connect": lambda: float(run([sys.executable, "-c", _CONNECT])["seconds"]),
        "--help": lambda: wall([*_program(), "--help"]),
        "list": lambda: wall(_command("list", plain[1]), plain[0].environ()),
        "status": lambda: wall(_command("status", plain[1]), plain[0].environ()),
    }
    for variant, folder in stores.items():
        commands[f"search, {variant.name}"] = lambda v=variant, f=folder: wall(
            _command("search", f, _QUESTION), v.environ()
        )
    return commands


def _command(name: str, folder: Path, *arguments: str) -> list[str]:
    places = ["--index-dir", str(folder / "indexes"), "--upload-dir", str(folder / "uploads")]
    return [*_program(), name, *arguments, *places]


def _program() -> list[str]:
    """Return the installed command."""
    beside = Path(sys.executable).with_name("agentformer")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "agentformer.cli"]
