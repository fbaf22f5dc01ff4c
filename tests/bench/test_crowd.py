"""The table of `bench.crowd`, on numbers whose ratios are known."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bench.crowd import __main__ as crowd
from bench.crowd.client import connector, measure
from bench.crowd.servers import Server


def test_ratios_are_to_one_client_of_the_first_server(capsys: pytest.CaptureFixture[str]) -> None:
    base, ours = Server("base", "agentformer", Path("x"), 1), Server("ours, 2 workers", "agentformer", Path("y"), 2)
    figures = {(base, 1): (100, 10), (ours, 1): (150, 5), (base, 8): (120, 60), (ours, 8): (350, 20)}
    found = {
        place: [{"rate": rate + n, "p50": p99 / 2, "p99": p99, "server_ms": 4.0} for n in (-9, 0, 9)]
        for place, (rate, p99) in figures.items()
    }
    crowd._report([base, ours], found, {base: 300.0, ours: 400.0})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[1], row[3], row[6]) for row in rows] == [
        ("base", "1", "1.00", "2.0"),
        ("ours, 2 workers", "1", "1.50", "2.0"),
        ("base", "8", "1.20", "12.0"),
        ("ours, 2 workers", "8", "3.50", "8.0"),
    ]


def test_servers_of_one_checkout_share_a_store() -> None:
    one, two = (Server(f"ours, {count} workers", "agentformer", Path("x"), count) for count in (1, 2))
    assert one.store(Path("d")) == two.store(Path("d")) == Path("d/ours")
    assert Server("txtai", "txtai", Path("x"), 1).store(Path("d")) == Path("d/txtai")


class _Peer(BaseHTTPRequestHandler):
    """Answers each path as txtai's server does, which offers `/search` only if its configuration has embeddings."""

    def do_GET(self) -> None:
        found = self.path.startswith("/search?query=")
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(b"[]" if found else b'{"detail":"Not Found"}')

    do_POST = do_GET

    def log_message(self, *values: object) -> None: ...


@pytest.mark.process
def test_a_client_says_what_a_server_answered_that_does_not_search() -> None:
    with HTTPServer(("127.0.0.1", 0), _Peer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert measure(connector(url, "txtai"), ["who?"], 1, 0.05, 0)["searches"] > 0
        with pytest.raises(RuntimeError, match=r"/api/tools/memory_search answered 404: .*Not Found"):
            measure(connector(url, "agentformer"), ["who?"], 2, 0.05, 0)
        server.shutdown()
