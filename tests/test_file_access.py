"""The permissions of what AgentFormer writes: its owner alone can read it, whatever the umask is."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer.factory import connect
from agentformer.settings.access import make_folder, readable_by_others
from tests import forked
from tests.edges.running import Running, form_of, wait_until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the permissions of POSIX")
# Prints the permissions of all files of an open memory, with its log and its locks, and then those of a closed one.
JOB = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[1]))
import agentformer
from agentformer.index.vectors import IndexOptions

folder = Path(sys.argv[2])

def show():
    for path in folder.rglob("*"):
        print(oct(path.lstat().st_mode & 0o777), "folder" if path.is_dir() else "file", path.relative_to(folder))

for backend in ("faiss", "local_json"):
    place = folder / backend
    where = {"index_dir": place / "deep" / "indexes", "upload_dir": place / "uploads", "backend": backend}
    with agentformer.connect(**where, embedder="hashing", file_access=sys.argv[3], clean_every=0) as af:
        af.rag.upload(b"The quokka smiles at visitors. " * 9, name="quokka.txt")
        fact = af.memory.store("Aino prefers tea.", kind="fact")
        if backend == "faiss":
            index = af.backend._open().vectors
            index._options = IndexOptions(train_at=1, exact_rows=1, train_after=0)
            index.train_now(af.backend._database)
        af.memory.search("tea")
        af.export_to(place / "export", vectors=True)
        af.backup(place / "backup")
        af.markdown.export(place / "home")
        af.memory.store("Aino prefers coffee, too.", kind="fact")
        af.markdown.sync(place / "home")
        show()
    show()
"""


def shown(tmp_path: Path, umask: int, access: str = "owner") -> dict[str, tuple[str, str]]:
    """Run the job, and return the permissions and the kind of each file and folder by its path."""
    process = forked.program(JOB, umask, tmp_path / "all", access, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    lines = (line.split(" ", 2) for line in output.splitlines())
    return {path: (mode, kind) for mode, kind, path in lines}


@pytest.mark.process
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_its_owner_can_read_what_a_memory_writes(tmp_path: Path, umask: int) -> None:
    seen = shown(tmp_path, umask)
    assert {kind: mode for mode, kind in seen.values()} == {"folder": "0o700", "file": "0o600"}
    assert {path: found for path, found in seen.items() if found not in {("0o700", "folder"), ("0o600", "file")}} == {}
    names = {Path(path).name for path in seen}
    assert {"memory.sqlite3", "memory.sqlite3-wal", "memory.sqlite3-shm", "rag_faiss_index.bin"} <= names
    assert {"memory-default.json", "words.lock", "manifest.json", "owner-faiss.json"} <= names
    assert any(name.endswith(".md") for name in names) and any(name.endswith(".store") for name in names)


@pytest.mark.process
def test_a_setting_opens_them_for_the_group_even_if_the_umask_does_not(tmp_path: Path) -> None:
    seen = shown(tmp_path, 0o077, "group")
    assert {path: found for path, found in seen.items() if found not in {("0o770", "folder"), ("0o660", "file")}} == {}


@pytest.mark.process
@pytest.mark.parametrize("server", ["gunicorn", "waitress"])
def test_only_its_owner_can_read_what_a_server_writes(tmp_path: Path, server: str) -> None:
    (tmp_path / "all").mkdir()
    before = "import os; os.umask(0)"
    running = Running(tmp_path / "all", "--server", server, "--threads", "2", before=before, TMPDIR=str(tmp_path))
    try:
        headers = {"Content-Type": "multipart/form-data; boundary=x", "Prefer": "respond-async"}
        status, job = running.ask("POST", "/api/rag/upload", form_of("a.txt", "The quokka smiles."), headers)
        assert status == 202
        wait_until(lambda: running.ask("GET", f"/api/jobs/{job['id']}")[1]["state"] == "done")
        seen = {
            path: path.lstat().st_mode & 0o777 for path in (tmp_path / "all").rglob("*") if path.name != "errors.txt"
        }
        assert running.end() == 0
    finally:
        running.close()
    assert {path: oct(mode) for path, mode in seen.items() if mode & 0o077} == {}
    assert {path.name for path in seen} > {"jobs.sqlite", "memory.sqlite3"}


def test_an_existing_folder_keeps_its_permissions_and_the_doctor_reports_it(tmp_path: Path) -> None:
    index, uploads = tmp_path / "i", tmp_path / "u"
    index.mkdir()
    index.chmod(0o755)
    with connect(index_dir=index, upload_dir=uploads, embedder="hashing") as af:
        af.memory.store("Aino prefers tea.")
        assert index.stat().st_mode & 0o777 == 0o755
        (check,) = (each for each in af.verify() if each.name == "access")
        assert check.found == 0 and f"chmod -R go-rwx {index}" in check.findings[0]
        index.chmod(0o700)
        assert "access" not in {each.name for each in af.verify()}
    assert (index / "memory.sqlite3").stat().st_mode & 0o777 == 0o600


def test_files_that_others_can_read_are_found_only_if_they_can_list_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "i"
    folder.mkdir()
    (folder / "open.txt").touch()
    (folder / "open.txt").chmod(0o644)
    (folder / "private.txt").touch(mode=0o600)
    folder.chmod(0o755)
    assert readable_by_others(folder) == [folder, folder / "open.txt"]
    folder.chmod(0o700)
    assert readable_by_others(folder) == [] == readable_by_others(tmp_path / "missing")


def _writes(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that create a file or a folder without `settings.access`."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        modes = [str(each.value) for each in call.args[:2] if isinstance(each, ast.Constant)]
        modes = [mode for mode in modes if len(mode) <= 3 and set(mode) <= set("rwxab+t") and set(mode) & set("wxa")]
        given = {keyword.arg for keyword in call.keywords}
        if name in ("mkdir", "makedirs", "FileLock", "write_text", "write_bytes", "touch") and "mode" not in given:
            yield call
        if name == "open" and modes and "opener" not in given:
            yield call


def test_every_writer_of_the_package_uses_the_module_that_sets_permissions() -> None:
    root = Path(agentformer.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith("testing/") or name == "settings/access.py":
            continue
        calls = (call for call in _writes(ast.parse(path.read_text("utf-8"))))
        found += [f"{name}:{call.lineno}" for call in calls if ast.unparse(call.func) not in _OF_BACKENDS]
    assert found == []


_OF_BACKENDS = {
    "target.touch",
    "backend.touch",
    "self._backend.touch",
    "self._entries.touch",
    "records.touch",
}  # use counts of entries


def test_a_folder_is_created_whose_parent_another_thread_creates_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Path.mkdir

    def mkdir(folder: Path, mode: int = 0o777) -> None:
        if not folder.parent.exists():
            create(folder.parent)  # as another thread does, after this one has found that it is missing
            raise FileNotFoundError(folder)
        create(folder, mode)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    make_folder(tmp_path / "above" / "folder")
    assert (tmp_path / "above" / "folder").is_dir()
