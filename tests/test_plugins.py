"""An embedder and a store that somebody else wrote: the example packages, installed with pip, used from everywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytestmark = pytest.mark.process
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EXAMPLE, STORE = EXAMPLES / "embedder_plugin", EXAMPLES / "store_plugin"
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
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(STORE, tmp_path_factory.mktemp("store"))


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


def run(site: Path, folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return forked.ended(forked.command(*arguments, before=f"sys.path.insert(0, {str(site)!r})", cwd=folder, **options))


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


@pytest.mark.parametrize("example", [EXAMPLE, STORE], ids=["embedder", "store"])
def test_the_plugins_own_tests_pass(plugin: Path, store: Path, tmp_path: Path, example: Path) -> None:
    arguments = ("-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, example / "tests")
    code = (
        "import pytest\nsys.dont_write_bytecode = True\n"
        f"sys.path[:0] = [{str(plugin)!r}, {str(store)!r}]\nsys.exit(pytest.main())"
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


# The main job of a memory with the store of the plugin, through each of its Python classes and HTTP.
MAIN_JOB = """
import json
from agentformer.api.app import create_app
from agentformer.factory import connect
from agentformer.settings import load_settings
from agentformer.types import Scope
settings = {"backend": "onefile", "embedder": "hashing", "clean_keep_recent": 2, "clean_batch": 5}
found = {}
with connect(**settings) as af:
    old = af.memory.store("The harbour office opens at nine.")
    new = af.memory.store("The harbour office opens at ten.")
    af.memory.supersede(old.id, new.id)
    af.memory.core.append("rules", "Answer briefly.")
    for n in range(9):
        af.memory.add_message("monday", "user", f"The ferry {n} left with 7{n} people.")
    cleaned = af.memory.clean(session_id="monday")
    found["manager"] = [hit.entry.content for hit in af.memory.search("harbour office opens", kinds=["fact"])]
    found["summaries"] = len(cleaned.summaries)
    found["restored"] = len(af.memory.restore(cleaned.summaries[0]))
    working = af.memory.hierarchical.working(Scope(session_id="monday"))
    found["hierarchical"] = [len(working), len(af.memory.hierarchical.transcript("monday"))]
    uploads = [af.rag.upload(b"The keys hang in the blue cupboard.", name="keys.txt") for _ in range(2)]
    found["upload"] = [uploads[0].status, uploads[1].unchanged]
    found["answer"] = af.rag.query("Where do the keys hang?").citations[0].document
    found["files"] = [len([*af.settings.upload_dir.rglob("*.bin")])]
    af.rag.upload(b"The keys hang in the hall.", name="keys.txt")
    found["files"].append(len([*af.settings.upload_dir.rglob("*.bin")]))
    found["verified"] = sum(check.found for check in af.verify())
    found["exported"] = sum(af.export_to("export").namespaces.values()) == af.memory.count(include_archived=True)
client = create_app(load_settings(settings)).test_client()
base = {"base_url": "http://127.0.0.1"}
stored = client.post("/api/memory", json={"content": "The mole is closed."}, **base)
asked = client.post("/api/rag/query", json={"question": "Where do the keys hang?"}, **base).get_json()
hits = client.post("/api/memory/search", json={"text": "mole closed", "limit": 1}, **base).get_json()
found["http"] = [stored.status_code, asked["citations"][0]["quote"], hits["hits"][0]["content"]]
removed = client.delete(f"/api/rag/documents/{asked['citations'][0]['document_id']}", **base)
found["removed"] = [removed.status_code, client.get("/api/status", **base).get_json()["kinds"].get("chunk", 0)]
print(json.dumps(found))
"""


def test_a_store_of_a_plugin_does_the_main_job_in_python_and_over_http(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("flask", reason="the extra `server` is not installed")
    done = forked.ended(forked.program(f"sys.path.insert(0, {str(store)!r})\n{MAIN_JOB}", cwd=tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "manager": ["The harbour office opens at ten."],
        "summaries": 1,
        "restored": 5,
        "hierarchical": [9, 9],
        "upload": ["ready", True],
        "answer": "keys.txt",
        "files": [1, 1],
        "verified": 0,
        "exported": True,
        "http": [201, "The keys hang in the hall.", "The mole is closed."],
        "removed": [204, 0],
    }
    assert not [*(tmp_path / "uploads").rglob("*.bin")]  # removed with the last document


def test_a_store_of_a_plugin_does_the_main_job_from_the_command_line(store: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("The keys of the lighthouse hang in the blue cupboard.", "utf-8")

    def af(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(store, tmp_path, *arguments, env={"AGENTFORMER_BACKEND": "onefile"})

    assert af("search", "tea").returncode == 2 and not (tmp_path / "indexes").exists()
    for arguments in (("remember", "Tea is at four."), ("ingest", "rules.txt")):
        assert (done := af(*arguments)).returncode == 0, done.stderr
    answer = json.loads(af("ask", "--json", "Where do the keys hang?").stdout)
    assert answer["citations"][0]["document"] == "rules.txt"
    hits = json.loads(af("search", "--json", "tea").stdout)["hits"]
    assert [hit["content"] for hit in hits] == ["Tea is at four."]
    status = json.loads(af("status", "--json").stdout)
    assert (status["entries"], status["spaces"], status["kinds"]["fact"]) == (4, [], 1)
    assert (done := af("doctor")).returncode == 0, done.stdout
    assert "store onefile offers no verification of its data" in done.stdout
    refused = af("backup", "copy")
    assert refused.returncode == 2
    assert "store onefile offers no copies of itself, which a backup needs" in refused.stderr
    assert not (tmp_path / "copy").exists()
