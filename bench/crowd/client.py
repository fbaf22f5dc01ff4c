"""Clients that ask one server, each over its own connection: `python -m bench.crowd.client URL METHOD CLIENTS SECONDS
OFFSET`. Prints JSON: searches, searches a second, p50 and p99 in milliseconds. No question is asked twice: those of
another `OFFSET` differ."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import sys
import threading
import time
from urllib.parse import quote, urlsplit

from bench.data import load

SETS = ("xquad/en", "hotpot_small", "pubmedqa", "locomo_dev")
LIMIT = 5


def main() -> None:
    url, method, clients, seconds, offset = sys.argv[1:6]
    asked = itertools.zip_longest(*([row.text for row in load(name).queries] for name in SETS))
    texts = list(dict.fromkeys(text for group in asked for text in group if text))
    random.Random(11).shuffle(texts)
    counter, times = itertools.count(int(offset)), list[float]()
    started = time.perf_counter()

    def work() -> None:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        while time.perf_counter() < started + float(seconds):
            number = next(counter)
            text = f"{texts[number % len(texts)]} {number // len(texts) or ''}".strip()
            began = time.perf_counter()
            if method == "txtai":
                connection.request("GET", f"/search?query={quote(text)}&limit={LIMIT}")
            else:
                body = json.dumps({"query": text, "limit": LIMIT})
                connection.request("POST", "/api/tools/memory_search", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            told = answer.read()
            if answer.status != 200:
                raise RuntimeError(told[:500])
            times.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=work) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    times.sort()
    middle, last = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(json.dumps({"searches": len(times), "rate": len(times) / elapsed, "p50": middle, "p99": last}))


if __name__ == "__main__":
    main()
