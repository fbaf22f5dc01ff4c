"""A server that follows Ollama's published API for embeddings, and OpenAI's; its vectors are the hashing embedder's.

https://docs.ollama.com/api: `/api/embed` with batches and `truncate`, `/api/embeddings`, `/api/show`, `/api/tags`,
`/api/version`, and errors as `{"error": ...}`. Also `/v1/embeddings` and `/v1/models`.

As a process, for tests that kill the other side:

    python -m tests.embedders.ollama_server --port 11434 --log FILE [--delay SECONDS] [--old] [--key KEY] [--seed N]

The log has one line for each text embedded, the text as JSON with its prefix, written when the answer has been sent;
before the probe text, which belongs to no store, stands "probe: ".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.embedders.model_info import PROBE
from agentformer.types import Vector

CONTEXT = {
    "nomic-embed-text:latest": 2048,
    "all-minilm:latest": 256,
    "bge-m3:latest": 8192,
    "text-embedding-3-small": 8191,
}
_TOKEN = re.compile(r"[^\W\d_]{1,4}|\S")  # of this server's tokenizer
_SPECIAL = 2


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: object) -> None:
        self.status = status
        self.body = body


class OllamaServer:
    """Started by `start`, on the same port again after `stop`. `texts` are those whose vectors were sent, and `probes`
    the probe texts among them, so that the former count documents and queries.

    `old`: only `/api/embeddings`. `key`: wanted as a bearer token. `seed`: other weights under the same names.
    `hanging`: while set, requests for vectors are taken and not answered.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        old: bool = False,
        key: str = "",
        seed: int = 0,
        dimension: int = 256,
        delay: float = 0.0,
        context: Mapping[str, int] = CONTEXT,
        num_ctx: int = 0,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.port = port
        self.old = old
        self.key = key
        self.seed = seed
        self.dimension = dimension
        self.delay = delay
        self.context = dict(context)
        self.num_ctx = num_ctx
        self._texts: list[str] = []
        self._probes: list[str] = []
        self._answering = 0
        self._quiet = threading.Condition()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.hanging = threading.Event()
        self._log = log
        self._lock = threading.Lock()
        self._server: _Listener | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> OllamaServer:
        self._server = _Listener(("127.0.0.1", self.port), self)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """As if killed: connections break, also those that wait for an answer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.break_connections()
            self._server = None

    def __enter__(self) -> OllamaServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def texts(self) -> list[str]:
        """Once nothing is being answered: a client may have its answer a moment before this knows that it was sent."""
        self._settle()
        return self._texts

    @property
    def probes(self) -> list[str]:
        """As `texts`."""
        self._settle()
        return self._probes

    def _settle(self) -> None:
        with self._quiet:
            self._quiet.wait_for(lambda: not self._answering, timeout=10)

    @contextmanager
    def answering(self) -> Iterator[None]:
        with self._quiet:
            self._answering += 1
        try:
            yield
        finally:
            with self._quiet:
                self._answering -= 1
                self._quiet.notify_all()

    def sent(self, texts: list[str]) -> None:
        with self._lock:
            for text in texts:
                (self._probes if PROBE in text else self._texts).append(text)
                self._log(f"probe: {text}" if PROBE in text else text)

    def vectors(self, model: str, texts: list[str], *, truncate: bool, dimension: int = 0) -> tuple[list[Any], int]:
        """Rows and tokens read. A text that is too long is cut, or else refused with ValueError."""
        limit = self._limit(model)
        read, kept = 0, []
        for text in texts:
            ends = [match.end() for match in _TOKEN.finditer(text)]
            if len(ends) + _SPECIAL > limit:
                if not truncate:
                    raise ValueError(len(ends) + _SPECIAL)
                ends = ends[: limit - _SPECIAL]
                text = text[: ends[-1]]
            read += len(ends) + _SPECIAL
            kept.append(text)
        rows = [np.roll(_row(text, dimension or self.dimension), self.seed) for text in kept]
        return [[float(number) for number in row] for row in rows], read

    def name_of(self, model: object) -> str:
        """The model's full name. Raises `KeyError`."""
        for name in (str(model), f"{model}:latest"):
            if name in self.context:
                return name
        raise KeyError(model)

    def _limit(self, model: str) -> int:
        return min(self.context[model], self.num_ctx or 4096)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[object, list[str]]:
        """The JSON of the answer, and the texts whose vectors it holds. Raises `Refusal`."""
        with self._lock:
            self.requests.append((path, body))
        if (method, path) == ("GET", "/api/version"):
            return {"version": "0.1.30" if self.old else "0.13.4"}, []
        if (method, path) == ("GET", "/api/tags"):
            return {
                "models": [{"name": name, "model": name, "digest": self._digest(name)} for name in self.context]
            }, []
        if (method, path) == ("GET", "/v1/models"):
            return {"object": "list", "data": [{"id": name, "object": "model"} for name in self.context]}, []
        if (method, path) == ("POST", "/v1/embeddings"):
            return self._openai(body)
        known = {"/api/show": self._show, "/api/embeddings": self._older, "/api/embed": self._embed}
        if method != "POST" or path not in known or (self.old and path == "/api/embed"):
            raise Refusal(404, "404 page not found")
        try:
            name = self.name_of(body.get("model", body.get("name")))
        except KeyError as error:
            raise Refusal(404, {"error": f'model "{error.args[0]}" not found, try pulling it first'}) from None
        return known[path](name, body)

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{name} {self.seed}".encode()).hexdigest()

    def _show(self, name: str, body: dict[str, Any]) -> tuple[object, list[str]]:
        info = {"general.architecture": "bert", "bert.context_length": self.context[name], "bert.embedding_length": 256}
        shown: dict[str, Any] = {"details": {"format": "gguf", "family": "bert"}, "model_info": info}
        if self.num_ctx:
            shown["parameters"] = f"num_ctx                        {self.num_ctx}"
        return shown, []

    def _embed(self, name: str, body: dict[str, Any]) -> tuple[object, list[str]]:
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refusal(400, {"error": "invalid input type"})
        self._work(len(texts))
        try:
            rows, read = self.vectors(name, texts, truncate=body.get("truncate", True))
        except ValueError:
            raise Refusal(400, {"error": "the input length exceeds the context length"}) from None
        return {"model": body["model"], "embeddings": rows, "total_duration": 1, "prompt_eval_count": read}, texts

    def _older(self, name: str, body: dict[str, Any]) -> tuple[object, list[str]]:
        self._work(1)
        rows, _ = self.vectors(name, [body["prompt"]], truncate=True)
        return {"embedding": rows[0]}, [body["prompt"]]

    def _openai(self, body: dict[str, Any]) -> tuple[object, list[str]]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if "" in texts:
            raise Refusal(400, _openai_error("'$.input' is invalid."))
        try:
            name = self.name_of(body["model"])
        except KeyError as error:
            raise Refusal(404, _openai_error(f"The model `{error.args[0]}` does not exist")) from None
        self._work(len(texts))
        try:
            rows, read = self.vectors(name, texts, truncate=False, dimension=body.get("dimensions", 0))
        except ValueError as error:
            said = f"This model's maximum context length is {self._limit(name)} tokens, however you requested {error}."
            raise Refusal(400, _openai_error(said)) from None
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        usage = {"prompt_tokens": read, "total_tokens": read}
        return {"object": "list", "data": data[::-1], "model": body["model"], "usage": usage}, texts

    def _work(self, texts: int) -> None:
        """Take as long as asked; while `hanging`, until the server ends."""
        time.sleep(self.delay * texts)
        while self.hanging.is_set() and self._server is not None:
            time.sleep(0.02)


@lru_cache(1024)
def _row(text: str, dimension: int) -> Vector:
    return HashingEmbedder(dimension).embed_query(text)


def _openai_error(message: str) -> object:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], owner: OllamaServer) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        for request in list(self._open):
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or a server that is stopped, is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, format: str, *args: object) -> None:
        """No noise in the tests' output."""

    def do_GET(self) -> None:
        with self.server.owner.answering():
            self._answer("GET")

    def do_POST(self) -> None:
        with self.server.owner.answering():
            self._answer("POST")

    def _answer(self, method: str) -> None:
        owner = self.server.owner
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if owner.key and self.headers.get("Authorization") != f"Bearer {owner.key}":
                raise Refusal(401, {"error": "unauthorized"})
            answer, texts = owner.answer(method, self.path, json.loads(raw or b"{}"))
        except Refusal as refusal:
            self._send(refusal.status, refusal.body)
        else:
            self._send(200, answer)
            owner.sent(texts)

    def _send(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds for each text")
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--key", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dimension", type=int, default=256)
    given = parser.parse_args()
    with given.log.open("a", encoding="utf-8") as log:

        def write(text: str) -> None:
            log.write(json.dumps(text) + "\n")
            log.flush()

        server = OllamaServer(
            port=given.port,
            old=given.old,
            key=given.key,
            seed=given.seed,
            dimension=given.dimension,
            delay=given.delay,
            log=write,
        )
        with server:
            print(server.url, flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main()
