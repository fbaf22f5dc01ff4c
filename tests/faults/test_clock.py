"""A clock that jumps: an hour back, to 1970, ten years ahead, home again. Every library of the process sees it. Nothing
is lost by it, nothing lasts for ever, and ids of a process go on growing."""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_vanished import opened

from agentformer.access.keys import KeyStore
from agentformer.errors import Unauthenticated
from agentformer.jobs.queue import Jobs
from agentformer.jobs.store import Job, Task
from agentformer.types import new_id
from tests import forked

BACKENDS = ["faiss", "local_json"]
HOUR, DAY = 3600, 86_400
HOME = 0
_MADE = TemporaryDirectory(prefix="agentformer-clock-")


def jumps() -> dict[str, int]:
    """Seconds from the system's clock."""
    since_1970 = int(time.time())
    return {
        "an hour back": -HOUR,
        "a second back": -1,
        "ten years ahead": 3652 * DAY,
        "1970": 5 - since_1970,
        "a year back": -365 * DAY,
        "the year 2200": int(datetime(2200, 1, 1, tzinfo=UTC).timestamp()) - since_1970,
        "home": HOME,
    }


@cache
def clock() -> str:
    """The library that shifts the clock of a process; "" where it cannot be made."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        return ""
    made = Path(_MADE.name) / "clock.so"
    source = Path(__file__).with_name("clock.c")
    done = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source], capture_output=True, timeout=120)
    return str(made) if done.returncode == 0 else ""


def set_clock(shift: int) -> None:
    before = time.time()
    cell = ctypes.c_long.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "clock_shift")
    former, cell.value = cell.value, shift
    assert abs((time.time() - before) - (shift - former)) < 60, "the clock did not move"


@pytest.fixture(scope="module")
def shifting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process whose clock can be set, and which forks for each scene."""
    if not clock():
        pytest.skip("there is no C compiler, so the clock of a process cannot be set")
    log = tmp_path_factory.mktemp("clock") / "errors"
    environment = {**os.environ, "LD_PRELOAD": clock(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with log.open("w") as errors:
        process = subprocess.Popen([sys.executable, __file__], stderr=errors, text=True, env=environment, **pipes)
    yield process
    process.communicate(timeout=60)


def shifted(process: subprocess.Popen[str], scene: Any, *arguments: object) -> None:
    """Run a scene in a fork of that process."""
    assert process.stdin and process.stdout
    process.stdin.write("\t".join([scene.__name__, *map(str, arguments)]) + "\n")
    process.stdin.flush()
    code, told = json.loads(process.stdout.readline())
    assert code == 0, told


def play_all() -> None:
    """Read scenes and their arguments, and tell for each how it failed, if it did."""
    for module in forked.STORE:
        importlib.import_module(module)
    for line in sys.stdin:
        name, *arguments = line.rstrip("\n").split("\t")
        reader, writer = os.pipe()
        if not os.fork():
            try:
                globals()[name](*arguments)
            except BaseException:
                os.write(writer, traceback.format_exc().encode()[-6000:])
                os._exit(1)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as failure:
            told = failure.read()
        code = os.waitstatus_to_exitcode(os.wait()[1])
        print(json.dumps([code, told]), flush=True)


def a_memory_is_used_through_all_jumps(folder: str, backend: str) -> None:
    af = opened(Path(folder), backend)
    kept: dict[str, str] = {}
    for name, shift in jumps().items():
        set_clock(shift)
        word = "heron" + "".join(filter(str.isalnum, name))
        text = f"{word} was seen when it was {name}"
        entry = af.memory.store(text)
        assert not kept or entry.id > max(kept), name
        kept[entry.id] = text
        message = af.memory.add_message("talk", "user", f"it is {name} now")
        kept[message.id] = message.content
        document = af.rag.upload(io.BytesIO(f"The {word} page tells of {name}.".encode()), name=f"{word}.txt")
        assert document.status == "ready"
        changed = af.memory.update(next(iter(kept)), title=name)
        assert changed.title == name
        check(af, kept, word, text)
        lease(af, name)
    report = af.memory.clean()
    assert not report.conflicts
    assert len(af.memory.transcript("talk")) >= len(jumps())
    af.memory.audit()
    af.close()
    for shift in (-HOUR, HOME):
        set_clock(shift)
        with opened(Path(folder), backend) as af:
            check(af, kept, "heronhome", next(text for text in kept.values() if "heronhome" in text))
            assert af.memory.store(f"one more at {shift}").id not in kept


def check(af: Any, kept: dict[str, str], word: str, text: str) -> None:
    found = {entry.id: entry for entry in af.memory.list(limit=1000)}
    assert list(found) == sorted(found), "entries are listed in order of id"
    assert {each: found[each].content for each in kept} == kept
    for entry in found.values():
        assert 0 <= af.memory.effective_salience(entry) <= entry.salience <= 1
    hits = af.memory.search(word, limit=5)
    assert text in [hit.entry.content for hit in hits], word
    assert all(0 <= hit.score < 10 for hit in hits)
    assert af.memory.build_context("heron", session_id="talk").messages
    assert len(af.memory.recent(50)) and af.status()["entries"]
    assert af.rag.query(f"What does the {word} page tell of?").text


def lease(af: Any, name: str) -> None:
    """It is somebody's for its time, and never for longer, however the clock jumps meanwhile."""
    moment = time.time() - real_time()
    assert af.backend.lease(name, "one", 30)
    assert not af.backend.lease(name, "two", 30)
    for shift in (31, -DAY, 20 * 365 * DAY):
        with at(round(moment) + shift):
            assert af.backend.lease(name, "two", 30), (name, shift)
            af.backend.release(name, "two")
        assert af.backend.lease(name, "one", 30), (name, shift)
        if shift < 0:
            af.backend.release(name, "one")


def real_time() -> float:
    cell = ctypes.c_long.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "clock_shift")
    return time.time() - cell.value


@contextmanager
def at(shift: int) -> Iterator[None]:
    former = ctypes.c_long.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "clock_shift").value
    set_clock(shift)
    try:
        yield
    finally:
        set_clock(former)


def keys_and_jobs_live_through_all_jumps(folder: str) -> None:
    keys = KeyStore(Path(folder))
    expires = datetime.now(UTC) + timedelta(hours=1)
    _, secret = keys.make("office", expires=expires)
    _, lasting = keys.make("archive")
    jobs = Jobs(Path(folder), Path(folder) / "u", Ingestor(), most=100, days=7)
    jobs.start()
    done: list[str] = []
    for name, shift in jumps().items():
        set_clock(shift)
        assert keys.grant_of(lasting), name
        if shift > HOUR:
            with pytest.raises(Unauthenticated, match="expired"):
                keys.grant_of(secret)
        else:
            assert keys.grant_of(secret), name
        job = jobs.submit(Task("default", ("a.txt",), {}), [io.BytesIO(b"words")])
        assert not done or job.id > done[-1]
        done.append(job.id)
        ends = time.monotonic() + 60
        while not jobs.get(job.id).ended:
            assert time.monotonic() < ends, f"a job did not end when it was {name}"
            time.sleep(0.01)
        assert jobs.get(job.id).state == "done", name
    assert jobs.page([])[0].id == done[-1]
    jobs.close()


class Ingestor:
    """Takes every file."""

    def prepare(self, *arguments: Any) -> None:
        pass

    def ingest(self, *arguments: Any) -> dict[str, Any]:
        return {"status": "ready"}

    def failed(self, job: Job, name: str, reason: str) -> dict[str, Any]:
        raise AssertionError(reason)


def ids_grow_through_all_jumps() -> None:
    made = [new_id()]
    for shift in (*jumps().values(), -int(real_time()) - DAY, 200 * 365 * DAY, HOME):
        set_clock(shift)
        made += [new_id() for _ in range(5000)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_memory_goes_on_whatever_the_clock_does(shifting: Any, tmp_path: Path, backend: str) -> None:
    shifted(shifting, a_memory_is_used_through_all_jumps, tmp_path, backend)


def test_keys_and_jobs_go_on_whatever_the_clock_does(shifting: Any, tmp_path: Path) -> None:
    shifted(shifting, keys_and_jobs_live_through_all_jumps, tmp_path)


def test_ids_grow_whatever_the_clock_does(shifting: Any) -> None:
    shifted(shifting, ids_grow_through_all_jumps)


if __name__ == "__main__":
    play_all()
