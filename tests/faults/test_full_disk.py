"""A disk that is really full, at every kind of write: each goes well or says that there is no room, and once there is,
all that was acknowledged is there, nothing that was refused, and the same memory goes on."""

from __future__ import annotations

import itertools
import json
import random
import signal
import sqlite3
import subprocess
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from fill_disk import Diary
from mounts import ALL, Ballast, apart, beside, mount, play, run, why_not
from serve_load import multipart
from writers import ForkedServer

import agentformer
from agentformer.errors import StoreError, StoreFull

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

BACKENDS = ["faiss", "local_json"]
KB = 1024
ROOMS = [0, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 4096]
SAMPLE = 3  # of them, with 0 always


def rooms() -> list[int]:
    chosen = ROOMS if ALL else [0, *sorted(random.Random().sample(ROOMS[1:], SAMPLE - 1))]
    return [room * KB for room in chosen]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_write_goes_well_or_says_that_there_is_no_room(tmp_path: Path, backend: str) -> None:
    chosen = rooms()
    print("rooms", chosen)
    told = run(Path(__file__).with_name("fill_disk.py"), tmp_path / "disk", backend, *chosen)
    outcomes = json.loads(told.splitlines()[-1])
    assert {"store", "update", "remove", "upload", "job"} <= outcomes.keys()
    assert all(outcomes[way].get("refused") for way in ("store", "update", "upload", "job")), outcomes
    assert outcomes["search"] == {"done": len(chosen)}, outcomes


def no_file_can_be_made(folder: str, backend: str) -> None:
    """No room for names, though there is for bytes."""
    disk = Path(folder) / "disk"
    mount(disk, "24m", files=80)
    diary = Diary(disk, backend)
    diary.store_many()
    for way in diary.ways():
        taken = disk / "taken"
        taken.mkdir()
        with suppress(OSError):
            for number in range(200):
                (taken / str(number)).touch()
        diary.tried(way, 1 << 20, empty=taken)
    diary.memory.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_disk_without_room_for_names_is_told_like_a_full_one(tmp_path: Path, backend: str) -> None:
    apart(no_file_can_be_made, tmp_path, backend)


def a_store_is_begun_on_a_full_disk(folder: str) -> None:
    disk = Path(folder) / "disk"
    mount(disk, "8m")
    ballast = Ballast(disk)
    for backend in BACKENDS:
        for room in (0, 4, 12, 40, 100, 200, 300) if ALL else (0, 100):
            ballast.leave(room * KB)
            place = disk / backend / str(room)

            def begun(place: Path = place, backend: str = backend) -> agentformer.AgentFormer:
                return agentformer.connect(
                    index_dir=place / "i", upload_dir=place / "u", backend=backend, embedder="hashing:64"
                )

            acknowledged = ""
            try:
                with begun() as af:
                    acknowledged = af.memory.store("a heron stands in the reeds").id
            except StoreError as error:
                assert isinstance(error, StoreFull) and str(place) in str(error), error
            ballast.free()
            with begun() as af:
                if acknowledged:
                    assert af.memory.get(acknowledged).content == "a heron stands in the reeds"
                else:
                    assert not af.memory.list()
                af.memory.store("an egret comes")
                assert [hit.entry.content for hit in af.memory.search("egret", limit=1)] == ["an egret comes"]


def test_a_store_that_could_not_be_begun_is_begun_once_there_is_room(tmp_path: Path) -> None:
    apart(a_store_is_begun_on_a_full_disk, tmp_path)


def write_until_full(disk: Path, pipe: Connection) -> None:
    diary = Diary(disk, "faiss")
    for number in itertools.count():
        try:
            pipe.send(diary.memory.memory.store(f"tern {number} " + "on the pier " * 300).id)
        except Exception as error:
            pipe.send(error)
            signal.pause()


def a_writer_is_killed_on_a_full_disk(folder: str) -> None:
    """It writes until nothing more fits, and dies with all of it in the log, which has no room to be moved."""
    disk = Path(folder) / "disk"
    mount(disk, "4m")
    writer, pipe = beside(write_until_full, disk)
    acknowledged = []
    while isinstance(told := pipe.recv(), str):
        acknowledged.append(told)
    assert isinstance(told, StoreFull), told
    writer.kill()
    writer.join()
    assert acknowledged
    try:
        with agentformer.connect(index_dir=disk / "index", upload_dir=disk / "uploads", embedder="hashing:64") as af:
            assert {entry.id for entry in af.memory.list(limit=10_000)} >= set(acknowledged)
    except StoreError as error:
        assert isinstance(error, StoreFull), error
    subprocess.run(["mount", "-o", "remount,size=24m", str(disk)], check=True, timeout=60)
    with agentformer.connect(index_dir=disk / "index", upload_dir=disk / "uploads", embedder="hashing:64") as af:
        assert {entry.id for entry in af.memory.list(limit=10_000)} >= set(acknowledged)
        af.memory.store("an egret comes")
        assert af.memory.search("egret", limit=1)[0].entry.content == "an egret comes"
    check = sqlite3.connect(disk / "index" / "memory.sqlite3")
    assert check.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    check.close()


def test_a_writer_that_is_killed_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    apart(a_writer_is_killed_on_a_full_disk, tmp_path)


def a_server_runs_out_of_room(folder: str) -> None:
    disk = Path(folder) / "disk"
    mount(disk, "24m")
    ballast = Ballast(disk)
    big, kind = multipart({"big.txt": b"boats and tides\n\n" * 20_000})
    server = ForkedServer(disk)

    def post(path: str, **body: object) -> tuple[int, Any]:
        answer = server.call("POST", path, json.dumps(body).encode(), Content_Type="application/json")
        return answer.status, answer.json

    try:
        acknowledged = [post("/api/memory", content="a heron stands in the reeds")[1]["id"]]
        for room in (0, 16 * KB, 200 * KB) if ALL else (0, 100 * KB):
            ballast.leave(room)
            for number in range(60):
                status, told = post("/api/memory", content=f"tern {number} " + "on the pier " * 400)
                if status != 201:
                    break
                acknowledged.append(told["id"])
            assert (status, told["type"]) == (507, "urn:agentformer:problem:store-full"), told
            assert server.call("POST", "/api/rag/upload", big, Content_Type=kind).status in (201, 507)
            status, told = post("/api/memory/search", text="heron")
            assert status == 200 and told["hits"], told
            ballast.free()
            status, told = post("/api/memory", content=f"an egret has room again, {room}")
            assert status == 201, told
            acknowledged.append(told["id"])
            for entry_id in acknowledged:
                assert server.call("GET", f"/api/memory/{entry_id}").status == 200
    finally:
        code = server.end()
    assert code == 0 and "Traceback" not in server.log.read_text(), server.log.read_text()


def test_a_server_answers_507_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    apart(a_server_runs_out_of_room, tmp_path)


if __name__ == "__main__":
    play(globals())
