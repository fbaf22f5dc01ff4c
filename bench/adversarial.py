"""Processor time of hostile texts on every path: `python -m bench.adversarial [--sizes N ...] [--families NAME ...]`.

Each family repeats one piece. A cell of the table is the processor time in seconds of one operation, with the processes
that it starts. A cell above the limit is marked, and an operation that does not end is stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import agentformer
from agentformer.errors import AgentFormerError

SIZES = (60_000, 240_000, 1_000_000)
LIMIT = 3.0  # seconds of processor time
STOPPED = 40.0  # seconds after which one operation is stopped
QUESTION = "Where do I live, what does the list say about a., and how many were there on 3 May 2024?"

FAMILIES: dict[str, str | Callable[[int], str]] = {
    "sentences of a letter": "a. ",
    "list of letters": "- a\n",
    "question marks": "? ",
    "colons": ": ",
    "lead-ins": "The list says the following about a and the place where I live:\n\n",
    "lead-ins with items": "The following:\n- a\n",
    "numbered list": lambda n: "".join(f"{k}. item\n" for k in range(n // 9)),
    "one number": "1. ",
    "nested list": lambda n: "".join(" " * (k % 60) + "- a\n" for k in range(n // 34)),
    "table": "| a | 5 |\n",
    "head rows": "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
    "pipes": "|",
    "tabs": "a\tb\t1\n",
    "columns of spaces": "Revenue   1,234   5,678\n",
    "one word": "a",
    "word of capitals": "A",
    "digits": "1",
    "numbers": "12.5 ",
    "amounts": "$1,234.50 and 12 % ",
    "dates": "03/14/2026 ",
    "written dates": "3 May 2024 ",
    "months": "May March ",
    "times": "12:30 ",
    "quotes": '"',
    "quoted words": "'a' \"b\" ",
    "open brackets": "(",
    "brackets": "[a](b) ",
    "angles": "<",
    "tags": "<b>a</b> ",
    "open tags": "<div>",
    "urls": "https://example.com/a?b=c ",
    "one url": lambda n: "https://" + "a/" * (n // 2),
    "addresses": "a@b.example ",
    "at signs": "a@",
    "hyphens": "-",
    "hyphenated": "a-",
    "line breaks": "\n",
    "paragraphs": "a\n\n",
    "spaces": " ",
    "space at the end": lambda n: "a" + " " * n + "b",
    "zero width": "\u200b",
    "soft hyphens": "a\u00ad",
    "combining marks": "e\u0301\u0323",
    "one letter with marks": lambda n: "e" + "\u0301\u0323" * (n // 2),
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "flags": "\U0001f1eb\U0001f1ee",
    "Chinese": "我住在赫尔辛基和北京",
    "Japanese": "私は東京に住んでいます。",
    "Thai": "ฉันอยู่ที่กรุงเทพ",
    "Arabic": "أعيش في هلسنكي. ",
    "Hebrew": "אני גר בהלסינקי. ",
    "camel case": "aB",
    "camel words": "getUserName",
    "underscores": "_",
    "snake case": "a_",
    "entities": "&amp;",
    "open entities": "&#",
    "abbreviations": "e.g. ",
    "initials": "A. B. ",
    "facts": "I live in Helsinki. ",
    "facts that differ": lambda n: "".join(f"I live in Town{k}. " for k in range(n // 19)),
    "names": "Eva Kask ",
    "capital sentence": "The Bank Of ",
    "code fences": "```\na\n",
    "backticks": "`",
    "headings": "# a\n",
    "titles": "Title\n\n",
    "underlined": "a\n===\n",
    "comments": "// a\n/* ",
    "functions": "def a():\n    return a\n",
    "braces": "{",
    "key values": "key: value\n",
    "front matter": "---\na: b\n",
    "percent": "%41",
    "backslashes": "\\",
    "dots": ".",
    "dotted": "a.b.",
    "stars": "*",
    "bold": "**a** ",
    "footnotes": "[1] ",
    "commas": "a,",
    "semicolons": "a;",
    "records": '"a","b"\n',
    "messages": "User: a\nAssistant: b\n",
    "roman": "IV ",
    "ordinals": "1st 2nd ",
    "sections": "§ 1.2.3 ",
    "no, not": "not never ",
    "refers": "It was. He is. ",
    "negated": "I do not live in Helsinki. I moved to Turku. ",
}  # fmt: skip


def text_of(family: str, size: int) -> str:
    """Return the text of a family with at most `size` bytes in UTF-8."""
    piece = FAMILIES[family]
    text = piece(size) if callable(piece) else piece * (size // len(piece.encode()))
    return text.encode()[:size].decode("utf-8", "ignore")


def operations(folder: Path, text: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each operation, and a function that runs the operation. A first search after a text was stored
    also adds the text to the index of words, so each text is searched before the next one is stored."""
    options = {"embedder": "hashing", "clean_every": 0, "cleanup_interval": 0}
    af = agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", **options)
    entries = [af.memory.store("The first entry.").id]
    asked = (text[:3_000] or "a").strip() or "a"
    ask = functools.partial(af.rag.query, extractive=True)
    yield "store", lambda: entries.insert(0, af.memory.store(text).id)
    yield "search", lambda: af.memory.search(QUESTION)
    yield "export", lambda: af.export_to(folder / "e")
    yield "markdown home", lambda: af.markdown.export(folder / "m", namespace="default")
    yield "store same", lambda: af.memory.store(text)
    yield "update", lambda: af.memory.update(entries[0], content="b " + text[:-2])
    yield "search text", lambda: af.memory.search(asked)
    yield "references", lambda: af.memory.references(text[:60_000])
    yield "recall", lambda: af.memory.build_context(QUESTION)
    yield "ask", lambda: ask(QUESTION)
    yield "ask again", lambda: ask(QUESTION)
    yield "ask text", lambda: ask(asked)
    yield "context", lambda: af.rag.context(QUESTION)
    yield "fact", lambda: af.memory.store("I live in Helsinki.")
    yield "audit", lambda: af.memory.audit()
    for suffix in ("txt", "md", "csv", "html", "py"):
        upload = functools.partial(af.rag.upload, text.encode(), name=f"a.{suffix}")
        yield suffix, upload
        yield f"ask {suffix}", lambda: ask(QUESTION, sources=["documents"])
    yield "ask top 20", lambda: ask(QUESTION, top_k=20)
    yield "messages", lambda: af.memory.add_messages(_messages(text))
    yield "ask messages", lambda: ask(QUESTION, sources=["memories"])
    yield "clean", af.memory.clean
    yield "verify", af.verify
    yield "close", af.close
    other = agentformer.connect(index_dir=folder / "i2", upload_dir=folder / "u2", llm_model="echo:", **options)
    yield "import", lambda: other.import_from(folder / "e")
    yield "ask model", lambda: other.rag.query(QUESTION)
    chat = folder / "chat.jsonl"
    chat.write_text(json.dumps({"session_id": "c", "role": "user", "content": text}))
    yield "chats", lambda: other.import_conversations(chat)
    yield "close imported", other.close


def _messages(text: str) -> Iterator[dict[str, str]]:
    """Yield twenty messages that contain the text together."""
    for n in range(20):
        part = text[n * len(text) // 20 : (n + 1) * len(text) // 20]
        yield {"session_id": "s", "role": "user", "content": part or "a"}


def measure(family: str, size: int, connection: multiprocessing.connection.Connection) -> None:
    """Send the name of each operation when it begins, and then its processor time."""
    os.setpgid(0, 0)
    text = text_of(family, size)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for name, run in operations(Path(folder), text):
            connection.send((name, None, ""))
            started, problem = _used(), ""
            try:
                run()
            except (AgentFormerError, TypeError) as error:
                problem = f"{type(error).__name__}: {error}"
            connection.send((name, _used() - started, problem))
    connection.close()


def _used() -> float:
    """Return the processor time of this process and of the processes that it has started, in seconds."""
    parents, seconds = {}, {}
    for state in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = state.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(state.parent.name)
        parents[number], seconds[number] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    own, total = os.getpid(), time.process_time()
    for number in parents:
        above = number
        while above in parents and above != own:
            above = parents[above]
        total += seconds[number] if above == own and number != own else 0.0
    return total


def _cells(family: str, size: int) -> dict[str, tuple[float, str]]:
    """Run the operations of a family, each at most `STOPPED` seconds. After a stop, the remaining ones are left out."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=measure, args=(family, size, theirs))
    process.start()
    theirs.close()
    cells: dict[str, tuple[float, str]] = {}
    name = ""
    try:
        while True:
            if not ours.poll(STOPPED):
                cells[name] = (STOPPED, "stopped")
                break
            name, seconds, problem = ours.recv()
            if seconds is not None:
                cells[name] = (seconds, problem)
    except EOFError:
        pass
    finally:
        if process.is_alive() and process.pid and os.getpgid(process.pid) == process.pid:
            process.join(5)
            if process.is_alive():
                os.killpg(process.pid, 9)
        process.join()
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--problems", action="store_true", help="print the errors of the operations")
    given = parser.parse_args()
    print("| family | bytes | slowest | seconds | others above the limit |\n|---|---|---|---|---|")
    slow = 0
    for family in given.families:
        for size in given.sizes:
            cells = _cells(family, size)
            order = sorted(cells, key=lambda name: -cells[name][0])
            above = [f"{name} {cells[name][0]:.1f}" for name in order if cells[name][0] > LIMIT]
            slow += len(above)
            print(f"| {family} | {size} | {order[0]} | {cells[order[0]][0]:.2f} | {', '.join(above)} |", flush=True)
            for name, (_, problem) in cells.items():
                if problem and (given.problems or problem == "stopped"):
                    print(f"    {name}: {problem:.200}", flush=True)
    print(f"\n{slow} operations above {LIMIT} s")


if __name__ == "__main__":
    main()
