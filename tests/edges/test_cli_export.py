"""`agentformer export` and `import`: everything comes back, damage is refused, and nothing is half done."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.factory import connect
from tests.edges.conftest import UNCLEANED, Copy, Invoke, Shown, copy_memory, folders_of
from tests.forked import SERVE, start
from tests.readers.conftest import make_pdf

KEYS = "The caretaker keeps the keys in the blue cupboard."


class Filled(NamedTuple):
    """A memory with something of everything: its folder, the file that it has read, its export, and what is in it."""

    folder: Path
    rules: Path
    out: Path
    told: dict[str, Any]  # by the export
    history: dict[str, Any]  # of `new`
    old: str
    new: str
    summary: str


def command(folder: Path, *arguments: str) -> Any:
    done = CliRunner(env=UNCLEANED).invoke(main, [*arguments, *folders_of(folder), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def fill(folder: Path, rules: Path) -> tuple[str, str, str]:
    command(folder, "ingest", str(rules), "--metadata", '{"year": 2026}')
    command(folder, "ingest", str(rules), "--namespace", "Board/日本")
    with connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", clean_every=0) as af:
        for n in range(12):
            af.memory.add_message("monday", "user", f"The boat number {n} lies at berth {n}.", speaker="Aino ☕")
        old = af.memory.store("Aino lives in Helsinki.", user_id="aino")
        new = af.memory.store("Aino lives in Turku.", user_id="aino", metadata={"about": {"home": [1, 2.5, None]}})
        af.memory.supersede(old.id, new.id)
        af.memory.update(new.id, content="Aino lives in Turku, by the river.")
        af.memory.core.append("persona", "You help the harbour office.")
        (summary,) = af.memory.clean(session_id="monday").summaries
    return old.id, new.id, summary


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("filled")
    rules, out = folder / "rules.pdf", folder / "out"
    rules.write_bytes(make_pdf([["Boats are lifted in October."], [KEYS]]))
    ids = fill(folder, rules)
    told, _ = (command(folder, "export", "--to", str(to), "--all-namespaces") for to in (out, folder / "again"))
    return Filled(folder, rules, out, told, command(folder, "history", ids[1]), *ids)


def same(one: Path, other: Path) -> bool:
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    others = sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
    return names == others and filecmp.cmpfiles(one, other, names, shallow=False) == (names, [], [])


@pytest.mark.process
@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_everything_comes_back_in_another_memory(copy: Copy, filled: Filled, tmp_path: Path, backend: str) -> None:
    assert (filled.told["originals"], filled.told["missing_originals"]) == (1, [])
    assert set(filled.told["namespaces"]) == {"default", "Board/日本"}
    done = copy("import", str(filled.out), "--json", AGENTFORMER_BACKEND=backend)
    assert done.exit_code == 0, done.output
    count = sum(filled.told["namespaces"].values())
    assert json.loads(done.stdout) == {"imported": count, "there_already": 0, "former_versions": 2, "vectors": 0}
    assert (
        copy("export", "--to", str(tmp_path / "back"), "--all-namespaces", AGENTFORMER_BACKEND=backend).exit_code == 0
    )
    assert same(tmp_path / "back", filled.out)
    assert [version["content"] for version in filled.history["versions"]] == ["Aino lives in Turku."]
    assert json.loads(copy("history", filled.new, "--json", AGENTFORMER_BACKEND=backend).stdout) == filled.history
    answer = json.loads(copy("ask", "Who keeps the keys?", "--json", AGENTFORMER_BACKEND=backend).stdout)
    assert (answer["citations"][0]["document"], answer["citations"][0]["page"]) == ("rules.pdf", 2)
    restored = copy("restore", filled.summary, "--json", AGENTFORMER_BACKEND=backend)
    assert len(json.loads(restored.stdout)["entries"]) == 5
    assert copy("doctor", AGENTFORMER_BACKEND=backend).exit_code == 0


@pytest.mark.process
def test_an_unchanged_memory_gives_the_same_bytes_again(filled: Filled) -> None:
    assert same(filled.out, filled.folder / "again")
    manifest = json.loads((filled.out / "manifest.json").read_text(encoding="utf-8"))
    for path, told in manifest["files"].items():
        assert hashlib.sha256((filled.out / path).read_bytes()).hexdigest() == told["sha256"]


@pytest.mark.process
def test_what_is_there_already_is_passed_over_though_it_was_used_and_what_differs_stops_everything(
    copy: Copy, filled: Filled
) -> None:
    assert copy("import", str(filled.out)).exit_code == 0
    assert copy("recall", "Where does Aino live?").exit_code == 0  # which is counted
    copy("forget", filled.old)
    assert copy("import", str(filled.out)).stdout.startswith("entries imported: 1; ")

    copy("update", filled.new, "--content", "Aino lives in Oulu.")
    copy("forget", filled.old)
    done = copy("import", str(filled.out))
    assert (done.exit_code, filled.new in done.stderr, "1 entries" in done.stderr) == (2, True, True)
    assert copy("history", filled.old).exit_code == 2


@pytest.mark.process
def test_a_document_that_is_there_under_another_id_stops_everything(copy: Copy, filled: Filled) -> None:
    former = filled.rules.read_bytes()
    filled.rules.write_bytes(make_pdf([["Other rules."]]))
    (there,) = json.loads(copy("ingest", str(filled.rules), "--json").stdout)["documents"]
    filled.rules.write_bytes(former)
    done = copy("import", str(filled.out))
    assert (done.exit_code, f"agentformer remove {there['id']}" in done.stderr) == (2, True)
    assert len(json.loads(copy("memories", "--kind", "fact", "--json").stdout)["entries"]) == 0


@pytest.mark.process
@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_documents_keep_their_identity_in_another_memory(
    run: Invoke, shown: Shown, copy: Copy, tmp_path: Path, backend: str
) -> None:
    """Export and import two files with equal names and bytes, and a document without a path. Each of them is recognized
    afterwards, and other files are other documents."""
    for folder in ("p1", "p2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rules.txt").write_text(KEYS)
    shown("ingest", str(tmp_path / "p1"), str(tmp_path / "p2"))
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.rag.upload(KEYS.encode(), name="rules.txt")
        origins = sorted((each.origin, each.root, each.name) for each in af.rag.documents())
    run("export", "--to", str(tmp_path / "out"))
    settings = {"AGENTFORMER_BACKEND": backend}
    (tmp_path / "p3").mkdir()
    (tmp_path / "p3" / "rules.txt").write_text(KEYS)
    copy("ingest", str(tmp_path / "p3"), **settings)
    assert copy("import", str(tmp_path / "out"), **settings).exit_code == 0
    (tmp_path / "p2" / "rules.txt").write_text("Boats are lifted in October.")
    folders = [str(tmp_path / folder) for folder in ("p1", "p2", "p3")]
    done = json.loads(copy("ingest", *folders, "--json", **settings).stdout)["documents"]
    assert [(d["unchanged"], d["replaced"] != "") for d in done] == [(True, False), (False, True), (True, False)]
    with connect(index_dir=tmp_path / "ci", upload_dir=tmp_path / "cu", embedder="hashing", backend=backend) as af:
        found = sorted((each.origin, each.root, each.name) for each in af.rag.documents())
        assert [each for each in found if "p3" not in each[0]] == origins
        assert af.rag.upload(KEYS.encode(), name="rules.txt").unchanged


def test_as_many_keys_of_metadata_as_a_document_may_have_come_back(
    run: Invoke, shown: Shown, copy: Copy, tmp_path: Path
) -> None:
    (tmp_path / "rules.txt").write_text(KEYS)
    given = {f"key {n}": n for n in range(100)}
    shown("ingest", str(tmp_path / "rules.txt"), "--metadata", json.dumps(given))
    run("export", "--to", str(tmp_path / "out"))
    done = copy("import", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    assert json.loads(copy("list", "--json").stdout)["documents"][0]["metadata"] == given


@pytest.mark.process
def test_an_original_that_is_missing_is_told_and_stays_missing(
    run: Invoke, shown: Shown, copy: Copy, filled: Filled, tmp_path: Path
) -> None:
    copy_memory(filled.folder, tmp_path, lambda folder: fill(folder, filled.rules))
    next((tmp_path / "u").rglob("*.bin")).unlink()
    (document,) = shown("list")["documents"]
    done = run("export", "--to", str(tmp_path / "missing"))
    assert (done.exit_code, document["id"] in done.stderr) == (1, True)
    assert copy("import", str(tmp_path / "missing")).exit_code == 0
    assert copy("doctor").exit_code == 1


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--to"),
        (("--text", "--to", "new"), "--to"),
        (("--to", "FULL"), "not empty"),
        (("--to", "FILE"), "not empty"),
    ],
)
def test_an_export_needs_a_new_folder(run: Invoke, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    names = {"FULL": str(tmp_path / "full"), "FILE": str(tmp_path / "full" / "mine.txt")}
    before = sorted(tmp_path.rglob("*.txt"))
    done = run("export", *(names.get(argument, argument) for argument in arguments))
    assert (done.exit_code, said in done.stderr) == (2, True)
    assert sorted(tmp_path.rglob("*.txt")) == before
    assert not list(tmp_path.glob(".*")) and not list((tmp_path / "full").glob(".*"))


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize("folder", ["", ".", "/", "..", "loop"])
def test_an_export_never_replaces_where_one_stands(
    run: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")
    if folder == ".":
        (tmp_path / "here" / "loop").unlink()
    done = run("export", "--to", folder)
    assert (done.exit_code, "error: --to: " in done.stderr) == (2, True), done.stderr
    assert Path.cwd() == tmp_path / "here"


@pytest.mark.usefixtures("empty_memory")
def test_an_export_into_a_place_that_cannot_be_written_leaves_nothing(run: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run("export", "--to", str(tmp_path / "file" / "below"))
    assert (done.exit_code, "cannot be written" in done.stderr) == (3, True)


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.process
def test_an_import_that_was_killed_goes_on_with_the_same_command(
    run: Invoke, copy: Copy, where: tuple[str, ...], tmp_path: Path
) -> None:
    with connect(index_dir=where[1], upload_dir=where[3], embedder="hashing") as af:
        af.memory.store_many([{"content": f"fact number {n} of the harbour"} for n in range(600)])
    run("export", "--to", str(tmp_path / "out"))
    folders = ("--index-dir", f"{tmp_path}/ci", "--upload-dir", f"{tmp_path}/cu", "--embedder", "hashing")
    slow = (
        "import time, agentformer.memory.backends.faiss.backend as f\n"
        "inner = f.FaissMemoryBackend.store\n"
        "def store(self, *arguments, **options):\n"
        "    kept = inner(self, *arguments, **options); print('stored', flush=True); time.sleep(60); return kept\n"
        "f.FaissMemoryBackend.store = store\n"
        "from agentformer.cli import main\n"
        f"main({['import', str(tmp_path / 'out'), *folders]})\n"
    )
    with (tmp_path / "errors.txt").open("w") as errors:
        child = start(slow, SERVE, cwd=tmp_path, env=os.environ, stderr=errors)
    assert child.stdout is not None and child.stdout.readline() == "stored\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    assert (
        copy("import", str(tmp_path / "out")).stdout
        == "entries imported: 100; skipped because they exist already: 500\n"
    )
    assert json.loads(copy("status", "--json").stdout)["entries"] == 600
