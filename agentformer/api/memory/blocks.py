"""Endpoints of core memory: named blocks that are always in context."""

from __future__ import annotations

from typing import Any

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.memory.entries import ALL
from agentformer.api.memory.entry_responses import changed, entries_json, shown
from agentformer.api.models import memory as models
from agentformer.api.models import requests
from agentformer.api.operations import Operations, always
from agentformer.api.response import reply
from agentformer.factory import AgentFormer

_BLOCKS = f"{ALL}/core"
_ONE = f"{_BLOCKS}/{{name}}"
_TAG = "core memory"


def add_blocks(operations: Operations, af: AgentFormer) -> None:
    _add_reading(operations, af)
    _add_editing(operations, af)


def _add_reading(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "GET", _BLOCKS, right="read", query=requests.BlocksQuery, returns={200: models.Blocks}, tag=_TAG
    )
    def blocks(grant: Grant, query: requests.BlocksQuery) -> Response:
        """List the core blocks of an agent and a user, and those of no one in particular."""
        return reply({"blocks": entries_json(af.memory.core.blocks(**_owner(query, grant)))})

    @operations.declare("GET", _ONE, right="read", query=requests.BlocksQuery, returns={200: models.Entry}, tag=_TAG)
    def block(grant: Grant, query: requests.BlocksQuery, name: str) -> Response:
        """Read a core block. It belongs to the agent and the user that are given, or to no one."""
        return shown(af.memory.core.get(name, **_owner(query, grant)))


def _add_editing(operations: Operations, af: AgentFormer) -> None:
    core = af.memory.core

    @operations.declare(
        "POST",
        f"{_ONE}/append",
        right="write",
        body=requests.BlockAddition,
        returns={200: models.Entry, 204: None},
        faults=(409,),
        asks=always,
        tag=_TAG,
        tool="core_memory_append",
    )
    def append(grant: Grant, body: requests.BlockAddition, name: str) -> Response:
        """Add a line to a core block, which begins with it if it is not there.

        A line that it has already is not added again. 204 for a key that may not read.
        """
        return changed(core.append(name, body.text, **_owner(body, grant)), grant)

    @operations.declare(
        "POST",
        f"{_ONE}/replace",
        right="write",
        body=requests.BlockReplacement,
        returns={200: models.Entry},
        faults=(409,),
        asks=always,
        tag=_TAG,
        tool="core_memory_replace",
    )
    def replace(grant: Grant, body: requests.BlockReplacement, name: str) -> Response:
        """Put new text where a core block says the old one, which must be there once.

        Needs the right to read too, or what a block says could be guessed piece by piece.
        """
        grant.require("read")
        return changed(core.replace(name, body.old, body.new, **_owner(body, grant)), grant)

    @operations.declare(
        "DELETE",
        _ONE,
        right="write",
        query=requests.BlocksQuery,
        returns={204: None},
        tag=_TAG,
        tool="memory_delete",
    )
    def remove(grant: Grant, query: requests.BlocksQuery, name: str) -> Response:
        """Delete a core block, with its history."""
        core.remove(name, **_owner(query, grant))
        return Response(status=204)


def _owner(asked_for: requests.BlockOwner | requests.BlocksQuery, grant: Grant) -> dict[str, Any]:
    return {
        "namespace": grant.namespace(asked_for.namespace),
        "agent_id": asked_for.agent_id,
        "user_id": asked_for.user_id,
    }
