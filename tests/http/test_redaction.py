"""Addresses and messages of servers without secrets."""

from __future__ import annotations

import pytest

from agentformer.errors import InvalidInput
from agentformer.http.redaction import check_url, credentials, redact, redact_url, with_path


def test_an_address_is_shown_without_anything_that_may_be_secret() -> None:
    for url, safe in [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434"),
        ("https://user:pass@host.example/v1?key=abc#part", "https://host.example/v1"),
        ("https://sk-secret@host.example:8443", "https://host.example:8443"),
        ("http://[::1]:1234/v1/", "http://[::1]:1234/v1"),
        ("http://a:b@c@host/x", "http://host/x"),
        ("postgresql:///store?password=abc", "postgresql:///store"),
    ]:
        assert redact_url(url) == safe


def test_an_address_that_cannot_be_read_is_not_repeated() -> None:
    for url in ["http://[::1", "http://host:99999", "http://host:port"]:
        assert redact_url(f"{url}?key=abc") == "an invalid address"


def test_what_is_no_http_address_is_refused_by_the_name_of_its_setting() -> None:
    for url in [
        "",
        "http://host/v1?key=abc",
        "http://host/v1#part",
        "http://host/v1?",
        "http://ho\nst/v1",
        "http://host/v1\x00",
        "localhost:11434",
        "ftp://host",
        "file:///etc/passwd",
        "http://:80",
        "http://host:99999",
        "http://host:0",
        "http://[::1",
    ]:
        with pytest.raises(InvalidInput) as caught:
            check_url("embed_base_url", url)
        assert caught.value.field == "embed_base_url"
        assert not url or url not in str(caught.value)  # it may hold a password


def test_a_good_address_loses_blanks_and_the_last_slash_only() -> None:
    assert check_url("llm_base_url", "  https://host.example/v1/ ") == "https://host.example/v1"
    assert check_url("llm_base_url", "http://host:1") == "http://host:1"


def test_a_path_is_added_where_there_is_none() -> None:
    for url, whole in [
        ("http://host:1", "http://host:1/v1"),
        ("http://host:1/", "http://host:1/v1"),
        ("http://host:1/api", "http://host:1/api"),
        ("http://user:pass@host", "http://user:pass@host/v1"),
    ]:
        assert with_path(url, "/v1") == whole


KEY = "sk-canary-1234567890"
SECRETS = credentials("http://user:p%40ssword@127.0.0.1:9/v1", KEY).secrets


def test_what_is_quoted_is_one_short_line_without_secrets() -> None:
    for said, quoted in [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [key]."),
        ("Incorrect API key provided: sk-cana*********7890.", "Incorrect API key provided: [key]"),
        ("p@ssword and p%40ssword", "[key] and [key]"),
        ("Authorization: Bearer abcdefgh", "Authorization: [key]"),
        ("the key ends in 567890, begins with sk-can", "the key ends in [key], begins with [key]"),
        ("CANARY and nary-1 and nary-12 and @sswo", "CANARY and [key] and [key] and @sswo"),
        ("the pass ssword has 6 characters, p@ssw 5", "the pass [key] has 6 characters, p@ssw 5"),
        ("two\n lines\tand\x00 \x1b[31m more ", "two lines and [31m more"),
        ("a risk-free task-force, sk- and all", "a risk-free task-force, sk- and all"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
    ]:
        assert redact(said, SECRETS) == quoted


def test_a_key_that_the_cut_would_go_through_leaves_no_half() -> None:
    for length in range(150, 201):
        assert "sk-" not in redact("x " * (length // 2) + KEY, SECRETS)


def test_user_and_password_are_sent_unless_there_is_a_key() -> None:
    assert credentials("http://user:p%40ss@h", "").authorization == "Basic dXNlcjpwQHNz"
    assert credentials("http://user:p%40ss@h", " sk-1 ").authorization == "Bearer sk-1"
    assert credentials("http://h", "").authorization == ""
    assert "sk-1" not in repr(credentials("http://user:p%40ss@h", "sk-1"))
