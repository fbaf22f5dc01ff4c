from __future__ import annotations

import pytest

from agentformer.errors import InvalidInput
from agentformer.http.redaction import checked, shown, with_path


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434"),
        ("https://user:pass@host.example/v1?key=abc#part", "https://host.example/v1"),
        ("https://sk-secret@host.example:8443", "https://host.example:8443"),
        ("http://[::1]:1234/v1/", "http://[::1]:1234/v1"),
        ("http://a:b@c@host/x", "http://host/x"),
    ],
)
def test_an_address_is_shown_without_anything_that_may_be_secret(url: str, safe: str) -> None:
    assert shown(url) == safe


@pytest.mark.parametrize("url", ["http://[::1", "http://host:99999", "http://host:port"])
def test_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    assert shown(f"{url}?key=abc") == "an address that is not valid"


@pytest.mark.parametrize(
    "url",
    [
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
        "http://[::1",
    ],
)
def test_what_is_no_http_address_is_refused_by_the_name_of_its_setting(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked("embed_base_url", url)
    assert caught.value.field == "embed_base_url"
    assert not url or url not in str(caught.value)  # it may hold a password


def test_a_good_address_loses_blanks_and_the_last_slash_only() -> None:
    assert checked("llm_base_url", "  https://host.example/v1/ ") == "https://host.example/v1"


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://host:1", "http://host:1/v1"),
        ("http://host:1/", "http://host:1/v1"),
        ("http://host:1/api", "http://host:1/api"),
        ("http://user:pass@host", "http://user:pass@host/v1"),
    ],
)
def test_a_path_is_added_where_there_is_none(url: str, whole: str) -> None:
    assert with_path(url, "/v1") == whole
