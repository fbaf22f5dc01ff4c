"""Traces: the spans of operations, their parents from HTTP and MCP, and that they have no text unless it is allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.agent import Agent
from agentformer.http import tracing
from agentformer.http.openai_client import Server as ModelServer
from agentformer.llms.forwarding import ChatForwarder
from agentformer.settings import load_settings
from agentformer.types import ToolCall

pytestmark = pytest.mark.process
CANARY = "quokka"
KEY = "sk-canary0987654321abcdef"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    tracing.disable()


def opened(folder: Path, **settings: Any) -> agentformer.AgentFormer:
    options = {"embedder": "hashing", "traces": "on", "llm_model": "echo:parrot", **settings}
    return agentformer.connect(index_dir=folder / "indexes", upload_dir=folder / "uploads", **options)


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in reversed(spans.get_finished_spans()) if span.name == name)


def ancestors(spans: InMemorySpanExporter, span: ReadableSpan) -> list[str]:
    """The names of the spans above a span, nearest first."""
    by_id = {each.context.span_id: each for each in spans.get_finished_spans() if each.context}
    names = []
    while span.parent is not None and (above := by_id.get(span.parent.span_id)) is not None:
        names.append(above.name)
        span = above
    return names


def everything(spans: InMemorySpanExporter) -> str:
    return "\n".join(span.to_json() for span in spans.get_finished_spans())


def use(af: agentformer.AgentFormer, folder: Path) -> None:
    """Call operations of each kind with a text and a key that no span may show."""
    (folder / f"{CANARY}.txt").write_text(f"The {CANARY} sleeps in the harbour. Its token is {KEY}.")
    af.rag.upload(folder / f"{CANARY}.txt")
    entry = af.memory.store(f"The {CANARY} is called Aino.", title=CANARY, metadata={CANARY: CANARY})
    af.memory.add_message("monday", "user", f"My {CANARY} lives in Vaasa.")
    af.memory.search(CANARY)
    af.rag.query(f"Where does the {CANARY} sleep?")
    [*af.rag.stream(f"Where does the {CANARY} sleep?")]
    af.memory.core.append("persona", f"You know the {CANARY}.")
    af.memory.learn()
    af.toolbox.run(ToolCall("1", "memory_search", {"query": CANARY}))
    af.toolbox.run(ToolCall("2", CANARY, {}))
    Agent(af).turn(f"Hello {CANARY}, my key is {KEY}.", session_id="monday")
    for wrong in (lambda: af.memory.get(CANARY), lambda: af.memory.store(CANARY, tier=CANARY)):
        with pytest.raises(agentformer.AgentFormerError):
            wrong()
    af.memory.remove(entry.id)


def test_spans_have_names_counts_and_parents_and_no_text(
    spans: InMemorySpanExporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="agentformer")
    with opened(tmp_path) as af:
        use(af, tmp_path)
    names = {span.name for span in spans.get_finished_spans()}
    assert names >= {
        *("memory.store", "memory.search", "memory.learn", "memory.remove", "core.append", "rag.upload", "rag.query"),
        *("rag.stream", "retrieval", "search.analysis", "search.words", "search.vectors", "search.ranking"),
        *(
            "search.step salience",
            "search.step limit",
            "embeddings 256",
            "chat parrot",
            "execute_tool memory_search",
        ),
        "invoke_agent agentformer",
    }
    retrieval = named(spans, "retrieval")
    assert retrieval.attributes is not None
    assert retrieval.attributes["gen_ai.operation.name"] == "retrieval"
    assert retrieval.attributes["db.response.returned_rows"] >= 1  # type: ignore[operator]
    words = [span for span in spans.get_finished_spans() if span.name == "search.words"]
    assert all("retrieval" in ancestors(spans, span) for span in words)  # also those of the helper thread
    embeddings = [span for span in spans.get_finished_spans() if span.name == "embeddings 256"]
    assert any("retrieval" in ancestors(spans, span) for span in embeddings)
    chats = [span for span in spans.get_finished_spans() if span.name == "chat parrot"]
    above = {name for span in chats for name in ancestors(spans, span)}
    assert {"rag.query", "rag.stream", "invoke_agent agentformer"} <= above
    attributes = chats[-1].attributes or {}
    assert (attributes["gen_ai.provider.name"], attributes["gen_ai.request.model"]) == ("echo", "parrot")
    assert attributes["gen_ai.usage.input_tokens"] > 0  # type: ignore[operator]
    failed = [span for span in spans.get_finished_spans() if not span.status.is_ok]
    assert {(span.attributes or {})["error.type"] for span in failed} >= {"NotFound", "InvalidInput"}
    shown = everything(spans)
    assert CANARY not in shown and KEY not in shown and "Aino" not in shown
    assert CANARY not in caplog.text and KEY not in caplog.text


def test_texts_are_in_spans_if_a_setting_allows_it_and_keys_are_not(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    with opened(tmp_path, traces="texts") as af:
        use(af, tmp_path)
    found = [(span.attributes or {}).get("gen_ai.retrieval.query.text") for span in spans.get_finished_spans()]
    assert CANARY in found
    shown = everything(spans)
    assert f"Where does the {CANARY} sleep?" in shown and KEY not in shown


def test_a_request_over_http_continues_the_trace_of_its_client(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    pytest.importorskip("flask", reason="the extra `server` is not installed")
    from agentformer.api import create_app
    from agentformer.api.app import close_app

    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    _, key = KeyStore(tmp_path / "i").make("office", ("read", "write"))
    app = create_app(load_settings({**folders, "embedder": "hashing", "traces": "on"}))
    try:
        client, headers = app.test_client(), {"traceparent": PARENT, "Authorization": f"Bearer {key}"}
        answer = client.post("/api/memory", json={"content": f"The {CANARY} sleeps."}, headers=headers)
        assert answer.status_code == 201
        stream = {"question": f"Who is the {CANARY}?", "stream": True, "sources": ["memories"]}
        assert "event: answer" in client.post("/api/rag/query", json=stream, headers=headers).text
        assert client.get(f"/api/memory/{CANARY}", headers=headers).status_code == 404
        assert client.post("/api/memory", json={}, headers={"traceparent": f"00-{CANARY}-x"}).status_code == 401
    finally:
        close_app(app)
    server = named(spans, "POST /api/rag/query")
    assert server.parent is not None and f"{server.parent.span_id:x}" == "b7ad6b7169203331"
    assert "POST /api/rag/query" in ancestors(spans, named(spans, "retrieval"))
    (stored,) = [span for span in spans.get_finished_spans() if span.name == "POST /api/memory" and span.parent]
    assert (stored.attributes or {})["http.response.status_code"] == 201
    assert f"{stored.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"  # type: ignore[union-attr]
    assert (named(spans, "GET /api/memory/{entry_id}").attributes or {})["error.type"] == "NotFound"
    shown = everything(spans)
    assert CANARY not in shown and key not in shown


def test_a_call_over_mcp_continues_the_trace_in_its_metadata(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    import anyio
    from mcp import Client

    from agentformer.mcp_server.server import LazyMemory, MemoryServer
    from agentformer.tools.caller import Caller

    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    memory = LazyMemory(load_settings({**folders, "embedder": "hashing", "traces": "on"}))

    async def talk() -> Any:
        async with Client(MemoryServer(memory, Caller(), 2).build()) as client:
            meta: Any = {"traceparent": PARENT}
            return await client.call_tool("memory_add", {"content": f"The {CANARY} sleeps."}, meta=meta)

    try:
        assert not anyio.run(talk).is_error
    finally:
        memory.close()
    stored = named(spans, "memory.store")
    assert "execute_tool memory_add" in ancestors(spans, stored)
    assert f"{stored.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"  # type: ignore[union-attr]
    assert CANARY not in everything(spans)


def test_a_stream_that_its_reader_leaves_ends_its_spans_and_is_not_the_present_span(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    with opened(tmp_path) as af:
        (tmp_path / "crane.txt").write_text("The crane is blue. The crane stands at the pier.")
        af.rag.upload(tmp_path / "crane.txt")
        pieces = af.rag.stream("What colour is the crane?")
        next(pieces)
        assert not trace.get_current_span().get_span_context().is_valid
        pieces.close()
    assert named(spans, "rag.stream").status.is_ok
    assert "rag.stream" in ancestors(spans, named(spans, "chat parrot"))


def test_a_forwarded_chat_has_a_span(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the extra `llm` is not installed")
    from tests.edges.talking import Talker

    tracing.enable()
    talker = Talker()
    try:
        forwarder = ChatForwarder((ModelServer("openai", talker.url, KEY),), "tiny", load_settings({}))
        forwarder.send({"messages": [{"role": "user", "content": CANARY}]}, stream=False)
    finally:
        talker.close()
    assert (named(spans, "chat tiny").attributes or {})["http.response.status_code"] == 200
    assert CANARY not in everything(spans) and KEY not in everything(spans)


def test_without_the_setting_there_is_no_span_and_no_import(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    with opened(tmp_path, traces="off") as af:
        af.memory.store("It rains.")
        assert af.memory.search("rain") and "store" not in vars(af.memory)
    assert spans.get_finished_spans() == ()
    assert tracing.span("one") is tracing.model_span("chat", "echo", "parrot", {})
    code = (
        f"import sys, json, agentformer; af = agentformer.connect(index_dir={str(tmp_path / 'x')!r}, llm_model='', "
        "embedder='hashing'); af.memory.store('It rains.'); af.close(); print(json.dumps([*sys.modules]))"
    )
    modules = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not [name for name in modules if name.startswith("opentelemetry")]
