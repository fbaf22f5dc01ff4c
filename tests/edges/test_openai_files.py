"""Files, vector stores, embeddings and models below /v1, used by the official client against a server process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

import openai

from agentformer.access.keys import KeyStore
from agentformer.embedders.hashing import HashingEmbedder
from tests.edges.running import BOUND, Running

pytestmark = pytest.mark.process
KEYS = b"The caretaker keeps the keys of the boat house in the blue cupboard."
TEA = "Tea is served at four in the yellow room. Coffee is served at nine."


@cache
def _http() -> Any:
    """One for all clients: each would read the certificates again."""
    return openai.DefaultHttpxClient()


def client_of(server: Running, key: str = "none", **headers: str) -> Any:
    url = f"http://127.0.0.1:{server.port}/v1"
    options: dict[str, Any] = {"max_retries": 0, "timeout": BOUND, "default_headers": headers, "http_client": _http()}
    return openai.OpenAI(base_url=url, api_key=key, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("served"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    return client_of(server)


def test_a_file_is_uploaded_listed_read_and_deleted(client: Any) -> None:
    made = client.files.create(file=("notes.txt", b"Bread is baked on Monday."), purpose="assistants")
    assert made.id == f"file-{hashlib.sha256(b'Bread is baked on Monday.').hexdigest()}"
    assert (made.filename, made.bytes, made.object, made.status) == ("notes.txt", 25, "file", "processed")
    assert client.files.create(file=("notes.txt", b"Bread is baked on Monday."), purpose="user_data").id == made.id
    other = client.files.create(file=("notes.txt", b"Bread is baked on Friday."), purpose="assistants")
    assert other.filename == "notes (2).txt"
    listed = [file.id for file in client.files.list(limit=1)]  # the client reads page after page
    assert listed[:2] == [other.id, made.id]
    assert [file.id for file in client.files.list(order="asc")] == [*reversed(listed)]
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).content == b"Bread is baked on Monday."
    assert client.files.delete(made.id).deleted and client.files.delete(other.id).deleted
    with pytest.raises(openai.NotFoundError) as raised:
        client.files.retrieve(made.id)
    assert raised.value.code == "not_found" and raised.value.type == "not_found_error"


def test_a_file_is_found_in_the_stores_to_which_it_was_added_and_nowhere_else(client: Any, server: Running) -> None:
    store = client.vector_stores.create(name="handbook", metadata={"owner": "aino"})
    assert (store.id, store.name, store.metadata) == ("vs_handbook", "handbook", {"owner": "aino"})
    empty = client.vector_stores.create(name="handbook")
    assert (empty.id, empty.name) == ("vs_~aGFuZGJvb2sgKDIp", "handbook")
    keys = client.files.create(file=("keys.txt", KEYS), purpose="assistants")
    assert client.vector_stores.search(store.id, query="Who keeps the keys?").data == []
    status, found = server.post("/api/memory/search", text="Who keeps the keys?")
    assert (status, found["hits"]) == (200, [])

    added = client.vector_stores.files.create_and_poll(
        keys.id, vector_store_id=store.id, attributes={"site": "north", "floor": 2, "open": True}
    )
    assert (added.id, added.status, added.last_error) == (keys.id, "completed", None)
    (hit,) = client.vector_stores.search(store.id, query="Who keeps the keys?").data
    assert (hit.file_id, hit.filename, hit.content[0].text) == (keys.id, "keys.txt", KEYS.decode())
    assert hit.attributes == {"site": "north", "floor": 2, "open": True} and 0 < hit.score <= 1
    assert client.vector_stores.search(empty.id, query="Who keeps the keys?").data == []
    (text,) = client.vector_stores.files.content(keys.id, vector_store_id=store.id)
    assert text.text == KEYS.decode()

    counted = client.vector_stores.retrieve(store.id)
    assert (counted.file_counts.total, counted.file_counts.completed, counted.usage_bytes) == (1, 1, len(KEYS))
    assert client.vector_stores.files.delete(keys.id, vector_store_id=store.id).deleted
    assert client.vector_stores.search(store.id, query="Who keeps the keys?").data == []
    assert client.files.content(keys.id).content == KEYS
    assert client.vector_stores.delete(empty.id).deleted and client.vector_stores.delete(store.id).deleted
    assert store.id not in [each.id for each in client.vector_stores.list()]
    assert client.files.retrieve(keys.id).filename == "keys.txt"


def test_filters_scores_and_several_queries(client: Any) -> None:
    store = client.vector_stores.create(name="filters")
    for number, (town, text) in enumerate([("Turku", TEA), ("Oulu", TEA.replace("four", "five"))]):
        client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=(f"{town}.txt", text.encode()), attributes={"town": town, "number": number}
        )

    def found(query: Any = "When is tea served?", **options: Any) -> set[str]:
        return {hit.filename for hit in client.vector_stores.search(store.id, query=query, **options).data}

    def where(kind: str, key: str, value: Any) -> dict[str, Any]:
        return {"type": kind, "key": key, "value": value}

    assert found() == {"Turku.txt", "Oulu.txt"}
    assert found(filters=where("eq", "town", "Oulu")) == {"Oulu.txt"}
    assert found(filters=where("gte", "number", 1)) == {"Oulu.txt"}
    assert found(filters=where("in", "town", ["Turku", "Rauma"])) == {"Turku.txt"}
    both = {"type": "and", "filters": [where("lt", "number", 1), where("eq", "town", "Oulu")]}
    assert found(filters=both) == set()
    assert len(client.vector_stores.search(store.id, query="tea", max_num_results=1).data) == 1
    assert found("snowshoes in January", ranking_options={"score_threshold": 1.0}) == set()
    page = client.vector_stores.search(store.id, query=["When is tea served?", "When is coffee served?"])
    scores = [hit.score for hit in page.data]
    assert scores == sorted(scores, reverse=True) and len({hit.content[0].text for hit in page.data}) == len(scores)
    changed = client.vector_stores.files.list(store.id, order="asc").data[0]
    client.vector_stores.files.update(changed.id, vector_store_id=store.id, attributes={"town": "Rauma"})
    assert found(filters=where("in", "town", ["Turku", "Rauma"])) == {"Turku.txt"}
    assert client.vector_stores.files.retrieve(changed.id, vector_store_id=store.id).attributes == {"town": "Rauma"}
    with pytest.raises(openai.BadRequestError) as raised:
        found(filters=where("like", "town", "T"))
    assert raised.value.param == "filters.type"


def test_a_file_without_text_is_reported_and_kept(client: Any) -> None:
    store = client.vector_stores.create(name="pictures")
    data = b"%PDF-1.4 broken"
    made = client.files.create(file=("broken.pdf", data), purpose="assistants")
    added = client.vector_stores.files.create_and_poll(made.id, vector_store_id=store.id)
    assert (added.status, added.last_error.code) == ("failed", "invalid_file") and added.last_error.message
    assert client.vector_stores.retrieve(store.id).file_counts.failed == 1
    assert [file.id for file in client.vector_stores.files.list(store.id, filter="failed")] == [made.id]
    assert client.vector_stores.files.list(store.id, filter="completed").data == []
    assert client.files.content(made.id).content == data


def test_documents_of_the_memory_are_files_of_a_store(client: Any, server: Running) -> None:
    status, _ = server.upload("rules.txt", "Dogs are welcome in the garden.")
    assert status == 201
    (hit,) = client.vector_stores.search("vs_default", query="Are dogs welcome?").data
    assert hit.filename == "rules.txt"
    assert client.files.content(hit.file_id).content == b"Dogs are welcome in the garden."
    renamed = client.vector_stores.update("vs_default", name="Rules", metadata={"a": "b"})
    assert (renamed.id, renamed.name, renamed.metadata) == ("vs_default", "Rules", {"a": "b"})
    assert server.post("/api/memory", content="Aino feeds the dogs.")[0] == 201
    assert client.vector_stores.delete("vs_default").deleted
    assert client.files.content(hit.file_id).content == b"Dogs are welcome in the garden."
    status, found = server.post("/api/memory/search", text="Aino dogs")
    assert [each["content"] for each in found["hits"]] == ["Aino feeds the dogs."]
    assert client.files.delete(hit.file_id).deleted


def test_stores_are_listed_page_by_page(client: Any) -> None:
    made = [client.vector_stores.create().id for _ in range(3)]
    assert [store.id for store in client.vector_stores.list(limit=2)][:3] == [*reversed(made)]
    page = client.vector_stores.list(limit=2, order="desc", before=made[0])
    assert [store.id for store in page.data] == [made[2], made[1]]
    for id in made:
        client.vector_stores.delete(id)


def test_embeddings_are_those_of_the_memory(client: Any) -> None:
    (model,) = [model.id for model in client.models.list()]
    assert client.models.retrieve(model).id == client.models.retrieve("default").id == model
    texts = ["Tea is served at four.", "The keys are blue."]
    own = HashingEmbedder().embed_documents(texts)
    done = client.embeddings.create(model="default", input=texts)  # the client asks for base64
    assert done.model == model and done.usage.prompt_tokens > 0
    assert np.allclose([each.embedding for each in done.data], own, atol=1e-6)
    (single,) = client.embeddings.create(model=model, input=texts[0], encoding_format="float").data
    assert np.allclose(single.embedding, own[0], atol=1e-6)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="x")
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model=model, input="x", dimensions=7)
    assert raised.value.param == "dimensions"


def test_a_key_sees_only_its_namespaces(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "indexes")
    secrets = {
        name: keys.make(name, rights, namespaces=namespaces)[1]
        for name, rights, namespaces in [
            ("all", ("admin",), ()),
            ("north", ("read", "write"), ("north",)),
            ("reader", ("read",), ("north",)),
            ("writer", ("write",), ()),
        ]
    }
    server = Running(tmp_path)
    try:
        everyone, north, reader, writer = (client_of(server, secret) for secret in secrets.values())
        everyone.vector_stores.create(name="south")
        secret = everyone.vector_stores.files.upload_and_poll(vector_store_id="vs_south", file=("s.txt", b"A secret."))
        store = north.vector_stores.create(name="north")
        own = north.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("n.txt", KEYS))
        assert [each.id for each in north.vector_stores.list()] == ["vs_north"]
        assert [each.id for each in north.files.list()] == [own.id]
        assert [hit.file_id for hit in reader.vector_stores.search(store.id, query="keys")] == [own.id]
        for refused in (
            lambda: north.vector_stores.retrieve("vs_south"),
            lambda: north.vector_stores.search("vs_south", query="secret"),
            lambda: north.files.retrieve(secret.id),
            lambda: north.files.content(secret.id),
            lambda: north.files.delete(secret.id),
            lambda: north.vector_stores.files.create("vs_north", file_id=secret.id),
            lambda: north.vector_stores.files.create("vs_south", file_id=own.id),
            lambda: north.vector_stores.delete("vs_south"),
        ):
            with pytest.raises(openai.NotFoundError):
                refused()
        for denied in (
            lambda: north.vector_stores.create(name="south"),
            lambda: north.vector_stores.create(),
            lambda: north.files.list(extra_headers={"X-AgentFormer-Namespace": "south"}),
            lambda: reader.files.create(file=("x.txt", b"x"), purpose="assistants"),
            lambda: reader.vector_stores.create(name="north"),
            lambda: reader.files.delete(own.id),
            lambda: writer.files.list(),
            lambda: writer.vector_stores.search(store.id, query="keys"),
            lambda: writer.embeddings.create(model="default", input="x"),
        ):
            with pytest.raises(openai.PermissionDeniedError) as raised:
                denied()
            assert raised.value.type == "permission_error"
        with pytest.raises(openai.ConflictError):
            north.vector_stores.create(name="north")
        with pytest.raises(openai.AuthenticationError):
            client_of(server, "wrong").models.list()
        assert everyone.files.content(secret.id).content == b"A secret."
    finally:
        server.close()


def test_concurrent_additions_and_deletions_end_with_answers(client: Any) -> None:
    store = client.vector_stores.create(name="busy")
    made = [
        client.files.create(file=(f"{n}.txt", f"Boat {n} is red.".encode()), purpose="assistants") for n in range(4)
    ]
    failed: list[BaseException] = []

    def work(id: str) -> None:
        for call in (
            lambda: client.vector_stores.files.create(store.id, file_id=id),
            lambda: client.vector_stores.search(store.id, query="red boat"),
            lambda: client.vector_stores.files.delete(id, vector_store_id=store.id),
            lambda: client.files.delete(id),
        ):
            try:
                call()
            except (openai.NotFoundError, openai.ConflictError, openai.RateLimitError):
                pass
            except openai.OpenAIError as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(file.id,)) for file in made for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert failed == []
    for file in made:
        try:
            client.files.delete(file.id)
        except openai.NotFoundError:
            continue
    assert client.vector_stores.retrieve(store.id).file_counts.total == 0
    assert client.vector_stores.search(store.id, query="red boat").data == []
