"""`GET /api/status`: counts, embedding spaces, and what the providers were asked, with their last errors."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify

from agentformer.factory import AgentFormer


def add_status_route(blueprint: Blueprint, memory: AgentFormer) -> None:
    blueprint.add_url_rule("/api/status", view_func=_status(memory))


def _status(memory: AgentFormer) -> Any:
    def status() -> Response:
        """What `agentformer status --json` prints, of the serving process."""
        return jsonify(memory.status())

    return status
