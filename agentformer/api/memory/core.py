"""Endpoints of core memory: named blocks that are always in the context."""

from __future__ import annotations

from typing import Any

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.memory.entries import MEMORY, changed_response, entries_json, entry_response
from agentformer.api.models import ResponseModel, requests
from agentformer.api.models import memory as models
from agentformer.api.operations import Operation, Operations
from agentformer.api.response import reply
from agentformer.factory import AgentFormer

_BLOCKS = f"{MEMORY}/core"
_BLOCK = f"{_BLOCKS}/{{name}}"
_TAG = "core memory"


def add_core_blocks(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoints."""
    _add_read(operations, af)
    _add_append(operations, af)
    _add_replace(operations, af)
    _add_delete(operations, af)


def _add_read(operations: Operations, af: AgentFormer) -> None:
    def operation(path: str, model: type[ResponseModel]) -> Operation:
        query = requests.BlocksQuery
        return Operation(method="GET", path=path, right="read", query=query, returns={200: model}, tag=_TAG)

    @operations.declare(operation(_BLOCKS, models.Blocks))
    def list_blocks(grant: Grant, query: requests.BlocksQuery) -> Response:
        """List the core blocks of an agent and a user, and those without an owner."""
        return reply({"blocks": entries_json(af.memory.core.blocks(**_owner(query, grant)))})

    @operations.declare(operation(_BLOCK, models.Entry))
    def get_block(grant: Grant, query: requests.BlocksQuery, name: str) -> Response:
        """Return a core block of the given agent and user, or one without an owner."""
        return entry_response(af.memory.core.get(name, **_owner(query, grant)))


def _add_append(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{_BLOCK}/append",
            right="write",
            body=requests.BlockAddition,
            returns={200: models.Entry, 204: None},
            errors=(409,),
            uses_model=True,
            tag=_TAG,
            tool="core_memory_append",
        )
    )
    def append(grant: Grant, body: requests.BlockAddition, name: str) -> Response:
        """Append a line to a core block; create the block if it does not exist.

        An existing line is not appended again. 204 for a key without the right to read.
        """
        return changed_response(af.memory.core.append(name, body.text, **_owner(body, grant)), grant)


def _add_replace(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="POST",
            path=f"{_BLOCK}/replace",
            right="write",
            body=requests.BlockReplacement,
            returns={200: models.Entry},
            errors=(409,),
            uses_model=True,
            tag=_TAG,
            tool="core_memory_replace",
        )
    )
    def replace(grant: Grant, body: requests.BlockReplacement, name: str) -> Response:
        """Replace text that occurs exactly once in a core block.

        Also requires the right to read: else the content of a block could be guessed step by step.
        """
        grant.require("read")
        return changed_response(af.memory.core.replace(name, body.old, body.new, **_owner(body, grant)), grant)


def _add_delete(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="DELETE",
            path=_BLOCK,
            right="write",
            query=requests.BlocksQuery,
            returns={204: None},
            tag=_TAG,
            tool="memory_delete",
        )
    )
    def delete_block(grant: Grant, query: requests.BlocksQuery, name: str) -> Response:
        """Delete a core block with its history."""
        af.memory.core.remove(name, **_owner(query, grant))
        return Response(status=204)


def _owner(model: requests.BlockOwner | requests.BlocksQuery, grant: Grant) -> dict[str, Any]:
    return {
        "namespace": grant.namespace(model.namespace),
        "agent_id": model.agent_id,
        "user_id": model.user_id,
    }
