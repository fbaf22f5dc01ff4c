"""Which server is asked for which model, with which key."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentformer.http.openai_client import FirstThatAnswers, Server, answers, candidates

LMSTUDIO, OLLAMA, PROXY = "http://127.0.0.1:1234", "http://127.0.0.1:11434", "https://proxy.example/openai"


def found(model: str = "llama3", **given: str) -> list[tuple[str, str, str]]:
    names = ("explicit_url", "explicit_key", "openai_key", "openai_url", "lmstudio_url", "ollama_url")
    servers = candidates(model, **{**dict.fromkeys(names, ""), **given})
    return [(server.name, server.base_url, server.api_key) for server in servers]


def test_an_explicit_address_is_the_only_one() -> None:
    given = {"explicit_url": "http://10.0.0.7:8000", "lmstudio_url": LMSTUDIO, "openai_key": "sk-o"}
    for model in ("llama3", "gpt-4o"):
        assert found(model, **given) == [("server", "http://10.0.0.7:8000/v1", "")]
        assert found(model, **given, explicit_key="k") == [("server", "http://10.0.0.7:8000/v1", "k")]


def test_openais_key_goes_to_openai_and_its_proxy_only() -> None:
    for url, key in [
        ("https://api.openai.com/v1", "sk-o"),
        ("https://api.openai.com:443", "sk-o"),
        ("https://proxy.example/openai", "sk-o"),
        ("http://api.openai.com/v1", ""),  # unencrypted
        ("https://api.openai.com.evil.example/v1", ""),
        ("https://api.openai.com@evil.example/v1", ""),
        ("https://evil.example/api.openai.com", ""),
    ]:
        assert found(explicit_url=url, openai_key="sk-o", openai_url=PROXY)[0][2] == key


def test_a_model_of_openai_is_asked_for_at_openai() -> None:
    given = {"openai_key": "sk-o", "lmstudio_url": LMSTUDIO, "ollama_url": OLLAMA}
    models = (
        *(
            "gpt-4o",
            "gpt-5-mini",
            "o1",
            "o3-mini",
            "o4-mini",
            "chatgpt-4o-latest",
            "GPT-4o",
            "gpt-3.5-turbo",
            "gpt-4.1",
        ),
        *("text-embedding-3-small", "ft:gpt-4o:me::x", "gpt-10", "O3-mini", "codex-mini-latest"),
        *("text-embedding-ada-002", "davinci-002", "ft:babbage-002:me::x"),
    )
    for model in models:
        assert found(model, **given) == [("openai", "https://api.openai.com/v1", "sk-o")], model
        assert found(model, **given, explicit_key="k") == [("openai", "https://api.openai.com/v1", "k")], model
        assert found(model, **given, openai_url=PROXY) == [("openai", PROXY, "sk-o")], model


def test_any_other_model_is_asked_for_nearby() -> None:
    models = (
        *("gpt-oss:20b", "gpt-oss-120b", "gpt-j-6b", "gpt-neox-20b", "gpt-sw3-1.3b", "gpt2", "gpt-2", "gpt-2-medium"),
        *("llama3", "o", "olmo-2", "o1x", "my-gpt-4o", "nomic", "text-embedding-nomic-v1.5", "davinci-7b"),
    )
    for model in models:
        assert found(model, openai_key="sk-o", openai_url=PROXY, lmstudio_url=LMSTUDIO, ollama_url=OLLAMA) == [
            ("openai", PROXY, "sk-o"),
            ("lmstudio", f"{LMSTUDIO}/v1", ""),
            ("ollama", f"{OLLAMA}/v1", ""),
        ], model
        assert found(model, openai_key="sk-o", ollama_url=OLLAMA) == [("ollama", f"{OLLAMA}/v1", "")], model
        assert found(model) == [], model


def test_a_server_shows_neither_key_nor_password() -> None:
    server = Server("server", "http://user:hunter2@127.0.0.1:9/v1", "sk-canary")
    assert repr(server) == "Server(name='server')"
    assert server.address == "http://127.0.0.1:9/v1"
    assert str(server) == "the server at http://127.0.0.1:9/v1"
    assert str(Server("lmstudio", "http://127.0.0.1:9")) == "LM Studio at http://127.0.0.1:9"


class Count:
    """Says that the named servers answer, and how often it was asked."""

    def __init__(self, *up: str) -> None:
        self.up = set(up)
        self.asked: list[str] = []

    def __call__(self, server: Server) -> bool:
        self.asked.append(server.name)
        return server.name in self.up


ONE, TWO, THREE = (Server(name, f"http://127.0.0.1:{port}/v1") for name, port in (("a", 1), ("b", 2), ("c", 3)))


def test_the_first_that_answers_is_remembered_until_it_is_passed_over() -> None:
    count = Count("b", "c")
    first = FirstThatAnswers([ONE, TWO], count)
    assert (first.has_fallback, first.pick(), first.has_fallback) == (False, TWO, True)
    count.asked.clear()
    first = FirstThatAnswers([ONE, TWO, THREE], count)
    assert [first.pick(), first.pick()] == [TWO, TWO]
    assert count.asked == ["a", "b"]
    count.up = {"a"}
    assert first.pick() == TWO
    assert first.pick(exclude=[TWO]) == ONE
    assert (first.pick(exclude=[TWO]), first.has_fallback) == (ONE, True)
    assert (first.pick(exclude=[ONE, TWO]), first.has_fallback) == (None, False)
    assert count.asked == ["a", "b", "a", "c"]
    assert first.pick() == ONE


def test_a_single_server_is_never_probed() -> None:
    count = Count()
    first = FirstThatAnswers([ONE], count)
    assert first.pick(exclude=[ONE]) is None
    assert (first.pick(), first.has_fallback) == (ONE, False)
    assert count.asked == []


def test_where_none_answers_all_are_named_and_asked_again_next_time() -> None:
    count = Count()
    first = FirstThatAnswers([ONE, TWO], count)
    assert first.pick() is None
    assert first.tried == "the server at http://127.0.0.1:1/v1, the server at http://127.0.0.1:2/v1"
    count.up = {"b"}
    assert first.pick() == TWO
    assert FirstThatAnswers([], count).pick() is None


def test_threads_that_ask_at_once_probe_once() -> None:
    count = Count("b")
    first = FirstThatAnswers([ONE, TWO], count)
    picked: list[Any] = []
    threads = [threading.Thread(target=lambda: picked.append(first.pick())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert picked == [TWO] * 8
    assert count.asked == ["a", "b"]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def place(listener: socket.socket) -> Server:
    return Server("x", f"http://user:hunter2@127.0.0.1:{listener.getsockname()[1]}/v1", "sk-canary")


@pytest.mark.process
@pytest.mark.parametrize("status", [200, 302, 401, 404, 500])
def test_any_status_is_an_answer_and_no_secret_is_sent_or_logged_for_it(
    listener: socket.socket, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    pytest.importorskip("openai", reason="the extra `llm` is not installed")
    heard: list[bytes] = []

    def serve() -> None:
        with listener.accept()[0] as connection:
            heard.append(connection.recv(65536))
            connection.sendall(f"HTTP/1.1 {status} X\r\nLocation: http://127.0.0.1:9/\r\n\r\n".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    assert answers(place(listener)) is True
    thread.join(10)
    assert heard[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"uthorization" not in heard[0] and b"canary" not in heard[0]
    assert "/v1/models" in caplog.text
    assert "hunter2" not in caplog.text and "canary" not in caplog.text


@pytest.mark.process
def test_silence_and_refusal_are_no_answer(listener: socket.socket) -> None:
    pytest.importorskip("openai", reason="the extra `llm` is not installed")
    silent = place(listener)
    assert answers(silent) is False
    listener.close()
    assert answers(silent) is False
