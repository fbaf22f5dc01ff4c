"""A server behind a proxy: the path prefix, and what is believed of the headers of a proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.hosts import networks_in
from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.api.proxies import BehindProxy
from agentformer.errors import InvalidInput
from agentformer.settings import Settings


def seen(settings: Settings, **environ: str) -> dict[str, Any]:
    """Return the environment that the application sees of a request."""
    found: dict[str, Any] = {}

    def application(inner: dict[str, Any], _: Any) -> list[bytes]:
        found.update(inner)
        return []

    BehindProxy(application, settings)({"PATH_INFO": "/", "wsgi.url_scheme": "http", **environ}, None)
    return found


@pytest.mark.unit
@pytest.mark.parametrize(
    ("peer", "told", "client"),
    [
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "1.2.3.4, 203.0.113.7", "203.0.113.7"),  # the client made up the first one
        ("10.0.0.1", "203.0.113.7, 10.0.0.2", "203.0.113.7"),  # two proxies
        ("10.0.0.1", "127.0.0.1, 10.0.0.2", "127.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),  # a proxy is the client
        ("10.0.0.1", "203.0.113.7:5678", "203.0.113.7"),
        ("10.0.0.1", "[2001:db8::1]:99", "2001:db8::1"),
        ("10.0.0.1", "[::1]", "::1"),
        ("10.0.0.1", "1.2.3.4:5, 203.0.113.7:5678 , 10.0.0.2:443", "203.0.113.7"),
        ("203.0.113.9", "127.0.0.1:80", "203.0.113.9"),  # a proxy that is not trusted lies
        *(("10.0.0.1", odd, "10.0.0.1") for odd in ("203.0.113.7:", "203.0.113.7:x", "[203.0.113.7", "[::1]:123456")),
        ("10.0.0.1", "203.0.113.7:\u0661", "10.0.0.1"),  # a digit of another script
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "fe80::1%any text", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7, nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("::ffff:10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("203.0.113.9", "127.0.0.1", "203.0.113.9"),  # not a proxy
        ("", "127.0.0.1", ""),
    ],
)
def test_the_address_of_the_client_is_the_last_that_is_not_a_proxys(peer: str, told: str, client: str) -> None:
    settings = Settings(trusted_proxies="10.0.0.0/8, ::1")
    found = seen(settings, REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=told, HTTP_X_FORWARDED_PROTO="https")
    assert found["REMOTE_ADDR"] == client
    assert found["wsgi.url_scheme"] == ("https" if "10.0.0.1" in peer else "http")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("setting", "peer", "told", "path", "expected"),
    [
        ("/memory/", "", "", "/memory/api/x", ("/memory", "/api/x")),
        ("/memory", "", "", "/memory", ("/memory", "/")),
        ("/memory", "", "", "/api/x", ("/memory", "/api/x")),  # the proxy has removed it
        ("/memory", "", "", "/memoryx", ("/memory", "/memoryx")),
        ("", "127.0.0.1", "/team/a/", "/api/x", ("/team/a", "/api/x")),
        ("/memory", "127.0.0.1", "/team/a", "/team/a/api/x", ("/team/a", "/api/x")),
        ("", "127.0.0.1", "//evil.example", "/api/x", (None, "/api/x")),
        ("", "127.0.0.1", "/a\r\nSet-Cookie: x", "/api/x", (None, "/api/x")),
        ("", "203.0.113.9", "/team/a", "/team/a/api/x", (None, "/team/a/api/x")),
    ],
)
def test_a_prefix_moves_from_the_path_into_links(
    setting: str, peer: str, told: str, path: str, expected: tuple[str | None, str]
) -> None:
    settings = Settings(url_prefix=setting, trusted_proxies="127.0.0.1")
    found = seen(settings, REMOTE_ADDR=peer, HTTP_X_FORWARDED_PREFIX=told, PATH_INFO=path)
    assert (found.get("SCRIPT_NAME"), found["PATH_INFO"]) == expected


@pytest.mark.unit
@pytest.mark.parametrize("prefix", ["memory", "//x", "/a b", "/a?b", "https://example.org/a"])
def test_a_prefix_is_a_path(prefix: str) -> None:
    with pytest.raises(InvalidInput, match="url_prefix: must be a path such as /memory"):
        Settings(url_prefix=prefix)


@pytest.mark.unit
@pytest.mark.parametrize("proxies", ["proxy.example.org", "10.0.0.0/99", "10.0.0.1/8"])
def test_a_proxy_is_an_address_or_a_network(proxies: str) -> None:
    with pytest.raises(InvalidInput, match="trusted_proxies"):
        networks_in(proxies)


def test_all_links_begin_with_the_prefix(tmp_path: Path) -> None:
    app = create_app(
        Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", url_prefix="/memory")
    )
    client = app.test_client()
    try:
        made = client.post("/memory/api/memory", json={"content": "Anna lives in Turku."})
        assert made.status_code == 201 and made.headers["Location"].startswith("/memory/api/memory/")
        assert client.get(made.headers["Location"]).status_code == 200
        assert client.get("/memory/openapi.json").json["servers"] == [{"url": "/memory"}]
        assert b"/memory/" in client.get("/memory/").data
        assert client.get("/healthz").status_code == client.get("/memory/healthz").status_code == 200
    finally:
        close_app(app)
