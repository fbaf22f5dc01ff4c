"""Endpoints for embeddings and for the list of models."""

from __future__ import annotations

import base64
from typing import Any

from flask import Response

from agentformer.access.permissions import Grant
from agentformer.api.openai import models
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.embedders.guarded import GuardedEmbedder, token_spans
from agentformer.errors import InvalidInput, NotFound, TextTooLong
from agentformer.factory import AgentFormer
from agentformer.llms.guarded import model_spec
from agentformer.records.offers import vectors_of
from agentformer.types import EmbeddingSpace

DEFAULT = "default"  # instead of the id of a model

router = Router("openai models")


@router.route("POST", "/v1/embeddings", "embeddings", {200: models.Embeddings}, errors=(404, 409, 503), uses_model=True)
def embed(service: Service, grant: Grant, body: models.EmbeddingsRequest) -> Response:
    """Return the vectors of texts, as the embedder of the memory computes them.

    A text that is too long for the model is refused. Each vector has the Euclidean norm 1."""
    embedder = _current(service.af)
    space = embedder.space
    if body.model not in (DEFAULT, _id(space), space.spec):
        raise _no_model(body.model)
    if body.dimensions not in (None, space.dimension):
        raise InvalidInput("dimensions", f"must be {space.dimension} (the dimension of {_id(space)}), or be left out")
    texts = [body.input] if isinstance(body.input, str) else body.input
    try:
        rows = (
            [embedder.embed_query(t) for t in texts] if body.input_type == "query" else embedder.embed_documents(texts)
        )
    except TextTooLong as error:
        raise InvalidInput("input", f"{error}; split the text") from None
    spans = token_spans(embedder)
    tokens = sum(len(spans(text)) for text in texts)
    vectors: list[Any] = [row.astype("<f4") for row in rows]
    if body.encoding_format == "base64":
        vectors = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
    else:
        vectors = [vector.tolist() for vector in vectors]
    data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return reply({"object": "list", "data": data, "model": _id(space), "usage": usage})


@router.route("GET", "/v1/models", "models", {200: models.Models})
def list_models(service: Service, grant: Grant) -> Response:
    """List the embedder of the memory, and the language model if one is configured."""
    return reply({"object": "list", "data": _models(service.af)})


@router.route("GET", "/v1/models/{model}", "models", {200: models.Model})
def retrieve_model(service: Service, grant: Grant, model: str) -> Response:
    """Return the model with this id. `default` is the embedder of the memory."""
    for item in _models(service.af):  # the first is the embedder
        if model in (item["id"], DEFAULT):
            return reply(item)
    raise _no_model(model)


def _current(af: AgentFormer) -> GuardedEmbedder:
    """Return the embedder that the searches of the memory use. Raises `SpaceMismatch` if the memory was opened with
    another embedder, and `EmbedderUnavailable` if the embedder cannot be loaded."""
    active = next((state.space for state in vectors_of(af.backend).spaces() if state.state == "active"), None)
    return af.embedder.for_space(active)


def _models(af: AgentFormer) -> list[dict[str, Any]]:
    embedder = _current(af).space
    listed = [{"id": _id(embedder), "object": "model", "created": 0, "owned_by": embedder.provider}]
    if af.settings.llm_model:
        provider, name = model_spec(af.settings)
        listed.append({"id": name or provider, "object": "model", "created": 0, "owned_by": provider})
    return listed


def _id(space: EmbeddingSpace) -> str:
    """Return the id of an embedding model, `PROVIDER:NAME`. The path of a local model is cut to its last part."""
    name = space.model.replace("\\", "/")
    if name.startswith(("/", "~", ".")) or "\\" in space.model:
        name = name.rstrip("/").rpartition("/")[2]
    return f"{space.provider}:{name}"


def _no_model(name: str) -> NotFound:
    return NotFound(f"there is no model {name:.80}; use `{DEFAULT}`, or an id from GET /v1/models")
