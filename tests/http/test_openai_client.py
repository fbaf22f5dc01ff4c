"""The meaning of the client's errors. The limits are tested in tests/llms, over sockets."""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

import openai

from agentformer.errors import InvalidInput, MissingExtra
from agentformer.http.client import open_http
from agentformer.http.openai_client import Server, explain, open_client
from agentformer.http.retry_policy import OverLimit, Policy

pytestmark = pytest.mark.process

KEY = "sk-canary-1234567890"
SERVER = Server("ollama", "http://user:p%40ssword@127.0.0.1:9/v1", KEY)
URL = "http://127.0.0.1:9/v1"


def test_a_client_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "sk-of-somebody")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8/v1")
    with open_client(SERVER, Policy(1, retries=0)) as client:
        assert str(client.base_url) == f"{URL}/"
        held = [client.api_key, client.admin_api_key, client.webhook_secret]
        assert not {"sk-of-somebody", KEY} & set(held)
        assert client.max_retries == 0  # the HTTP client retries


def test_a_key_that_is_no_header_is_refused_unquoted() -> None:
    for key in ["sk canary", "sk-can\näry", "sk-canäry"]:
        with pytest.raises(InvalidInput) as caught:
            open_client(Server("x", URL, key), Policy(1, retries=0))
        assert "can" not in str(caught.value).replace("spaces", "")


def test_an_address_with_a_query_is_refused_since_it_would_be_logged() -> None:
    with pytest.raises(InvalidInput, match="query") as caught:
        open_client(Server("x", f"{URL}?key={KEY}"), Policy(1, retries=0))
    assert KEY not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"\[llm\]"):
        open_client(SERVER, Policy(1, retries=0))


def test_a_refused_connection_says_where_and_which_setting() -> None:
    with open_client(SERVER, Policy(1, retries=0)) as client, pytest.raises(openai.OpenAIError) as caught:
        client.models.list()
    for settings in ("llm", "embed"):
        failure = explain(caught.value, SERVER, "tiny", settings=settings)
        assert (failure.kind, failure.status) == ("unavailable", 0)
        assert failure.message.startswith(f"Ollama is not reachable for model 'tiny' ({URL}): ")
        assert f"AGENTFORMER_{settings.upper()}_BASE_URL" in failure.message


def test_each_answer_on_a_connection_has_limits_of_its_own() -> None:
    accepted: list[Any] = []
    gone = threading.Event()

    def serve() -> None:
        with listener.accept()[0] as connection:
            accepted.append(connection)
            for _ in range(6):
                connection.recv(65536)
                gone.wait(0.6)  # six of these are longer than one answer may take
                body = b'{"data": []}' + b" " * 600_000  # and two of these larger than it may be
                kind = b"Content-Type: application/json"
                connection.sendall(b"HTTP/1.1 200 OK\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body))
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not gone.wait(0.1):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        http = open_http(Policy(5, 3, max_bytes=1_000_000))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            assert [http.get(url).status_code for _ in range(6)] == [200] * 6
            with pytest.raises(OverLimit, match=r"did not finish its response within 3 s"):
                http.get(url)
        finally:
            gone.set()
            http.close()
            thread.join(10)
    assert len(accepted) == 1


BATCH = "input (1779 tokens) is too large to process. increase the physical batch size (current batch size: 512)"


class Status(Exception):
    """As the package's errors look."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__(f"{status} {body} {KEY}")
        self.status_code, self.body = status, body


def test_a_status_and_a_body_have_one_meaning() -> None:
    for status, body, kind, detail in [
        (401, {"message": "who?"}, "unavailable", ""),
        (403, {"error": {"message": "the context length of a key"}}, "unavailable", ""),
        (404, {"error": "model 'tiny' not found"}, "unavailable", "model 'tiny' not found"),
        (404, None, "unavailable", ""),
        (400, {"message": "maximum context length is 8"}, "too_long", "maximum context length is 8"),
        (500, {"message": "input is too large to process"}, "too_long", "input is too large to process"),
        (500, {"message": BATCH}, "too_long", BATCH),
        (413, "", "too_long", ""),
        (429, {"message": "too many tokens per min"}, "unavailable", "too many tokens per min"),
        (408, None, "timeout", ""),
        (504, {"error": "too slow"}, "timeout", "too slow"),
        (500, {"message": "boom"}, "unavailable", "boom"),
        (503, "<html>down</html>", "unavailable", ""),
        (501, {"detail": "no tools here"}, "rejected", "no tools here"),
        (422, {"detail": [{"loc": ["body", "n"]}]}, "rejected", "[{'loc': ['body', 'n']}]"),
        (400, KEY, "rejected", "[key]"),
        (307, None, "unavailable", ""),
    ]:
        failure = explain(Status(status, body), SERVER, "tiny")
        assert (failure.kind, failure.status, failure.detail) == (kind, status, detail)
        assert failure.message.startswith(f"Ollama returned HTTP {status} for model 'tiny' ({URL})")
        assert KEY not in failure.message


def test_a_message_about_a_key_is_not_quoted() -> None:
    for status in [401, 403]:
        failure = explain(Status(status, {"message": "the key gw-of-another-1234 is wrong"}), SERVER, "tiny")
        assert "gw-" not in failure.message
        assert "check the key (AGENTFORMER_LLM_API_KEY" in failure.message


def test_a_limit_of_time_names_the_setting_that_raises_it_and_another_limit_none() -> None:
    slow, silent, large = (
        OverLimit("did not finish", "seconds"),
        OverLimit("sent nothing", "timeout"),
        OverLimit("ran"),
    )
    for settings in ("llm", "embed"):
        failures = [
            explain(error, SERVER, "tiny", settings=settings, seconds="stream_seconds")
            for error in (slow, silent, large)
        ]
        messages = [failure.message for failure in failures]
        prefix = f"AGENTFORMER_{settings.upper()}"
        assert messages[0].endswith(f"raise {prefix}_STREAM_SECONDS")
        assert messages[1].endswith(f"raise {prefix}_TIMEOUT")
        assert messages[2].endswith("check the server")
        assert [failure.kind for failure in failures] == ["timeout", "timeout", "unavailable"]
        assert [(failure.status, failure.detail) for failure in failures] == [
            (0, "did not finish"),
            (0, "sent nothing"),
            (0, "ran"),
        ]
    assert explain(slow, SERVER, "tiny").message.endswith("AGENTFORMER_LLM_TIMEOUT")


def test_the_first_cause_is_quoted_even_if_the_causes_form_a_cycle() -> None:
    first, middle, last = OSError(5, "no route"), ValueError("middle"), OSError("last")
    last.__cause__, middle.__cause__ = middle, first
    assert "not reachable for model 'tiny' (http://127.0.0.1:9/v1): no route; " in explain(last, SERVER, "tiny").message
    first.__cause__ = last
    assert "no route" in explain(last, SERVER, "tiny").message


def test_a_redirect_is_named_and_a_message_is_cut_after_200_characters() -> None:
    for status in (299, 300, 399, 400):
        assert ("a redirect" in explain(Status(status, None), SERVER, "tiny").message) == (status in (300, 399))
    for length, quoted in ((200, ': "' + "x" * 200 + '"'), (201, ': "' + "x" * 199 + '…"')):
        assert quoted in explain(Status(501, "x" * length), SERVER, "tiny").message


def test_any_other_exception_means_that_the_response_is_not_of_the_protocol() -> None:
    failure = explain(AttributeError(f"no choices in {KEY}"), SERVER, "tiny")
    assert failure.kind == "unavailable"
    assert "does not follow the OpenAI protocol (AttributeError)" in failure.message and KEY not in failure.message
