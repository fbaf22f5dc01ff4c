"""Rights and namespaces of a grant, and the grant of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentformer.access.authentication import authenticate
from agentformer.access.keys import KeyStore
from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from agentformer.servers.listening import check_bind_address
from agentformer.testing import make_entry


def test_admin_includes_the_other_rights_and_write_does_not_include_read() -> None:
    admin, writer = Grant(frozenset({"admin"})), Grant(frozenset({"write"}))
    assert admin.may("read") and admin.may("write") and writer.may("write")
    for right in ("read", "admin"):
        with pytest.raises(Forbidden, match=right):
            writer.require(right)  # type: ignore[arg-type]


def test_the_namespace_is_the_requested_one_the_only_one_or_the_default_one() -> None:
    one, two = Grant(frozenset(), ("a",)), Grant(frozenset(), ("a", "default"))
    assert (one.namespace(), two.namespace(), EVERYTHING.namespace()) == ("a", "default", "default")
    assert (two.namespace("a"), EVERYTHING.namespace("x")) == ("a", "x")
    with pytest.raises(Forbidden, match=r"only the namespace a$"):
        one.namespace("b")
    with pytest.raises(Forbidden, match=r"only the namespaces a, default$"):
        two.namespace("b")
    with pytest.raises(InvalidInput, match="namespace: is missing; name one of the namespaces of this key: a, b"):
        Grant(frozenset(), ("a", "b")).namespace()


def test_limited_keys_see_their_own_namespaces_only() -> None:
    limited = Grant(frozenset(), ("a",), without=frozenset({"memory_delete"}))
    entry = make_entry("x", namespace="b")
    assert EVERYTHING.require_visible(entry) is entry
    with pytest.raises(NotFound, match=entry.id):
        limited.require_visible(entry)
    with pytest.raises(Forbidden):
        limited.require_all_namespaces()
    EVERYTHING.require_all_namespaces()
    with pytest.raises(Forbidden, match="memory_delete"):
        limited.require_tool("memory_delete")
    limited.require_tool("memory_add")


def test_without_keys_only_local_requests_without_a_proxy_are_served(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    assert authenticate(keys, {}, "127.0.0.1") is EVERYTHING
    for headers, peer, host in (
        ({}, "10.0.0.7", "localhost"),
        ({}, None, "localhost"),
        ({}, "127.0.0.1", "rebound.example.org"),
        ({"X-Forwarded-For": "10.0.0.7"}, "127.0.0.1", "localhost"),
        ({"Authorization": "Basic eA=="}, "127.0.0.1", "localhost"),
        ({"Authorization": "Bearer af_x"}, "127.0.0.1", "localhost"),
    ):
        with pytest.raises(Unauthenticated):
            authenticate(keys, headers, peer, host)


def test_with_keys_every_request_needs_one(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    with pytest.raises(InvalidInput, match=r"host: 0\.0\.0\.0 can be reached by other machines"):
        check_bind_address("0.0.0.0", "0.0.0.0", keys)
    check_bind_address("localhost", "127.0.0.1", keys)
    key, secret = keys.make("office")
    check_bind_address("0.0.0.0", "0.0.0.0", keys)
    with pytest.raises(Unauthenticated, match="a key is required"):
        authenticate(keys, {}, "127.0.0.1")
    grant = authenticate(keys, {"Authorization": f"bearer {secret}"}, "10.0.0.7", "example.org")
    assert grant.key_id == key.id


def test_a_limited_grant_allows_what_both_grants_allow() -> None:
    key = Grant(frozenset({"read", "write"}), ("work", "home"), frozenset({"rag_upload"}), "k1")
    server = Grant(frozenset({"read"}), ("work",), frozenset({"memory_audit"}))
    assert key.limited_to(server) == Grant(
        frozenset({"read"}), ("work",), frozenset({"rag_upload", "memory_audit"}), "k1"
    )
    assert EVERYTHING.limited_to(server).namespaces == ("work",)
    assert key.limited_to(EVERYTHING) == key
    assert not key.limited_to(Grant(frozenset({"read"}), ("elsewhere",))).rights
