"""Which memories a key reaches over HTTP: others look as if they were not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.models import memory as models
from tests.edges.mounted import SAME, Mounted, grant, mounted, shaped

READ_B = grant("read", only=("b",))
ADMIN_A = grant("admin", only=("a",))
WRITE = grant("write")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """For requests whose effects do not matter."""
    with mounted(tmp_path_factory.mktemp("busy")) as host:
        host.add("Aino prefers tea.")
        yield host


BY_ID: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/api/memory/{}", {}),
    ("GET", "/api/memory/{}/history", {}),
    ("PATCH", "/api/memory/{}", {"json": {"content": "Mine now."}}),
    ("PATCH", "/api/memory/{}", {"json": {"content": "Mine now."}, "headers": {"If-Match": '"1"'}}),
    ("PATCH", "/api/memory/{}", {"json": {"content": "Mine now."}, "headers": {"If-Match": '"77"'}}),
    ("PATCH", "/api/memory/{}", {"json": {}}),
    ("DELETE", "/api/memory/{}", {}),
    ("DELETE", "/api/memory/{}", {"headers": {"If-Match": '"77"'}}),
    ("POST", "/api/memory/restore", {"json": {"summary_id": "{}"}}),
    ("POST", "/api/tools/memory_get", {"json": {"id": "{}"}}),
    ("POST", "/api/tools/memory_update", {"json": {"id": "{}", "content": "Mine now."}}),
    ("POST", "/api/tools/memory_update", {"json": {"id": "{}", "content": "Mine now.", "expected_version": 77}}),
    ("POST", "/api/tools/memory_delete", {"json": {"id": "{}"}}),
]


def things_of_b(host: Mounted) -> dict[str, str]:
    """Ids of all sorts of entries in the namespace b."""
    b = host.af.memory
    for n in range(10):
        b.add_message("s", "user", f"Boat {n} is blue.", namespace="b")
    (summary,) = b.clean(namespace="b").summaries
    old, new = (b.store(text, namespace="b").id for text in ("Aino prefers tea.", "Aino prefers coffee."))
    b.supersede(old, new)
    b.update(new, content="Aino prefers cocoa.")
    host.af.rag.upload(b"The keys hang in the cupboard.", name="keys.txt", namespace="b")
    kinds = {kind: b.list(namespace="b", kinds=(kind,))[0].id for kind in ("document", "page", "chunk")}
    block = b.core.append("persona", "Be brief.", namespace="b")
    return {"fact": new, "superseded": old, "summary": summary, "block": block.id, **kinds}


@pytest.mark.parametrize(("method", "path", "more"), BY_ID)
def test_an_entry_out_of_reach_looks_exactly_like_one_that_is_not_there(
    host: Mounted, method: str, path: str, more: dict[str, Any]
) -> None:
    before = things_of_b(host)
    entries = {kind: host.af.backend.get([entry_id])[0] for kind, entry_id in before.items()}

    def asked(entry_id: str) -> Any:
        body = {name: str(v).replace("{}", entry_id) if v == "{}" else v for name, v in more.get("json", {}).items()}
        sent = {"json": body} if "json" in more else {}
        return host.ask(method, path.format(entry_id), ADMIN_A, headers={**SAME, **more.get("headers", {})}, **sent)

    for kind, entry_id in before.items():
        nobody = "00000000-0000-7000-8000-000000000000"
        real, none = asked(entry_id), asked(nobody)
        assert real.status_code == none.status_code == 404, (kind, real.text)
        assert real.data == none.data.replace(nobody.encode(), entry_id.encode()), kind
        assert [*real.headers] == [*none.headers]
    host.af.memory.close()  # writes what was counted
    for kind, entry in entries.items():
        assert host.af.backend.get([entry.id])[0] == entry, f"the {kind} was touched"


def test_a_namespace_out_of_reach_is_403_whether_or_not_anything_is_in_it(host: Mounted) -> None:
    host.add("Aino prefers tea.", namespace="b")

    def told(namespace: str) -> list[Any]:
        answers = [
            host.post("/api/memory", {"content": "x", "namespace": namespace}, ADMIN_A, headers=SAME),
            host.post("/api/memory/batch", {"items": [{"content": "x", "namespace": namespace}]}, ADMIN_A),
            host.post("/api/memory/search", {"text": "x", "namespace": namespace}, ADMIN_A),
            host.post("/api/memory/context", {"task": "x", "namespace": namespace}, ADMIN_A),
            host.post("/api/memory/clean", {"namespace": namespace}, ADMIN_A),
            host.post("/api/memory/reindex", {"namespace": namespace}, ADMIN_A),
            host.post(
                "/api/memory/messages",
                {"session_id": "s", "role": "user", "content": "x", "namespace": namespace},
                ADMIN_A,
            ),
            host.post("/api/memory/core/c/append", {"text": "x", "namespace": namespace}, ADMIN_A),
            host.post("/api/memory/core/c/replace", {"old": "x", "new": "y", "namespace": namespace}, ADMIN_A),
            *(
                host.ask(method, f"/api/memory{path}namespace={namespace}", ADMIN_A)
                for method, path in (
                    ("GET", "?"),
                    ("GET", "/messages?session_id=s&"),
                    ("GET", "/audit?"),
                    ("GET", "/core?"),
                    ("GET", "/core/c?"),
                    ("DELETE", "/core/c?"),
                )
            ),
        ]
        return [(answer.status_code, {**answer.json, "request_id": ""}) for answer in answers]

    real, none = told("b"), told("c")
    assert {status for status, _ in real} == {403}
    assert [str(each).replace("namespace b", "namespace c") for each in real] == [str(each) for each in none]


def test_a_key_of_one_namespace_works_in_it_without_saying_so(host: Mounted) -> None:
    made = host.post("/api/memory", {"content": "Aino prefers tea."}, ADMIN_A)
    assert made.json["namespace"] == "a"
    assert host.ask("GET", f"/api/memory/{made.json['id']}", ADMIN_A).status_code == 200
    assert host.ask("GET", "/api/memory", ADMIN_A).json["entries"][0]["id"] == made.json["id"]
    assert host.ask("GET", "/api/memory", READ_B).json == {"entries": [], "next": None}


def test_a_key_of_several_namespaces_has_to_say_which(host: Mounted) -> None:
    asking = grant("write", only=("a", "b"))
    answer = host.post("/api/memory", {"content": "x"}, asking)
    assert (answer.status_code, answer.json["field"]) == (400, "namespace")


RIGHTS: list[tuple[str, str, Any, str]] = [
    ("POST", "/api/memory", {"content": "x"}, "write"),
    ("POST", "/api/memory/batch", {"items": [{"content": "x"}]}, "write"),
    ("GET", "/api/memory", None, "read"),
    ("GET", "/api/memory/x", None, "read"),
    ("PATCH", "/api/memory/x", {"content": "x"}, "write"),
    ("DELETE", "/api/memory/x", None, "write"),
    ("GET", "/api/memory/x/history", None, "read"),
    ("POST", "/api/memory/search", {"text": "x"}, "read"),
    ("POST", "/api/memory/messages", {"session_id": "s", "role": "user", "content": "x"}, "write"),
    ("GET", "/api/memory/messages?session_id=s", None, "read"),
    ("POST", "/api/memory/context", {"task": "x"}, "read"),
    ("POST", "/api/memory/clean", {}, "write"),
    ("POST", "/api/memory/restore", {"summary_id": "x"}, "write"),
    ("POST", "/api/memory/reindex", {}, "admin"),
    ("GET", "/api/memory/audit", None, "read"),
    ("GET", "/api/memory/core", None, "read"),
    ("GET", "/api/memory/core/c", None, "read"),
    ("POST", "/api/memory/core/c/append", {"text": "x"}, "write"),
    ("DELETE", "/api/memory/core/c", None, "write"),
]


@pytest.mark.parametrize(("method", "path", "body", "right"), RIGHTS)
def test_each_endpoint_needs_its_right(busy: Mounted, method: str, path: str, body: Any, right: Any) -> None:
    sent = {} if body is None else {"json": body}
    for other in ("read", "write"):
        answer = busy.ask(method, path, grant(other), **sent)  # type: ignore[arg-type]
        assert (answer.status_code == 403) == (other != right), answer.text
    assert busy.ask(method, path, grant("admin"), **sent).status_code != 403


def test_a_key_that_may_only_write_is_shown_nothing_that_was_there(host: Mounted) -> None:
    secret = "The safe is behind the picture."
    entry_id = host.add(secret, metadata={"code": "4711"})
    host.post("/api/memory/core/persona/append", {"text": secret})
    answers = [
        host.post("/api/memory", {"content": secret}, WRITE),
        host.post("/api/memory/batch", {"items": [{"content": secret}]}, WRITE),
        host.ask("PATCH", f"/api/memory/{entry_id}", WRITE, json={"title": "x"}),
        host.post("/api/memory/core/persona/append", {"text": "Be brief."}, WRITE),
    ]
    assert [(answer.status_code, answer.data) for answer in answers] == [(204, b"")] * 4
    guessed = [host.post("/api/memory/core/persona/replace", {"old": old, "new": old}, WRITE) for old in ("Be", "Do")]
    assert [answer.status_code for answer in guessed] == [403, 403]
    assert guessed[0].json["detail"] == guessed[1].json["detail"]
    made = host.post("/api/memory", {"content": "Something new."}, WRITE)
    assert shaped(models.Entry, made, 201)["content"] == "Something new."
