"""Conversations of other programs become sessions: each message once, in order, with speaker and time."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentformer
from agentformer.archive.chats import files
from agentformer.archive.chats import importer as chats
from agentformer.archive.chats.files import Unusable, read_values
from agentformer.errors import InvalidInput
from tests.faults.long_form import LONG

NOON = 1_763_640_000.5  # 2025-11-20T12:00:00.5Z


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as opened:
        yield opened


def node(parent: str | None, role: str, text: Any, at: float | None = NOON, **message: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]} if isinstance(text, str) else text
    made = {"author": {"role": role}, "content": content, "create_time": at, "recipient": "all", **message}
    return {"parent": parent, "children": [], "message": made}


def chatgpt(number: int = 1, **more: Any) -> dict[str, Any]:
    """A conversation whose second question was edited: the first branch is not the current one."""
    mapping = {
        "root": {"parent": None, "children": ["s"], "message": None},
        "s": node("root", "system", "You are helpful."),
        "u1": node("s", "user", f"What is the plan number {number}?", NOON),
        "a1": node("u1", "assistant", "To paint the boat.", NOON + 1, id="message-a1"),
        "u2-old": node("a1", "user", "Which colour, if any?", NOON + 2),
        "u2": node(
            "a1", "user", {"content_type": "multimodal_text", "parts": [{"asset_pointer": "x"}, "This blue?"]}, NOON + 3
        ),
        "call": node("u2", "assistant", {"content_type": "code", "text": "search()"}, NOON + 4, recipient="browser"),
        "result": node("call", "tool", {"content_type": "execution_output", "text": "blue"}, NOON + 5),
        "a2": node("result", "assistant", "Yes, \ud83d blue.", None),
    }
    return {
        **{"title": f"Boat {number}", "conversation_id": f"c{number}", "create_time": NOON, "current_node": "a2"},
        **{"mapping": mapping, **more},
    }


def claude() -> dict[str, Any]:
    messages = [
        {"uuid": "m1", "sender": "human", "text": "Summarise it.", "created_at": "2026-11-20T09:30:00.123456Z",
         "attachments": [{"file_name": "minutes.txt", "extracted_content": "long"}], "files": [{"file_name": "a.png"}]},
        {"uuid": "m2", "sender": "assistant", "text": "", "created_at": "2026-11-20T09:30:05Z",
         "content": [{"type": "text", "text": "It is"}, {"type": "tool_use"}, {"type": "text", "text": "short."}]},
        {"uuid": "m3", "sender": "assistant", "text": " ", "created_at": "2026-11-20T09:31:00Z"},
    ]  # fmt: skip
    return {"uuid": "k1", "name": "Minutes", "created_at": "2026-11-20T09:29:00Z", "chat_messages": messages}


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def lines(*values: Any) -> str:
    return "".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values)


def test_the_current_branch_of_a_chatgpt_conversation_is_a_session(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = write(tmp_path / "conversations.json", [chatgpt(1), chatgpt(2)])
    done = af.import_conversations(path, user_id="aino", speaker="Aino")
    assert (done.conversations, done.messages, done.skipped, done.failures) == (2, 8, 6, 0)
    messages = af.memory.transcript("chatgpt:c1")
    assert [(m.role, m.speaker, m.content.replace("\ufffd", "?")) for m in messages] == [
        ("user", "Aino", "What is the plan number 1?"),
        ("assistant", "ChatGPT", "To paint the boat."),
        ("user", "Aino", "This blue?"),
        ("assistant", "ChatGPT", "Yes, ? blue."),
    ]
    assert [m.occurred_at for m in messages][::3] == [datetime.fromtimestamp(at, UTC) for at in (NOON, NOON + 3)]
    assert {(m.user_id, m.source_type, m.metadata["conversation"]) for m in messages} == {("aino", "chatgpt", "Boat 1")}
    assert [m.source_id for m in messages[:2]] == ["c1/u1", "c1/message-a1"]
    assert af.memory.search("paint the boat", user_id="aino")[0].entry.session_id in ("chatgpt:c1", "chatgpt:c2")


def test_a_repeated_import_stores_only_what_is_new(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = write(tmp_path / "conversations.json", [chatgpt(), claude()])
    assert af.import_conversations(path).messages == 6
    af.backend.update(af.memory.transcript("chatgpt:c1")[0].id, {"archived_at": datetime.now(UTC)})
    again = af.import_conversations(path)
    assert (again.messages, again.there_already, again.conversations) == (0, 6, 0)
    longer = chatgpt(current_node="u3")
    longer["mapping"]["u3"] = node("a2", "user", "Thank you.", NOON + 9)
    write(path, [longer, claude()])
    assert (done := af.import_conversations(path)).messages == 1 and done.there_already == 6
    assert len(af.memory.transcript("chatgpt:c1")) == 5 and len(af.memory.transcript("claude:k1")) == 2
    assert af.import_conversations(path, user_id="bo").messages == 7  # of another person
    assert af.import_conversations(path, namespace="b").messages == 7


def test_a_claude_conversation_is_a_session(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    done = af.import_conversations(write(tmp_path / "x.json", [claude()]))
    assert (done.messages, done.skipped) == (2, 1)
    first, second = af.memory.transcript("claude:k1")
    assert (first.content, first.role, first.metadata["attachments"]) == (
        "Summarise it.",
        "user",
        ["minutes.txt", "a.png"],
    )
    assert (second.content, second.speaker) == ("It is\n\nshort.", "Claude")
    assert second.occurred_at == datetime(2026, 11, 20, 9, 30, 5, tzinfo=UTC)


def test_json_lines_are_messages_of_the_sessions_that_they_name(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = write(tmp_path / "support.jsonl", "\ufeff" + lines(
        {"role": "user", "content": "Hello.", "time": "2026-11-20T09:30:00", "session": "s1", "speaker": "Aino"},
        {"role": "ai", "content": [{"text": "Hello!"}], "timestamp": 1_763_640_000_000, "session": "s1"},
        "",
        {"role": "user", "text": "ok"}, {"role": "user", "text": "ok"}, {"role": "assistant", "text": "Done."},
        {"role": "user", "content": ""},
    ))  # fmt: skip
    assert (done := af.import_conversations(path)).messages == 5 and (done.conversations, done.skipped) == (2, 1)
    assert [m.content for m in af.memory.transcript("support")] == ["ok", "ok", "Done."]
    one, two = sorted(af.memory.transcript("s1"), key=lambda m: m.role)
    assert (one.role, one.occurred_at) == ("assistant", datetime(2025, 11, 20, 12, tzinfo=UTC))
    assert (two.speaker, two.occurred_at) == ("Aino", datetime(2026, 11, 20, 9, 30, tzinfo=UTC))
    assert af.import_conversations(path).messages == 0
    with path.open("a") as file:
        file.write(lines({"role": "user", "text": "ok"}))
    assert af.import_conversations(path).messages == 1  # of the same words, and another message
    assert af.import_conversations(path, session_id="other").messages == 4


def test_the_number_of_a_message_is_an_id_like_its_text(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    same = {"role": "user", "content": "ok", "time": "2026-11-20T09:30:00Z"}
    path = write(tmp_path / "n.jsonl", lines({**same, "id": 1}, {**same, "id": 2}, {**same, "id": 0}))
    assert (done := af.import_conversations(path)).messages == 3 and done.there_already == 0
    assert {m.source_id for m in af.memory.transcript("n")} == {"n/0", "n/1", "n/2"}
    write(path, lines({**same, "id": "1"}, {**same, "id": 2.0, "content": "changed"}, {**same, "id": True}))
    assert (done := af.import_conversations(path)).messages == 1 and done.there_already == 2
    assert [m.content for m in af.memory.transcript("n")] == ["ok"] * 4
    chat = {**claude(), "uuid": 7, "chat_messages": [{"uuid": n, "sender": "human", "text": "ok"} for n in (1, 2)]}
    assert af.import_conversations(write(tmp_path / "claude.json", [chat])).messages == 2
    assert {m.source_id for m in af.memory.transcript("claude:7")} == {"7/1", "7/2"}


def test_an_empty_key_of_a_json_line_does_not_hide_another_name_of_it(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    time = "2026-11-20T09:30:00+00:00"
    done = af.import_conversations(write(tmp_path / "names.jsonl", lines(
        {"role": "user", "content": "a", "time": "", "timestamp": time, "session": "", "thread_id": 12},
        {"role": "user", "content": None, "text": " ", "message": [{"text": "b"}], "session": "12", "date": time},
    )))  # fmt: skip
    assert (done.messages, done.skipped) == (2, 0)
    found = [(m.content, m.occurred_at) for m in af.memory.transcript("12")]
    assert sorted(found) == [("a", datetime.fromisoformat(time)), ("b", datetime.fromisoformat(time))]


def test_a_file_that_is_not_utf_8_is_called_so(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    rows = '{"role": "user", "content": "päivä"}\n{"role": "user", "content": "ok"}\n'
    (tmp_path / "latin.jsonl").write_bytes(rows.encode("latin-1"))
    done = af.import_conversations(tmp_path / "latin.jsonl")
    reasons = [problem.reason for problem in done.failed]
    assert (done.messages, reasons) == (1, ["is not UTF-8; save the file as UTF-8"])
    (tmp_path / "latin.json").write_bytes('[{"mapping": {}, "title": "päivä"}]'.encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"up to the damage: it is not UTF-8; save the file as UTF-8$"):
        af.import_conversations(tmp_path / "latin.json")
    with pytest.raises(InvalidInput, match=r"invalid string in json text, near '\[\{\"mapping\": tru\}\]'$"):
        af.import_conversations(write(tmp_path / "word.json", '[{"mapping": tru}]'))


def test_a_conversation_that_cannot_be_used_is_reported_and_the_rest_goes_on(
    af: agentformer.AgentFormer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_VALUE", 20_000)
    cycle = chatgpt(2)
    cycle["mapping"]["u1"]["parent"] = "a1"
    broken = {
        "cycle": (cycle, "has a cycle"),
        "orphan": (chatgpt(3, current_node="gone"), "has no node 'gone'"),
        "no id": (chatgpt(4, conversation_id=""), "is missing"),
        "list": (chatgpt(5, mapping=[]), "must be an object of nodes"),
        "number": (7, "must be a JSON object with"),
        "messages": ({**claude(), "chat_messages": {}}, "must be a list"),
        "time": ({**claude(), "uuid": "k2", "created_at": "yesterday"}, "must be ISO 8601"),
        "huge": (chatgpt(6, title="x" * 30_000), "has more than"),
        "deep": ({"mapping": json.loads("[" * 300 + "]" * 300)}, "nested more than 200 levels"),
    }
    path = write(tmp_path / "conversations.json", [chatgpt(1), *(value for value, _ in broken.values()), claude()])
    done = af.import_conversations(path)
    assert (done.messages, done.failures) == (6, len(broken))
    for problem, (_, words) in zip(done.failed, broken.values(), strict=True):
        assert words in problem.reason, problem
    assert done.failed[0].name == "conversations.json, conversation 2 (Boat 2)"
    bad = lines(
        {"role": "user", "content": "One."}, "{", '{"role": "pirate", "content": "x"}', '"text"', "[" * 5_000,
        {"role": "user", "content": "Two.", "time": 1e300}, {"role": "user", "content": "x" * 1_000_001},
        {"role": "user", "content": "Three."},
    )  # fmt: skip
    done = af.import_conversations(write(tmp_path / "bad.jsonl", bad))
    assert (done.messages, done.failures) == (2, 6)
    assert [m.content for m in af.memory.transcript("bad")] == ["One.", "Three."]


def test_instructions_of_the_system_and_the_developer_are_no_messages(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    roles = ("system", "developer", "user", "assistant", "Developer", "chatbot", "function")
    path = write(tmp_path / "roles.jsonl", lines(*({"role": role, "content": f"By {role}."} for role in roles)))
    done = af.import_conversations(path)
    assert (done.messages, done.skipped, done.failures) == (4, 3, 0)
    assert [m.role for m in af.memory.transcript("roles")] == ["user", "assistant", "assistant", "tool"]


def test_what_comes_before_a_damage_is_kept_and_a_file_that_is_no_chat_export_is_refused(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    text = json.dumps([chatgpt(1), chatgpt(2), chatgpt(3)])
    done = af.import_conversations(write(tmp_path / "cut.json", text[: text.index("Boat 3")]))
    assert (done.messages, done.failures) == (8, 1) and "read up to the damage" in done.failed[0].reason
    for name, value in {
        "text": "Dear diary", "empty": "", "other": '{"a": 1}\n', "xml": "<a/>", "utf16": "[", "cut": '[{"mapping": {',
    }.items():  # fmt: skip
        path = tmp_path / f"no-{name}.json"
        path.write_bytes(value.encode("utf-16") if name == "utf16" else value.encode())
        with pytest.raises(InvalidInput):
            af.import_conversations(path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no archive")
    for name in ("folder", "pipe", "bad.zip", "missing"):
        with pytest.raises(InvalidInput):
            af.import_conversations(tmp_path / name)
    assert af.memory.count() == 8


def test_the_archive_and_the_folder_of_an_export_are_read(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    write(folder / "conversations-000.json", [chatgpt(1)])
    write(folder / "conversations-001.json", json.dumps(chatgpt(2), indent=1))
    write(folder / "user.json", {"id": "aino"})
    assert af.import_conversations(folder).messages == 8
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, f"inner/{path.name}")
        archive.writestr("chat.html", "<html>")
        archive.writestr("inner/conversations-002.json", lines({"role": "user", "content": "One."}))
    done = af.import_conversations(tmp_path / "export.zip")
    assert (done.messages, done.there_already) == (1, 8)


def test_an_import_starts_no_summaries_and_concurrent_imports_store_each_message_once(
    af: agentformer.AgentFormer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "many.jsonl", lines(*({"role": "user", "content": f"Message {n}."} for n in range(30))))
    store, raced = af.backend.store, []

    def racing(entries: Any, **options: Any) -> Any:
        if not raced:
            raced.append(True)
            store(entries[:7])
        return store(entries, **options)

    monkeypatch.setattr(af.backend, "store", racing)
    monkeypatch.setattr(chats, "_BATCH", 10)
    done = af.import_conversations(path)
    assert (done.messages, done.there_already) == (23, 7) and len(af.memory.transcript("many")) == 30
    assert af.memory.count(kinds=("summary",)) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**53), 2**53)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=8,
        )
    )
)
def test_the_stream_reads_what_json_reads(values: list[Any]) -> None:
    assert [*read_values(io.BytesIO(json.dumps(values, ensure_ascii=False).encode()))] == values


def test_a_value_that_is_left_out_ends_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_VALUE", 200)
    text = json.dumps([1, {"a": ["x" * 150, {"b": ["y" * 150]}, 2], "c": 3}, {"d": 4}, [["z" * 201]], "end"])
    first, second, third, fourth, fifth = read_values(io.BytesIO(text.encode()))
    assert (first, third, fifth) == (1, {"d": 4}, "end")
    assert isinstance(second, Unusable) and isinstance(fourth, Unusable)


class Endless:
    """A JSON file with a text that does not end. It fails when more is read than the limit allows."""

    def __init__(self, start: bytes, fill: bytes, most: int) -> None:
        self.start, self.fill, self.most, self.given = start, fill, most, 0

    def read(self, size: int = -1) -> bytes:
        start = self.start[:size]
        self.start = self.start[size:]
        self.given += size
        assert self.given <= self.most, "the text is read beyond the limit"
        return start + self.fill * (size - len(start))


@pytest.mark.parametrize("fill", [b"a", b" "])
def test_a_text_without_an_end_is_not_read_to_its_end(fill: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_VALUE", 1 << 20)
    values = read_values(cast(BinaryIO, Endless(b'[{"a": 1}, "' if fill == b"a" else b'[{"a": 1}, ', fill, 3 << 20)))
    assert next(values) == {"a": 1}
    with pytest.raises(ValueError, match="has more than 1 MB"):
        next(values)


def test_an_export_with_a_text_that_is_too_long_is_stored_up_to_it(
    af: agentformer.AgentFormer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_VALUE", 1 << 20)
    text = json.dumps([chatgpt(1), chatgpt(2, title="a" * (4 << 20)), chatgpt(3)])
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", text)
    done = af.import_conversations(tmp_path / "export.zip")
    assert (done.messages, done.failures) == (4, 1)
    assert "conversations.json was read up to a text that is too long" in done.failed[0].reason


SCRIPT = """
import resource, sys
import agentformer
with agentformer.connect(index_dir=sys.argv[1], upload_dir=sys.argv[2], embedder="hashing") as af:
    af.import_conversations(sys.argv[3])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = af.import_conversations(sys.argv[4])
    print(done.messages, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.process
@pytest.mark.slow
def test_the_memory_of_an_import_does_not_grow_with_the_file(tmp_path: Path) -> None:
    megabytes, most = (200, 120) if LONG else (12, 60)
    small = write(tmp_path / "small.json", [chatgpt()])
    large = tmp_path / "conversations.json"
    with large.open("w") as file:
        file.write("[")
        size = number = 0
        while size < megabytes << 20:
            text = json.dumps(chatgpt(number, padding=["x" * 1_000] * 400), indent=1)
            file.write((",\n" if number else "") + text)
            size, number = size + len(text), number + 1
        file.write("]")
    arguments = [str(tmp_path / "i"), str(tmp_path / "u"), str(small), str(large)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    messages, grown = map(int, done.stdout.split())
    print(f"{size >> 20} MB: {messages} messages, {grown} MB more than at the start")
    assert messages == 4 * number - 4 and grown < most


@pytest.mark.parametrize("item", ["[]", "{}", "0"])
def test_a_file_of_many_values_without_a_conversation_is_refused_early(
    af: agentformer.AgentFormer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(f"[{','.join([item] * 50_000)}]")
    seen: list[Any] = []
    monkeypatch.setattr(chats, "name_of", lambda value, number: seen.append(value) or str(number))
    with pytest.raises(InvalidInput, match="none of the first 10,000"):
        chats.import_chats(af.backend, path)
    assert len(seen) < 10_010
