"""Names of hosts and origins, as browsers write them."""

from __future__ import annotations

import pytest

from agentformer.access.hosts import host_of, hosts_in, is_local, origin_host, origins_in
from agentformer.errors import InvalidInput


def test_hosts_and_origins_are_parsed_as_browsers_write_them() -> None:
    assert (host_of("[2001:DB8::1]:80").name, host_of("[2001:DB8::1]:80").literal) == ("2001:db8::1", True)
    assert (host_of("Example.ORG.").name, host_of("example.org").literal) == ("example.org", False)
    assert [is_local(name) for name in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "0.0.0.0", None, "")] == [
        *(True, True, True),
        *(False, False, False, False),
    ]
    assert origin_host("http://[::1]:8808") == "[::1]:8808"
    assert origin_host("http://[::1") == ""
    assert [host_of(host).name for host in ("localhost:", "127.0.0.1:", "[::1]:", "localhost::", ":")] == [
        *("localhost", "127.0.0.1", "::1"),
        *("", ""),
    ]
    assert origin_host("https://example.org:") == ""  # no browser writes it so


def test_every_form_of_a_loopback_address_is_local_and_no_other() -> None:
    for name in ("127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"):
        assert is_local(name), name
    for name in ("126.255.255.255", "128.0.0.1", "::2", "::ffff:10.0.0.1", "localhost.example.org", "Localhost"):
        assert not is_local(name), name


def test_a_port_has_at_most_five_digits() -> None:
    assert (host_of("localhost:65535").name, host_of("localhost:123456").name) == ("localhost", "")
    assert (host_of(None).name, host_of("a b").name, host_of("a@b").name) == ("", "", "")


def test_settings_of_hosts_and_origins_are_lists_of_names() -> None:
    assert hosts_in("Memory.example.org, [::1] 10.0.0.1") == {"memory.example.org", "::1", "10.0.0.1"}
    assert hosts_in("") == origins_in("") == frozenset()
    for wrong in ("http://a.org", "a.org:80", "*", "-a.org", "a..org"):
        with pytest.raises(InvalidInput) as refused:
            hosts_in(f"good.org {wrong}")
        assert refused.value.field == "allowed_hosts", wrong
    assert origins_in("https://App.example.org/, http://[::1]:8808") == {"https://app.example.org", "http://[::1]:8808"}
    for wrong in ("*", "app.example.org", "https://app.example.org/page", "https://user@a.org", "null"):
        with pytest.raises(InvalidInput) as refused:
            origins_in(f"https://good.org {wrong}")
        assert refused.value.field == "cors_origins", wrong
