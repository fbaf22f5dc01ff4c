"""What the packages of the fast runtime do to the process that uses them: no report, no orphan, and no lost vectors
where one of them is broken."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from agentformer.embedders.sbert.openvino import OpenVinoRuntime
from tests.faults.long_form import long_form

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="the extra `fast` (OpenVINO) is not installed"),
]
# Python runs this in every process at its start, the exporting one included.
WATCHING = """
    import atexit, os, sys
    def tell(text):
        with open(os.environ["WATCHED"], "a") as out:
            out.write(text + "\\n")
    def hook(event, args):
        if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "os.fork"):
            tell(f"{event} {args}")
            raise OSError("denied")
    sys.addaudithook(hook)
    def last():
        if sys.modules.get("openvino_telemetry"):
            tell("openvino_telemetry was imported")
        tell(f"ended, with OpenVINO: {'openvino' in sys.modules}")
    atexit.register(last)
"""
LOADING = """
    import sys
    from pathlib import Path
    from agentformer.embedders.sbert import SbertEmbedder
    from agentformer.settings import Settings
    embedder = SbertEmbedder.from_settings(sys.argv[1], Settings(cache_dir=Path(sys.argv[2])))
    embedder.embed_query("the keys"), embedder.embed_documents(["the keys", "x"])
    print(type(embedder._runtime).__name__)
"""


class Ran:
    """A process that loads the model, and what was watched of it and of the one that it started."""

    def __init__(self, model: str, cache: Path, folder: Path, then: str = "") -> None:
        watched = folder / "watched"
        watched.unlink(missing_ok=True)
        (folder / "sitecustomize.py").write_text(textwrap.dedent(WATCHING))
        code = textwrap.dedent(LOADING) + textwrap.dedent(then)
        done = subprocess.run(
            [sys.executable, "-c", code, model, str(cache)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())]), "WATCHED": str(watched)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.out, self.err, self.status = done.stdout.split(), done.stderr, done.returncode
        self.watched = watched.read_text().splitlines()


@pytest.fixture(scope="session")
def own(own_model: Path) -> Path:
    return own_model


@pytest.fixture(scope="module")
def first(own: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """The load that exports, and the cache that it leaves."""
    cache = tmp_path_factory.mktemp("models")
    return Ran(str(own), cache, tmp_path_factory.mktemp("first")), cache


def test_an_export_reports_nothing_to_anybody(first: tuple[Ran, Path]) -> None:
    exporting, _ = first
    assert exporting.out == ["OpenVinoRuntime"], exporting.err
    assert exporting.watched == ["ended, with OpenVINO: True"] * 2


def test_a_load_needs_no_torch_and_reports_nothing_and_an_application_that_uses_openvino_itself_gets_it_whole(
    own: Path, first: tuple[Ran, Path], tmp_path: Path
) -> None:
    then = """
        print({"torch", "transformers", "sentence_transformers", "nncf"} & set(sys.modules))
        import openvino
        print("openvino_telemetry" in sys.modules, "openvino.tools" in sys.modules)
        sys.modules["openvino_telemetry"] = None  # this application's own choice
        from openvino import convert_model
        print(convert_model.__name__, hasattr(openvino, "no_such_thing"))
    """
    ran = Ran(str(own), first[1], tmp_path, then)
    assert ran.out == ["OpenVinoRuntime", "set()", "False", "False", "convert_model", "False"], ran.err
    assert (ran.watched, ran.err) == (["ended, with OpenVINO: True"], "")


def test_a_broken_quantiser_is_named_and_the_model_is_not_blamed(
    own: Path, first: tuple[Ran, Path], tmp_path: Path
) -> None:
    pytest.importorskip("nncf")
    (tmp_path / "nncf").mkdir()
    (tmp_path / "nncf" / "__init__.py").write_text("raise ImportError('no such symbol')")
    cache = Path(shutil.copytree(first[1], tmp_path / "cache"))
    ran = Ran(f"{own}@int8", cache, tmp_path)
    assert ran.status == 1 and "the package nncf cannot be imported (ImportError: no such symbol)" in ran.err
    assert not list(cache.glob("models/*.refused"))


def test_one_compiled_model_is_kept_beside_an_export_that_was_copied(first: tuple[Ran, Path], tmp_path: Path) -> None:
    export = next(path.parent for path in first[1].glob("models/*/whole.json"))
    place = Path(shutil.copytree(export, tmp_path / "export"))
    OpenVinoRuntime(place, "int8")
    (blob,) = place.glob("compiled/*")
    other = Path(shutil.copytree(place, tmp_path / "copy"))
    (other / "compiled" / "12345.blob").write_bytes(blob.read_bytes())  # of another processor
    os.utime(other / "compiled" / "12345.blob", (1, 1))
    OpenVinoRuntime(other, "int8")
    (other / "model.xml").touch()
    OpenVinoRuntime(other, "int8")
    assert len(list(other.glob("compiled/*.blob"))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=long_form)])
def test_an_export_ends_with_the_process_that_asked_for_it(own: Path, tmp_path: Path, how: signal.Signals) -> None:
    asker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOADING), str(own), str(tmp_path / "cache")], stderr=subprocess.DEVNULL
    )
    children = Path(f"/proc/{asker.pid}/task")
    exporter = ""
    deadline = time.monotonic() + 120
    while not exporter and time.monotonic() < deadline and asker.poll() is None:
        exporter = " ".join(file.read_text() for file in children.glob("*/children")).strip()
        time.sleep(0.01)
    asker.send_signal(how)
    asker.wait(30)
    assert exporter
    while time.monotonic() < deadline and _runs(exporter):
        time.sleep(0.05)
    assert not _runs(exporter)
    assert not list((tmp_path / "cache").glob("models/*/whole.json"))


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
