"""Listening sockets: addresses, ports, and the need of a key."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput
from agentformer.servers.listening import listen, url_of

pytestmark = pytest.mark.process


def test_a_local_address_needs_no_key(tmp_path: Path) -> None:
    for host, url in (("127.0.0.1", "http://127.0.0.1:"), ("localhost", "http://127.0.0.1:"), ("::1", "http://[::1]:")):
        with listen(host, 0, KeyStore(tmp_path), backlog=1) as listener:
            assert url_of(listener) == f"{url}{listener.getsockname()[1]}"


def test_an_address_that_other_machines_reach_needs_a_key(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    with pytest.raises(InvalidInput, match="agentformer keys add") as refused:
        listen("0.0.0.0", 0, keys, backlog=1)
    assert refused.value.field == "host"
    keys.make("office")
    with listen("0.0.0.0", 0, keys, backlog=1) as listener:
        assert url_of(listener).startswith("http://0.0.0.0:")


def test_an_invalid_address_or_port_is_named(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    keys.make("office")
    for host in ("", "nowhere.invalid", "256.1.1.1", "a b", "198.51.100.1"):
        with pytest.raises(InvalidInput, match="is not an address of this machine") as refused:
            listen(host, 0, keys, backlog=1)
        assert refused.value.field == "host"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"127.0.0.1:{port} cannot be used: Address already in use") as refused:
            listen("127.0.0.1", port, keys, backlog=1)
    assert refused.value.field == "port"
