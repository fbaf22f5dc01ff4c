"""One item is prepared while the one before is used, and at every door the next file is read ahead."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from click.testing import CliRunner

from agentformer.ahead import one_ahead
from agentformer.cli import main
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.rag import ingest
from agentformer.types import Stopped
from tests.edges.mounted import Mounted, grant, mounted
from tests.edges.running import wait_until

FILES = {"first.txt": b"The first boat is red.", "second.txt": b"The second boat is blue."}
THREAD = "agentformer-ahead"
BOUND = 60.0  # seconds that any test waits at most


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


def test_at_most_one_item_is_prepared_ahead_and_items_come_in_order() -> None:
    begun = [threading.Event() for _ in range(3)]

    def prepare(number: int, stopped: Stopped | None) -> tuple[int, bool]:
        begun[number].set()
        return number, stopped is not None

    seen = []
    with closing(one_ahead(range(3), prepare, lambda number: True)) as prepared:
        for number, get in prepared:
            assert number == 2 or begun[number + 1].wait(BOUND)
            assert [event.is_set() for event in begun[number + 2 :]] == [False] * (1 - number)
            seen.append((number, get()))
    assert seen == [(0, (0, False)), (1, (1, True)), (2, (2, True))]
    assert threads() == []


def test_an_item_that_may_not_be_prepared_ahead_is_prepared_in_its_turn() -> None:
    with closing(one_ahead("ab", lambda item, stopped: (item, stopped), lambda item: False)) as prepared:
        assert [get() for _, get in prepared] == [("a", None), ("b", None)]


def test_the_error_of_an_item_is_raised_in_its_turn_and_the_next_one_follows() -> None:
    def prepare(item: str, stopped: Stopped | None) -> str:
        if item == "b":
            raise ValueError(item)
        return item

    with closing(one_ahead("abc", prepare, lambda item: True)) as prepared:
        assert next(prepared)[1]() == "a"
        with pytest.raises(ValueError, match="b"):
            next(prepared)[1]()
        assert next(prepared)[1]() == "c"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_after_an_error_of_the_caller_nothing_runs_any_more(error: type[BaseException]) -> None:
    begun = threading.Event()

    def prepare(item: str, stopped: Stopped | None) -> None:
        while stopped and not stopped():
            begun.set()

    with pytest.raises(error), closing(one_ahead("ab", prepare, lambda item: True)) as prepared:
        next(prepared)
        assert begun.wait(BOUND)
        raise error
    assert threads() == []


class Reading:
    """Notes which files are read, and whether one is read ahead while the first file is embedded. The embedding of the
    first file waits until the second one is read, if a thread reads ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.second, self.ahead = threading.Event(), False
        embed, read = HashingEmbedder.embed_documents, ingest.read

        def embedded(embedder: HashingEmbedder, texts: Sequence[str]) -> Any:
            if any("first" in text for text in texts) and threads():
                self.ahead = self.second.wait(BOUND)
            return embed(embedder, texts)

        def noted(data: bytes, *arguments: Any, **options: Any) -> Any:
            text = read(data, *arguments, **options)
            if b"second" in data:
                self.second.set()
            return text

        monkeypatch.setattr(HashingEmbedder, "embed_documents", embedded)
        monkeypatch.setattr(ingest, "read", noted)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def form() -> dict[str, Any]:
    return {"file": [(io.BytesIO(data), name) for name, data in FILES.items()]}


def by_sync(host: Mounted, folder: Path) -> None:
    assert host.af.rag.sync(folder).added == tuple(FILES)


def by_http(host: Mounted, folder: Path) -> None:
    answer = host.ask("POST", "/api/rag/upload", data=form())
    assert [document["name"] for document in answer.json["documents"]] == [*FILES]


def by_job(host: Mounted, folder: Path) -> None:
    answer = host.ask("POST", "/api/rag/upload", data=form(), headers={"Prefer": "respond-async"})
    wait_until(lambda: bool(host.client.get(answer.headers["Location"]).json["state"] == "done"))


@pytest.mark.parametrize("upload", [by_sync, by_http, by_job])
def test_the_next_file_is_read_while_the_present_one_is_embedded(
    tmp_path: Path, folder: Path, reading: Reading, upload: Callable[[Mounted, Path], None]
) -> None:
    with mounted(tmp_path) as host:
        upload(host, folder)
        assert sorted(document.name for document in host.af.rag.documents()) == [*FILES]
    assert reading.ahead
    assert threads() == []


def test_the_command_line_reads_the_next_file_ahead(tmp_path: Path, folder: Path, reading: Reading) -> None:
    places = [f"--index-dir={tmp_path / 'i'}", f"--upload-dir={tmp_path / 'u'}", "--embedder=hashing"]
    result = CliRunner().invoke(main, ["ingest", str(folder), *places], catch_exceptions=False)
    assert [line.split()[:2] for line in result.output.splitlines()[:2]] == [["ready", name] for name in FILES]
    assert reading.ahead


def test_a_large_file_is_not_read_ahead(
    tmp_path: Path, folder: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentformer.rag.folder_sync.AHEAD_BYTES", len(FILES["second.txt"]) - 1)
    with mounted(tmp_path) as host:
        by_sync(host, folder)
    assert (reading.ahead, reading.second.is_set()) == (False, True)


def test_a_stored_file_is_not_read_ahead(tmp_path: Path, folder: Path, reading: Reading) -> None:
    with mounted(tmp_path) as host:
        host.af.rag.upload(folder / "second.txt")
        reading.second.clear()
        stopped = threading.Event()
        host.af.rag.prepare(folder / "second.txt", stopped=stopped.is_set)
        assert not reading.second.is_set()
        host.af.rag.prepare(folder / "first.txt", stopped=stopped.is_set)
        (folder / "second.txt").write_bytes(b"The second boat is green.")
        host.af.rag.prepare(folder / "second.txt", stopped=stopped.is_set)
        assert reading.second.is_set()


def test_a_file_that_gets_another_name_in_its_turn_is_cut_again(tmp_path: Path, folder: Path) -> None:
    """The words of the name are in the context of each chunk."""
    contexts = []
    for stopped in (None, threading.Event().is_set):
        with mounted(tmp_path / str(len(contexts))) as host:
            upload = host.af.rag.prepare(folder / "second.txt", name="boats.txt", stopped=stopped)
            assert host.af.rag.upload(folder / "first.txt", name="boats.txt").name == "boats.txt"
            document = host.af.rag.put(upload)
            assert document.name == "files/boats.txt"
            contexts.append([chunk.context for chunk in host.af.rag.chunks(document.id)])
    assert contexts[0] == contexts[1]


def test_for_a_caller_who_may_not_read_no_file_is_read_ahead(tmp_path: Path, reading: Reading) -> None:
    """A stored file is not read ahead, so the time would show which files are stored."""
    with mounted(tmp_path) as host:
        answer = host.ask("POST", "/api/rag/upload", grant("write"), data=form())
    assert answer.status_code == 201
    assert (reading.ahead, reading.second.is_set()) == (False, True)
