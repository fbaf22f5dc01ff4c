"""The wheel and the sdist: built from the repository, complete, and installed into an environment of their own.

`make test-install` does the same over the network, with every Python that this machine has.
"""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import agentformer
from agentformer import _version
from agentformer.cli import main

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[1]
PARTS = ("agentformer", "docs", "examples", "plugins")
BUILD = "from setuptools import build_meta as build; print(build.build_{}('{}'))"
REPOSITORY = "https://example.org/owner/agentformer"
WORKFLOW = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "owner/agentformer"}
BOUND = 180.0  # seconds for one program
NEWEST_NEEDED = 77

if not (ROOT / "setup.py").exists():
    pytest.skip("the sources of this package are not here", allow_module_level=True)
try:
    if int(importlib.metadata.version("setuptools").partition(".")[0]) < NEWEST_NEEDED:
        pytest.skip(f"setuptools is older than {NEWEST_NEEDED}", allow_module_level=True)
except importlib.metadata.PackageNotFoundError:
    pytest.skip("setuptools is not installed", allow_module_level=True)


def run(*words: str | Path, cwd: Path, **environ: str) -> str:
    """Return the standard output of a program that must succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "AGENTFORMER_"))}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env={**kept, **environ}, capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def built(kind: str, folder: Path, target: Path, **environ: str) -> Path:
    """Build a "wheel" or an "sdist" from a folder, without a network."""
    target.mkdir(exist_ok=True)
    name = run(sys.executable, "-c", BUILD.format(kind, target.as_posix()), cwd=folder, **environ).splitlines()[-1]
    return target / name


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files from which packages are built, as no clone of git."""
    copy = tmp_path_factory.mktemp("sources")
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]:
        shutil.copy(file, copy)
    return copy


@pytest.fixture(scope="module")
def sdist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", sources, tmp_path_factory.mktemp("sdist"), **WORKFLOW)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that an installer builds from the unpacked sdist, outside the workflow that made the sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, folder, filter="data")
    return built("wheel", next(folder.iterdir()), folder / "dist")


def test_the_sdist_has_what_a_user_reads_and_no_test_that_cannot_run(sdist: Path, sources: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {path.relative_to(sources).as_posix() for path in sources.glob("docs/*.md")}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "examples/demo/run.py", *pages} <= names
    assert {name for name in names if name.startswith(("tests", "bench")) or name.endswith(".pyc")} == set()


def test_the_wheel_has_each_file_of_the_package(wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("agentformer/")}
    files = {p.relative_to(sources).as_posix() for p in sources.glob("agentformer/**/*") if p.is_file()}
    assert names == files | {"agentformer/build.json"}


def test_the_page_of_the_package_has_no_link_that_leads_nowhere(sdist: Path, wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"agentformer-{agentformer.__version__}.dist-info/METADATA"))
    page = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert f"{REPOSITORY}/blob/HEAD/docs/MEMORY.md" in links and f"{REPOSITORY}/raw/HEAD/docs/images/ask.png" in links
    assert [link for link in links if not re.match(r"https?://|#", link)] == []
    assert metadata["Project-URL"] == f"Repository, {REPOSITORY}" and metadata["License-Expression"] == "Apache-2.0"
    plain = run(sys.executable, "setup.py", "--quiet", "--long-description", cwd=sources)
    assert "docs/MEMORY.md" in plain and [x for x in re.findall(r"\]\(([^)]+)\)", plain) if "://" not in x] == []


def test_an_installed_wheel_answers_a_question(wheel: Path, tmp_path: Path) -> None:
    """The packages of this environment are visible in the new one; agentformer is the installed wheel."""
    run(sys.executable, "-m", "venv", "--without-pip", "new", cwd=tmp_path)
    python = next(
        path for path in (tmp_path / "new" / "bin" / "python", tmp_path / "new/Scripts/python.exe") if path.exists()
    )
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (place / "visible.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    (tmp_path / "notes.txt").write_text("The caretaker holds the keys. They hang in the blue cupboard.")
    program = (python, "-m", "agentformer")
    settings = {"AGENTFORMER_EMBEDDER": "hashing"}
    record = json.loads((place / "agentformer" / "build.json").read_text())
    assert record == {"commit": "", "date": "", "repository": REPOSITORY}
    assert run(*program, "--version", cwd=tmp_path) == f"agentformer, version {agentformer.__version__}\n"
    run(*program, "ingest", "notes.txt", cwd=tmp_path, **settings)
    answer = json.loads(run(*program, "ask", "Who holds the keys?", "--json", cwd=tmp_path, **settings))
    assert answer["citations"][0]["document"] == "notes.txt"
    assert answer["citations"][0]["quote"].startswith("The caretaker holds the keys.")
    where = run(python, "-c", "import agentformer; print(agentformer.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(place)


def test_the_command_line_and_the_api_name_the_commit_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openapi = pytest.importorskip("agentformer.api.endpoints.openapi", reason="the extra `server` is not installed")

    def shown() -> tuple[str, object]:
        openapi.openapi_document.cache_clear()
        return CliRunner().invoke(main, ["--version"]).output, openapi.openapi_document(())["info"].get("x-build")

    version = f"agentformer, version {agentformer.__version__}"
    monkeypatch.setattr(_version, "__file__", str(tmp_path / "_version.py"))
    assert shown() == (f"{version}\n", None)
    (tmp_path / "build.json").write_text(json.dumps({"commit": "1b3eb13c0d1e", "date": "2026-11-30"}))
    assert shown() == (f"{version} (1b3eb13c0d1e, 2026-11-30)\n", "1b3eb13c0d1e, 2026-11-30")
    (tmp_path / "build.json").write_text("{")
    assert shown() == (f"{version}\n", None)
    openapi.openapi_document.cache_clear()
