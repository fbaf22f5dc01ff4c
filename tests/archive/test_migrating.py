"""Sessions of coding agents and the texts of other memories, in their documented forms: each once, with its owner."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agentformer
from agentformer.archive.chats.files import HEAD
from agentformer.errors import InvalidInput
from agentformer.types import MemoryEntry

ROOT = Path(__file__).resolve().parents[2]
AT = "2026-11-20T12:00:00.000Z"


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as opened:
        yield opened


def lines(path: Path, *values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    return path


def whole(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), "utf-8")
    return path


def entries(af: agentformer.AgentFormer, **scope: Any) -> list[MemoryEntry]:
    return [*af.memory.list(limit=1000, include_archived=True, **scope)]


def imported(af: agentformer.AgentFormer, path: Path, **place: Any) -> list[MemoryEntry]:
    """Import a file twice; the second time must change nothing."""
    first = af.import_conversations(path, **place)
    assert first.failures == 0, first.failed
    found = entries(af)
    again = af.import_conversations(path, **place)
    assert (again.messages, again.there_already) == (0, first.messages)
    assert entries(af) == found
    return found


def claude_code(kind: str, content: Any, number: int, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content}
    return {
        **{"type": kind, "message": message, "uuid": f"u{number}", "sessionId": "s1", "timestamp": AT},
        **{"cwd": "/home/anna/app", "version": "2.1.0", "isSidechain": False, **more},
    }


def claude_code_session(path: Path) -> Path:
    return lines(
        path,
        {"type": "summary", "summary": "Ports", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        claude_code("user", "Which port does the API use?", 1),
        claude_code("assistant", [{"type": "thinking", "thinking": "hidden"}, {"type": "text", "text": "I look."}], 2),
        claude_code("assistant", [{"type": "tool_use", "name": "Bash", "input": {"command": "grep port"}}], 3),
        claude_code("user", [{"type": "tool_result", "content": "port = 8808"}], 4),
        claude_code("user", "<command-name>/clear</command-name>", 5),
        claude_code("user", "Caveat", 6, isMeta=True),
        claude_code("assistant", [{"type": "text", "text": "A helper says so."}], 7, isSidechain=True),
        claude_code("assistant", [{"type": "text", "text": "The API uses port 8808."}], 8),
    )


def codex_session(path: Path) -> Path:
    def item(kind: str, **payload: Any) -> dict[str, Any]:
        return {"timestamp": AT, "type": "response_item", "payload": {"type": kind, **payload}}

    def message(role: str, kind: str, text: str) -> dict[str, Any]:
        return item("message", role=role, content=[{"type": kind, "text": text}])

    return lines(
        path,
        {"timestamp": AT, "type": "session_meta", "payload": {"id": "c-1", "cwd": "/home/anna/site"}},
        message("developer", "input_text", "You are Codex."),
        message("user", "input_text", "<environment_context>linux</environment_context>"),
        message("user", "input_text", "Deploy the site."),
        item("reasoning", summary=[]),
        item("function_call", name="shell", arguments='{"command":["make"]}', call_id="1"),
        item("function_call_output", call_id="1", output="done"),
        {
            "timestamp": AT,
            "type": "event_msg",
            "payload": {"type": "agent_message", "message": "The site is deployed."},
        },
        message("assistant", "output_text", "The site is deployed."),
    )


def test_secrets_in_sessions_are_not_stored(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3" * 6
    used = {"command": f"curl -H 'Authorization: Bearer {token}'"}
    lines(
        tmp_path / "s1.jsonl",
        claude_code("user", f"My token is {token}, use it.", 1),
        claude_code("assistant", [{"type": "tool_use", "name": "Bash", "input": used}], 2),
        claude_code("user", [{"type": "tool_result", "content": "DB_PASSWORD=correct-horse-9\nPORT=8808"}], 3),
    )
    texts = [entry.content for entry in imported(af, tmp_path / "s1.jsonl")]
    assert len(texts) == 3
    assert texts[0] == "My token is [secret], use it."
    assert not any("a1B2c3" in text or "correct-horse" in text for text in texts)
    assert "PORT=8808" in texts[2]


def test_the_texts_of_other_memories_stay_as_they_are(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    memory = {"id": "m", "memory": "password: correct-horse-9", "user_id": "anna"}
    assert [entry.content for entry in imported(af, whole(tmp_path / "m.json", [memory]))] == [memory["memory"]]


def test_sessions_of_claude_code(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    found = imported(af, claude_code_session(tmp_path / "projects" / "app" / "s1.jsonl"), user_id="anna")
    said = [(entry.role, entry.content, entry.speaker) for entry in found if entry.kind == "message"]
    assert said == [
        ("user", "Which port does the API use?", ""),
        ("assistant", "I look.", "Claude"),
        ("assistant", "The API uses port 8808.", "Claude"),
    ]
    used = [entry.content for entry in found if entry.kind == "unsearched"]
    assert used == ['Bash: {"command": "grep port"}', "port = 8808"]
    owners = {(e.session_id, e.project, e.user_id, str(e.occurred_at)) for e in found}
    assert owners == {("claude-code:s1", "/home/anna/app", "anna", "2026-11-20 12:00:00+00:00")}
    assert "port = 8808" not in [hit.entry.content for hit in af.memory.search("port = 8808")]


def test_sessions_of_codex(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    found = imported(af, codex_session(tmp_path / "sessions" / "2026" / "rollout-1.jsonl"), project="own")
    assert [(entry.role or "tool", entry.content) for entry in found] == [
        ("user", "Deploy the site."),
        ("tool", 'shell: {"command":["make"]}'),
        ("tool", "done"),
        ("assistant", "The site is deployed."),
    ]
    assert {(entry.session_id, entry.project) for entry in found} == {("codex:c-1", "own")}


def test_a_folder_of_sessions_grows(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    claude_code_session(folder / "app" / "s1.jsonl")
    codex_session(folder / "site" / "rollout.jsonl")
    assert af.import_conversations(folder).messages == 9
    with (folder / "app" / "s1.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(claude_code("user", "Thanks!", 9)) + "\n" + '{"type": "user", "half')
    more = af.import_conversations(folder)
    assert (more.messages, more.there_already, more.failures) == (1, 9, 1)
    assert "is not JSON" in more.failed[0].reason


def test_the_result_of_mem0(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    memory = {"id": "m1", "memory": "Likes tea", "hash": "h", "created_at": "2026-01-02T03:04:05-08:00"}
    other = {"id": "m2", "memory": "Works at Nokia", "user_id": "ben", "run_id": "r", "metadata": {"topic": "work"}}
    file = whole(tmp_path / "mem0.json", {"results": [{**memory, "user_id": "anna", "metadata": None}, other]})
    one, two = imported(af, file)
    assert (one.kind, one.content, one.user_id, one.session_id) == ("fact", "Likes tea", "anna", None)
    assert str(one.occurred_at) == "2026-01-02 11:04:05+00:00"
    assert (two.user_id, two.session_id, two.metadata) == ("ben", "mem0:r", {"topic": "work"})
    assert len(imported(af, whole(tmp_path / "list.json", [memory]))) == 3  # without a user, it is another owner's


def test_facts_and_messages_of_zep(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    edge = {"uuid": "e1", "fact": "Anna lives in Turku", "valid_at": AT, "invalid_at": "2026-11-25T00:00:00Z"}
    said = {"uuid_": "z1", "role": "Anna", "role_type": "user", "content": "I moved.", "created_at": AT}
    file = whole(tmp_path / "zep.json", {"session_id": "s", "edges": [edge], "messages": [said]})
    done = af.import_conversations(file)
    assert (done.messages, done.failures) == (2, 0)
    fact, message = entries(af, as_of="2026-11-21T00:00:00Z")
    assert (fact.content, str(fact.valid_from), str(fact.valid_to)) == (
        "Anna lives in Turku",
        "2026-11-20 12:00:00+00:00",
        "2026-11-25 00:00:00+00:00",
    )
    assert (message.session_id, message.speaker, message.role) == ("zep:s", "Anna", "user")
    assert af.import_conversations(file).there_already == 2


def test_an_agent_file_of_letta(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    wrapped = json.dumps({"type": "user_message", "message": "My name is Anna", "time": AT})
    beat = json.dumps({"type": "heartbeat", "reason": "x"})
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "You are Letta"}]},
        {"id": "1", "role": "user", "content": [{"type": "text", "text": wrapped}], "created_at": AT},
        {"id": "2", "role": "user", "content": [{"type": "text", "text": beat}], "created_at": AT},
        {"id": "3", "role": "assistant", "content": [{"type": "text", "text": "Hello Anna"}], "created_at": AT},
    ]
    blocks = [{"id": "b1", "label": "human", "value": "Anna, a nurse"}, {"id": "b2", "label": "persona", "value": ""}]
    file = whole(tmp_path / "agent.af", {"agents": [{"id": "a1", "messages": messages}], "blocks": blocks})
    block, *said = imported(af, file)
    assert (block.kind, block.title, block.content) == ("fact", "human", "Anna, a nurse")
    assert [(entry.session_id, entry.content) for entry in said] == [
        ("letta:a1", "My name is Anna"),
        ("letta:a1", "Hello Anna"),
    ]


def test_messages_of_langchain(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    values = [
        {"type": "system", "data": {"content": "Be kind"}},
        {"type": "human", "data": {"content": "Hi", "id": "1"}},
        {"type": "ai", "data": {"content": [{"type": "text", "text": "Hello"}], "id": "2"}},
        {"type": "tool", "data": {"content": "42", "id": "3"}},
    ]
    found = imported(af, whole(tmp_path / "support.json", values))
    assert [(entry.role, entry.kind, entry.content) for entry in found] == [
        ("user", "message", "Hi"),
        ("assistant", "message", "Hello"),
        ("", "unsearched", "42"),
    ]
    assert {entry.session_id for entry in found} == {"langchain:support"}


def chroma(folder: Path) -> Path:
    folder.mkdir()
    with sqlite3.connect(folder / "chroma.sqlite3") as db:
        db.executescript(
            """
            CREATE TABLE collections (id TEXT, name TEXT);
            CREATE TABLE segments (id TEXT, type TEXT, scope TEXT, collection TEXT);
            CREATE TABLE embeddings (id INTEGER, segment_id TEXT, embedding_id TEXT, seq_id BLOB, created_at TIMESTAMP);
            CREATE TABLE embedding_metadata (id INTEGER, key TEXT, string_value TEXT, int_value INTEGER,
                float_value REAL, bool_value INTEGER);
            INSERT INTO collections VALUES ('c', 'notes');
            INSERT INTO segments VALUES ('s', 'metadata', 'METADATA', 'c');
            INSERT INTO embeddings VALUES (1, 's', 'doc-1', x'01', ''), (2, 's', 'doc-2', x'02', '');
            INSERT INTO embedding_metadata VALUES (1, 'chroma:document', 'Tea is at five.', NULL, NULL, NULL),
                (1, 'page', NULL, 3, NULL, NULL), (2, 'page', NULL, 4, NULL, NULL);
            """
        )
    db.close()
    return folder


@pytest.mark.parametrize("name", ["", "chroma.sqlite3"])
def test_texts_of_chroma(af: agentformer.AgentFormer, tmp_path: Path, name: str) -> None:
    (fact,) = imported(af, chroma(tmp_path / "db") / name)
    assert (fact.kind, fact.content, fact.metadata, fact.source_id) == (
        "fact",
        "Tea is at five.",
        {"page": 3},
        "notes/doc-1",
    )


def test_another_database_and_a_pickle_are_refused(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite3"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    assert other.read_bytes().startswith(HEAD)
    with pytest.raises(InvalidInput, match="not a database of Chroma"):
        af.import_conversations(other)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "index.pkl").write_bytes(b"\x80\x04cos\nsystem\n")
    shutil.copy(tmp_path / "index" / "index.pkl", tmp_path / "store")
    for path in (tmp_path / "index", tmp_path / "index" / "index.pkl", tmp_path / "store"):
        with pytest.raises(InvalidInput, match="pickle"):
            af.import_conversations(path)
    assert entries(af) == []


@pytest.mark.parametrize(
    "value",
    [
        {"agents": [7], "blocks": []},
        {"agents": [{"messages": ["x"]}], "blocks": []},
        {"id": "", "memory": "without an id"},
        {"uuid": "1", "fact": "x", "valid_at": "soon"},
    ],
)
def test_a_wrong_field_is_told(af: agentformer.AgentFormer, tmp_path: Path, value: Any) -> None:
    done = af.import_conversations(whole(tmp_path / "wrong.json", [value]))
    assert (done.messages, done.failures) == (0, 1)


@pytest.mark.parametrize(
    "value",
    [
        {"results": [{"id": "1", "memory": "good"}, {"memory": "no id"}, {"id": "2", "memory": 5}, 7]},
        {"edges": [{"uuid": "1", "fact": "good"}, {"uuid": "2", "fact": "x", "valid_at": "soon"}, {"uuid": "3"}, 7]},
    ],
)
def test_an_item_that_cannot_be_used_does_not_hide_the_others(
    af: agentformer.AgentFormer, tmp_path: Path, value: Any
) -> None:
    done = af.import_conversations(whole(tmp_path / "some.json", value))
    assert (done.messages, done.failures) == (1, 3)
    assert "item 2" in done.failed[0].name
    assert [entry.content for entry in entries(af)] == ["good"]


def test_messages_of_zep_without_a_session_have_that_of_the_file(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    said = {"uuid": "q1", "role_type": "user", "content": "Only messages here."}
    (entry,) = imported(af, whole(tmp_path / "z_m.json", [said]))
    assert entry.session_id == "zep:z_m"


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/MIGRATING.md, on files of these forms."""
    home = tmp_path / "home"
    claude_code_session(home / ".claude" / "projects" / "app" / "s1.jsonl")
    codex_session(home / ".codex" / "sessions" / "2026" / "11" / "20" / "rollout-1.jsonl")
    chroma(tmp_path / "chroma")
    whole(tmp_path / "mem0.json", {"results": [{"id": "m1", "memory": "Likes tea", "user_id": "anna"}]})
    whole(tmp_path / "zep.json", {"facts": [{"uuid": "e1", "fact": "Anna lives in Turku"}]})
    whole(tmp_path / "agent.af", {"agents": [], "blocks": [{"id": "b", "label": "human", "value": "Anna"}]})
    whole(tmp_path / "messages.json", [{"type": "human", "data": {"content": "Hi", "id": "1"}}])
    page = (ROOT / "docs" / "MIGRATING.md").read_text("utf-8")
    document = SimpleNamespace(page_content="From an index.", metadata={"source": "rules.pdf", "page": 3})
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {"store": SimpleNamespace(docstore=SimpleNamespace(_dict={"d1": document}))})
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines() if line
    ]
    assert len(commands) >= 8
    for command in commands:
        words = command.partition("#")[0].replace("~", str(home)).split()
        assert words[:2] == ["agentformer", "import"]
        watch = "--watch" in words
        process = subprocess.Popen(
            [sys.executable, "-m", "agentformer.cli", *words[1:], "--embedder", "hashing"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        bound = threading.Timer(240, process.kill)  # nothing is waited for without a bound
        bound.daemon = True
        bound.start()
        if watch:
            assert process.stdout is not None
            assert "messages imported" in process.stdout.readline()
            claude_code_session(home / ".claude" / "projects" / "new" / "s2.jsonl")
            assert any("s2.jsonl" in line for line in process.stdout)
            process.terminate()
            process.communicate(timeout=60)
            continue
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0, printed
        assert re.search(r"messages imported: [1-9]|there already: [1-9]", printed), printed
    with agentformer.connect(index_dir=tmp_path / "indexes", upload_dir=tmp_path / "uploads", embedder="hashing") as af:
        (text,) = (entry for entry in entries(af) if entry.content == "From an index.")
    assert (text.kind, text.metadata["page"]) == ("fact", 3)
