"""Every tool has the same results and errors in Python, over HTTP and over MCP."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

import agentformer
from tests.edges.doors import DOORS, Door, PythonDoor, Told, Who

NAMES = [
    "memory_add",
    "memory_search",
    "memory_get",
    "memory_update",
    "memory_delete",
    "core_memory_append",
    "core_memory_replace",
    "conversation_search",
    "memory_consolidate",
    "memory_learn",
    "memory_profile",
    "memory_audit",
    "memory_status",
    "rag_upload",
    "rag_query",
    "rag_list",
]
READING = [
    "memory_search",
    "memory_get",
    "conversation_search",
    "memory_profile",
    "memory_audit",
    "memory_status",
    "rag_query",
    "rag_list",
]


class Opened:
    """A door, and the folder of the memory behind it."""

    def __init__(self, door: Door, folder: Path) -> None:
        self.door, self.folder = door, folder

    def __call__(self, name: str, who: Who = "owner", /, **arguments: Any) -> Told:
        told = self.door.call(name, arguments, who)
        assert str(self.folder) not in told.text, "a path of the server"
        return told

    def correction(self, name: str, who: Who = "owner", /, **arguments: Any) -> str:
        told = self(name, who, **arguments)
        assert told.failed
        return told.text


PARAMS = [pytest.param(name, marks=[pytest.mark.process] if name.startswith("mcp") else []) for name in DOORS]
# Both MCP servers call the toolbox through the same function, so one of them is enough where no caller is special.
one_mcp = pytest.mark.parametrize("call", PARAMS[:-1], indirect=True)


@pytest.fixture(scope="module", params=PARAMS)
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        yield Opened(DOORS[request.param](folder, stack), folder)


def test_the_list_has_the_tools_of_the_caller(call: Opened) -> None:
    assert call.door.names("owner") == NAMES
    assert call.door.names("reader") == READING
    assert call.door.names("harbour") == [name for name in NAMES if name != "memory_delete"]


def test_a_memory_is_stored_found_read_changed_and_deleted(call: Opened) -> None:
    added = call("memory_add", content="Aino prefers tea to coffee.", kind="preference", metadata={"about": "Aino"})
    entry_id = added["memory"]["id"]
    assert not added["known_already"]
    assert call("memory_add", content="Aino prefers tea to coffee.", kind="preference", metadata={"about": "Aino"})[
        "known_already"
    ]

    found = call("memory_search", query="tea or coffee", kinds=["preference"])["memories"]
    assert [memory["id"] for memory in found] == [entry_id] and "votes" not in found[0]
    explained = call("memory_search", query="tea or coffee", kinds=["preference"], explain=True)["memories"]
    assert ("words", 1) in [(vote["name"], vote["rank"]) for vote in explained[0]["votes"]]
    read = call("memory_get", id=entry_id)["memory"]
    assert (read["content"], read["kind"], read["metadata"]) == (
        "Aino prefers tea to coffee.",
        "preference",
        {"about": "Aino"},
    )

    changed = call("memory_update", id=entry_id, content="Aino prefers coffee.", expected_version=read["version"])
    assert changed["memory"]["version"] == read["version"] + 1
    assert "version" in call.correction("memory_update", id=entry_id, title="x", expected_version=read["version"])
    assert call("memory_get", id=entry_id)["memory"]["content"] == "Aino prefers coffee."

    assert call("memory_delete", id=entry_id)["forgotten"] == 1
    assert call.correction("memory_get", id=entry_id) == f"there is no entry {entry_id}"
    assert call.correction("memory_delete", id=entry_id) == f"there is no entry {entry_id}"


@one_mcp
def test_a_long_memory_is_read_in_parts(call: Opened) -> None:
    content = " ".join(f"word{number}" for number in range(3000))
    entry_id = call("memory_add", content=content)["memory"]["id"]
    parts, start = [], 0
    while True:
        told = call("memory_get", id=entry_id, start=start)
        parts.append(told["memory"]["content"])
        if "next_start" not in told.value:
            break
        start = told["next_start"]
    assert len(parts) == 4
    assert "".join(parts) == content


@one_mcp
def test_a_core_block_is_created_extended_and_corrected(call: Opened) -> None:
    assert call("core_memory_append", name="persona", text="You help the harbour.")["block"]["tier"] == "core"
    call("core_memory_append", name="persona", text="Answer briefly.")
    told = call("core_memory_replace", name="persona", old="the harbour", new="the harbour of Turku")
    assert told["block"]["content"] == "You help the harbour of Turku.\nAnswer briefly."
    assert call.correction("core_memory_replace", name="persona", old="the airport", new="x") == (
        "old: occurs 0 times in core block 'persona'; give a text that occurs once"
    )
    assert "there is no core block 'nobody'" in call.correction("core_memory_replace", name="nobody", old="a", new="b")


@one_mcp
def test_messages_are_found_also_after_they_are_summarized(call: Opened) -> None:
    with agentformer.connect(
        index_dir=call.folder / "i", upload_dir=call.folder / "u", clean_every=0, embedder="hashing"
    ) as af:
        for number in range(12):
            af.memory.add_message("monday", "user", f"Message {number} is about the blue crane on pier {number}.")
    assert len(call("conversation_search", query="blue crane", session_id="monday", limit=50)["messages"]) == 12
    assert call("conversation_search", query="blue crane", session_id="sunday")["messages"] == []

    done = call("memory_consolidate", session_id="monday")
    assert (done["archived"], len(done["summaries"])) == (5, 1)
    said = call("conversation_search", query="crane pier 0", session_id="monday", limit=50)["messages"]
    assert "Message 0 is about the blue crane on pier 0." in [message["content"] for message in said]


@one_mcp
def test_the_audit_names_what_is_there_twice(call: Opened) -> None:
    text = "The ferry to Nauvo leaves from the northern pier of the old harbour every morning"
    ids = {call("memory_add", content=f"{text}{end}")["memory"]["id"] for end in (".", "!")}
    alike = call("memory_audit")["duplicates"]
    assert ids in [set(group["ids"]) for group in alike]


@one_mcp
def test_the_status_counts_what_the_caller_reaches(call: Opened) -> None:
    call("memory_add", "harbour", content="The harbour office opens at nine.")
    told = call("memory_status", "harbour")
    assert told["namespace"] == "harbour"
    assert told["memories"]["semantic"] >= 1
    assert told["pending"] == 0
    assert "store" not in told.value
    assert "store" in call("memory_status").value


@pytest.mark.process
def test_a_document_is_uploaded_listed_answered_from_and_replaced(call: Opened) -> None:
    text = "# Keys\n\nThe spare key of the crane hangs in the red cupboard.\n"
    uploaded = call("rag_upload", name="keys.md", text=text, metadata={"site": "north"})["document"]
    assert (uploaded["status"], uploaded["pages"], uploaded["metadata"]) == ("ready", 1, {"site": "north"})

    told = call("rag_query", question="Where does the spare key of the crane hang?", metadata={"site": "north"})
    assert "red cupboard" in told["answer"]
    assert told["mode"] == "extractive"
    citation = told["citations"][0]
    assert (citation["document"], citation["page"]) == ("keys.md", 1)
    assert "red cupboard" in citation["quote"]
    assert "red cupboard" in told["passages"][0]["content"]
    assert call("rag_query", question="Where is the crane key?", filters={"site": "south"})["passages"] == []

    newer = base64.b64encode(text.replace("red", "green").encode()).decode()
    call("rag_upload", name="keys.md", content_base64=newer)
    call("rag_upload", name="tides.txt", text="High tide is at noon.")
    names, after = [], None
    while True:
        page = call("rag_list", limit=1, **({"after": after} if after else {}))
        names += [document["name"] for document in page["documents"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert sorted(names) == ["keys.md", "tides.txt"]
    assert "green cupboard" in call("rag_query", question="Where does the spare key of the crane hang?")["answer"]


@one_mcp
@pytest.mark.process
def test_an_unreadable_file_has_the_status_failed(call: Opened) -> None:
    damaged = base64.b64encode(b"%PDF-1.7 and nothing more").decode()
    told = call("rag_upload", name="damaged.pdf", content_base64=damaged)["document"]
    assert told["status"] == "failed"
    assert told["reason"]


def test_files_are_read_by_their_path_only_where_allowed(call: Opened) -> None:
    (call.folder / "notes").mkdir(exist_ok=True)
    (call.folder / "notes" / "pier.txt").write_text("The northern pier is closed in winter.")
    told = call("rag_upload", path="notes/pier.txt")
    if call.door.reads_files:
        assert told["document"]["name"] == "notes/pier.txt"
        assert "is outside" in call.correction("rag_upload", path="../../etc/hostname")
    else:
        assert told.text == "path: names a file, but this caller may not read files; give text or content_base64"


CORRECTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("memory_add", {}, "content: is missing. memory_add takes: content*, kind"),
    ("memory_add", {"contnt": "x"}, "contnt is not an argument of this tool; did you mean content?"),
    ("memory_add", {"content": 7}, "content: is wrong: Input should be a valid string, got 7."),
    ("memory_add", {"content": " "}, "content: is empty"),
    ("memory_add", {"content": "x", "salience": 3}, "salience: is wrong: Input should be less than or equal to 1"),
    ("memory_add", {"content": "x", "occurred_at": "yesterday"}, "occurred_at: must be ISO 8601"),
    ("memory_add", {"content": "x", "metadata": []}, "metadata: is wrong"),
    ("memory_search", {"query": ""}, "query: is wrong"),
    ("memory_search", {"query": "x", "limit": 0}, "limit: is wrong"),
    (
        "memory_search",
        {"query": "x", "tiers": ["deep"]},
        "'core', 'semantic', 'episodic' or 'working', got \"deep\"",
    ),
    ("memory_get", {"id": "none"}, "there is no entry none"),
    ("memory_update", {"id": "none", "title": "x"}, "there is no entry none"),
    ("core_memory_append", {"name": "log", "text": "word " * 600}, "over its limit of"),
    ("conversation_search", {"query": 5}, "query: is wrong"),
    ("rag_upload", {"name": "a.txt"}, "path: give exactly one of path, text, content_base64"),
    ("rag_upload", {"text": "x"}, "name: is missing"),
    ("rag_upload", {"name": "a.txt", "text": "x", "content_base64": "eA=="}, "give exactly one of"),
    ("rag_upload", {"name": "a.txt", "content_base64": "!"}, "content_base64: is not base64"),
    ("rag_query", {"question": "x", "top_k": "many"}, "top_k: is wrong: Input should be a valid integer"),
    ("rag_list", {"limit": 1000}, "limit: is wrong: Input should be less than or equal to 200"),
    ("memory_ad", {"content": "x"}, "there is no tool 'memory_ad'; the tools are: memory_add, memory_search"),
]


def test_invalid_arguments_are_answered_with_a_correction(call: Opened) -> None:
    """All of them in Python; the other entry points pass on the same text."""
    for name, arguments, message in CORRECTIONS if isinstance(call.door, PythonDoor) else CORRECTIONS[::10]:
        assert message in call.correction(name, **arguments)


def test_a_tool_that_is_switched_off_is_refused(call: Opened) -> None:
    entry_id = call("memory_add", "harbour", content="The buoy is green.")["memory"]["id"]
    assert call.correction("memory_delete", "harbour", id=entry_id) == (
        "the tool memory_delete is switched off for this key"
    )
    assert call("memory_get", "harbour", id=entry_id)["memory"]["content"] == "The buoy is green."


def test_a_caller_without_the_right_to_write_changes_nothing(call: Opened) -> None:
    for name in sorted(set(NAMES) - set(READING)):
        assert call.correction(name, "reader", content="x") == (
            "this key does not have the right to write; use a key that has this right"
        )


def test_other_namespaces_are_refused_by_name_and_hidden_by_id(call: Opened) -> None:
    secret = call("memory_add", content="The safe opens with 4711.")["memory"]["id"]
    for name, arguments in (("memory_search", {"query": "safe"}), ("memory_add", {"content": "x"})):
        assert call.correction(name, "harbour", namespace="default", **arguments) == (
            "this key may use only the namespace harbour"
        )
    for name, more in (("memory_get", {}), ("memory_update", {"title": "x"})):
        unseen = call.correction(name, "harbour", id=secret, **more)
        assert unseen == call.correction(name, "harbour", id="x" * 36, **more).replace("x" * 36, secret)
    found = call("memory_search", "harbour", query="The safe opens with 4711.")["memories"]
    assert secret not in [memory["id"] for memory in found]
