"""A field of an answer is written once, at its type, and every door shows it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer import connect, types
from agentformer.api.app import close_app, create_app
from agentformer.api.models import documents as models
from agentformer.api.models import fields_of
from agentformer.cli.commands import main
from agentformer.rag.documents import Document
from agentformer.settings import load_settings
from agentformer.tools.rag_tool import RAGTool
from agentformer.tools.result_json import ON_SERVER, answer_json
from agentformer.types import Shown
from tests.edges.doors import PythonDoor, options

QUESTION = "Who keeps the keys?"


@dataclasses.dataclass(frozen=True, slots=True)
class Signed(types.Answer):
    """An answer with one more field."""

    model: Annotated[str, Shown("The model that wrote the answer.")] = "echo"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A memory with a document, whose answers have the additional field."""
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.rag.upload(b"The caretaker keeps the keys.", name="keys.txt")
    query = RAGTool.query

    def signed(tool: RAGTool, question: str, **arguments: Any) -> types.Answer:
        answer = query(tool, question, **arguments)
        return Signed(**{field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)})

    monkeypatch.setattr(RAGTool, "query", signed)
    yield tmp_path


def asked_by_tool(folder: Path, stack: ExitStack) -> dict[str, Any]:
    return PythonDoor(folder, stack).call("rag_query", {"question": QUESTION}, "owner").value


def asked_by_http(folder: Path, stack: ExitStack) -> dict[str, Any]:
    app = create_app(load_settings({"index_dir": folder / "i", "upload_dir": folder / "u", "embedder": "hashing"}))
    stack.callback(close_app, app)
    answer: dict[str, Any] = app.test_client().post("/api/rag/query", json={"question": QUESTION}).get_json()
    return answer


def asked_by_command(folder: Path, stack: ExitStack) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["ask", QUESTION, "--json", *options(folder), "--embedder", "hashing"])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("ask", [asked_by_tool, asked_by_http, asked_by_command])
def test_a_new_field_of_an_answer_is_shown_by_each_door(folder: Path, ask: Any) -> None:
    with ExitStack() as stack:
        answer = ask(folder, stack)
    assert answer["model"] == "echo"
    assert "caretaker" in answer["answer"]


def test_the_http_document_describes_a_new_field_as_its_type_does() -> None:
    schema = fields_of(Signed, citations=list[models.Citation], hits=list[models.Hit]).model_json_schema()
    assert schema["properties"]["model"] == {
        "description": "The model that wrote the answer.",
        "title": "Model",
        "type": "string",
    }
    assert "model" in schema["required"]


def test_the_models_have_the_fields_of_the_types() -> None:
    answer = answer_json(types.Answer("", "none"))
    assert models.Answer.model_fields.keys() == answer.keys()
    shown = {field.name for field in dataclasses.fields(Document)} - {*ON_SERVER}
    assert models.Document.model_fields.keys() == shown | {"url"}
    assert models.Citation.model_fields.keys() == {field.name for field in dataclasses.fields(types.Citation)}
