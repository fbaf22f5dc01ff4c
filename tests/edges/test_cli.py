"""The command line, as a user runs it: JSON out, exit codes that mean something. One test of a user's day has
processes; the others call the same function in this process, which takes a tenth of the time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from tests import forked
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
Run = Callable[..., subprocess.CompletedProcess[str]]

KEYS = "The caretaker keeps the keys in the blue cupboard."
BOATS = "Boats are lifted out of the water in October."


def folders_of(tmp_path: Path) -> tuple[str, ...]:
    return ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing")


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """Runs a command in a process of its own."""

    def start(*arguments: str, folders: bool = True) -> subprocess.CompletedProcess[str]:
        command = [*arguments, *(folders_of(tmp_path) if folders else ())]
        return forked.ended(forked.command(*command, cwd=tmp_path))

    return start


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, folders: bool = True) -> subprocess.CompletedProcess[str]:
        command = [*arguments, *(folders_of(tmp_path) if folders else ())]
        done = CliRunner().invoke(main, command, prog_name="agentformer")
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "below").mkdir(parents=True)
    (folder / "rules.pdf").write_bytes(make_pdf([[BOATS], [KEYS]]))
    (folder / "below" / "muistio.txt").write_text("Kevätkokous pidetään huhtikuussa.", encoding="utf-8")
    (folder / ".hidden.txt").write_text("not for you")
    return folder


def test_ingest_ask_search_list_export_status_and_remove(start: Run, run: Run, documents: Path) -> None:
    ingested = json.loads(start("ingest", str(documents), "--json").stdout)["documents"]
    assert [(d["name"], d["status"], d["pages"]) for d in ingested] == [
        ("below/muistio.txt", "ready", 1),
        ("rules.pdf", "ready", 2),
    ]

    answer = json.loads(start("ask", "Who keeps the keys?", "--json").stdout)
    assert set(answer) >= {"answer", "mode", "citations", "hits", "timings"}
    citation = answer["citations"][0]
    assert set(citation) >= {"document", "page", "label", "start", "end", "quote", "score"}
    assert (citation["document"], citation["page"], answer["mode"]) == ("rules.pdf", 2, "extractive")

    hits = json.loads(run("search", "kevätkokous", "--json").stdout)["hits"]
    assert set(hits[0]) >= {
        "id",
        "document",
        "page",
        "start",
        "end",
        "content",
        "score",
        "dense_score",
        "lexical_score",
    }
    assert (hits[0]["document"], hits[0]["page"]) == ("below/muistio.txt", 1)

    listed = json.loads(run("list", "--json").stdout)["documents"]
    assert [{k: d[k] for k in ("id", "name", "pages", "chunks", "status")} for d in listed] == [
        {"id": d["id"], "name": d["name"], "pages": d["pages"], "chunks": d["chunks"], "status": "ready"}
        for d in ingested
    ]

    exported = [json.loads(line) for line in start("export", "--text", "--json").stdout.splitlines()]
    page = next(d for d in exported if d["name"] == "rules.pdf")["pages"][1]
    assert page["text"][citation["start"] : citation["end"]] == citation["quote"]
    assert KEYS in run("export", "--text").stdout

    assert json.loads(run("status", "--json").stdout)["documents"] == {"ready": 2}

    assert run("remove", listed[0]["id"]).returncode == 0
    assert [d["name"] for d in json.loads(run("list", "--json").stdout)["documents"]] == ["rules.pdf"]


def test_a_person_reads_answers_with_pages(run: Run, documents: Path) -> None:
    assert "ready" in run("ingest", str(documents)).stdout
    shown = run("ask", "Who keeps the keys?").stdout
    assert "[1] rules.pdf, page 2" in shown and "blue cupboard" in shown
    assert "unchanged" in run("ingest", str(documents)).stdout


def test_one_bad_file_does_not_stop_the_others(run: Run, documents: Path) -> None:
    (documents / "cut.pdf").write_bytes(make_pdf([[KEYS]])[:200])
    done = run("ingest", str(documents), str(documents / "missing.pdf"), "--json")
    states = {Path(d["name"]).name: d["status"] for d in json.loads(done.stdout)["documents"]}
    assert states == {"muistio.txt": "ready", "rules.pdf": "ready", "cut.pdf": "failed", "missing.pdf": "failed"}
    assert done.returncode == 1


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ask", "  "), 2, "question: is empty"),
        (("remove", "no-such-id"), 2, "no document no-such-id"),
        (("remember", "x", "--embedder", "word2vec"), 2, "known names are"),
        (("ask", "x", "--top-k", "0"), 2, "top-k"),
        (("serve", "--host", "0.0.0.0"), 2, "agentformer keys add"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    run: Run, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run(*arguments, folders="--embedder" not in arguments and arguments[0] != "frobnicate")
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.usefixtures("faiss_files")
def test_a_memory_that_cannot_be_used_is_exit_code_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "memory.sqlite3").write_bytes(b"not a database at all" * 100)
    done = run("list")
    assert done.returncode == 3
    assert "damaged" in done.stderr and "Traceback" not in done.stderr


def test_a_store_of_another_embedder_is_not_searched(run: Run, documents: Path, tmp_path: Path) -> None:
    run("ingest", str(documents))
    where = ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing:64")
    done = run("ask", "keys?", *where, folders=False)
    assert done.returncode == 3
    assert "hashing:256" in done.stderr and "agentformer reembed --to hashing:64" in done.stderr


def test_files_of_one_name_in_different_folders_are_all_kept(run: Run, tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / "fees" / str(year)).mkdir(parents=True)
        (tmp_path / "fees" / str(year) / "fee.txt").write_text(f"In {year} the fee was {year - 2000} euros.")
    (tmp_path / "fees" / "loop").symlink_to(tmp_path / "fees")
    os.mkfifo(tmp_path / "fees" / "pipe")
    done = run("ingest", str(tmp_path / "fees"), "--json")
    states = {d["name"]: d["status"] for d in json.loads(done.stdout)["documents"]}
    assert states == {"2023/fee.txt": "ready", "2024/fee.txt": "ready", f"{tmp_path}/fees/pipe": "failed"}
    assert "23 euros" in run("ask", "What was the fee in 2023?").stdout


def test_reindex_embeds_what_waited(run: Run, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u")
    with socket.socket() as closed:  # a port that nobody listens on: the absent server is known at once
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OLLAMA_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
    absent = ("--embedder", "ollama:no-model", *where)
    pending = json.loads(run("ingest", str(documents), "--json", *absent, folders=False).stdout)["documents"]
    assert {d["status"] for d in pending} == {"pending"}
    assert run("reindex", *absent, folders=False).returncode == 1
    assert "reindex" in run("ask", "Who keeps the keys?").stderr
    assert json.loads(run("reindex", "--json").stdout) == {"pending": 0, "waiting": []}
    assert {d["status"] for d in json.loads(run("list", "--json").stdout)["documents"]} == {"ready"}


def test_auto_takes_the_embedder_of_the_store(run: Run, documents: Path, tmp_path: Path) -> None:
    run("ingest", str(documents))
    where = ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u")
    done = run("search", "keys", "--json", *where, folders=False)
    assert json.loads(done.stdout)["hits"][0]["dense_rank"] == 1
    assert done.stderr == ""


def test_every_command_explains_itself(run: Run) -> None:
    for command in ("ingest", "ask", "search", "list", "remove", "export", "reindex", "status", "serve"):
        shown = run(command, "--help", folders=False).stdout
        assert all(option in shown for option in ("--index-dir", "--upload-dir", "--namespace", "--json")), command


def test_serve_answers_and_ends_cleanly_at_sigterm(tmp_path: Path) -> None:
    import urllib.request

    server = subprocess.Popen(
        [sys.executable, "-m", "agentformer.cli", "serve", "--port", "0", "--embedder", "hashing"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}/healthz", timeout=30) as response:
            assert json.load(response) == {"status": "ok"}
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    assert server.returncode == 0
    told = [" ".join(line.split()[1:5]) for line in errors.splitlines()]
    assert told[1:] == ["INFO GET /healthz 200", "INFO stopped"] and told[0].startswith("INFO serving on"), told
