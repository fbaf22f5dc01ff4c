"""Search, sessions, context, core blocks, summaries and the audit over HTTP."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.api.models import memory as models
from agentformer.errors import EmbedderUnavailable
from agentformer.settings import load_settings
from tests.edges.mounted import shaped


def opened(folder: Path) -> Iterator[Any]:
    where = {"index_dir": folder / "i", "upload_dir": folder / "u"}
    app = create_app(load_settings({**where, "embedder": "hashing", "clean_every": 0}))
    yield app.test_client()
    close_app(app)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    yield from opened(tmp_path)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """For requests that store nothing."""
    yield from opened(tmp_path_factory.mktemp("quiet"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A memory that is searched only."""
    for client in opened(tmp_path_factory.mktemp("searched")):
        for entry in TEAS:
            assert client.post("/api/memory", json=entry).status_code == 201
        yield client


def talk(client: Any, count: int, session_id: str = "s", namespace: str = "default") -> list[str]:
    memory = client.application.extensions["agentformer"].memory
    texts = [f"Boat {n} is blue and lies at pier {n}." for n in range(count)]
    return [memory.add_message(session_id, "user", text, namespace=namespace).id for text in texts]


def test_clean_summarizes_and_restore_undoes_it(client: Any) -> None:
    ids = talk(client, 10)
    report = shaped(models.CleaningReport, client.post("/api/memory/clean", json={"session_id": "s"}))
    assert report["archived"] == 5 and len(report["summaries"]) == 1
    memory = client.application.extensions["agentformer"].memory
    assert [entry.id for entry in memory.list(kinds=("message",))] == ids[5:]
    restored = client.post("/api/memory/restore", json={"summary_id": report["summaries"][0]})
    assert [entry["id"] for entry in shaped(models.Entries, restored)["entries"]] == ids[:5]
    assert [entry.id for entry in memory.list(kinds=("message",))] == ids
    again = client.post("/api/memory/restore", json={"summary_id": report["summaries"][0]})
    assert (again.status_code, again.json["type"]) == (409, "urn:agentformer:problem:conflict")


def test_clean_is_limited_to_its_namespace_and_session(client: Any) -> None:
    talk(client, 10, "one")
    talk(client, 10, "two")
    talk(client, 10, "one", "other")
    assert client.post("/api/memory/clean", json={"session_id": "one"}).json["archived"] == 5
    assert client.post("/api/memory/clean", json={}).json["archived"] == 5
    assert client.post("/api/memory/clean", json={"namespace": "other"}).json["archived"] == 5


def test_reindex_embeds_waiting_entries_and_lists_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise EmbedderUnavailable("nobody answers at http://127.0.0.1:1")

    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embed_retry_seconds": 0}
    app = create_app(load_settings({**where, "embedder": "hashing"}))
    client = app.test_client()
    with monkeypatch.context() as patch:
        patch.setattr("agentformer.embedders.hashing.HashingEmbedder.__init__", refuse)
        entry = app.extensions["agentformer"].memory.store("Aino prefers tea.")
        told = shaped(models.Reindexed, client.post("/api/memory/reindex"))
        assert told["pending"] == 1
        (waiting,) = told["waiting"]
        assert (waiting["entry_id"], waiting["attempts"]) == (entry.id, 2) and "nobody answers" in waiting["last_error"]
    assert client.post("/api/memory/reindex", json={"namespace": "default"}).json == {"pending": 0, "waiting": []}
    assert client.post("/api/memory/reindex", json={"all": True}).status_code == 400
    assert client.post("/api/memory/reindex", data=b"[", content_type="application/json").status_code == 400
    app.extensions["agentformer"].close()


def test_a_chunked_body_of_reindex_is_read(client: Any) -> None:
    answer = client.post(
        "/api/memory/reindex",
        input_stream=io.BytesIO(b'{"namespace": 5}'),
        headers={"Transfer-Encoding": "chunked"},
        content_type="application/json",
        environ_overrides={"wsgi.input_terminated": True},  # as servers say that undo the chunks themselves
    )
    assert (answer.status_code, answer.json["field"]) == (400, "namespace")
    assert client.post("/api/memory/reindex").status_code == 200


# ---------------------------------------------------------------- search


TEAS: list[dict[str, Any]] = [
    {
        "content": "Tea: a decision.",
        "kind": "decision",
        "user_id": "u",
        "agent_id": "a",
        "source_type": "ticket",
        "source_id": "7",
    },
    {
        "content": "Tea: an event.",
        "kind": "event",
        "tier": "episodic",
        "session_id": "s",
        "project": "p",
        "metadata": {"room": 7},
        "parent_id": "x",
        "salience": 0.5,
        "occurred_at": "2026-01-02T00:00:00Z",
    },
    {"content": "Tea: elsewhere.", "namespace": "n"},
]


def found(client: Any, **asked: Any) -> list[str]:
    told = shaped(models.MemoryHits, client.post("/api/memory/search", json=asked))
    return [hit["content"] for hit in told["hits"]]


def test_a_search_returns_entries_with_scores_best_first(client: Any) -> None:
    client.post("/api/memory", json={"content": "Aino prefers tea with honey."})
    client.post("/api/memory", json={"content": "The tea room opens at nine."})
    told = shaped(
        models.MemoryHits, client.post("/api/memory/search", json={"text": "Does Aino take honey in her tea?"})
    )
    first, second = told["hits"]
    assert first["content"] == "Aino prefers tea with honey." and first["score"] > second["score"]
    assert first["lexical_rank"] == 1 and told["warnings"] == []


def test_a_search_returns_entries_of_its_scope_only(searched: Any) -> None:
    decision, event = ["Tea: a decision."], ["Tea: an event."]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"kinds": ["decision"]}, decision),
        ({"tiers": ["episodic"]}, event),
        ({"categories": ["decisions"]}, decision),
        ({"session_id": "s"}, event),
        ({"user_id": "u"}, decision),
        ({"agent_id": "a"}, decision),
        ({"project": "p"}, event),
        ({"metadata": {"room": 7}}, event),
        ({"source_type": "ticket", "source_id": "7"}, decision),
        ({"parent_id": "x"}, event),
        ({"min_salience": 0.6}, decision),
        ({"occurred_from": "2026-01-01T00:00:00Z"}, event),
        ({"occurred_to": "2026-01-02T00:00:00Z"}, []),
        ({"until": "2026-01-02"}, event),
        ({"until": "2026-01-02T00:00:00Z"}, []),
        ({"since": "2026-01-02", "until": "2026-01-03T12:00:00+02:00"}, event),
        ({"namespace": "n"}, ["Tea: elsewhere."]),
        ({"limit": 1, "kinds": ["decision", "event"], "mode": "lexical"}, decision),
        ({"min_score": 1.01}, []),
    ]
    for scope, contents in cases:
        assert found(searched, text="tea decision", **scope) == contents, scope


def test_a_text_or_task_over_the_limit_is_413_and_names_the_setting(quiet: Any) -> None:
    for path, field in (("search", "text"), ("context", "task")):
        answer = quiet.post(f"/api/memory/{path}", json={field: "x" * 8001})
        assert (answer.status_code, answer.json["limit"]) == (413, "max_question_chars")
        assert quiet.post(f"/api/memory/{path}", json={field: "x" * 8000}).status_code == 200


def test_invalid_messages_of_a_context_are_named_by_their_index(quiet: Any) -> None:
    for message, field in (
        ("hello", "conversation[0]"),
        ({"role": "robot", "content": "x"}, "conversation[0].role"),
        ({"role": "user", "content": 5}, "conversation[0].content"),
    ):
        answer = quiet.post("/api/memory/context", json={"task": "x", "conversation": [message]})
        assert (answer.status_code, answer.json["field"]) == (400, field), answer.text


def test_only_summaries_and_superseded_entries_can_be_restored(client: Any) -> None:
    (entry_id,) = talk(client, 1)
    assert client.post("/api/memory/restore", json={"summary_id": entry_id}).status_code == 400
    assert client.post("/api/memory/restore", json={"summary_id": "no-such-id"}).status_code == 404


def test_a_body_without_required_fields_may_be_empty_or_null(client: Any) -> None:
    for number, body in enumerate((b"", b"{}", b'{"namespace": null, "session_id": null}')):
        talk(client, 10, f"s{number}")
        answer = client.post("/api/memory/clean", data=body, content_type="application/json")
        assert shaped(models.CleaningReport, answer)["archived"] == 5


def test_invalid_edits_of_a_block_change_nothing(client: Any) -> None:
    client.post("/api/memory/core/there/append", json={"text": "Be brief."})
    cases: list[tuple[str, dict[str, Any], int, str | None]] = [
        ("persona/replace", {"old": "x", "new": "y"}, 404, None),
        ("there/replace", {"old": "nowhere", "new": "y"}, 400, "old"),
        ("there/replace", {"old": "Be brief.", "new": ""}, 400, "new"),
        ("there/append", {"text": "word " * 10_000}, 400, "content"),
        ("%20/append", {"text": "x"}, 400, "name"),
    ]
    for path, body, status, field in cases:
        answer = client.post(f"/api/memory/core/{path}", json=body)
        assert (answer.status_code, answer.json.get("field")) == (status, field), answer.text
    assert client.get("/api/memory/core/there").json["content"] == "Be brief."


def test_relevant_only_leaves_out_unrelated_entries(client: Any) -> None:
    for content in ("Aino prefers tea with honey.", "The harbour freezes in January."):
        client.post("/api/memory", json={"content": content})
    assert found(client, text="What does Aino take with tea?", relevant_only=True) == ["Aino prefers tea with honey."]


# ---------------------------------------------------------------- sessions and context


def test_a_transcript_has_the_original_messages(client: Any) -> None:
    said = [("user", "  Is it  open?\n"), ("assistant", "Yes."), ("user", "  Is it  open?\n")]
    for role, content in said:
        made = client.post("/api/memory/messages", json={"session_id": "s", "role": role, "content": content})
        entry = shaped(models.Entry, made, 201)
        assert made.headers["Location"] == f"/api/memory/{entry['id']}" and made.headers["ETag"] == '"1"'
    client.post("/api/memory/messages", json={"session_id": "other", "role": "user", "content": "No."})
    told = shaped(models.Transcript, client.get("/api/memory/messages?session_id=s"))
    assert [(message["role"], message["content"]) for message in told["messages"]] == said
    assert client.get("/api/memory/messages?session_id=unknown").json == {"messages": []}


def test_a_context_has_core_memory_facts_conversation_and_task(client: Any) -> None:
    client.post("/api/memory/core/persona/append", json={"text": "Be brief."})
    fact = client.post("/api/memory", json={"content": "Aino prefers tea with honey."}).json["id"]
    talked = [
        {"role": "user", "content": [{"type": "text", "text": "Aino is here."}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    ]
    asked = {"task": "What does Aino take in her tea?", "conversation": talked, "max_tokens": 500}
    told = shaped(models.Context, client.post("/api/memory/context", json=asked))
    system, said, task = told["messages"]
    assert "Be brief." in system["content"] and "honey" in system["content"]
    assert (said["content"], task["content"]) == ("Aino is here.", asked["task"])
    assert told["report"]["included"]["semantic"] == [fact] and told["report"]["total"] <= 500


# ---------------------------------------------------------------- core blocks


def test_a_block_is_created_extended_corrected_and_deleted(client: Any) -> None:
    path = "/api/memory/core/persona"
    assert client.get(path).status_code == 404
    made = client.post(f"{path}/append", json={"text": "Be brief."})
    assert (shaped(models.Entry, made)["title"], made.headers["ETag"]) == ("persona", '"1"')
    client.post(f"{path}/append", json={"text": "Be kind."})
    changed = client.post(f"{path}/replace", json={"old": "brief", "new": "thorough"})
    assert (changed.json["content"], changed.headers["ETag"]) == ("Be thorough.\nBe kind.", '"3"')
    read = client.get(path)
    assert (shaped(models.Entry, read), read.headers["ETag"]) == (changed.json, '"3"')
    blocks = shaped(models.Blocks, client.get("/api/memory/core"))["blocks"]
    assert [block["id"] for block in blocks] == [changed.json["id"]]
    assert client.delete(path).status_code == 204 and client.delete(path).status_code == 404


def test_a_block_of_a_user_is_separate(client: Any) -> None:
    client.post("/api/memory/core/human/append", json={"text": "Drinks tea.", "user_id": "aino"})
    assert client.get("/api/memory/core/human?user_id=aino").json["content"] == "Drinks tea."
    assert client.get("/api/memory/core/human").status_code == 404
    assert client.get("/api/memory/core").json == {"blocks": []}
    assert client.delete("/api/memory/core/human?user_id=onni").status_code == 404


def test_a_block_may_have_the_name_of_an_endpoint(client: Any) -> None:
    client.post("/api/memory/core/history/append", json={"text": "Founded in 1907."})
    assert client.get("/api/memory/core/history").json["content"] == "Founded in 1907."


# ---------------------------------------------------------------- audit


def test_an_audit_reports_contradictions(client: Any) -> None:
    talk(client, 2)
    client.post("/api/memory/core/a/append", json={"text": "The library opens at nine o'clock."})
    client.post("/api/memory/core/b/append", json={"text": "The library opens at ten o'clock."})
    report = shaped(models.AuditReport, client.get("/api/memory/audit"))
    assert (report["namespace"], report["entries"]) == ("default", 4)
    assert [sorted(found["titles"]) for found in report["contradictions"]] == [["a", "b"]]
    assert client.get("/api/memory/audit?namespace=empty").json["entries"] == 0


def test_reindex_of_all_namespaces_needs_a_key_for_all_namespaces(tmp_path: Path) -> None:
    for client in opened(tmp_path):
        keys = client.application.extensions["agentformer"].keys
        codes = {}
        for name, namespaces in (("all", ()), ("one", ("default",))):
            _, secret = keys.make(name, ("read", "write", "admin"), namespaces)
            headers = {"Authorization": f"Bearer {secret}"}
            codes[name] = client.post("/api/memory/reindex", headers=headers).status_code
        assert codes == {"all": 200, "one": 403}
