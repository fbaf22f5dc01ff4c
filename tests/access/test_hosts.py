"""Names of hosts and origins, as browsers write them."""

from __future__ import annotations

from agentformer.access.hosts import host_of, is_local, origin_host


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
