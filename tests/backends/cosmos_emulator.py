"""A server that speaks the protocol of Cosmos DB, from the npm package @vercel/cosmosdb-server, for the tests.

COSMOSDB_SERVER names the folder of an installed package. Without it, npm installs the package once into
`.pytest_cache`; if npm is missing or the package cannot be fetched, the tests are skipped.

The server differs from the service:

- reading an item that does not exist is answered with 500 instead of 404 in a partition that never had it;
- the argument `partition_key` of a query is ignored: every query sees all partitions;
- batches are not atomic (and fail with today's client);
- vectors, full text and policies are unknown; keys are not checked; nothing is throttled; an item may be of any size.

So the tests of wrong keys and throttling use a small server of their own, and the tests of tenants rely on the WHERE
clause and the code, not on the server.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

PACKAGE = "@vercel/cosmosdb-server"
VERSION = "1.0.1"
KEY = "YSBrZXkgb2YgdGhlIHRlc3Rz"  # any Base64 text
_CACHE = Path(__file__).resolve().parents[2] / ".pytest_cache" / "cosmosdb-server"
_INSTALL_SECONDS = 120
_START_SECONDS = 60


def package() -> Path:
    """Return the folder of the package, or skip the test."""
    if given := os.environ.get("COSMOSDB_SERVER"):
        return Path(given)
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed; it provides the emulator of Cosmos DB")
    _CACHE.mkdir(parents=True, exist_ok=True)
    found = _CACHE / "node_modules" / PACKAGE
    with FileLock(_CACHE / "install.lock"):
        if (_CACHE / "installed").exists():
            return found
        command = [npm, "install", "--prefix", str(_CACHE), "--no-audit", "--no-fund", "--fetch-retries=0"]
        try:
            subprocess.run(
                [*command, f"{PACKAGE}@{VERSION}"], check=True, capture_output=True, timeout=_INSTALL_SECONDS
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"npm cannot fetch the emulator of Cosmos DB: {error}")
        (_CACHE / "installed").touch()
    return found


class Emulator:
    """A running server. `stop` and `start` keep nothing: the data are in memory."""

    def __init__(self) -> None:
        self._cli = package() / "lib" / "cli.js"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = ["node", str(self._cli), "-p", str(self.port), "--host", "127.0.0.1", "--no-ssl"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + _START_SECONDS
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        self.stop()
        pytest.skip("the emulator of Cosmos DB does not start")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(30)


@contextmanager
def running() -> Iterator[Emulator]:
    """Run an emulator."""
    emulator = Emulator()
    try:
        yield emulator
    finally:
        emulator.stop()


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """Run one emulator for the session. Each store needs a database of its own."""
    with running() as server:
        yield server
