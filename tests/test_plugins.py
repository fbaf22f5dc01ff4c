"""An embedder that somebody else wrote: the example package, installed with pip, used from the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.process
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "embedder_plugin"
BROKEN = {
    "METADATA": "Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.2\n",
    "entry_points.txt": "[agentformer.embedders]\nbroken = broken_plugin:Embedder\n"
    "nowhere = broken_plugin_two:Embedder\nnothing = broken_plugin_two:VERSION\n",
}


def install(source: Path, work: Path) -> Path:
    """The folder into which pip has put the package. Nothing is written beside the source, and no network is used."""
    copy = Path(shutil.copytree(source, work / "source", ignore=shutil.ignore_patterns("__pycache__")))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--target", work / "site", copy], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return work / "site"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(EXAMPLE, tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip leaves it after the installation of a package."""
    site = tmp_path_factory.mktemp("broken")
    (site / "broken_plugin.py").write_text("import a_library_that_is_not_there\n", encoding="utf-8")
    (site / "broken_plugin_two.py").write_text("VERSION = 2\n", encoding="utf-8")
    (site / "broken_plugin-1.2.dist-info").mkdir()
    for name, text in BROKEN.items():
        (site / "broken_plugin-1.2.dist-info" / name).write_text(text, encoding="utf-8")
    return site


def run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.ended(forked.command(*arguments, before=f"sys.path.insert(0, {str(site)!r})", cwd=folder))


def test_the_example_is_installed_and_used_by_its_name(plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("Majakan avaimia säilytetään sinisessä kaapissa.\n\nTea is at four.\n", "utf-8")
    made = run(plugin, tmp_path, "ingest", "--embedder", "chargrams:256", "rules.txt")
    assert made.returncode == 0, made.stderr

    answer = run(plugin, tmp_path, "ask", "--embedder", "chargrams:256", "--json", "Missä majakan avaimia säilytetään?")
    assert json.loads(answer.stdout)["citations"][0]["document"] == "rules.txt", answer.stderr

    status = json.loads(run(plugin, tmp_path, "status", "--json").stdout)
    space = status["space"]
    assert (space["provider"], space["model"], space["dimension"]) == ("chargrams", "256", 256)
    assert status["pending"] == 0


def test_auto_finds_the_plugin_that_a_store_was_made_with(plugin: Path, tmp_path: Path) -> None:
    assert run(plugin, tmp_path, "remember", "--embedder", "chargrams", "The lighthouse is red.").returncode == 0
    found = json.loads(run(plugin, tmp_path, "search", "--json", "lighthouses").stdout)
    assert found["hits"][0]["dense_score"] > 0.5


def test_another_dimension_is_refused_for_the_store(plugin: Path, tmp_path: Path) -> None:
    assert run(plugin, tmp_path, "remember", "--embedder", "chargrams:256", "The lighthouse is red.").returncode == 0
    done = run(plugin, tmp_path, "remember", "--embedder", "chargrams:128", "Tea is at four.")
    assert done.returncode != 0
    assert "chargrams:256" in done.stderr and "chargrams:128" in done.stderr


def test_the_plugins_own_tests_pass(plugin: Path, tmp_path: Path) -> None:
    arguments = ("-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, EXAMPLE / "tests")
    code = (
        f"import pytest\nsys.dont_write_bytecode = True\nsys.path.insert(0, {str(plugin)!r})\nsys.exit(pytest.main())"
    )
    done = forked.ended(forked.program(code, *arguments, cwd=tmp_path, imports=(*forked.STORE, "pytest")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "ModuleNotFoundError: No module named 'a_library_that_is_not_there'"),
        ("nowhere", "AttributeError: module 'broken_plugin_two' has no attribute 'Embedder'"),
        ("nothing", "broken_plugin_two:VERSION is not callable"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named_with_the_reason(
    broken: Path, tmp_path: Path, name: str, reason: str
) -> None:
    done = run(broken, tmp_path, "remember", "--embedder", f"{name}:x", "The lighthouse is red.")
    assert done.returncode == 2
    assert f"{name!r} of the package broken-plugin 1.2 cannot be loaded" in done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_plugin_does_not_hurt_the_others(broken: Path, tmp_path: Path) -> None:
    assert run(broken, tmp_path, "remember", "--embedder", "hashing", "The lighthouse is red.").returncode == 0
    done = run(broken, tmp_path, "remember", "--embedder", "word2vec", "Tea is at four.")
    assert done.returncode == 2
    assert "known names are broken, hashing, minilm" in done.stderr
