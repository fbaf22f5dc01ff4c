"""Install AgentFormer as a user does, from an empty home and with empty caches, and ask a first question.

    python scripts/test_install.py [clone] [wheel] [uvx]

`wheel` builds the wheel and the sdist, checks both, and installs the wheel into an empty environment of each Python
from 3.11 to 3.14 that this machine has. `uvx` also runs `uvx --from CLONE agentformer mcp` and `uv tool install`. For
each way, the seconds and the size of the environment are printed. A way that needs a missing program is skipped with a
reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("", "[multilingual]", "[all]")
NOTE = "The caretaker holds the keys. They hang in the blue cupboard.\n\nTea is served at four."
QUESTION = "Who has the keys?"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test_install", "version": "1"},
    },
}
BOUND = 900.0  # seconds for one program


class Home:
    """An empty home with empty caches, and a working folder with a note."""

    def __init__(self, folder: Path) -> None:
        self.work, self.home = folder / "work", folder / "home"
        self.work.mkdir(parents=True)
        self.home.mkdir()
        (self.work / "notes.txt").write_text(NOTE, encoding="utf-8")
        removed = ("AGENTFORMER_", "XDG_", "UV_", "PIP_CACHE", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
        self.environ = {**kept, "HOME": str(self.home), "TMPDIR": str(folder)}
        for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR"):
            self.environ[name] = str(self.home / ".cache" / name.partition("_")[0].lower())

    def run(self, *words: str | Path, given: str = "", folder: Path | None = None) -> str:
        """Return the output of a program. Ends this script if the program fails."""
        line = [*map(str, words)]
        done = subprocess.run(
            line, cwd=folder or self.work, env=self.environ, input=given, capture_output=True, text=True, timeout=BOUND
        )
        if done.returncode:
            sys.exit(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def answer(self, *program: str | Path) -> None:
        """Add the note and ask a question about it. Ends this script if the note is not cited."""
        self.run(*program, "ingest", "notes.txt")
        answer = json.loads(self.run(*program, "ask", QUESTION, "--json"))
        if not answer["citations"] or "caretaker" not in answer["citations"][0]["quote"]:
            sys.exit(f"the first answer does not cite the note: {answer}")


def size(folder: Path) -> float:
    """Return the megabytes of the files of a folder. A file with several hard links counts once."""
    seen = {(stat.st_dev, stat.st_ino): stat.st_size for path in folder.rglob("*") for stat in [path.lstat()]}
    return sum(seen.values()) / 1e6


def report(way: str, begun: float, folder: Path, home: Home) -> None:
    caches = home.home / ".cache"
    print(f"{way:<34} {time.monotonic() - begun:6.1f} s {size(folder):7.0f} MB {size(caches):7.0f} MB", flush=True)


def clone(folder: Path) -> None:
    """`git clone` and `make demo`, which ends with ten answers."""
    home = Home(folder)
    begun = time.monotonic()
    home.run("git", "clone", "--quiet", ROOT, "agentformer")
    checkout = home.work / "agentformer"
    home.run("make", "demo", folder=checkout)
    report("clone, make demo", begun, checkout / ".venv", home)


def wheel(folder: Path) -> None:
    """The wheel in an empty environment of each Python, with and without extras."""
    home = Home(folder / "build")
    tools = folder / "tools"
    home.run(sys.executable, "-m", "venv", tools)
    home.run(program(tools, "pip"), "install", "--quiet", "build", "twine")
    home.run("git", "clone", "--quiet", ROOT, "clone")
    home.run(program(tools, "python"), "-m", "build", "--outdir", folder / "dist", home.work / "clone")
    built = sorted((folder / "dist").iterdir())
    home.run(program(tools, "twine"), "check", "--strict", *built)
    print("built and checked:", ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in built))
    for version in PYTHONS:
        if not (python := found(version)):
            print(f"Python {version}: skipped, since this machine does not have it")
            continue
        for extra in EXTRAS if version == PYTHONS[0] else EXTRAS[1:2]:
            home = Home(folder / f"{version}{extra}")
            begun = time.monotonic()
            home.run(python, "-m", "venv", "env")
            home.run(program(home.work / "env", "pip"), "install", "--quiet", f"{built[0]}{extra}")
            home.answer(program(home.work / "env", "agentformer"))
            report(f"wheel{extra}, Python {version}", begun, home.work / "env", home)


def uvx(folder: Path) -> None:
    """uvx and uv tool, from a clone."""
    if not (uv := shutil.which("uv")):
        print("uvx: skipped, since uv is not installed")
        return
    home = Home(folder)
    home.run("git", "clone", "--quiet", ROOT, "clone")
    checkout = home.work / "clone"
    begun = time.monotonic()
    home.answer(uv, "tool", "run", "--quiet", "--from", f"{checkout}[multilingual]", "agentformer")
    report("uvx --from '.[multilingual]'", begun, home.home / ".cache" / "uv", home)
    begun = time.monotonic()
    reply = home.run(
        uv, "tool", "run", "--quiet", "--from", checkout, "agentformer", "mcp", given=json.dumps(HELLO) + "\n"
    )
    if json.loads(reply.splitlines()[0])["result"]["serverInfo"]["name"] != "agentformer":
        sys.exit(f"the MCP server did not answer: {reply}")
    report("uvx --from . agentformer mcp", begun, home.home / ".cache" / "uv", home)
    home.run(uv, "tool", "install", "--quiet", ".", folder=checkout)
    tool = home.home / ".local"
    home.answer(tool / "bin" / "agentformer")
    report("uv tool install .", begun, tool / "share" / "uv" / "tools", home)


def program(environment: Path, name: str) -> Path:
    return environment / ("Scripts" if os.name == "nt" else "bin") / name


def found(version: str) -> str:
    """Return the path of a Python of this version, or "" if there is none. Those of pyenv and uv are found too."""
    candidates = [shutil.which(f"python{version}") or ""]
    candidates += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if uv := shutil.which("uv"):
        asked = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, cwd="/")
        candidates.append(asked.stdout.strip())
    for path in filter(None, candidates):
        done = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if done.stdout.strip() == version:
            return path
    return ""


WAYS: dict[str, Callable[[Path], None]] = {"wheel": wheel, "clone": clone, "uvx": uvx}


def main() -> None:
    """Run the ways that the command line names, or all."""
    asked = sys.argv[1:] or [*WAYS]
    print(f"{'way':<34} {'time':>8} {'environment':>10} {'caches':>10}")
    for name in asked:
        with tempfile.TemporaryDirectory(prefix="agentformer-install-") as folder:
            WAYS[name](Path(folder))


if __name__ == "__main__":
    main()
