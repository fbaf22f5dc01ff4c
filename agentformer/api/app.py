"""The Flask application, and the extension that adds its endpoints to an existing application."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from flask import Blueprint, Flask

from agentformer.access.grant import Grant
from agentformer.api.auth import Guard
from agentformer.api.docs_page import add_docs_page
from agentformer.api.documents import add_documents, add_questions
from agentformer.api.health import add_health
from agentformer.api.jobs import add_jobs
from agentformer.api.memory.core import add_core_blocks
from agentformer.api.memory.entries import add_entries
from agentformer.api.memory.search import add_maintenance, add_search
from agentformer.api.metrics import add_metrics
from agentformer.api.openapi import add_openapi
from agentformer.api.operations import Operations, ThreadLimit
from agentformer.api.response import handle_errors
from agentformer.api.tools import add_tools
from agentformer.api.uploads import add_uploads, upload_jobs
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.jobs.queue import Jobs
from agentformer.settings import Settings

_NAME = "agentformer"
_MOUNTED = "agentformer.mounted"


@dataclass(frozen=True, slots=True)
class _Mounted:
    memory: AgentFormer
    jobs: Jobs


def create_app(settings: Settings) -> Flask:
    """Return an application that serves one memory; `extensions["agentformer"]` is the opened `AgentFormer`.

    Raises the errors of opening the memory, and `InvalidInput` for settings with invalid hosts or origins.
    """
    app = Flask(_NAME, static_folder=None)
    memory = AgentFormer(settings)
    try:
        _mount(app, memory, Guard(memory), "", whole=True)
    except BaseException:
        memory.close()
        raise
    return app


def init_app(
    app: Flask, memory: AgentFormer, *, url_prefix: str = "", authorize: Callable[[], Grant] | None = None
) -> None:
    """Add the endpoints to an existing application, below `url_prefix`. The pages and error handlers of the application
    stay.

    With `authorize`, the application authenticates requests: `authorize` is called for each request and raises
    `Unauthenticated`. Without `authorize`, requests need the keys of the memory. Raises `InvalidInput`.
    """
    _mount(app, memory, Guard(memory, authorize=authorize), _checked_prefix(url_prefix), whole=False)


def stop_jobs(app: Flask) -> None:
    """Interrupt running jobs and end the streams that follow them, without waiting. A server calls this before it waits
    for its last requests."""
    for mounted in app.extensions.get(_MOUNTED, ()):
        mounted.jobs.stop()


def close_app(app: Flask) -> None:
    """Stop the jobs of every mounted memory, and close it. Unfinished jobs continue after the next start."""
    for mounted in app.extensions.get(_MOUNTED, ()):
        mounted.jobs.close()
        mounted.memory.close()


def _mount(app: Flask, memory: AgentFormer, guard: Guard, prefix: str, *, whole: bool) -> None:
    """Add the endpoints. If `whole` is true, the application has no other pages, so checks and errors also apply to
    unknown paths."""
    blueprint = Blueprint(_NAME + prefix.replace(".", "_"), __name__, url_prefix=prefix or None)
    jobs = upload_jobs(memory.ready())
    try:
        threads = ThreadLimit(memory.settings.threads - 1 if whole else sys.maxsize)  # a host limits its own threads
        _declare(Operations(blueprint, guard.authorize, threads), memory, jobs, prefix)
        handle_errors(app if whole else blueprint)
        guard.protect(app if whole else blueprint)
        app.register_blueprint(blueprint)
    except BaseException:
        jobs.close()
        raise
    app.extensions[_NAME] = memory
    app.extensions.setdefault(_MOUNTED, []).append(_Mounted(memory, jobs))


def _declare(operations: Operations, memory: AgentFormer, jobs: Jobs, prefix: str) -> None:
    """Declare every endpoint, in the order of the OpenAPI document."""
    add_uploads(operations, memory, jobs)
    add_questions(operations, memory)
    add_documents(operations, memory)
    add_jobs(operations, memory, jobs)
    add_entries(operations, memory)
    add_search(operations, memory)
    add_core_blocks(operations, memory)
    add_maintenance(operations, memory)
    add_tools(operations, memory)
    add_health(operations, memory)
    add_metrics(operations, memory)
    add_docs_page(operations, add_openapi(operations, prefix))
    operations.complete()


def _checked_prefix(prefix: str) -> str:
    """Return a prefix without its last slash. Raises `InvalidInput`."""
    if prefix.strip("/") and (not prefix.startswith("/") or "<" in prefix):
        raise InvalidInput("url_prefix", f"must be a path such as /memory, got {prefix[:80]!r}")
    return prefix.rstrip("/")
