"""Every operation of every door, asked by callers of all kinds, against a small model of who may see and change what.

The model has three rules. A caller sees an entry if it may read, if it reaches the namespace, and if the entry belongs
to its user or to nobody. A caller changes an entry if it sees the entry and may write, and if the entry belongs to its
user, if it has one. A caller adds an entry to a namespace that it reaches if it may write."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.permissions import Grant
from agentformer.errors import AgentFormerError
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS
from agentformer.types import MemoryEntry, Scope
from tests.edges.mounted import SAME, Mounted, grant, mounted
from tests.faults.long_form import LONG

SPACES = ("a", "b")
NOBODY = "00000000-0000-7000-8000-000000000000"
GRANTS: dict[str, Grant] = {
    "admin": grant("admin"),
    "full": grant("read", "write"),
    "reader": grant("read"),
    "writer": grant("write"),
    "full of a": grant("read", "write", only=("a",)),
    "reader of a": grant("read", only=("a",)),
    "writer of a": grant("write", only=("a",)),
    "full of a and c": grant("read", "write", only=("a", "c")),
    "nothing": grant(),
}


@dataclass(frozen=True)
class Thing:
    """An entry of the world. `secret` is a word that occurs in its text only."""

    id: str
    secret: str
    entry: MemoryEntry

    @property
    def namespace(self) -> str:
        return self.entry.namespace


Say = Callable[[Thing | None], Any]  # asks about a thing, or about a missing id; returns what the caller is told


class World:
    """A memory with the same things in two namespaces."""

    def __init__(self, host: Mounted) -> None:
        self.host, self.af = host, host.af
        self.things: list[Thing] = []
        for space in SPACES:
            for user in (None, "aino", "eino"):
                word = f"secret{space}{user}fact"
                self._add(self.af.memory.store(f"The boat is {word}.", namespace=space, user_id=user), word)
            place: Any = {"namespace": space, "user_id": "eino"}
            word = f"secret{space}message"
            self._add(self.af.memory.add_message("talk-eino", "user", f"I said {word}.", **place), word)
            word = f"secret{space}block"
            self._add(self.af.memory.core.append("human", f"Likes {word}.", **place), word)
            word = f"secret{space}shared"
            self._add(self.af.memory.core.append("persona", f"Be {word}.", namespace=space), word)
            text = f"The key is secret{space}document."
            document = self.af.rag.upload(text.encode(), name="rules.txt", namespace=space)
            (entry,) = self.af.backend.get([document.id])
            self._add(entry, f"secret{space}document")

    def _add(self, entry: MemoryEntry, secret: str) -> None:
        self.things.append(Thing(entry.id, secret, entry))

    def state(self) -> dict[str, str]:
        """The text of every entry, archived or not, by id."""
        scopes = (Scope(space, include_archived=True) for space in (*SPACES, "c", "default"))
        entries = [entry for scope in scopes for entry in self.af.backend.list(scope, limit=1000)]
        return {e.id: f"{e.content} {e.title} {e.kind} {dict(e.metadata)} {e.archived_at}" for e in entries}

    def restore(self, thing: Thing) -> None:
        if thing.entry.kind != "document":
            self.af.backend.remove([thing.id])
            self.af.backend.store([thing.entry])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with mounted(tmp_path_factory.mktemp("rights")) as host:
        yield World(host)


def sees(caller: Caller, thing: Thing) -> bool:
    by_user = caller.user_id is None or thing.entry.user_id in (None, caller.user_id)
    return caller.grant.may("read") and caller.grant.reaches(thing.namespace) and by_user


def changes(caller: Caller, thing: Thing) -> bool:
    own = caller.user_id in (None, thing.entry.user_id)
    return sees(caller, thing) and caller.grant.may("write") and own


def told(answer: Any, thing: Thing | None) -> tuple[int, dict[str, str], str]:
    """The complete response to an HTTP request, without the id that the request named."""
    own = thing.id if thing else NOBODY
    headers = {name: value.replace(own, "ID") for name, value in answer.headers.items()}
    return answer.status_code, headers, answer.get_data(as_text=True).replace(own, "ID")


def by_id(world: World, caller: Caller) -> dict[str, tuple[bool, Say]]:
    """The operations of all doors that name an entry by its id: whether they change the entry, and how to ask."""
    own = caller.grant

    def http(method: str, path: str, body: Any = None) -> Say:
        def say(thing: Thing | None) -> Any:
            target = thing.id if thing else NOBODY
            sent = None if body is None else json.loads(json.dumps(body).replace("ID", target))
            more = {} if sent is None else {"json": sent}
            return told(world.host.ask(method, path.replace("ID", target), own, headers=SAME, **more), thing)

        return say

    def tool(name: str, **arguments: Any) -> Say:
        def say(thing: Thing | None) -> Any:
            target = thing.id if thing else NOBODY
            try:
                text = str(world.af.toolbox.call(name, {"id": target, **arguments}, caller))
            except AgentFormerError as error:
                text = str(error)
            return text.replace(target, "ID")

        return say

    operations: dict[str, tuple[bool, Say]] = {
        "memory_get": (False, tool("memory_get")),
        "memory_update": (True, tool("memory_update", salience=0.5, title="other")),
        "memory_delete": (True, tool("memory_delete")),
    }
    if caller.user_id is None:  # a key over HTTP belongs to no user
        operations |= {
            "GET": (False, http("GET", "/api/memory/ID")),
            "history": (False, http("GET", "/api/memory/ID/history")),
            "PATCH": (True, http("PATCH", "/api/memory/ID", {"title": "other"})),
            "DELETE": (True, http("DELETE", "/api/memory/ID")),
            "restore": (True, http("POST", "/api/memory/restore", {"summary_id": "ID"})),
            "GET document": (False, http("GET", "/api/rag/documents/ID?namespace=b")),
            "chunks": (False, http("GET", "/api/rag/documents/ID/chunks?namespace=b")),
            "pages": (False, http("GET", "/api/rag/documents/ID/pages?namespace=b")),
            "content": (False, http("GET", "/api/rag/documents/ID/content?namespace=b")),
            "tool get": (False, http("POST", "/api/tools/memory_get", {"id": "ID"})),
            "tool update": (True, http("POST", "/api/tools/memory_update", {"id": "ID", "title": "other"})),
            "tool delete": (True, http("POST", "/api/tools/memory_delete", {"id": "ID"})),
        }
    return operations


SHORT = ("full of a", "reader", "writer")
NAMES = [*GRANTS] if LONG else [*SHORT]
CALLERS = [(name, user) for name in NAMES for user in (None, "aino")]


@pytest.mark.parametrize(("name", "user"), CALLERS)
def test_an_id_shows_and_changes_only_what_the_model_allows(world: World, name: str, user: str | None) -> None:
    caller = Caller(GRANTS[name], user_id=user)
    before = world.state()
    for operation, (is_change, say) in by_id(world, caller).items():
        missing = say(None)
        for thing in world.things:
            answer = say(thing)
            what = (name, user, operation, thing.secret, answer)
            if not (changes(caller, thing) if is_change else sees(caller, thing)):
                assert answer == missing or sees(caller, thing), what
            if not sees(caller, thing):
                assert thing.secret not in str(answer), what
            if is_change and changes(caller, thing):
                after = world.state()
                others = before.keys() - {thing.id}
                assert {i: after.get(i) for i in others} == {i: before[i] for i in others}, what
                world.restore(thing)
                before = world.state()
        assert world.state() == before, (name, user, operation)
    assert sum(changes(caller, thing) for thing in world.things) > 0 or not caller.grant.may("change")


SEARCHES: list[tuple[str, str, Any]] = [
    ("GET", "/api/memory?namespace=SPACE&include_archived=true", None),
    ("GET", "/api/memory?namespace=SPACE&user_id=eino", None),
    ("POST", "/api/memory/search", {"text": "boat said likes key", "namespace": "SPACE", "limit": 100}),
    ("GET", "/api/memory/messages?namespace=SPACE&session_id=talk-eino", None),
    ("POST", "/api/memory/context", {"task": "boat", "namespace": "SPACE", "session_id": "talk-eino"}),
    ("GET", "/api/memory/core?namespace=SPACE&user_id=eino", None),
    ("GET", "/api/memory/core/human?namespace=SPACE&user_id=eino", None),
    ("GET", "/api/memory/audit?namespace=SPACE", None),
    ("POST", "/api/memory/clean", {"namespace": "SPACE"}),
    ("POST", "/api/memory/learn", {"namespace": "SPACE"}),
    ("GET", "/api/memory/learn?namespace=SPACE", None),
    ("GET", "/api/memory/profile?namespace=SPACE&user_id=eino", None),
    ("GET", "/api/rag/documents?namespace=SPACE", None),
    ("POST", "/api/rag/query", {"question": "What is the key?", "namespace": "SPACE"}),
    ("POST", "/api/memory/core/human/append", {"text": "Likes tea.", "namespace": "SPACE", "user_id": "eino"}),
    ("DELETE", "/api/memory/core/human?namespace=SPACE&user_id=eino", None),
]
TOOL_SEARCHES: dict[str, dict[str, Any]] = {
    "memory_search": {"query": "boat said likes key", "limit": 50, "include_archived": True},
    "conversation_search": {"query": "said", "session_id": "talk-eino"},
    "memory_consolidate": {"session_id": "talk-eino"},
    "memory_learn": {"session_id": "talk-eino"},
    "memory_profile": {"user_id": "eino"},
    "memory_audit": {},
    "memory_status": {},
    "core_memory_append": {"name": "persona", "text": "Likes tea."},
    "core_memory_replace": {"name": "human", "old": "Likes", "new": "Loves"},
    "rag_query": {"question": "What is the key?"},
    "rag_list": {},
}


@pytest.mark.parametrize(("name", "user"), CALLERS)
def test_a_namespace_shows_and_changes_only_what_the_model_allows(world: World, name: str, user: str | None) -> None:
    caller = Caller(GRANTS[name], user_id=user)
    assert TOOL_SEARCHES.keys() | {"memory_get", "memory_update", "memory_delete", "memory_add", "rag_upload"} == {
        *HINTS
    } - {"rag_sync"}
    before = world.state()
    for space in SPACES:
        asked: dict[str, Callable[[], Any]] = {
            tool: partial(world.af.toolbox.call, tool, {**more, "namespace": space}, caller)
            for tool, more in TOOL_SEARCHES.items()
        }
        for method, path, body in SEARCHES if user is None else ():
            sent = {} if body is None else {"json": json.loads(json.dumps(body).replace("SPACE", space))}
            asked[f"{method} {path}"] = partial(
                world.host.ask, method, path.replace("SPACE", space), caller.grant, **sent
            )
        for operation, ask in asked.items():
            answer = ""
            with suppress(AgentFormerError):
                result = ask()
                answer = str(getattr(result, "text", result))
            after = world.state()
            changed = [thing for thing in world.things if after.get(thing.id) != before[thing.id]]
            for thing in world.things:
                what = (name, user, operation, thing.secret, answer[:500])
                assert sees(caller, thing) or thing.secret not in answer, what
                if thing in changed:
                    assert changes(caller, thing) and thing.namespace == space, what
                    world.restore(thing)
            assert caller.grant.may("change") or after == before, (name, operation)
            before = world.state() if changed else after


ADDITIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/api/memory", {"content": "TEXT", "namespace": "SPACE"}),
    ("POST", "/api/memory/batch", {"items": [{"content": "TEXT", "namespace": "SPACE"}]}),
    ("POST", "/api/tools/memory_add", {"content": "TEXT", "namespace": "SPACE"}),
    ("POST", "/api/tools/rag_upload", {"name": "mine.txt", "content_base64": "BASE64", "namespace": "SPACE"}),
]


@pytest.mark.parametrize("name", NAMES)
def test_who_cannot_read_gets_the_same_answer_for_a_known_and_for_a_new_text(tmp_path: Path, name: str) -> None:
    own = GRANTS[name]
    with mounted(tmp_path) as host:
        for space in SPACES:
            host.af.memory.store("The boat is red.", namespace=space)
            host.af.rag.upload(b"The boat is red.", name="theirs.txt", namespace=space)
            for method, path, body in ADDITIONS:
                answers = []
                for text in ("The boat is red.", "The boat is bad."):
                    sent = json.dumps(body).replace("TEXT", text).replace("SPACE", space)
                    sent = sent.replace("BASE64", base64.b64encode(text.encode()).decode())
                    answer = host.ask(method, path, own, json=json.loads(sent), headers=SAME)
                    value = json.loads(answer.text) if answer.text else {}
                    document = value.get("result", {}).get("document", {})
                    document.pop("sha256", None)  # of the sent bytes
                    answers.append((answer.status_code, dict(answer.headers), value))
                allowed = own.may("write") and own.reaches(space)
                assert (answers[0][0] < 300) == allowed, (name, path, answers)
                if own.may("read") and allowed:
                    continue
                one, other = ((status, {**headers, "Content-Length": ""}, value) for status, headers, value in answers)
                assert one == other, (name, path)
                assert not {"Location", "ETag"} & one[1].keys(), (name, path)
