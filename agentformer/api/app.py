"""The Flask application: documents, questions, the upkeep of memories, metrics, and whether the process is alive."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from flask import Blueprint, Flask, Response, json, jsonify, request
from werkzeug.datastructures import FileStorage

from agentformer.api.memory import add_memory_routes
from agentformer.api.metrics import add_metrics_route
from agentformer.api.problems import handle_errors
from agentformer.api.questions import add_question_routes
from agentformer.api.status import add_status_route
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.settings import Settings
from agentformer.tools.shapes import document_json
from agentformer.types import DEFAULT_NAMESPACE

_FORM_BYTES = 1024 * 1024  # of a multipart body beside its files: names, metadata, borders


def create_app(settings: Settings) -> Flask:
    """An application that serves one memory. Its `extensions["agentformer"]` is the opened `AgentFormer`."""
    app = Flask("agentformer")
    app.config["MAX_CONTENT_LENGTH"] = settings.max_file_bytes + _FORM_BYTES
    init_app(app, AgentFormer(settings))
    handle_errors(app)  # unknown paths too: this application is all ours
    return app


def init_app(app: Flask, memory: AgentFormer, *, url_prefix: str = "") -> None:
    """Mount the endpoints on an application that exists already, below `url_prefix`. The application's own
    pages and error handlers stay as they are."""
    name = "agentformer" + url_prefix.replace("/", "_").replace(".", "_")
    blueprint = Blueprint(name, __name__, url_prefix=url_prefix or None)
    blueprint.add_url_rule("/api/rag/upload", view_func=_upload(memory), methods=["POST"])
    add_question_routes(blueprint, memory)
    add_memory_routes(blueprint, memory)
    add_metrics_route(blueprint, memory)
    add_status_route(blueprint, memory)
    blueprint.add_url_rule("/healthz", view_func=_healthz)
    handle_errors(blueprint)
    app.register_blueprint(blueprint)
    app.extensions["agentformer"] = memory


def _upload(memory: AgentFormer) -> Any:
    def upload() -> tuple[Response, int]:
        """Multipart with one or more `file` parts; `namespace`, `metadata` (JSON object), `password`."""
        files = request.files.getlist("file")
        if not files:
            raise InvalidInput("file", "is missing; send multipart/form-data with one or more parts named 'file'")
        namespace = request.form.get("namespace") or DEFAULT_NAMESPACE
        metadata = _object("metadata", request.form.get("metadata"))
        password = request.form.get("password")
        documents = [_upload_one(memory, file, namespace, metadata, password) for file in files]
        usable = any(document["status"] in ("ready", "pending") for document in documents)
        return jsonify({"documents": documents}), 201 if usable else 422

    return upload


def _upload_one(
    memory: AgentFormer, file: FileStorage, namespace: str, metadata: dict[str, Any], password: str | None
) -> dict[str, Any]:
    """One file's outcome; what is wrong with it does not stop the others."""
    try:
        name = PurePosixPath((file.filename or "").replace("\\", "/")).name
        document = memory.rag.upload(
            file.stream.read(), name=name, namespace=namespace, metadata=metadata, password=password
        )
    except InvalidInput as error:
        return {"name": file.filename, "status": "failed", "reason": str(error), "field": error.field}
    return document_json(document)


def _healthz() -> Response:
    return jsonify({"status": "ok"})


def _object(field: str, text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(field, "must be a JSON object")
    return value


def close_app(app: Flask) -> None:
    """Close the memory that `create_app` opened."""
    memory = app.extensions.get("agentformer")
    if isinstance(memory, AgentFormer):
        memory.close()
