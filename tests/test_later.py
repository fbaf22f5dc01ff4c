"""What is had when it is first used: once, by any number of threads, and again after it failed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agentformer
from agentformer.errors import InvalidInput
from agentformer.later import Later, Made


class Kettle:
    """Counts how often its water was made."""

    def __init__(self, failures: int = 0) -> None:
        self._making = threading.RLock()
        self.failures = failures
        self.times = 0
        self.begun = threading.Barrier(4)

    @Made
    def water(self) -> list[int]:
        """Hot."""
        self.times += 1
        if self.times <= self.failures:
            raise InvalidInput("water", "is out")
        return [self.times]

    @Made
    def tea(self) -> list[int]:
        return [*self.water, 0]

    def pour(self) -> list[int]:
        self.begun.wait(timeout=60)
        return self.tea


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that nobody has imported."""
    (tmp_path / "a_library_of_ours.py").write_text("VALUE = [1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_library_of_ours"
    sys.modules.pop("a_library_of_ours", None)


def test_a_library_is_imported_when_something_of_it_is_asked_for(module: str) -> None:
    library = Later(module)
    assert module in repr(library)
    assert module not in sys.modules
    assert library.VALUE is library.VALUE is sys.modules[module].VALUE
    with pytest.raises(AttributeError, match="a_library_of_ours"):
        _ = library.OTHER


def test_a_library_that_is_not_there_is_an_import_error_at_its_first_use() -> None:
    library = Later("no_library_has_this_name")
    with pytest.raises(ModuleNotFoundError, match="no_library_has_this_name"):
        _ = library.anything


def test_many_threads_get_the_same_one() -> None:
    kettle = Kettle()
    with ThreadPoolExecutor(4) as threads:
        cups = [threads.submit(kettle.pour) for _ in range(4)]
    assert all(cup.result() is kettle.tea for cup in cups)
    assert (kettle.times, kettle.tea) == (1, [1, 0])


def test_what_could_not_be_made_is_tried_again_by_the_next_who_asks() -> None:
    kettle = Kettle(failures=1)
    with pytest.raises(InvalidInput, match="is out"):
        _ = kettle.water
    assert not Kettle.water.made(kettle)
    assert kettle.water == [2]
    assert Kettle.water.made(kettle)


def test_it_can_be_replaced_and_tells_what_it_is() -> None:
    kettle = Kettle()
    vars(kettle)["water"] = [7]
    assert (kettle.tea, kettle.times, Kettle.water.__doc__) == ([7, 0], 0, "Hot.")


def test_a_wrong_language_model_is_told_by_ready_and_not_to_who_needs_none(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**folders, embedder="hashing", llm_model="openai:") as af:
        assert af.rag.documents() == []
        with pytest.raises(InvalidInput, match="llm_model"):
            af.ready()
    with agentformer.connect(**folders, embedder="hashing", llm_model="echo") as af:
        assert af.ready() is af


def test_the_rooms_of_the_package_are_there_after_a_plain_import() -> None:
    code = "import agentformer\nassert agentformer.errors.NotFound and agentformer.memory and agentformer.tools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(AttributeError, match="conect"):
        _ = agentformer.conect  # type: ignore[attr-defined]
