"""Endpoints that look after memories: clean, restore and reindex."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from agentformer.api.bodies import json_object, required
from agentformer.factory import AgentFormer
from agentformer.records import fields
from agentformer.tools.shapes import entry_json, report_json
from agentformer.types import DEFAULT_NAMESPACE, Scope

_SHOWN = 100  # entries that wait, with why


def add_memory_routes(blueprint: Blueprint, memory: AgentFormer) -> None:
    blueprint.add_url_rule("/api/memory/clean", view_func=_clean(memory), methods=["POST"])
    blueprint.add_url_rule("/api/memory/restore", view_func=_restore(memory), methods=["POST"])
    blueprint.add_url_rule("/api/memory/reindex", view_func=_reindex(memory), methods=["POST"])


def _clean(memory: AgentFormer) -> Any:
    def clean() -> Response:
        """JSON `{namespace, session_id}`, both optional: summarise and archive older messages."""
        body = json_object(("namespace", "session_id"), '{"session_id": "..."}')
        namespace = fields.name("namespace", body.get("namespace", DEFAULT_NAMESPACE))
        session_id = fields.optional_name("session_id", body.get("session_id"))
        return jsonify(report_json(memory.memory.clean(namespace=namespace, session_id=session_id)))

    return clean


def _restore(memory: AgentFormer) -> Any:
    def restore() -> Response:
        """JSON `{summary_id}`: bring the originals of a summary back, or a superseded entry."""
        body = json_object(("summary_id",), '{"summary_id": "..."}')
        summary_id = fields.name("summary_id", required(body, "summary_id", "the id of a summary"))
        return jsonify({"entries": [entry_json(entry) for entry in memory.memory.restore(summary_id)]})

    return restore


def _reindex(memory: AgentFormer) -> Any:
    def reindex() -> Response:
        """JSON `{namespace}`, optional: embed what waits, in every namespace, and tell what still waits in this one."""
        body = json_object(("namespace",), '{"namespace": "..."}') if request.get_data() else {}
        namespace = fields.name("namespace", body.get("namespace", DEFAULT_NAMESPACE))
        memory.memory.reindex()
        waiting = memory.backend.waiting(Scope(namespace), limit=_SHOWN)
        return jsonify(
            {"pending": memory.backend.pending(Scope(namespace)), "waiting": [report_json(item) for item in waiting]}
        )

    return reindex
