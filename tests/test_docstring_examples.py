"""The examples in the docstrings of public calls run, each with a new memory, and print what they say."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.access import secret_masking as secrets
from agentformer.memory.hierarchical import CoreMemory
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.document_store import DocumentStore
from agentformer.text import instructions
from agentformer.text import language_files as files
from agentformer.text.facts import personal_facts as told
from agentformer.tools.rag_tool import RAGTool

PARTS = (MemoryManager, CoreMemory, DocumentStore, RAGTool, instructions, told, files, secrets)
EXAMPLES = [
    test
    for part in PARTS
    for test in doctest.DocTestFinder(recurse=True).find(part, globs=vars(inspect.getmodule(part)))
    if test.examples
]
HANDBOOK = "The keys of the boat house are in the office. Aino has a second set.\n\nThe sauna opens at five."


def test_the_most_used_calls_have_an_example() -> None:
    shown = {test.name.rpartition(".")[2] for test in EXAMPLES}
    memory = {"add_message", "store", "store_many", "search", "list", "update", "supersede", "remove", "build_context"}
    assert (
        memory | {"learn", "profile", "clean", "append"} | {"upload", "query", "stream", "documents", "sync"} <= shown
    )


@pytest.mark.process
@pytest.mark.parametrize("test", EXAMPLES, ids=[test.name for test in EXAMPLES])
def test_an_example_prints_what_it_says(test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("handbook.txt").write_text(HANDBOOK, "utf-8")
    Path("notes").mkdir()
    Path("notes", "tea.md").write_text("Tea is at five.", "utf-8")
    printed: list[str] = []
    with agentformer.connect(index_dir="indexes", upload_dir="uploads", embedder="hashing") as af:
        test.globs = {**test.globs, "af": af, "agentformer": agentformer}
        result: Any = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=printed.append)
    assert result.failed == 0, "".join(printed)
