"""Continuous archiving: of the embedded store by Litestream with the file of `deploy/`, and of PostgreSQL by its own
means. A store is restored to a moment, although writers and archivers were killed, and its indexes are rebuilt."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.factory import AgentFormer, connect
from agentformer.types import Scope
from tests import forked
from tests.backends.postgres_faults import own_server
from tests.edges.running import wait_until
from tests.faults.long_form import long_form

CONFIG = Path(__file__).parents[2] / "deploy" / "litestream" / "litestream.yml"
BOUND = 60.0
QUIET = 2.5  # seconds without a write, longer than the interval in which Litestream reads the log
_WRITER = """
import os, sys
from agentformer.factory import connect
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with connect(index_dir=sys.argv[1], upload_dir=sys.argv[1] + "/u", embedder="hashing", clean_every=0) as af:
    for number in range(int(sys.argv[3]), int(sys.argv[4])):
        af.memory.store(f"note {number} about herons", kind="fact")
        os.write(log, b"%d\\n" % number)
"""


@pytest.fixture
def litestream() -> str:
    program = shutil.which("litestream")
    if program is None:
        pytest.skip("litestream is not installed")
    return program


def opened(folder: Path) -> AgentFormer:
    return connect(index_dir=folder, upload_dir=folder / "u", embedder="hashing", clean_every=0)


def notes(af: AgentFormer) -> list[int]:
    """Return the numbers of the stored notes."""
    found = af.backend.list(Scope(kinds=("fact",)), limit=10_000)
    return sorted(int(entry.content.split()[1]) for entry in found)


def check(af: AgentFormer, expected: Sequence[int]) -> None:
    assert notes(af) == sorted(expected)
    assert sum(each.found for each in af.verify()) == 0
    for number in (expected[0], expected[-1]):
        for mode in ("lexical", "dense"):
            hits = af.memory.search(f"note {number} about herons", mode=mode, limit=3)
            assert f"note {number} about herons" in [hit.entry.content for hit in hits], mode


def acknowledged(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().splitlines()]


def write(index: Path, log: Path, first: int, last: int, *, kill_at: int = -1) -> None:
    """Store notes in a process, which is killed after it has acknowledged the note `kill_at`."""
    process = forked.program(_WRITER, index, log, first, last, cwd=index.parent)
    deadline = time.monotonic() + BOUND
    while process.poll() is None and time.monotonic() < deadline:
        if kill_at >= 0 and log.exists() and acknowledged(log)[-1:] >= [kill_at]:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    process.wait(BOUND)
    assert kill_at >= 0 or process.returncode == 0


def vacuum(index: Path) -> None:
    done = CliRunner().invoke(main, ["vacuum", "--index-dir", str(index), "--embedder", "hashing"])
    assert done.exit_code == 0, done.output


class Litestream:
    """The file of `deploy/` in use for another store."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._log = program, folder / "litestream.log"
        self.index, archive = folder / "i", folder / "archive"
        config = CONFIG.read_text()
        for former, new in (
            ("/var/lib/agentformer/indexes", str(self.index)),
            ("/srv/backup/agentformer", str(archive)),
        ):
            assert former in config
            config = config.replace(former, new)
        self._config = folder / "litestream.yml"
        self._config.write_text(config)

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [self._program, "replicate", "-config", str(self._config)], stdout=log, stderr=log
            )

    def end(self, number: int) -> None:
        """SIGTERM lets it archive what is there, SIGKILL does not."""
        self.process.send_signal(number)
        self.process.wait(BOUND)

    def restored(self, folder: Path, moment: str = "") -> AgentFormer:
        at = ["-timestamp", moment] if moment else []
        command = [self._program, "restore", "-config", str(self._config), "-o", str(folder / "memory.sqlite3"), *at]
        folder.mkdir()
        done = subprocess.run(
            [*command, str(self.index / "memory.sqlite3")], capture_output=True, text=True, timeout=BOUND
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return opened(folder)


@contextmanager
def archiving(program: str, folder: Path) -> Iterator[Litestream]:
    archive = Litestream(program, folder)
    opened(archive.index).close()
    archive.start()
    try:
        yield archive
    finally:
        if archive.process.poll() is None:
            archive.end(signal.SIGKILL)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_litestream_restores_the_embedded_store_to_a_moment(litestream: str, tmp_path: Path) -> None:
    log = tmp_path / "acknowledged"
    with archiving(litestream, tmp_path) as archive:
        write(archive.index, log, 0, 10_000, kill_at=40)
        archive.end(signal.SIGKILL)
        first = acknowledged(log)[-1] + 2  # the last one may be stored without its acknowledgement
        write(archive.index, log, first, first + 20)  # and nobody archives it now
        archive.start()
        vacuum(archive.index)
        with opened(archive.index) as af:
            before = notes(af)
        assert {*acknowledged(log)} <= {*before}
        time.sleep(QUIET)
        moment = now()
        time.sleep(QUIET)
        with opened(archive.index) as af:  # a mistake
            assert af.memory.remove(Scope(kinds=("fact",))) == len(before)
        write(archive.index, log, 20_000, 20_020)
        time.sleep(QUIET)
        archive.end(signal.SIGTERM)
        vacuum(archive.index)  # Litestream kept what was removed in the log
        assert not [file for file in archive.index.glob("memory*") if b"note 3 about" in file.read_bytes()]
        with archive.restored(tmp_path / "moment", moment) as af:
            check(af, before)
        with archive.restored(tmp_path / "newest") as af:
            check(af, range(20_000, 20_020))


def test_a_restored_store_is_archived_again(litestream: str, tmp_path: Path) -> None:
    """In place, as docs/OPERATIONS.md says: the archive goes on, and knows the former and the new history."""
    log = tmp_path / "acknowledged"
    with archiving(litestream, tmp_path) as archive:
        write(archive.index, log, 0, 10)
        time.sleep(QUIET)
        moment = now()
        time.sleep(QUIET)
        write(archive.index, log, 10, 20)
        archive.end(signal.SIGTERM)
        time.sleep(1)  # a moment is a whole second
        later = now()
        archive.restored(tmp_path / "restored", moment).close()
        for file in archive.index.glob("memory.sqlite3*"):
            file.unlink()
        shutil.copy(tmp_path / "restored" / "memory.sqlite3", archive.index)
        with opened(archive.index) as af:  # with the indexes of the former history
            check(af, range(10))
        archive.start()
        write(archive.index, log, 30, 40)
        time.sleep(QUIET)  # a signal before its first look at the log would end it without one
        archive.end(signal.SIGTERM)
        with archive.restored(tmp_path / "again") as af:
            check(af, [*range(10), *range(30, 40)])
        with archive.restored(tmp_path / "former", later) as af:
            check(af, range(20))


@long_form
def test_postgresql_is_restored_to_a_moment(tmp_path: Path) -> None:
    """With its own archive: a base backup, and the segments of the log that `archive_command` copies."""
    with own_server() as server, ExitStack() as ending:
        archive, base = server.data.with_name("archive"), server.data.with_name("base")
        archive.mkdir()
        archive.chmod(0o777)
        url = f"postgresql:///postgres?user=postgres&host={server.data}"

        def store(url: str) -> AgentFormer:
            named = {"backend": "postgres", "postgres_url": url, "originals": "database"}
            return connect(
                index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", clean_every=0, **named
            )

        import psycopg

        with psycopg.connect(url, autocommit=True) as raw:
            for setting, value in (("archive_mode", "on"), ("archive_command", f"cp %p {archive}/%f")):
                raw.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
        server.ctl("stop", "-m", "fast")
        server.start()
        with store(url) as af:
            af.memory.store_many([{"content": f"note {n} about herons", "kind": "fact"} for n in range(10)])
        server.pg("pg_basebackup", "-h", str(server.data), "-U", "postgres", "-D", str(base), "-c", "fast")
        with store(url) as af:
            af.memory.store_many([{"content": f"note {n} about herons", "kind": "fact"} for n in range(10, 20)])
            af.rag.upload(b"Herons nest in reeds.", name="herons.txt")
        with psycopg.connect(url, autocommit=True) as raw:
            moment = raw.execute("SELECT now()").fetchone()[0]
        time.sleep(0.1)
        with store(url) as af:  # a mistake
            af.memory.remove(Scope(kinds=("fact",)))
        with psycopg.connect(url, autocommit=True) as raw:  # `archive_timeout` does the same in a while
            segment = raw.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()[0]
        wait_until(lambda: (archive / segment).exists())
        server.ctl("stop", "-m", "immediate")  # the disk with the data is gone
        restored = type(server)(base, server._installed)
        for lock in base.glob(".s.PGSQL*"):
            lock.unlink()
        with (base / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"restore_command = 'cp {archive}/%f %p'\nrecovery_target_time = '{moment.isoformat()}'\n")
            settings.write("recovery_target_action = promote\narchive_mode = off\n")
        (base / "recovery.signal").touch()
        restored.start()
        ending.callback(restored.ctl, "stop", "-m", "immediate")
        with store(f"postgresql:///postgres?user=postgres&host={base}") as af:
            check(af, range(20))
            document = af.rag.documents()[0]
            assert af.rag.original(document.id) == b"Herons nest in reeds."
            af.memory.store("note 99 about herons", kind="fact")
