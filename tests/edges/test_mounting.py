"""An application of a few lines that exists already, with a memory or two mounted in it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

flask = pytest.importorskip("flask", reason="the extra `server` is not installed")

from werkzeug.middleware.dispatcher import DispatcherMiddleware  # noqa: E402
from werkzeug.test import Client  # noqa: E402

import agentformer  # noqa: E402
from agentformer.access.keys import KeyStore  # noqa: E402
from agentformer.access.permissions import EVERYTHING, Grant  # noqa: E402
from agentformer.api import close_app, create_app, init_app  # noqa: E402
from agentformer.errors import InvalidInput, Unauthenticated  # noqa: E402
from agentformer.records.trail import Wanted  # noqa: E402
from agentformer.settings import load_settings  # noqa: E402

KEYS = b"The caretaker keeps the keys in the blue cupboard."
TEA = b"Aino drinks tea at four o'clock."


def opened(folder: Path) -> Any:
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing")


def host() -> Any:
    app = flask.Flask("host")
    app.register_error_handler(404, lambda error: ("the host's own 404", 404))
    app.register_error_handler(ValueError, lambda error: ("the host's own 500", 500))

    @app.get("/")
    def home() -> str:
        return "the host's own page"

    @app.get("/broken")
    def broken() -> str:
        raise ValueError("nobody's business")

    return app


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Any]:
    """A host application with two memories under two prefixes."""
    app = host()
    init_app(app, opened(tmp_path / "one"), url_prefix="/one/memory")
    init_app(app, opened(tmp_path / "two"), url_prefix="/two/")
    yield app
    close_app(app)


def upload(client: Any, path: str, data: bytes, name: str) -> Any:
    return client.post(f"{path}/api/rag/upload", data={"file": (io.BytesIO(data), name)})


def test_two_memories_under_two_prefixes_know_nothing_of_each_other(two: Any) -> None:
    client = two.test_client()
    made = upload(client, "/one/memory", KEYS, "keys.txt")
    assert made.status_code == 201
    assert upload(client, "/two", TEA, "tea.txt").status_code == 201
    names = [client.get(f"{path}/api/rag/documents").json["documents"][0]["name"] for path in ("/one/memory", "/two")]
    assert names == ["keys.txt", "tea.txt"]
    document = made.json["documents"][0]["id"]
    assert client.get(f"/one/memory/api/rag/documents/{document}").status_code == 200
    assert client.get(f"/two/api/rag/documents/{document}").status_code == 404
    asked = client.post("/one/memory/api/rag/query", json={"question": "Who keeps the keys?"})
    assert asked.json["citations"][0]["quote"] == KEYS.decode()


def test_the_hosts_own_pages_and_errors_stay(two: Any) -> None:
    client = two.test_client()
    assert client.get("/").text == "the host's own page"
    assert client.get("/broken").text == "the host's own 500"
    for path in ("/nowhere", "/api/rag/documents", "/openapi.json", "/twofold", "/one/memory/nowhere"):
        assert (client.get(path).status_code, client.get(path).text) == (404, "the host's own 404")
    assert "X-Request-ID" not in client.get("/").headers
    assert "Content-Security-Policy" not in client.get("/").headers


def test_what_is_wrong_below_the_prefix_is_a_problem_document(two: Any) -> None:
    client = two.test_client()
    answers = [
        client.post("/two/api/rag/query", json={}),
        client.post("/two/api/rag/query", data=b"{", content_type="application/json"),
        client.get("/two/api/rag/documents/unknown"),
        client.put("/two/api/rag/query"),
        client.get("/two/api/rag/documents", headers={"Authorization": "Bearer wrong"}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 404, 405, 401]
    assert {answer.content_type for answer in answers} == {"application/problem+json"}


@pytest.mark.slow
def test_the_document_and_the_page_speak_of_paths_below_the_prefix(two: Any) -> None:
    client = two.test_client()
    document = client.get("/one/memory/openapi.json").json
    assert document["servers"] == [{"url": "/one/memory"}]
    for path, methods in document["paths"].items():
        if "get" in methods and "{" not in path:
            assert client.get("/one/memory" + path).status_code in (200, 400), path
    page = client.get("/one/memory/docs").text
    assert "curl -sS http://localhost/one/memory/api/rag/documents" in page
    assert 'href="/one/memory/openapi.json"' in page


def test_a_job_is_found_where_it_is_said_to_be(two: Any) -> None:
    client = two.test_client()
    parts = {"file": (io.BytesIO(KEYS), "keys.txt")}
    made = client.post("/two/api/rag/upload", data=parts, headers={"Prefer": "respond-async"})
    assert made.status_code == 202
    place = re.sub(r"^http://localhost", "", made.headers["Location"])
    assert place.startswith("/two/api/jobs/")
    assert client.get(place).json["id"] == made.json["id"]


def test_below_another_wsgi_application_the_document_says_the_whole_path(tmp_path: Path) -> None:
    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    client = Client(DispatcherMiddleware(host(), {"/outer": app}))
    assert client.get("/outer/openapi.json").json["servers"] == [{"url": "/outer"}]
    assert "http://localhost/outer/api/rag/query" in client.get("/outer/docs").text
    assert client.get("/outer/healthz").json == {"status": "ok"}
    close_app(app)


def test_the_host_decides_who_asks(tmp_path: Path) -> None:
    app = host()

    def who() -> Grant:
        user = flask.request.headers.get("X-User")
        if user is None:
            raise Unauthenticated("sign in first")
        return EVERYTHING if user == "root" else Grant(frozenset({"read"}), namespaces=(user,))

    with opened(tmp_path) as memory:
        memory.rag.upload(KEYS, name="keys.txt", namespace="aino")
        init_app(app, memory, url_prefix="/memory", authorize=who)
        client = app.test_client()
        there = "/memory/api/rag/documents"
        nobody = client.get(there)
        assert (nobody.status_code, nobody.json["detail"]) == (401, "sign in first")
        assert [len(client.get(there, headers={"X-User": user}).json["documents"]) for user in ("aino", "eino")] == [
            1,
            0,
        ]
        assert client.get(f"{there}?namespace=aino", headers={"X-User": "eino"}).status_code == 403
        assert len(client.get(f"{there}?namespace=aino", headers={"X-User": "root"}).json["documents"]) == 1
        assert client.get(there, headers={"X-User": "aino", "Host": "memory.example.org"}).status_code == 200
        close_app(app)


SITE = "https://www.example.org"
FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
]


def test_a_foreign_page_may_not_use_what_a_browser_sends_of_itself(tmp_path: Path) -> None:
    """The host application knows its users by their cookies."""
    app = host()
    settings = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with agentformer.connect(**settings, cors_origins=SITE) as memory:
        KeyStore(memory.settings.index_dir).make("somebody")  # which does not matter here
        init_app(app, memory, url_prefix="/memory", authorize=lambda: EVERYTHING)
        client = app.test_client()

        def answers(**headers: str) -> list[Any]:
            parts = {"file": (io.BytesIO(KEYS), "planted.txt")}
            named = {"Host": "memory.example.org", **headers}
            return [
                client.post("/memory/api/rag/upload", data=parts, headers=named),
                client.post("/memory/api/memory/clean", headers=named),
            ]

        for headers in FOREIGN:
            for answer in answers(**headers):
                assert (answer.status_code, "cors_origins" in answer.json["detail"]) == (403, True), headers
        assert client.get("/memory/api/rag/documents").json["documents"] == []
        for own in ({"Origin": "http://memory.example.org"}, {"Origin": SITE}, {"Sec-Fetch-Site": "same-origin"}):
            assert [answer.status_code for answer in answers(**own)] == [201, 200], own
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert client.get("/memory/docs", headers=link).status_code == 200
        close_app(app)


def test_without_a_word_of_the_host_the_keys_of_the_memory_decide(tmp_path: Path) -> None:
    app = host()
    with opened(tmp_path) as memory:
        init_app(app, memory, url_prefix="/memory")
        _, secret = KeyStore(memory.settings.index_dir).make("somebody", ("read",))
        client = app.test_client()
        assert client.get("/memory/api/rag/documents").status_code == 401
        told = client.get("/memory/api/rag/documents", headers={"Authorization": f"Bearer {secret}"})
        assert told.status_code == 200
        assert client.get("/").status_code == 200
        close_app(app)


@pytest.mark.parametrize("prefix", ["memory", "memory/", "/<tenant>/memory"])
def test_a_prefix_that_is_no_path_is_refused(tmp_path: Path, prefix: str) -> None:
    with opened(tmp_path) as memory, pytest.raises(InvalidInput, match="url_prefix"):
        init_app(host(), memory, url_prefix=prefix)


def test_one_prefix_has_one_memory(two: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "three") as memory, pytest.raises(ValueError, match="two"):
        init_app(two, memory, url_prefix="/two")


def test_the_hosts_way_of_writing_json_is_not_ours(tmp_path: Path) -> None:
    class Shouting(flask.json.provider.DefaultJSONProvider):
        def dumps(self, obj: Any, **kwargs: Any) -> str:
            return super().dumps(obj, **kwargs).upper()

    app = host()
    app.json = Shouting(app)
    with opened(tmp_path) as memory:
        init_app(app, memory, url_prefix="/memory")
        assert app.test_client().get("/memory/api/rag/documents").text == '{"documents":[],"next":null}'
        assert '"status": 404' in app.test_client().get("/memory/api/rag/documents/x").text
        close_app(app)


def test_closing_closes_every_memory_that_is_mounted(two: Any) -> None:
    close_app(two)
    client = two.test_client()
    answer = client.get("/one/memory/api/rag/documents")
    assert answer.status_code >= 500
    assert upload(client, "/one/memory", KEYS, "keys.txt").status_code >= 500
    parts = {"file": (io.BytesIO(KEYS), "keys.txt")}
    answer = client.post("/one/memory/api/rag/upload", data=parts, headers={"Prefer": "respond-async"})
    assert answer.status_code >= 500  # nobody would work on it
    close_app(two)  # again, which does nothing


def test_work_of_the_host_after_a_request_is_not_work_of_the_client(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        app = host()
        init_app(app, af)
        assert app.test_client().post("/api/memory", json={"content": "Tea is at four."}).status_code == 201
        af.memory.store("The lighthouse is red.")
        assert [act.via for act in af.trail.page(Wanted()) if act.action == "stored"] == ["http", "program"]
        close_app(app)
