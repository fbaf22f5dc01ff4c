"""Core blocks: named, bounded, edited in place, and never overwritten by each other's editors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, NotFound
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.hierarchical import CoreMemory
from agentformer.testing import make_entry


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def core(tmp_path: Path) -> CoreMemory:
    return CoreMemory(FaissMemoryBackend(tmp_path, HashingEmbedder()), words, block_tokens=10)


def test_a_block_grows_by_lines_and_keeps_its_former_versions(core: CoreMemory) -> None:
    first = core.append("persona", "Speaks Finnish.")
    second = core.append("persona", "Likes short answers.")
    assert first.id == second.id
    assert core.get("persona").content == "Speaks Finnish.\nLikes short answers."
    assert (second.tier, second.title, second.version) == ("core", "persona", 2)
    assert [old.content for old in core._backend.history(first.id)] == ["Speaks Finnish."]


def test_an_append_that_would_overflow_is_refused_and_says_by_how_much(core: CoreMemory) -> None:
    core.append("persona", "one two three four five six")
    with pytest.raises(InvalidInput, match="would have 12 tokens, 2 over its limit of 10") as refused:
        core.append("persona", "seven eight nine ten eleven twelve")
    assert refused.value.field == "content"
    assert core.get("persona").content == "one two three four five six"
    core.append("persona", "seven eight nine ten")


def test_replace_is_exact(core: CoreMemory) -> None:
    core.append("persona", "Lives in Turku. Works in Turku.")
    core.replace("persona", "Lives in Turku", "Lives in Oulu")
    assert core.get("persona").content == "Lives in Oulu. Works in Turku."
    for old, times in (("Helsinki", 0), ("s in ", 2), ("", 0)):
        with pytest.raises(InvalidInput, match=f"occurs {times} times"):
            core.replace("persona", old, "x")
    with pytest.raises(InvalidInput, match="3 over its limit"):
        core.replace("persona", "Oulu", "a b c d e f g h")
    with pytest.raises(InvalidInput, match="empty"):
        core.replace("persona", "Lives in Oulu. Works in Turku.", " ")
    with pytest.raises(NotFound):
        core.replace("no such block", "a", "b")
    assert core.get("persona").version == 2


def test_blocks_of_another_place_are_others(core: CoreMemory) -> None:
    core.append("persona", "everybody's")
    core.append("persona", "Aino's", user_id="aino")
    core.append("persona", "Eino's", user_id="eino")
    core.append("persona", "elsewhere", namespace="other")
    assert core.get("persona", user_id="aino").content == "Aino's"
    assert [b.content for b in core.blocks(user_id="aino")] == ["Aino's", "everybody's"] or [
        b.content for b in core.blocks(user_id="aino")
    ] == ["everybody's", "Aino's"]
    assert [b.content for b in core.blocks("other")] == ["elsewhere"]
    core.remove("persona", user_id="aino")
    with pytest.raises(NotFound):
        core.get("persona", user_id="aino")
    assert [b.content for b in core.blocks()] == ["everybody's"]  # Eino's is nobody else's business
    assert {b.content for b in core.blocks(user_id="eino")} == {"everybody's", "Eino's"}


def test_a_line_that_is_there_is_not_added_again(core: CoreMemory) -> None:
    core.append("persona", "Speaks Finnish.")
    core.append("persona", "Likes tea.")
    assert core.append("persona", "Speaks Finnish.").version == 2
    assert core.get("persona").content == "Speaks Finnish.\nLikes tea."


def test_a_block_of_the_first_release_is_edited_in_place(core: CoreMemory) -> None:
    (old,) = core._backend.store([make_entry("You help.", tier="core", title="persona")])
    assert core.append("persona", "Be brief.").id == old.id
    assert [block.content for block in core.blocks()] == ["You help.\nBe brief."]


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("name", lambda core: core.append(b"x", "t")),
        ("name", lambda core: core.get("")),
        ("agent_id", lambda core: core.append("b", "t", agent_id=5)),
        ("user_id", lambda core: core.append("b", "t", user_id="\ud800")),
        ("namespace", lambda core: core.blocks(None)),
        ("old", lambda core: core.replace("b", 5, "x")),
        ("content", lambda core: core.append("b", None)),
    ],
)
def test_a_wrong_argument_is_named(core: CoreMemory, field: str, call: Callable[[CoreMemory], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        call(core)
    assert refused.value.field == field
    assert core.blocks() == []


def test_of_many_editors_none_overwrites_another(tmp_path: Path) -> None:
    cores = [CoreMemory(FaissMemoryBackend(tmp_path, HashingEmbedder()), words, block_tokens=1000) for _ in range(2)]

    def edit(n: int) -> None:
        for i in range(5):
            cores[n % 2].append("notes", f"writer{n}line{i}")

    threads = [threading.Thread(target=edit, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = cores[0].get("notes").content.split("\n")
    assert sorted(lines) == sorted(f"writer{n}line{i}" for n in range(6) for i in range(5))
    assert len(cores[0].blocks()) == 1
