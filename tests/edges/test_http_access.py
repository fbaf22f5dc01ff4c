"""Access over HTTP: keys, hosts, origins, limits of bodies, and the headers of every response."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from flask import Flask

from agentformer.access.keys import KeyStore
from agentformer.access.permissions import Grant
from agentformer.api import create_app, init_app
from agentformer.api.app import close_app
from agentformer.errors import InvalidInput, Unauthenticated
from agentformer.factory import AgentFormer
from agentformer.settings import Settings

ALLOWED = "https://app.example.org"
DOCUMENTS = "/api/rag/documents"
MAKE_ONE = "agentformer keys add"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        index_dir=tmp_path / "i",
        upload_dir=tmp_path / "u",
        embedder="hashing",
        cors_origins=f"{ALLOWED}, http://localhost:3000/",
        allowed_hosts="memory.example.org",
        max_file_bytes=50_000,
    )


@pytest.fixture
def keys(settings: Settings) -> KeyStore:
    return KeyStore(settings.index_dir)


@pytest.fixture
def client(settings: Settings) -> Iterator[Any]:
    app = create_app(settings)
    yield app.test_client()
    close_app(app)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def problem_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/problem+json"
    told: dict[str, Any] = response.get_json()
    assert told["status"] == status
    assert told["request_id"] == response.headers["X-Request-ID"]
    return told


# Without keys


def test_without_keys_this_machine_is_served(client: Any) -> None:
    for host in (
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1:8808",
        "127.0.0.1:",
        "localhost:",
        "[::1]:",
        "127.9.9.9",
        "[::1]:8808",
        "localhost.",
    ):
        for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            response = client.get(DOCUMENTS, headers={"Host": host}, environ_base={"REMOTE_ADDR": peer})
            assert response.status_code == 200, (host, peer)


def test_without_keys_other_machines_are_refused_with_the_command_to_make_one(client: Any) -> None:
    for peer in ("192.0.2.7", "::ffff:192.0.2.7", "fe80::1", "", "unix:", "0.0.0.0"):
        problem = problem_of(client.get(DOCUMENTS, environ_base={"REMOTE_ADDR": peer}), 401)
        assert MAKE_ONE in problem["detail"], peer


PROXIED = [
    *("X-Forwarded-For", "Forwarded", "X-Forwarded-Host", "X-Real-IP", "Via", "X-Forwarded-Proto", "X-Forwarded-Port"),
    *("X-Forwarded-Server", "X-Forwarded", "X-Forwarded-Prefix", "X-Original-Forwarded-For", "CF-Connecting-IP"),
    *("True-Client-IP", "X-Client-IP", "X-Cluster-Client-IP", "x-forwarded-scheme", "Forwarded-For"),
]


def test_without_keys_requests_through_a_proxy_are_refused(client: Any) -> None:
    for header in PROXIED:
        problem = problem_of(client.get(DOCUMENTS, headers={header: "127.0.0.1"}), 401)
        assert "proxy" in problem["detail"] and MAKE_ONE in problem["detail"], header


def test_an_allowed_host_does_not_replace_a_key(client: Any) -> None:
    assert MAKE_ONE in problem_of(client.get(DOCUMENTS, headers={"Host": "memory.example.org"}), 401)["detail"]


def test_a_wrong_key_is_refused_also_where_none_is_needed(client: Any) -> None:
    for header in ("Bearer x", "bearer ", "Bearer", "Basic YTpi", "x"):
        response = client.get(DOCUMENTS, headers={"Authorization": header})
        problem_of(response, 401)
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="agentformer"'


# With keys


def test_with_keys_every_request_needs_one(client: Any, keys: KeyStore) -> None:
    assert client.get(DOCUMENTS).status_code == 200
    key, secret = keys.make("office")
    problem_of(client.get(DOCUMENTS), 401)
    assert client.get(DOCUMENTS, headers=bearer(secret)).status_code == 200
    assert client.get(DOCUMENTS, headers={"Authorization": f"bEARER  {secret} "}).status_code == 200
    keys.revoke(key.id)
    problem_of(client.get(DOCUMENTS, headers=bearer(secret)), 401)
    problem_of(client.get(DOCUMENTS), 401)


def test_a_key_works_from_other_machines_and_through_a_proxy(client: Any, keys: KeyStore) -> None:
    _, secret = keys.make("office")
    for host in ("192.0.2.1:8808", "[2001:db8::1]", "memory.example.org", "localhost"):
        response = client.get(
            DOCUMENTS,
            headers={**bearer(secret), "Host": host, "X-Forwarded-For": "192.0.2.7"},
            environ_base={"REMOTE_ADDR": "192.0.2.9"},
        )
        assert response.status_code == 200


def test_a_key_is_only_read_from_its_header(client: Any, keys: KeyStore) -> None:
    _, secret = keys.make("office")
    problem_of(client.get(f"{DOCUMENTS}?key={secret}&access_token={secret}"), 401)
    problem_of(client.get(DOCUMENTS, headers={"Cookie": f"key={secret}"}), 401)
    problem_of(client.get(DOCUMENTS, headers={"X-API-Key": secret}), 401)


def test_a_missing_right_is_403(client: Any, keys: KeyStore) -> None:
    _, reader = keys.make("reader", ["read"])
    _, writer = keys.make("writer", ["write"])
    problem_of(client.post("/api/memory", json={"content": "x"}, headers=bearer(reader)), 403)
    problem_of(client.get(DOCUMENTS, headers=bearer(writer)), 403)


def test_without_a_key_existing_and_missing_entries_look_alike(client: Any, keys: KeyStore) -> None:
    _, admin = keys.make("admin", ["admin"])
    made = client.post("/api/memory", json={"content": "x"}, headers=bearer(admin))
    assert made.status_code == 201
    entry_id = (made.get_json().get("entry") or made.get_json())["id"]
    texts = {
        json.dumps({**problem_of(client.get(f"/api/memory/{each}"), 401), "request_id": ""})
        for each in (entry_id, "01890000-0000-7000-8000-000000000000")
    }
    assert len(texts) == 1


def test_unreadable_keys_refuse_everybody_and_show_no_path(client: Any, keys: KeyStore, settings: Settings) -> None:
    _, secret = keys.make("office")
    (settings.index_dir / "keys.json").write_text("{")
    for headers in ({}, bearer(secret)):
        response = client.get(DOCUMENTS, headers=headers)
        assert "keys.json" not in json.dumps(problem_of(response, 500))
    assert client.get("/healthz").status_code == 200


# Hosts and origins

HOSTILE_HOSTS = [
    "evil.example",
    "evil.example:8808",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1@evil.example",
    "evil.example#localhost",
    "localhost:8808:80",
    "localhost::",
    ":8808",
    "evil.example:",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0.0.0.0",
    "192.0.2.1",
    "[::1",
    "::1]",
    "",
]


def test_other_host_names_are_refused_on_every_path(client: Any) -> None:
    for path in ("/healthz", DOCUMENTS, "/openapi.json", "/nothing/here"):
        for host in HOSTILE_HOSTS:
            problem = problem_of(client.get(path, headers={"Host": host}), 421)
            assert problem["type"].endswith("misdirected-request"), host


def test_with_keys_other_names_are_refused_and_addresses_are_not(client: Any, keys: KeyStore) -> None:
    _, secret = keys.make("office")
    problem_of(client.get(DOCUMENTS, headers={**bearer(secret), "Host": "evil.example"}), 421)
    assert client.get(DOCUMENTS, headers={**bearer(secret), "Host": "192.0.2.1"}).status_code == 200


FOREIGN = [
    "https://evil.example",
    "null",
    "http://localhost:1",
    "https://app.example.org.evil.example",
    "app.example.org",
]


def test_without_keys_pages_of_other_origins_may_not_send(client: Any) -> None:
    for origin in FOREIGN:
        response = client.post("/api/memory", json={"content": "planted"}, headers={"Origin": origin})
        problem_of(response, 403)
        assert "Access-Control-Allow-Origin" not in response.headers
    assert client.get("/api/memory").get_json()["entries"] == []


def test_forms_and_images_of_other_sites_are_refused_and_links_are_not(client: Any) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    problem_of(client.get(DOCUMENTS, headers={**elsewhere, "Sec-Fetch-Mode": "no-cors"}), 403)
    problem_of(client.post("/api/memory", json={}, headers={**elsewhere, "Sec-Fetch-Mode": "navigate"}), 403)
    assert client.get("/docs", headers={**elsewhere, "Sec-Fetch-Mode": "navigate"}).status_code == 200
    assert client.get(DOCUMENTS, headers={"Sec-Fetch-Site": "none"}).status_code == 200


def test_requests_of_our_own_origin_are_allowed(client: Any) -> None:
    assert client.get(DOCUMENTS, headers={"Host": "localhost:", "Origin": "http://localhost"}).status_code == 200
    assert (
        client.get(DOCUMENTS, headers={"Host": "localhost:8808", "Origin": "http://localhost:8808"}).status_code == 200
    )


@pytest.mark.parametrize("origin", [ALLOWED, "http://localhost:3000"])
def test_a_configured_origin_may_read_responses(client: Any, keys: KeyStore, origin: str) -> None:
    response = client.get(DOCUMENTS, headers={"Origin": origin})
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == origin
    assert "Access-Control-Allow-Credentials" not in response.headers
    keys.make("office")
    refused = client.get(DOCUMENTS, headers={"Origin": origin})
    problem_of(refused, 401)
    assert refused.headers["Access-Control-Allow-Origin"] == origin
    assert "X-Request-ID" in refused.headers["Access-Control-Expose-Headers"]


def test_a_preflight_needs_no_key_and_lists_methods_and_headers(client: Any, keys: KeyStore) -> None:
    keys.make("office")
    asked = {"Origin": ALLOWED, "Access-Control-Request-Method": "PATCH"}
    response = client.options("/api/memory", headers=asked)
    assert (response.status_code, response.get_data()) == (204, b"")
    assert "PATCH" in response.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in response.headers["Access-Control-Allow-Headers"]
    assert response.headers["Access-Control-Allow-Origin"] == ALLOWED
    foreign = client.options("/api/memory", headers={**asked, "Origin": "https://evil.example"})
    assert not [name for name, _ in foreign.headers if name.startswith("Access-Control")]


def test_responses_vary_by_origin_if_one_is_configured(client: Any, tmp_path: Path) -> None:
    assert "Origin" in client.get(DOCUMENTS).headers["Vary"]
    app = create_app(Settings(index_dir=tmp_path / "other", upload_dir=tmp_path / "u", embedder="hashing"))
    try:
        response = app.test_client().get(DOCUMENTS)
        assert "Vary" not in response.headers
        assert not [name for name, _ in response.headers if name.startswith("Access-Control")]
    finally:
        close_app(app)


def test_invalid_hosts_and_origins_in_settings_are_refused(tmp_path: Path) -> None:
    for invalid in [
        {"cors_origins": "*"},
        {"cors_origins": "null"},
        {"cors_origins": "app.example.org"},
        {"cors_origins": "https://app.example.org/path"},
        {"cors_origins": "https://*.example.org"},
        {"cors_origins": "https://user:pw@app.example.org"},
        {"allowed_hosts": "*"},
        {"allowed_hosts": "http://memory.example.org"},
        {"allowed_hosts": "memory.example.org:80"},
        {"allowed_hosts": "*.example.org"},
    ]:
        with pytest.raises(InvalidInput) as refused:
            create_app(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", **invalid))  # type: ignore[arg-type]
        assert refused.value.field in invalid


# Headers of every response


def test_every_response_has_security_headers(client: Any) -> None:
    for path in ("/healthz", DOCUMENTS, "/nothing", "/openapi.json"):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"


def test_a_valid_request_id_is_kept_and_an_invalid_one_is_replaced(client: Any) -> None:
    for path in ("/healthz", "/nothing"):
        for valid in ("trace-1.2_3", "x" * 128):
            assert client.get(path, headers={"X-Request-ID": valid}).headers["X-Request-ID"] == valid
    for invalid in ("", "a b", "x" * 129, "é", "<script>", "a;b"):
        ids = [client.get("/healthz", headers={"X-Request-ID": invalid}).headers["X-Request-ID"] for _ in range(2)]
        assert invalid not in ids and len(set(ids)) == 2


def test_a_problem_names_the_request(client: Any) -> None:
    response = client.get("/nothing", headers={"X-Request-ID": "mine"})
    assert problem_of(response, 404)["request_id"] == "mine"


# Bodies


def test_an_upload_over_the_limit_is_413_and_names_the_limit(client: Any) -> None:
    form = {"file": (io.BytesIO(b"x" * 1_200_000), "big.txt")}
    told = problem_of(client.post("/api/rag/upload", data=form), 413)
    assert told["limit"] == "max_file_bytes"


def test_any_other_body_over_the_limit_is_413_and_names_the_limit(client: Any) -> None:
    body = b'{"question": "' + b"x" * (17 * 1024 * 1024) + b'"}'
    told = problem_of(client.post("/api/rag/query", data=body, content_type="application/json"), 413)
    assert told["limit"] == "max_json_bytes"
    assert str(16 * 1024 * 1024) in told["detail"]


def test_the_body_of_a_refused_request_is_not_read(client: Any, keys: KeyStore) -> None:
    _, secret = keys.make("office")

    class Unread(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            raise AssertionError("the body was read")

    def send(**headers: str) -> Any:
        described = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "1000"}
        body = {"wsgi.input": Unread()}
        return client.post("/api/rag/upload", environ_overrides=body, headers={**described, **headers})

    problem_of(send(), 401)
    problem_of(send(Host="evil.example"), 421)
    problem_of(send(**bearer(secret)), 500)  # who may ask has it read


# Mounted in a host application


def test_a_host_application_can_authenticate_by_itself(settings: Settings) -> None:
    app, memory = Flask("theirs"), AgentFormer(settings)
    asked: list[str] = []

    def authorize() -> Grant:
        from flask import request

        asked.append(request.path)
        if request.headers.get("X-User") != "aino":
            raise Unauthenticated("log in first")
        return Grant(frozenset({"read"}), ("aino",), key_id="aino")

    init_app(app, memory, url_prefix="/memory", authorize=authorize)
    try:
        client = app.test_client()
        elsewhere = {"Host": "www.example.org", "Origin": "https://www.example.org"}
        assert "log in" in problem_of(client.get(f"/memory{DOCUMENTS}", headers=elsewhere), 401)["detail"]
        named = {**elsewhere, "X-User": "aino"}
        assert client.get(f"/memory{DOCUMENTS}?namespace=aino", headers=named).status_code == 200
        problem_of(client.get(f"/memory{DOCUMENTS}?namespace=other", headers=named), 403)
        assert asked == [f"/memory{DOCUMENTS}"] * 3
        assert "X-Frame-Options" not in client.get("/nothing").headers
    finally:
        close_app(app)


def test_a_mounted_memory_requires_its_keys_by_default(settings: Settings, keys: KeyStore) -> None:
    app, memory = Flask("theirs"), AgentFormer(settings)
    init_app(app, memory, url_prefix="/memory")
    try:
        client = app.test_client()
        assert client.get(f"/memory{DOCUMENTS}").status_code == 200
        problem_of(client.get(f"/memory{DOCUMENTS}", headers={"Host": "www.example.org"}), 421)
        _, secret = keys.make("office")
        problem_of(client.get(f"/memory{DOCUMENTS}"), 401)
        assert client.get(f"/memory{DOCUMENTS}", headers=bearer(secret)).status_code == 200
    finally:
        close_app(app)
