"""What `agentformer import` refuses: an export that was damaged, or that somebody made to do harm."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.records.fields import MAX_CONTENT
from tests.edges.conftest import Copy, Invoke, Shown

FACT = {"kind": "fact"}
DOCUMENT = {"kind": "document"}
SOURCE = {"document_id": "nowhere", "name": "rules.txt", "page": 1, "label": "", "start": 0, "end": 4}
KEYS = "The caretaker keeps the keys in the blue cupboard."


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def resign(folder: Path) -> None:
    """Checksums that fit whatever the files hold now."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for path in manifest["files"]:
        manifest["files"][path]["sha256"] = hashlib.sha256((folder / path).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def rewritten(folder: Path, old: str, new: str) -> None:
    path = folder / "entries" / "default.jsonl"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    resign(folder)


def in_manifest(folder: Path, **values: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps({**manifest, **values}), encoding="utf-8")


def changed(folder: Path, which: dict[str, Any], **values: Any) -> None:
    """Other values in every entry that has these."""
    path = folder / "entries" / "default.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert any(which.items() <= each.items() for each in found)
    new = [{**each, **values} if which.items() <= each.items() else each for each in found]
    path.write_text("".join(json.dumps(each) + "\n" for each in new), encoding="utf-8")
    resign(folder)


def added(folder: Path, which: dict[str, Any], **values: Any) -> None:
    """One entry more, like the first that has these values, but for others."""
    path = folder / "entries" / "default.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    like = next(each for each in found if which.items() <= each.items())
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**like, **values}) + "\n")
    resign(folder)


def in_document(folder: Path, document_id: str | None = None, **details: Any) -> None:
    path = folder / "entries" / "default.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    which = {"id": document_id} if document_id else DOCUMENT
    document = next(each for each in found if which.items() <= each.items())
    changed(folder, {"id": document["id"]}, metadata={**document["metadata"], **details})


def across(folder: Path, **values: Any) -> None:
    """A fact that refers to one of another namespace."""
    added(folder, FACT, id="here", **values)
    added(folder, FACT, id="there", namespace="board")


def linked(path: Path) -> None:
    elsewhere = path.parents[1] / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit in the entries": (lambda out: flip(out / "entries" / "default.jsonl"), "checksum differs"),
    "a flipped bit in an original": (lambda out: flip(next(out.rglob("*.bin"))), "checksum differs"),
    "an original that is another's": (
        lambda out: (flip(next(out.rglob("*.bin"))), resign(out)),
        "does not match the SHA-256 in its name",
    ),
    "a file that is gone": (lambda out: next(out.rglob("*.bin")).unlink(), "cannot be read"),
    "no manifest": (lambda out: (out / "manifest.json").unlink(), "no manifest.json"),
    "a torn manifest": (lambda out: (out / "manifest.json").write_text('{"format"'), "manifest.json cannot be read"),
    "a list for a manifest": (lambda out: (out / "manifest.json").write_text("[]"), "is not of the format"),
    "another format": (lambda out: in_manifest(out, format="agentformer-export-9"), "is not of the format"),
    "a file elsewhere": (lambda out: in_manifest(out, files={"../../etc/passwd": {}}), "not a file of an export"),
    "no list of files": (lambda out: in_manifest(out, files=[]), "does not list the files"),
    "a document without its file": (lambda out: in_manifest(out, files=without_originals(out)), "is missing"),
    "a line that is no JSON": (lambda out: rewritten(out, "{", "["), "line 1"),
    "a tier that is none": (lambda out: rewritten(out, '"tier": "semantic"', '"tier": "royal"'), "tier"),
    "a field that is none": (lambda out: rewritten(out, '"raw"', '"raw meat"'), "is not a field"),
    "a document without its pages": (
        lambda out: rewritten(out, '"pages": 1', '"pages": "one"'),
        "metadata of a document",
    ),
    "a number that is none": (lambda out: rewritten(out, '"salience": 1.0', '"salience": NaN'), "NaN is not a number"),
    "a salience of two": (lambda out: rewritten(out, '"salience": 1.0', '"salience": 2'), "salience"),
    "a version of nought": (lambda out: rewritten(out, '"version": 1', '"version": 0'), "version"),
    "a time without a zone": (lambda out: rewritten(out, '+00:00"', '"'), "time zone"),
    "a history that is none": (
        lambda out: rewritten(out, '"id"', '"history": [1], "id"'),
        "entry: must be a JSON object",
    ),
    "half a character": (lambda out: rewritten(out, '"title": "', '"title": "\\ud800'), "line 1"),
    "one id twice": (lambda out: twice(out), "two entries have the id"),
    "a version beyond the records": (
        lambda out: rewritten(out, '"version": 1', f'"version": {2**63}'),
        "line 1: the version",
    ),
    "a count beyond the records": (
        lambda out: rewritten(out, '"read_count": 0', f'"read_count": {2**63}'),
        "line 1: read_count",
    ),
    "a page of nought": (lambda out: changed(out, {"kind": "chunk"}, source={**SOURCE, "page": 0}), "the page"),
    "a fact without text": (lambda out: changed(out, FACT, content=" "), "content: is empty"),
    "a fact that is too long": (
        lambda out: changed(out, FACT, content="x" * (MAX_CONTENT + 1)),
        "but the limit is",
    ),
    "a chunk without its source": (lambda out: changed(out, FACT, kind="chunk"), "a chunk needs a source"),
    "a chunk of no document": (
        lambda out: changed(out, FACT, kind="chunk", source=SOURCE),
        "belongs to no document",
    ),
    "a session too long": (lambda out: changed(out, FACT, session_id="x" * 201), "session_id"),
    "working memory of no session": (lambda out: changed(out, FACT, tier="working"), "session_id is missing"),
    "half a reference": (lambda out: changed(out, FACT, source_type="ticket"), "given together"),
    "a document of another name": (
        lambda out: changed(out, DOCUMENT, content="other.txt"),
        "is not the name of the document",
    ),
    "a document of fewer than no pages": (lambda out: in_document(out, pages=-1), "pages of a document"),
    "a document path twice": (
        lambda out: (added(out, DOCUMENT, id="another", content="b.txt"), in_document(out, "another", name="b.txt")),
        "the same document path",
    ),
    "a document name twice": (
        lambda out: (in_document(out, origin=""), added(out, DOCUMENT, id="another")),
        "the same document name",
    ),
    "a core block twice": (
        lambda out: [added(out, FACT, id=each, tier="core", kind="block", title="persona") for each in "ab"],
        "the same block",
    ),
    "a core block that is too long": (
        lambda out: changed(out, FACT, tier="core", kind="block", title="persona", content="word " * 5000),
        "over its limit",
    ),
    "links into another namespace": (
        lambda out: across(out, derived_from=[{"id": "there", "type": "derived_from"}]),
        "derived_from of",
    ),
    **{
        f"a {name} in another namespace": (lambda out, name=name: across(out, **{name: "there"}), f"{name} of")
        for name in ("parent_id", "pair_id", "superseded_by", "archived_by")
    },
    "a source in another namespace": (
        lambda out: across(out, source={**SOURCE, "document_id": "there"}),
        "source.document_id of",
    ),
    "a manifest that is linked": (lambda out: linked(out / "manifest.json"), "not a plain file"),
    "entries that are linked": (lambda out: linked(out / "entries" / "default.jsonl"), "not a plain file"),
    "an original that is linked": (lambda out: linked(next(out.rglob("*.bin"))), "not a plain file"),
    "a folder that is linked": (lambda out: linked(out / "entries"), "is a link or not a folder"),
    "a manifest that is a pipe": (lambda out: piped(out / "manifest.json"), "not a plain file"),
    "entries that are a pipe": (lambda out: piped(out / "entries" / "default.jsonl"), "not a plain file"),
    "an endless manifest": (lambda out: os.truncate(out / "manifest.json", (64 << 20) + 1), "has more than"),
    "a digest that leads away": (lambda out: rewritten(out, '"sha256": "', '"sha256": "../../'), "SHA-256"),
}


def without_originals(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {path: told for path, told in manifest["files"].items() if path.startswith("entries")}


def twice(folder: Path) -> None:
    path = folder / "entries" / "default.jsonl"
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(path.read_bytes() + first)
    resign(folder)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", clean_every=0) as af:
        (folder / "rules.txt").write_text(KEYS)
        af.rag.upload(folder / "rules.txt")
        af.memory.store("Aino prefers tea.")
        af.export_to(folder / "out")
    return folder / "out"


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_export_is_refused_and_writes_nothing(exported: Path, copy: Copy, tmp_path: Path, what: str) -> None:
    shutil.copytree(exported, tmp_path / "out")
    damage, said = DAMAGES[what]
    damage(tmp_path / "out")
    done = copy("import", str(tmp_path / "out"))
    assert (done.exit_code, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert json.loads(copy("status", "--json").stdout)["entries"] == 0
    assert list((tmp_path / "cu").rglob("*.bin")) == []


def test_a_core_block_that_is_there_under_another_id_stops_everything(
    shown: Shown, run: Invoke, copy: Copy, tmp_path: Path
) -> None:
    shown("remember", "Aino prefers tea.")
    run("export", "--to", str(tmp_path / "out"))
    changed(tmp_path / "out", FACT, tier="core", kind="block", title="persona")
    assert copy("core", "append", "persona", "You help.").exit_code == 0
    done = copy("import", str(tmp_path / "out"))
    assert (done.exit_code, "a core block 'persona' already exists" in done.stderr) == (2, True)
