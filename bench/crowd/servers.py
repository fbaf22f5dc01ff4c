"""The servers that are compared, and their stores of the same entries."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.speed.timing import Values
from bench.tail import sample_entries

OURS, TXTAI = "ours", "txtai"
_FILL = Path(__file__).with_name("fill.py")
_STARTED = re.compile(r"http://[\w.:\[\]-]+")
_NOT_OURS = ("OMP_NUM_THREADS", "AGENTFORMER_DATA")
_TXTAI_PORT = "18765"


@dataclass(frozen=True)
class Server:
    """A server. `tree` is the checkout whose code it runs, and `python` the interpreter."""

    name: str
    kind: str
    tree: Path
    workers: int
    python: str = sys.executable

    def store(self, folder: Path) -> Path:
        """Return the folder of its store."""
        return folder / (self.name.partition(",")[0] if self.kind != "txtai" else TXTAI)

    def environ(self) -> dict[str, str]:
        """Return the environment of its process: without settings of threads, and offline."""
        kept = {
            name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "AGENTFORMER_DATA")
        }
        return {**kept, "PYTHONPATH": str(self.tree), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass
class Running:
    """A server that runs."""

    url: str
    process: subprocess.Popen[str]

    def processes(self) -> list[int]:
        """Return the server's process and its children."""
        found = [self.process.pid]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == self.process.pid:
                    found.append(int(stat.parent.name))
        return found

    def processor_seconds(self) -> float:
        ticks = 0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the proportional set size of all processes in MB: a page that several processes map counts once."""
        lines = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes()]
        return sum(int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) for text in lines) / 1024


def stores(folder: Path, servers: Sequence[Server], count: int, embedder: str) -> None:
    """Fill the stores that are missing, with the code of each server."""
    for one in servers:
        if (made := one.store(folder) / "made").exists():
            continue
        made.parent.mkdir(parents=True, exist_ok=True)
        entries = made.parent / "entries.jsonl"
        with entries.open("w", encoding="utf-8") as lines:
            for entry in itertools.islice(sample_entries(count), count):
                at = entry.occurred_at.isoformat() if entry.occurred_at else None
                said = {name: getattr(entry, name) for name in ("content", "kind", "tier", "session_id", "speaker")}
                lines.write(json.dumps({**said, "occurred_at": at}) + "\n")
        command = [one.python, str(_FILL), one.kind, str(made.parent), str(entries), embedder]
        subprocess.run(command, cwd=one.tree, env=one.environ(), check=True)
        entries.unlink()
        made.touch()


@contextmanager
def running(one: Server, folder: Path, embedder: str) -> Iterator[Running]:
    """Start a server, and end it."""
    store = one.store(folder)
    environ = one.environ()
    if one.kind == "txtai":
        environ["CONFIG"] = str(store / "app.yml")
        command = [one.python, "-m", "uvicorn", "txtai.api:app", "--port", _TXTAI_PORT, "--log-level", "info"]
    else:
        where = ["--index-dir", str(store / "indexes"), "--upload-dir", str(store / "uploads"), "--embedder", embedder]
        command = [one.python, "-m", "agentformer.cli", "serve", "--port", "0", "--workers", str(one.workers), *where]
    process = subprocess.Popen(
        command, cwd=one.tree, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := _STARTED.search(line):
                break
        else:
            raise RuntimeError("".join(lines[-20:]))
        threading.Thread(target=process.stdout.read, daemon=True).start()  # nothing else reads the log
        yield Running(found[0], process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def ask(one: Server, url: str, clients: int, seconds: float, offset: int) -> Values:
    """Return what the clients measured, in a process of their own."""
    command = [sys.executable, "-m", "bench.crowd.client", url, one.kind, str(clients), str(seconds), str(offset)]
    told: Values = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return told
