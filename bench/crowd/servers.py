"""The servers that are compared, and their stores of the same entries."""

from __future__ import annotations

import itertools
import json
import math
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

OURS, PEERS = "ours", ("txtai", "chroma")
_FILL = Path(__file__).with_name("fill.py")
_STARTED = re.compile(r"http://[\w.:\[\]-]+")
_NOT_OURS = ("OMP_NUM_THREADS", "AGENTFORMER_DATA")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "ANONYMIZED_TELEMETRY": "False"}
_PORTS = {"txtai": "18765", "chroma": "18766"}


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
        return folder / self.name.partition(",")[0]

    def command(self, store: Path, embedder: str) -> list[str]:
        """Return the command that starts it."""
        if self.kind == "txtai":
            return [self.python, "-m", "uvicorn", "txtai.api:app", "--port", _PORTS["txtai"], "--log-level", "info"]
        if self.kind == "chroma":
            own = Path(self.python).with_name("chroma")
            return [str(own), "run", "--path", str(store / "index"), "--port", _PORTS["chroma"]]
        where = ["--index-dir", str(store / "indexes"), "--upload-dir", str(store / "uploads"), "--embedder", embedder]
        return [self.python, "-m", "agentformer.cli", "serve", "--port", "0", "--workers", str(self.workers), *where]

    def environ(self) -> dict[str, str]:
        """Return the environment of its process: without settings of threads, and offline."""
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        return {**kept, **_OFFLINE, "PYTHONPATH": str(self.tree)}


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
        """Return the proportional set size of all processes in MB: a page that several processes map counts once.
        Return NaN if the server has ended."""
        if self.process.poll() is not None:
            return math.nan
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
    environ = {**one.environ(), "CONFIG": str(store / "app.yml")}
    process = subprocess.Popen(
        one.command(store, embedder),
        cwd=one.tree,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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
    """Return what the clients measured, in a process of their own. Raises `RuntimeError` with their error."""
    command = [one.python, "-m", "bench.crowd.client", url, one.kind, str(clients), str(seconds), str(offset)]
    done = subprocess.run(command, env={**os.environ, **_OFFLINE}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{one.name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    told: Values = json.loads(done.stdout)
    return told
