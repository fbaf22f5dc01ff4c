"""Measured processes: one at a time, offline, without telemetry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.speed.timing import STARTED, Values

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 3600.0
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "ANONYMIZED_TELEMETRY": "False",  # Chroma
    "SCARF_NO_ANALYTICS": "true",
    "LANGCHAIN_TRACING_V2": "false",
    "TOKENIZERS_PARALLELISM": "true",  # the value without forks; set to avoid warnings
    "TQDM_DISABLE": "1",
}

_OURS = ("BENCH_CACHE", "AGENTFORMER_DATA")


def run(command: Sequence[str], environ: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> Values:
    """Run a command in the root of the repository. Return the JSON of its last line, or `{"error": reason}`, also if
    it takes more than `seconds`."""
    try:
        done = subprocess.run(
            list(command), cwd=ROOT, env=_environment(environ), capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {seconds:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": _why(done.stderr, done.returncode)}
    values: Values = json.loads(lines[-1])
    return values


def wall(command: Sequence[str], environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds from the start of a process to its end. Raises `RuntimeError` if it fails."""
    env = _environment(environ)
    started = time.perf_counter()
    done = subprocess.run(list(command), cwd=ROOT, env=env, capture_output=True, text=True, timeout=_SECONDS)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(_why(done.stderr, done.returncode))
    return seconds


class Worker:
    """A process that answers lines of JSON, so that several can alternate."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env=_environment(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **question: Any) -> Values:
        """Return the reply; `{"error": reason}` once the process has died."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the process ended with code {self._process.wait()}"}
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print other lines
                values: Values = json.loads(line)
                return values
        return {"error": f"the process ended with code {self._process.wait()}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def python(module: str, *arguments: str, interpreter: str | Path = sys.executable) -> list[str]:
    """Return the command that runs a module of this repository."""
    return [str(interpreter), "-m", module, *arguments]


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of this process without settings that would change the measurement. Python caches
    compiled modules, as for an installed package."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AGENTFORMER_") or name in _OURS}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**own, **_QUIET, **(extra or {}), STARTED: repr(time.time())}


def _why(stderr: str, code: int) -> str:
    """Return the last line with content."""
    lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
    return " ".join((lines[-1] if lines else f"exit code {code}").split())[:300]
