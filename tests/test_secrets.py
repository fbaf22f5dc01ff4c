"""No key is ever told: not printed, not logged at the loudest, not stored, not sent back over HTTP.

Keys and passwords that occur nowhere else are given to real processes, which talk to a server that answers badly and
quotes what it was sent. Then everything that the processes wrote is searched for them.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socketserver
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")
pytest.importorskip("waitress", reason="the extra `server` is not installed")

from tests.faults.long_form import long_form
from tests.forked import SERVE as SERVE_IMPORTS
from tests.forked import start

pytestmark = pytest.mark.process
Behaviour = Literal["refuses", "hangs up", "talks nonsense"]
KEYS = {
    "AGENTFORMER_LLM_API_KEY": "sk-canary-llm-0b5e7d",
    "AGENTFORMER_EMBED_API_KEY": "canary.embed+93fa/c1==",  # no prefix that a pattern could know
    "OPENAI_API_KEY": "sk-proj-canary-openai-4471ab",
}
PASSWORD = "canary-password-e2d6"
USER = "canary-user"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = [*KEYS.values(), PASSWORD, BASIC]
# Everything is logged, by every library, before the command line sets its own level.
LOUD = "import logging; logging.basicConfig(level=logging.DEBUG); "
COMMANDS = LOUD + (
    "from agentformer.cli import main\n"
    "for arguments in commands:\n"
    "    try: main(arguments)\n"
    "    except SystemExit as end: print('exit', end.code, *arguments[:1], flush=True)"
)
SERVE = LOUD + "import sys; sys.argv[1:] = ['serve', '--port', '0']; from agentformer.cli import main; main()"
FACT = "The caretaker keeps the keys in the blue cupboard."
QUESTION = "Where does the caretaker keep the keys?"


class Nasty(ThreadingHTTPServer):
    """Answers as badly as it is told to, and quotes the request's headers. `seen` is what it was sent."""

    daemon_threads = True

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", 0), Quoting)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Quoting(BaseHTTPRequestHandler):
    server: Nasty

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = str(self.headers)
        self.server.seen.append(sent)
        if self.server.behaviour == "hangs up":
            self.close_connection = True
            return
        said = f"Incorrect API key provided: {self.headers.get('Authorization')}. You sent {sent!r}"
        body, status, kind = json.dumps({"error": {"message": said, "code": sent}}), 401, "application/json"
        if self.server.behaviour == "talks nonsense":
            body, status, kind = f"<html><body>{said}</body></html>", 200, "text/html"
        self.send_response(status, "No" if self.server.behaviour == "refuses" else None)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.send_header("X-You-Sent", str(self.headers.get("Authorization")))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Not on our standard error."""


@contextmanager
def nasty(behaviour: Behaviour) -> Iterator[Nasty]:
    with Nasty(behaviour) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def variables(server: socketserver.TCPServer, embedder: str, *, in_addresses: bool) -> dict[str, str]:
    """What a user sets: the keys, or a password in each address; and one server for everything."""
    place = "{}127.0.0.1:{}".format(f"{USER}:{PASSWORD}@" if in_addresses else "", server.server_address[1])
    return {
        **({} if in_addresses else KEYS),
        "AGENTFORMER_LLM_BASE_URL": f"http://{place}/v1",
        "AGENTFORMER_EMBED_BASE_URL": f"http://{place}",
        "AGENTFORMER_EMBEDDER": embedder,
        "AGENTFORMER_LLM_MODEL": "some-model",
        "AGENTFORMER_LLM_RETRIES": "1",
        "AGENTFORMER_EMBED_RETRIES": "1",
        "AGENTFORMER_EMBED_RETRY_SECONDS": "0.2",
        "AGENTFORMER_BREAKER_SECONDS": "1",
        "AGENTFORMER_CLEAN_EVERY": "0",
        "OPENAI_BASE_URL": f"http://{place}/v1",
        "OLLAMA_BASE_URL": f"http://{place}",
        "LMSTUDIO_BASE_URL": f"http://{place}/v1",
    }


def environment(folder: Path, given: dict[str, str], place: Literal[".env", "environment"]) -> dict[str, str]:
    """The environment of a process in `folder` that finds the given variables in that place."""
    environ = {name: value for name, value in os.environ.items() if name not in given | KEYS}
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_LOG": "debug", "PYTHONUNBUFFERED": "1"}
    if place == "environment":
        return environ | given
    (folder / ".env").write_text("".join(f"{name}='{value}'\n" for name, value in given.items()), encoding="utf-8")
    return environ


def run_commands(folder: Path, environ: dict[str, str], written: Path) -> list[str]:
    """Every command that may speak with a provider, in one process. Gives the commands that ended, with their code."""
    (folder / "rules.txt").write_text(FACT, encoding="utf-8")
    commands = [
        ["remember", "Aino prefers tea."],
        ["ingest", "rules.txt"],
        ["ask", QUESTION],
        ["ask", QUESTION, "--stream", "--json"],
        ["recall", "What does Aino prefer?"],
        ["search", "keys", "--json"],
        ["context", "Find the keys."],
        ["reindex"],
        ["reembed", "--to", "openai:another-embedder"],
        ["spaces"],
        ["status"],
        ["status", "--json"],
    ]
    with (written / "commands.err").open("w") as err:
        process = start(f"commands = {commands!r}; {COMMANDS}", SERVE_IMPORTS, cwd=folder, env=environ, stderr=err)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    (written / "commands.out").write_text(out, encoding="utf-8")
    return [line for line in out.splitlines() if line.startswith("exit ")]


def use_server(folder: Path, environ: dict[str, str], written: Path) -> list[int]:
    """The HTTP server as a process, and requests of every kind. Gives their statuses; what came back is written."""
    with (written / "serve.err").open("w") as err:
        process = start(SERVE, SERVE_IMPORTS, cwd=folder, env=environ, stderr=err)
    watch = threading.Timer(240, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("serving on ").strip()
        assert url.startswith("http://"), (written / "serve.err").read_text(encoding="utf-8")
        json_kind = "application/json"
        form = 'multipart/form-data; boundary="x"'
        part = f'--x\r\nContent-Disposition: form-data; name="file"; filename="b.txt"\r\n\r\n{FACT}\r\n--x--\r\n'
        statuses = [
            request(url, "/api/rag/upload", part.encode(), form, written),
            request(url, "/api/rag/query", json.dumps({"question": QUESTION}).encode(), json_kind, written),
            request(url, "/api/memory/clean", b"{}", json_kind, written),
            request(url, "/api/memory/reindex", b"{}", json_kind, written),
            request(url, "/api/rag/query", b'{"question": 7}', json_kind, written),
            request(
                url, "/api/rag/query", json.dumps({"question": QUESTION, "stream": True}).encode(), json_kind, written
            ),
            request(url, "/metrics", None, "", written),
            request(url, "/healthz", None, "", written),
        ]
        process.send_signal(signal.SIGTERM)
        (written / "serve.out").write_text(process.stdout.read(), encoding="utf-8")
        assert process.wait(60) == 0
        return statuses
    finally:
        watch.cancel()
        process.kill()
        process.wait()


def request(url: str, path: str, body: bytes | None, kind: str, written: Path) -> int:
    asked = urllib.request.Request(url + path, data=body, headers={"Content-Type": kind} if kind else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=120) as response:
            status, head, said = response.status, str(response.headers), response.read()
    except urllib.error.HTTPError as error:
        status, head, said = error.code, str(error.headers), error.read()
    with (written / "http.out").open("ab") as out:
        out.write(f"{path} {status}\n{head}\n".encode() + said)
    return status


def leaks(*folders: Path) -> list[str]:
    """Where a secret stands in a file, or in its name, with the text around it."""
    found = []
    for file in (file for folder in folders for file in folder.rglob("*") if file.name != ".env"):
        data = file.name.encode() + (b"\n" + file.read_bytes() if file.is_file() else b"")
        for secret in SECRETS:
            if (at := data.find(secret.encode())) >= 0:
                found.append(f"{file.name}: {data[max(0, at - 200) : at + 80]!r}")
    return found


@pytest.mark.parametrize(
    ("behaviour", "embedder", "in_addresses", "place"),
    [
        ("refuses", "openai:some-embedder", False, ".env"),
        ("talks nonsense", "ollama:some-embedder", True, "environment"),
        ("hangs up", "openai:some-embedder", True, ".env"),
        pytest.param("refuses", "ollama:some-embedder", False, "environment", marks=long_form),
        pytest.param("refuses", "openai:some-embedder", True, ".env", marks=long_form),
    ],
)
def test_no_key_is_printed_logged_stored_or_sent_back(
    tmp_path: Path,
    behaviour: Behaviour,
    embedder: str,
    in_addresses: bool,
    place: Literal[".env", "environment"],
) -> None:
    folder, written = tmp_path / "work", tmp_path / "written"
    folder.mkdir()
    written.mkdir()
    with nasty(behaviour) as server:
        environ = environment(folder, variables(server, embedder, in_addresses=in_addresses), place)
        ended = run_commands(folder, environ, written)
        statuses = use_server(folder, environ, written)

    assert leaks(folder, written) == []

    # That there was something to leak: the server was sent secrets, the libraries logged, the work was done.
    assert [line.split()[1:3] for line in ended[:4]] == [["0", "remember"], ["0", "ingest"], ["0", "ask"], ["0", "ask"]]
    assert len(ended) == 12
    assert statuses[:2] == [201, 200] and statuses[4] == 400
    sent = "\n".join(server.seen)
    assert any(secret in sent for secret in SECRETS)
    assert b"DEBUG" in (written / "commands.err").read_bytes()
    told = (written / "commands.out").read_text(encoding="utf-8") + (written / "commands.err").read_text("utf-8")
    assert "blue cupboard" in told and f"127.0.0.1:{server.server_address[1]}" in told


def test_the_search_for_leaks_finds_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").write_text(f"Authorization: Bearer {KEYS['OPENAI_API_KEY']}", encoding="utf-8")
    (tmp_path / "a" / f"{PASSWORD}.json").write_text("{}", encoding="utf-8")
    assert len(leaks(tmp_path)) == 2
