"""The identity of documents: files of different folders never replace each other, and every replacement is reported."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import agentformer
from agentformer.cli import main
from agentformer.errors import Conflict, InvalidInput
from agentformer.rag.uploads import Origin
from agentformer.types import Scope
from tests.forked import SERVE, start

pytestmark = pytest.mark.process

EXAMPLES = int(os.environ.get("AGENTFORMER_IDENTITY_EXAMPLES", "8"))


def connect(folder: Path, **options: object) -> agentformer.AgentFormer:
    places = {"index_dir": folder / "indexes", "upload_dir": folder / "uploads"}
    return agentformer.connect(**places, embedder="hashing", **options)  # type: ignore[arg-type]


@pytest.fixture(params=["faiss", "local_json"])
def af(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[agentformer.AgentFormer]:
    with connect(tmp_path / "store", backend=request.param) as opened:
        yield opened


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(af: agentformer.AgentFormer) -> list[str]:
    return [document.name for document in af.rag.documents()]


def contents(af: agentformer.AgentFormer) -> list[bytes]:
    return sorted(af.rag.original(document.id) for document in af.rag.documents())


def test_paths_that_share_a_base_name_are_two_documents(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    one = af.rag.upload(write(tmp_path / "p1/README.md", "The first project counts marmots."))
    two = af.rag.upload(write(tmp_path / "p2/README.md", "The second project counts herons."))
    assert names(af) == ["README.md", "p2/README.md"]
    assert (one.replaced, two.replaced) == ("", "")
    assert (one.origin, two.root) == ((tmp_path / "p1/README.md").resolve().as_posix(), "")
    new = af.rag.upload(write(tmp_path / "p2/README.md", "The second project counts cranes now."))
    assert (new.replaced, new.name, names(af)) == (two.id, "p2/README.md", ["README.md", "p2/README.md"])
    assert len(contents(af)) == 2


def test_a_new_version_keeps_the_name_of_the_former_version(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    for version, name in (("open", "q1/gate.txt"), ("closed", ""), ("locked", "other.txt")):
        path = write(tmp_path / "q1/gate.txt", f"The gate is {version}.")
        document = af.rag.upload(path, **({"name": name} if name else {}))
        assert (document.name, names(af)) == ("q1/gate.txt", ["q1/gate.txt"])
        af.rag.upload(f"Uploaded when the gate was {version}.".encode(), name="gate.txt")
        af.rag.remove(next(other.id for other in af.rag.documents() if other.name == "gate.txt"))


def test_a_path_and_an_upload_of_its_name_are_two_documents(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = af.rag.upload(write(tmp_path / "gate.txt", "The gate is open."))
    upload = af.rag.upload(b"The gate is closed.", name="gate.txt")
    again = af.rag.upload(b"The gate is locked.", name="gate.txt")
    assert (path.replaced, upload.replaced, again.replaced, again.origin) == ("", "", upload.id, "")
    with (tmp_path / "gate.txt").open("rb") as file:
        assert af.rag.upload(file).id == path.id
    (tmp_path / "gate.txt").write_text("The gate is new.")
    with (tmp_path / "gate.txt").open("rb") as file:
        assert af.rag.upload(file).replaced == path.id


def test_on_conflict_keeps_both_or_fails(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    old = af.rag.upload(write(tmp_path / "rules.txt", "Boats are lifted in October."))
    write(tmp_path / "rules.txt", "Boats are lifted in November.")
    with pytest.raises(Conflict, match=old.id):
        af.rag.upload(tmp_path / "rules.txt", on_conflict="fail")
    assert names(af) == ["rules.txt"]
    both = af.rag.upload(tmp_path / "rules.txt", on_conflict="keep-both")
    assert (both.name, both.replaced, names(af)) == ("rules (2).txt", "", ["rules.txt", "rules (2).txt"])
    assert af.rag.upload(tmp_path / "rules.txt", on_conflict="keep-both").unchanged
    write(tmp_path / "rules.txt", "Boats are lifted in December.")
    assert af.rag.upload(tmp_path / "rules.txt", on_conflict="keep-both").name == "rules (3).txt"
    assert af.rag.upload(tmp_path / "rules.txt", on_conflict="keep-both").unchanged
    with pytest.raises(InvalidInput, match="on_conflict"):
        af.rag.upload(b"text", name="x.txt", on_conflict="perhaps")  # type: ignore[arg-type]


def test_equal_bytes_of_two_places_are_two_documents(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    """Change or remove one of several documents with equal bytes: each other document is still found and cited."""
    text = "The caretaker keeps the keys in the blue cupboard."
    paths = [write(tmp_path / folder / "keys.txt", text) for folder in ("p1", "p2")]
    one, two = (af.rag.upload(path) for path in paths)
    three, four = (af.rag.upload(text.encode(), name=name) for name in ("keys.txt", "copy.txt"))
    assert len({one.id, two.id, three.id, four.id}) == 4
    assert not any(document.unchanged or document.replaced for document in (one, two, three, four))
    assert af.rag.upload(paths[1]).id == two.id and af.rag.upload(text.encode(), name="copy.txt").id == four.id

    new = af.rag.upload(write(paths[0], "Boats are lifted in October."))
    assert new.replaced == one.id
    af.rag.remove(three.id)
    af.rag.upload(b"Boats are lifted in May.", name="copy.txt")
    answer = af.rag.query("Where are the keys of the caretaker?")
    assert {citation.document_id for citation in answer.citations} == {two.id}
    assert "blue cupboard" in answer.text and af.rag.original(two.id) == text.encode()
    af.rag.remove(two.id)
    assert len(list(af.settings.upload_dir.rglob("*.bin"))) == 2
    assert not [hit for hit in af.rag.query("keys caretaker cupboard").hits if "cupboard" in hit.entry.content]


def test_a_document_of_an_older_version_adopts_the_path_of_the_same_bytes(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    old = af.rag.upload(b"The old text.", name="a.txt")
    metadata = {k: v for k, v in af.backend.get([old.id])[0].metadata.items() if k not in ("origin", "root")}
    af.backend.update(old.id, {"metadata": metadata})
    other = af.rag.upload(write(tmp_path / "other/a.txt", "Another text of this name."))
    assert (other.replaced, other.name) == ("", "other/a.txt")
    path = write(tmp_path / "mine/a.txt", "The old text.")
    same = af.rag.upload(path)
    assert (same.id, same.unchanged, same.origin) == (old.id, True, path.resolve().as_posix())
    path.write_text("The new text.")
    assert af.rag.upload(path).replaced == old.id


def test_given_metadata_replace_those_of_a_document_with_the_same_bytes(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    """Nothing is read or embedded again, and the parts of the document have the new metadata too."""
    path = write(tmp_path / "rules.txt", "Boats are lifted in October.\n\n" + "The caretaker keeps the keys. " * 300)
    old = af.rag.upload(path, metadata={"site": "north", "year": 2026})
    for metadata in (None, {"year": 2026, "site": "north"}):
        same = af.rag.upload(path, metadata=metadata)
        assert (same.id, same.unchanged, same.reason, dict(same.metadata)) == (old.id, True, "", dict(old.metadata))
    with pytest.raises(Conflict, match="other metadata"):
        af.rag.upload(path, metadata={"site": "south"}, on_conflict="fail")

    def parts(document_id: str) -> list[tuple[Any, ...]]:
        chunks, pages = af.rag.chunks(document_id), af.rag.pages(document_id)
        return [*pages, *((c.content, c.context, c.title, c.created_at, c.source and c.source.start) for c in chunks)]

    before, calls = parts(old.id), af.usage()
    new = af.rag.upload(path, metadata={"site": "south"})
    assert (new.replaced, new.unchanged, new.reason) == (old.id, False, "the metadata were replaced")
    assert (new.status, dict(new.metadata), new.name, new.origin) == ("ready", {"site": "south"}, old.name, old.origin)
    assert [document.id for document in af.rag.documents()] == [new.id] and parts(new.id) == before
    assert af.usage() == calls and len(before) > 3
    assert {*(chunk.metadata.get("site") for chunk in af.rag.chunks(new.id))} == {"south"}
    assert not any("year" in chunk.metadata for chunk in af.rag.chunks(new.id))
    question = "When are boats lifted?"
    assert af.rag.query(question, filters={"site": "south"}).citations[0].document_id == new.id
    assert not af.rag.query(question, filters={"site": "north"}).hits
    assert af.rag.original(new.id) == path.read_bytes()
    assert dict(af.rag.upload(path, metadata={}).metadata) == {}
    assert not any(check.found for check in af.backend.verify())


def test_ingesting_again_keeps_the_identity(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = write(tmp_path / "docs/a.txt", "The text of a file.")
    first = af.rag.upload(path, origin=Origin.of_file(path, path.parent))
    again = af.rag.reingest(af.backend.get([first.id])[0])
    assert (again.origin, again.root, again.name) == (first.origin, path.parent.resolve().as_posix(), first.name)
    assert (again.replaced, names(af)) == (first.id, ["a.txt"])


def test_concurrent_uploads_of_one_path_leave_one_version(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    origin = Origin.of_file(tmp_path / "a.txt")

    def upload(number: int) -> agentformer.Document:
        return af.rag.upload(f"Version {number} of the text.".encode(), name="a.txt", origin=origin)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(upload, range(4)))
    (document,) = af.rag.documents()
    replaced = [result.replaced for result in results if result.replaced]
    assert sorted([*replaced, document.id]) == sorted(result.id for result in results)


UPLOAD = """
import agentformer
from agentformer.rag.uploads import Origin
with agentformer.connect(index_dir=store + "/indexes", upload_dir=store + "/uploads", embedder="hashing") as af:
    input()
    for n in range(5):
        text = f"Version {n} of process {process}.".encode()
        document = af.rag.upload(text, name="a.txt", origin=Origin("/docs/a.txt", "/docs"))
        print(document.id, document.replaced or "-")
"""


def test_two_processes_that_upload_one_path_leave_one_version(tmp_path: Path) -> None:
    with connect(tmp_path / "store"):
        pass
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        start(
            f"store, process = {str(tmp_path / 'store')!r}, {n}\n{UPLOAD}", SERVE, cwd=tmp_path, env=os.environ, **pipes
        )
        for n in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    lines = [line.split() for process in processes for line in process.communicate(timeout=120)[0].splitlines()]
    with connect(tmp_path / "store") as af:
        (document,) = af.rag.documents()
        assert sorted([*(old for _, old in lines if old != "-"), document.id]) == sorted(new for new, _ in lines)
        assert af.backend.count(Scope(kinds=("chunk",))) == document.chunks
    assert len(lines) == 10


# Names that are easily confused: equal base names, upper and lower case, two Unicode forms of one letter, dots, spaces.
FOLDERS = ("", "p1", "P1", "p1/p2", "p2/p1", "\u00e4 b", "a\u0308 b", "p1.d")
NAMES = ("README.md", "readme.md", "\u00e4.txt", "a\u0308.txt", "a.txt", "a (2).txt", "a.b.txt")
SPELLINGS = ("{0}/{1}", "./{0}/{1}", "{0}/./{1}", "other/../{0}/{1}", "link/{0}/{1}", "{2}/{0}/{1}", "{2}//{0}//{1}")
places = st.tuples(st.sampled_from(FOLDERS), st.sampled_from(NAMES))
texts = st.integers(0, 3).map(lambda number: f"The text with the number {number}.".encode())
steps = st.one_of(
    st.tuples(st.just("upload a path"), places, st.sampled_from(SPELLINGS), texts),
    st.tuples(st.just("upload a name"), places, texts),
    st.tuples(st.just("ingest a folder"), st.sampled_from(FOLDERS), st.sampled_from(("{0}/", "./{0}", "link/{0}/"))),
    st.tuples(st.just("remove"), st.integers(0, 9)),
)


class Model:
    """A dict from the identity of each document to its id and its bytes. The identity is the real path of a file, or
    the name of an upload without a path."""

    def __init__(self, af: agentformer.AgentFormer, folder: Path) -> None:
        self.af, self.folder = af, folder
        self.documents: dict[tuple[str, str], tuple[str, bytes]] = {}

    def check(self, key: tuple[str, str], data: bytes, document: agentformer.Document) -> None:
        former_id, former = self.documents.get(key, ("", b""))
        assert (document.status, document.unchanged) == ("ready", former == data)
        assert document.replaced == (former_id if former != data else "")
        assert (document.id == former_id) == document.unchanged
        self.documents[key] = document.id, data

    def run(self, kind: str, *step: Any) -> None:
        if kind == "upload a path":
            (parent, name), spelling, data = step
            file = self.folder / parent / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            path = spelling.format(parent or ".", name, self.folder)
            self.check(("path", os.path.realpath(file)), data, self.af.rag.upload(path))
        elif kind == "upload a name":
            (parent, name), data = step
            name = f"{parent}/{name}".lstrip("/")
            self.check(("name", name), data, self.af.rag.upload(data, name=name))
        elif kind == "ingest a folder":
            parent, spelling = step
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            root = Path(spelling.format(parent or "."))
            for file in sorted(path for path in root.rglob("*") if path.is_file()):
                document = self.af.rag.upload(file, name=str(file.relative_to(root)), origin=Origin.of_file(file, root))
                self.check(("path", os.path.realpath(file)), file.read_bytes(), document)
        elif self.documents:
            key = sorted(self.documents)[step[0] % len(self.documents)]
            self.af.rag.remove(self.documents.pop(key)[0])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=12))
def test_documents_are_those_of_a_dict_from_identity_to_bytes(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[Any, ...]]
) -> None:
    """Upload files under several spellings of their paths, folders, and texts under names, in any order, and compare
    the stored documents with a dict after each step."""
    with tempfile.TemporaryDirectory() as place, connect(Path(place) / "store", backend="local_json") as af:
        folder = Path(place) / "files"
        (folder / "other").mkdir(parents=True)
        (folder / "link").symlink_to(folder, target_is_directory=True)
        monkeypatch.chdir(folder)
        model = Model(af, folder)
        for step in steps:
            model.run(*step)
            assert {each.id: af.rag.original(each.id) for each in af.rag.documents()} == dict(model.documents.values())
            from_paths = [each.name for each in af.rag.documents() if each.origin]
            assert len(from_paths) == len(set(from_paths))
            assert len(list(af.settings.upload_dir.rglob("*.bin"))) == len(
                {data for _, data in model.documents.values()}
            )
        monkeypatch.undo()


def command(folder: Path, *arguments: str, code: int = 0) -> str:
    options = ["--index-dir", str(folder / "indexes"), "--upload-dir", str(folder / "uploads")]
    embedder = ["--embedder", "hashing"]
    result = CliRunner().invoke(main, [*arguments, *options, *embedder])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_keeps_files_of_two_folders_and_reports_replacements(tmp_path: Path) -> None:
    one, two = write(tmp_path / "p1/README.md", "Marmots whistle."), write(tmp_path / "p2/README.md", "Herons stand.")
    folders = [str(one.parent), str(two.parent)]
    first = json.loads(command(tmp_path, "ingest", *folders, "--json"))["documents"]
    assert [(d["name"], d["status"], d["replaced"]) for d in first] == [
        ("p1/README.md", "ready", ""),
        ("p2/README.md", "ready", ""),
    ]
    assert command(tmp_path, "ingest", *folders).count("unchanged") == 3
    two.write_text("Herons fly.")
    failed = command(tmp_path, "ingest", "--on-conflict", "fail", *folders, code=1)
    assert "stored with other content" in failed and "1 unchanged, 1 failed" in failed
    output = command(tmp_path, "ingest", *folders)
    assert f"replaced {first[1]['id']}" in output
    listed = json.loads(command(tmp_path, "list", "--json"))["documents"]
    assert sorted(d["name"] for d in listed) == ["p1/README.md", "p2/README.md"]


def test_documents_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    path = write(tmp_path / "gate.txt", "The gate is open.")
    with connect(tmp_path) as af:
        from_path = af.rag.upload(path)
        uploaded = af.rag.upload(b"The gate is closed.", name="gate.txt")
        af.rag.upload(b"Herons stand.", name="herons.txt")
    origins = {from_path.id: f"from {from_path.origin}", uploaded.id: "uploaded without a path"}
    lines = command(tmp_path, "list").splitlines()
    for document_id, origin in origins.items():
        (line,) = [line for line in lines if document_id in line]
        assert f"gate.txt ({origin})" in line
    assert not any("herons.txt (" in line for line in lines)
    for arguments in (["remove", "gate.txt"], ["ask", "Is the gate open?", "--document", "gate.txt"]):
        refused = command(tmp_path, *arguments, code=2)
        for document_id, origin in origins.items():
            assert f"{document_id} (document: gate.txt, {origin})" in refused
    assert "removed 1" in command(tmp_path, "remove", uploaded.id)
    assert "gate.txt (" not in command(tmp_path, "list")
    assert "is open" in command(tmp_path, "ask", "Is the gate open?", "--document", "gate.txt")


def test_new_metadata_leave_the_lines_and_names_of_source_code(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = write(tmp_path / "tea.py", "def pour(cup):\n    return cup.filled()\n")

    def own(document_id: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in chunk.metadata.items() if k != "site"} for chunk in af.rag.chunks(document_id)]

    before = own(af.rag.upload(path, metadata={"site": "north"}).id)
    assert {"lines", "symbol"} <= before[0].keys()
    assert own(af.rag.upload(path, metadata={"site": "south"}).id) == before


def test_the_command_replaces_metadata_of_a_file_that_has_not_changed(tmp_path: Path) -> None:
    path = str(write(tmp_path / "gate.txt", "The gate is open."))
    command(tmp_path, "ingest", path, "--metadata", '{"site": "north"}')
    assert "unchanged" in command(tmp_path, "ingest", path)
    assert "(the metadata were replaced)" in command(tmp_path, "ingest", path, "--metadata", '{"site": "south"}')
    assert "is open" in command(tmp_path, "ask", "Is the gate open?", "--where", "site=south")


def test_remove_and_forget_take_names_and_beginnings_of_ids(tmp_path: Path) -> None:
    with connect(tmp_path) as af:
        af.rag.upload(b"The first text.", name="a.txt")
        second = af.rag.upload(b"The second text.", name="b.txt")
        third = af.rag.upload(b"The third text.", name="c.txt")
        fact = af.memory.store("Marmots whistle.", title="Marmots")
        other = af.memory.store("Herons stand.")
    assert "give one id" in command(tmp_path, "remove", "a.txt", second.id[:4], code=2)
    assert "there is no document" in command(tmp_path, "remove", "a.txt", "nothing", code=2)
    assert "removed 2" in command(tmp_path, "remove", "a.txt", second.id[:-1], "a.txt")
    assert "there is no document" in command(tmp_path, "remove", "Marmots", code=2)
    assert "give one id" in command(tmp_path, "forget", fact.id[:4], code=2)
    assert "agentformer remove" in command(tmp_path, "forget", "c.txt", code=2)
    assert "entries deleted: 2" in command(tmp_path, "forget", "Marmots", other.id[:-1])
    with connect(tmp_path) as af:
        assert [document.id for document in af.rag.documents()] == [third.id]
        assert not af.backend.count(Scope(kinds=("fact",)))


def test_a_new_version_keeps_the_metadata_unless_others_are_given(af: agentformer.AgentFormer) -> None:
    af.rag.upload(b"The gym costs 5 euros.", name="gym.txt", metadata={"site": "south"})
    changed = af.rag.upload(b"The gym costs 6 euros.", name="gym.txt")
    assert (changed.metadata, bool(changed.replaced)) == ({"site": "south"}, True)
    assert "6 euros" in af.rag.query("What does the gym cost?", metadata={"site": "south"}).text
    assert af.rag.upload(b"The gym costs 7 euros.", name="gym.txt", metadata={}).metadata == {}
    copy = af.rag.upload(b"The gym costs 8 euros.", name="gym.txt", on_conflict="keep-both")
    assert copy.metadata == {}
