"""A damaged write-ahead log of a killed process loses no change in silence.

`FAULTS_DAMAGES` says how many logs are damaged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.errors import StoreDamaged
from agentformer.records import entries as records
from agentformer.records.integrity.frames import read_log
from agentformer.records.sqlite.database import Database
from agentformer.types import Scope
from tests import forked

pytestmark = [pytest.mark.fault, pytest.mark.process]

DAMAGES = int(os.environ.get("FAULTS_DAMAGES", "8"))
CALLS = 30
FRAME = 24 + 4096
WRITER = f"""
import sys; from pathlib import Path
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
backend = FaissMemoryBackend(Path(sys.argv[1]), HashingEmbedder(64))
for number in range({CALLS}):
    backend.store([make_entry(f"the heron number {{number}} stands in the reeds")])
    if number == 4:
        backend._database.clear_log()
print("done", flush=True); sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a process that was killed after its calls. Most of them are in the log only."""
    folder = tmp_path_factory.mktemp("killed")
    with forked.program(WRITER, folder, stdin=-1) as writer:
        assert str(writer.stdout.readline()).strip() == "done"  # type: ignore[union-attr]
        os.kill(writer.pid, signal.SIGKILL)
    return folder


def damaged(killed: Path, folder: Path, change: Callable[[bytearray], None]) -> Path:
    shutil.copytree(killed, folder)
    log = folder / "memory.sqlite3-wal"
    data = bytearray(log.read_bytes())
    change(data)
    log.write_bytes(data)
    return folder / "memory.sqlite3"


def numbers(path: Path) -> list[int]:
    with closing(Database(path)) as database, database.reading() as connection:
        return sorted(int(entry.content.split()[3]) for entry in records.page(connection, Scope(), "", 1000))


def repaired(path: Path) -> tuple[int, str]:
    folders = [
        "--index-dir",
        str(path.parent),
        "--upload-dir",
        str(path.parent / "uploads"),
        "--embedder",
        "hashing:64",
    ]
    told = CliRunner().invoke(main, ["doctor", "--repair", *folders])
    return told.exit_code, told.output


def test_an_intact_log_of_a_killed_process_is_read_and_not_kept(killed: Path, tmp_path: Path) -> None:
    path = damaged(killed, tmp_path / "i", lambda data: None)
    assert numbers(path) == [*range(CALLS)]
    assert not list(path.parent.glob("*damaged*"))


@pytest.mark.parametrize("seed", range(DAMAGES))
def test_no_flipped_bit_of_a_log_drops_a_call(killed: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)

    def flip(data: bytearray) -> None:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)

    path = damaged(killed, tmp_path / "i", flip)
    log = path.with_name("memory.sqlite3-wal").read_bytes()
    try:
        assert numbers(path) == [*range(CALLS)]
        assert [each.read_bytes() for each in path.parent.glob("*damaged-*-wal")] == [log]
    except StoreDamaged as error:
        assert "committed changes are behind the damage" in str(error)
        assert path.with_name("memory.sqlite3-wal").read_bytes() == log
        code, output = repaired(path)
        found = numbers(path)
        assert code == (0 if found == [*range(CALLS)] else 1), output
        assert output.count(" is lost;") == CALLS - len(found) <= 1


@pytest.mark.parametrize("seed", range(DAMAGES))
def test_calls_behind_a_destroyed_frame_are_recovered(killed: Path, tmp_path: Path, seed: int) -> None:
    """Some bytes, or all of them, of a frame in the middle of the log are destroyed."""
    dice = random.Random(seed)

    def destroy(data: bytearray) -> None:
        length = dice.choice([2, 40, FRAME])
        at = 32 + FRAME * dice.randrange(20, len(data) // FRAME - 1) + dice.randrange(FRAME - length + 1)
        data[at : at + length] = dice.randbytes(length)

    path = damaged(killed, tmp_path / "i", destroy)
    before = path.with_name("memory.sqlite3-wal").read_bytes()
    with pytest.raises(StoreDamaged, match="committed changes are behind the damage"):
        numbers(path)
    code, output = repaired(path)
    found = numbers(path)
    lost = [number for number in range(CALLS) if number not in found]
    assert code == bool(lost) and output.count(" is lost;") >= len(lost), output
    assert [each.read_bytes() for each in path.parent.glob("*damaged-*-wal")] == [before]


def test_frames_of_a_former_log_in_the_same_file_are_no_damage(tmp_path: Path) -> None:
    """SQLite begins again at the start of the file, and leaves what is behind."""
    with closing(sqlite3.connect(tmp_path / "a", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (text)")
        for _ in range(20):
            connection.execute("INSERT INTO t VALUES (hex(randomblob(500)))")
        connection.execute("PRAGMA wal_checkpoint(FULL)")
        connection.execute("INSERT INTO t VALUES ('new')")
        log = tmp_path / "a-wal"
        assert log.stat().st_size > 20 * FRAME
        found = read_log(log)
        assert (found.behind, found.fixes, found.candidates) == (0, [], {})
        assert len(found.places) == 1


def test_a_frame_that_was_not_written_completely_is_no_damage(killed: Path, tmp_path: Path) -> None:
    def cut(data: bytearray) -> None:
        data[-2000:] = bytes(2000)

    path = damaged(killed, tmp_path / "i", cut)
    assert numbers(path) in ([*range(CALLS - 1)], [*range(CALLS)])


def test_the_log_of_a_running_process_is_left_alone(tmp_path: Path) -> None:
    """It may be in the middle of a write."""
    with forked.program(WRITER, tmp_path, stdin=-1) as writer:
        assert str(writer.stdout.readline()).strip() == "done"  # type: ignore[union-attr]
        log = tmp_path / "memory.sqlite3-wal"
        data = bytearray(log.read_bytes())
        data[32 + 5 * FRAME + 100] ^= 1
        log.write_bytes(data)
        with closing(Database(tmp_path / "memory.sqlite3")):
            assert not list(tmp_path.glob("*damaged*")) and log.read_bytes() == data
        os.kill(writer.pid, signal.SIGKILL)
