"""The endpoints that recall and look after memories: search, sessions, context, core blocks, summaries, audit."""

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


def test_clean_summarises_and_restore_brings_back(client: Any) -> None:
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


def test_clean_keeps_to_its_namespace_and_session(client: Any) -> None:
    talk(client, 10, "one")
    talk(client, 10, "two")
    talk(client, 10, "one", "other")
    assert client.post("/api/memory/clean", json={"session_id": "one"}).json["archived"] == 5
    assert client.post("/api/memory/clean", json={}).json["archived"] == 5
    assert client.post("/api/memory/clean", json={"namespace": "other"}).json["archived"] == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("clean", b"[]", 400, "body"),
        ("clean", b"{", 400, "body"),
        ("clean", b'{"everything": true}', 400, "everything"),
        ("clean", b'{"namespace": ""}', 400, "namespace"),
        ("clean", b'{"namespace": ["default"]}', 400, "namespace"),
        ("clean", b'{"session_id": 7}', 400, "session_id"),
        ("clean", b'{"session_id": "\\ud800"}', 400, "session_id"),
        ("restore", b"{}", 400, "summary_id"),
        ("restore", b'{"summary_id": null}', 400, "summary_id"),
        ("restore", b'{"summary_id": ["x"]}', 400, "summary_id"),
        ("restore", b'{"summary_id": "x", "namespace": "y"}', 400, "namespace"),
        ("restore", b'{"summary_id": "no-such-id"}', 404, None),
        ("restore", b'{"summary_id": "\\ud800"}', 400, "summary_id"),
    ],
)
def test_a_wrong_request_is_a_problem_document(quiet: Any, path: str, body: bytes, status: int, field: str) -> None:
    answer = quiet.post(f"/api/memory/{path}", data=body, content_type="application/json")
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")
    assert answer.json.get("field") == field


def test_an_entry_that_is_no_summary_cannot_be_restored(client: Any) -> None:
    (entry_id,) = talk(client, 1)
    assert client.post("/api/memory/restore", json={"summary_id": entry_id}).status_code == 400


def test_a_missing_id_is_called_missing(quiet: Any) -> None:
    answer = quiet.post("/api/memory/restore", json={}).json
    assert (answer["field"], answer["detail"]) == ("summary_id", "summary_id: is missing")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"namespace": null, "session_id": null}'])
def test_what_may_be_left_out_may_be_null_and_so_may_the_whole_body(client: Any, body: bytes) -> None:
    talk(client, 10)
    answer = client.post("/api/memory/clean", data=body, content_type="application/json")
    assert shaped(models.CleaningReport, answer)["archived"] == 5


def test_a_body_that_is_not_called_json_is_415(quiet: Any) -> None:
    for path in ("clean", "restore", "reindex", "search", "messages", "context", "batch"):
        answer = quiet.post(f"/api/memory/{path}", data=b"[")
        assert (answer.status_code, answer.content_type) == (415, "application/problem+json")


def test_reindex_embeds_what_waited_and_tells_what_still_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_search_gives_entries_with_their_scores_best_first(client: Any) -> None:
    client.post("/api/memory", json={"content": "Aino prefers tea with honey."})
    client.post("/api/memory", json={"content": "The tea room opens at nine."})
    told = shaped(
        models.MemoryHits, client.post("/api/memory/search", json={"text": "Does Aino take honey in her tea?"})
    )
    first, second = told["hits"]
    assert first["content"] == "Aino prefers tea with honey." and first["score"] > second["score"]
    assert first["lexical_rank"] == 1 and told["warnings"] == []


@pytest.mark.parametrize(
    ("scope", "kept"),
    [
        ({"kinds": ["decision"]}, ["Tea: a decision."]),
        ({"tiers": ["episodic"]}, ["Tea: an event."]),
        ({"categories": ["decisions"]}, ["Tea: a decision."]),
        ({"session_id": "s"}, ["Tea: an event."]),
        ({"user_id": "u"}, ["Tea: a decision."]),
        ({"agent_id": "a"}, ["Tea: a decision."]),
        ({"project": "p"}, ["Tea: an event."]),
        ({"metadata": {"room": 7}}, ["Tea: an event."]),
        ({"source_type": "ticket", "source_id": "7"}, ["Tea: a decision."]),
        ({"parent_id": "x"}, ["Tea: an event."]),
        ({"min_salience": 0.6}, ["Tea: a decision."]),
        ({"occurred_from": "2026-01-01T00:00:00Z"}, ["Tea: an event."]),
        ({"occurred_to": "2026-01-02T00:00:00Z"}, []),
        ({"namespace": "n"}, ["Tea: elsewhere."]),
        ({"limit": 1, "kinds": ["decision", "event"], "mode": "lexical"}, ["Tea: a decision."]),
        ({"min_score": 1.01}, []),
    ],
)
def test_a_search_stays_in_its_scope(searched: Any, scope: dict[str, Any], kept: list[str]) -> None:
    assert found(searched, text="tea decision", **scope) == kept


def test_relevant_only_leaves_out_what_does_not_bear_on_the_text(client: Any) -> None:
    for content in ("Aino prefers tea with honey.", "The harbour freezes in January."):
        client.post("/api/memory", json={"content": content})
    assert found(client, text="What does Aino take with tea?", relevant_only=True) == ["Aino prefers tea with honey."]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "x", "limit": 0}, "limit"),
        ({"text": "x", "limit": 1001}, "limit"),
        ({"text": "x", "limit": "2"}, "limit"),
        ({"text": "x", "limit": True}, "limit"),
        ({"text": "x", "mode": "psychic"}, "mode"),
        ({"text": "x", "tiers": "core"}, "tiers"),
        ({"text": "x", "kinds": [7]}, "kinds"),
        ({"text": "x", "metadata": {"a": {"b": "\ud800"}}}, "metadata"),
        ({"text": "\ud800"}, "text"),
        ({"text": "x", "occurred_to": "2026-01-01"}, "occurred_to"),
        ({"text": "x", "min_salience": 7}, "min_salience"),
        ({"text": "x", "query": "y"}, "query"),
    ],
)
def test_a_wrong_search_is_400_and_names_the_field(quiet: Any, body: dict[str, Any], field: str) -> None:
    answer = quiet.post("/api/memory/search", json=body)
    assert (answer.status_code, answer.json["field"]) == (400, field), answer.text


def test_a_task_over_the_limit_is_413_and_names_the_setting(quiet: Any) -> None:
    answer = quiet.post("/api/memory/context", json={"task": "ship " * 2_000})
    assert (answer.status_code, answer.json["limit"]) == (413, "max_question_chars")


def test_a_text_over_the_limit_is_413_and_names_the_setting(quiet: Any) -> None:
    answer = quiet.post("/api/memory/search", json={"text": "x" * 8001})
    assert (answer.status_code, answer.json["limit"]) == (413, "max_question_chars")
    assert quiet.post("/api/memory/search", json={"text": "x" * 8000}).status_code == 200


# ---------------------------------------------------------------- sessions and context


def test_a_session_is_given_back_as_it_was_said(client: Any) -> None:
    said = [("user", "  Is it  open?\n"), ("assistant", "Yes."), ("user", "  Is it  open?\n")]
    for role, content in said:
        made = client.post("/api/memory/messages", json={"session_id": "s", "role": role, "content": content})
        entry = shaped(models.Entry, made, 201)
        assert made.headers["Location"] == f"/api/memory/{entry['id']}" and made.headers["ETag"] == '"1"'
    client.post("/api/memory/messages", json={"session_id": "other", "role": "user", "content": "No."})
    told = shaped(models.Transcript, client.get("/api/memory/messages?session_id=s"))
    assert [(message["role"], message["content"]) for message in told["messages"]] == said
    assert client.get("/api/memory/messages?session_id=unknown").json == {"messages": []}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "user", "content": "x"}, "session_id"),
        ({"session_id": "s", "role": "robot", "content": "x"}, "role"),
        ({"session_id": "s", "role": "user"}, "content"),
        ({"session_id": None, "role": "user", "content": "x"}, "session_id"),
        ({"session_id": "s", "role": "user", "content": "x", "tier": "core"}, "tier"),
    ],
)
def test_a_wrong_message_is_400_and_names_the_field(quiet: Any, body: dict[str, Any], field: str) -> None:
    answer = quiet.post("/api/memory/messages", json=body)
    assert (answer.status_code, answer.json["field"]) == (400, field), answer.text


def test_a_transcript_needs_a_session(quiet: Any) -> None:
    answer = quiet.get("/api/memory/messages")
    assert (answer.status_code, answer.json["field"]) == (400, "session_id")


def test_a_context_holds_core_recalled_memory_conversation_and_task(client: Any) -> None:
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


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"task": 5}, "task"),
        ({"task": "x", "max_tokens": 0}, "max_tokens"),
        ({"task": "x", "conversation": "hello"}, "conversation"),
        ({"task": "x", "conversation": ["hello"]}, "conversation[0]"),
        ({"task": "x", "conversation": [{"role": "robot", "content": "x"}]}, "conversation[0].role"),
        ({"task": "x", "conversation": [{"role": "user", "content": 5}]}, "conversation[0].content"),
        ({"task": "x", "shares": [1]}, "shares"),
    ],
)
def test_a_wrong_context_is_400_and_names_the_field(quiet: Any, body: dict[str, Any], field: str) -> None:
    answer = quiet.post("/api/memory/context", json=body)
    assert (answer.status_code, answer.json["field"]) == (400, field), answer.text


# ---------------------------------------------------------------- core blocks


def test_a_block_is_begun_continued_corrected_and_deleted(client: Any) -> None:
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


def test_a_persons_block_is_nobody_elses(client: Any) -> None:
    client.post("/api/memory/core/human/append", json={"text": "Drinks tea.", "user_id": "aino"})
    assert client.get("/api/memory/core/human?user_id=aino").json["content"] == "Drinks tea."
    assert client.get("/api/memory/core/human").status_code == 404
    assert client.get("/api/memory/core").json == {"blocks": []}
    assert client.delete("/api/memory/core/human?user_id=onni").status_code == 404


def test_a_block_may_be_called_like_an_endpoint(client: Any) -> None:
    client.post("/api/memory/core/history/append", json={"text": "Founded in 1907."})
    assert client.get("/api/memory/core/history").json["content"] == "Founded in 1907."


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("persona/replace", {"old": "x", "new": "y"}, 404, None),
        ("there/replace", {"old": "nowhere", "new": "y"}, 400, "old"),
        ("there/replace", {"old": "Be brief.", "new": ""}, 400, "new"),
        ("there/append", {"text": "word " * 10_000}, 400, "content"),
        ("there/append", {"text": " "}, 400, "text"),
        ("%20/append", {"text": "x"}, 400, "name"),
    ],
)
def test_a_wrong_edit_is_told(client: Any, path: str, body: dict[str, Any], status: int, field: str | None) -> None:
    client.post("/api/memory/core/there/append", json={"text": "Be brief."})
    answer = client.post(f"/api/memory/core/{path}", json=body)
    assert (answer.status_code, answer.json.get("field")) == (status, field), answer.text
    assert client.get("/api/memory/core/there").json["content"] == "Be brief."


# ---------------------------------------------------------------- audit


def test_an_audit_tells_what_a_person_should_look_at(client: Any) -> None:
    talk(client, 2)
    client.post("/api/memory/core/a/append", json={"text": "The library opens at nine o'clock."})
    client.post("/api/memory/core/b/append", json={"text": "The library opens at ten o'clock."})
    report = shaped(models.AuditReport, client.get("/api/memory/audit"))
    assert (report["namespace"], report["entries"]) == ("default", 4)
    assert [sorted(found["titles"]) for found in report["contradictions"]] == [["a", "b"]]
    assert client.get("/api/memory/audit?namespace=empty").json["entries"] == 0
