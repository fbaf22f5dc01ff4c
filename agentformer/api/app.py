"""The Flask application, and the extension by which one that exists already mounts the same endpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from flask import Blueprint, Flask

from agentformer.access.grant import Grant
from agentformer.api.auth import Guard
from agentformer.api.docs_page import add_docs_page
from agentformer.api.documents import add_documents
from agentformer.api.health import add_health
from agentformer.api.jobs import add_jobs
from agentformer.api.memory import add_memory
from agentformer.api.openapi import add_openapi
from agentformer.api.operations import Operations
from agentformer.api.problems import handle_errors
from agentformer.api.questions import add_questions
from agentformer.api.thread_limit import ThreadLimit
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
    """An application that serves one memory. Its `extensions["agentformer"]` is the opened `AgentFormer`. Raises what
    opening a memory raises, and `InvalidInput` for settings that name no hosts or origins."""
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
    """Mount the endpoints on an application that exists already, below `url_prefix`. The application's own pages and
    error handlers stay as they are.

    With `authorize` the application decides who asks: it is called for each request, and raises `Unauthenticated`.
    Without it, the keys of the memory decide. Raises `InvalidInput`.
    """
    _mount(app, memory, Guard(memory, authorize=authorize), _checked(url_prefix), whole=False)


def stop_jobs(app: Flask) -> None:
    """Break running jobs off, and end the streams that follow them; does not wait. For a server that is told to end,
    before it waits for its last requests."""
    for mounted in app.extensions.get(_MOUNTED, ()):
        mounted.jobs.stop()


def close_app(app: Flask) -> None:
    """Stop the jobs of every memory that is mounted, and close it. What has not ended goes on with the next start."""
    for mounted in app.extensions.get(_MOUNTED, ()):
        mounted.jobs.close()
        mounted.memory.close()


def _mount(app: Flask, memory: AgentFormer, guard: Guard, prefix: str, *, whole: bool) -> None:
    """`whole`: the application is all ours, so that unknown paths are answered like everything else."""
    blueprint = Blueprint(_NAME + prefix.replace(".", "_"), __name__, url_prefix=prefix or None)
    jobs = upload_jobs(memory.ready())
    try:
        room = ThreadLimit(memory.settings.threads - 1 if whole else sys.maxsize)  # a host has threads of its own
        _declare(Operations(blueprint, guard.authorize, room), memory, jobs, prefix)
        handle_errors(app if whole else blueprint)
        guard.protect(app if whole else blueprint)
        app.register_blueprint(blueprint)
    except BaseException:
        jobs.close()
        raise
    app.extensions[_NAME] = memory
    app.extensions.setdefault(_MOUNTED, []).append(_Mounted(memory, jobs))


def _declare(operations: Operations, memory: AgentFormer, jobs: Jobs, prefix: str) -> None:
    """Every endpoint, in the order in which the OpenAPI document and its page have them."""
    add_uploads(operations, memory, jobs)
    add_questions(operations, memory)
    add_documents(operations, memory)
    add_jobs(operations, memory, jobs)
    add_memory(operations, memory)
    add_tools(operations, memory)
    add_health(operations, memory)
    add_docs_page(operations, add_openapi(operations, prefix))
    operations.complete()


def _checked(prefix: str) -> str:
    """A prefix without its last slash."""
    if prefix.strip("/") and (not prefix.startswith("/") or "<" in prefix):
        raise InvalidInput("url_prefix", f"must be a path such as /memory, got {prefix[:80]!r}")
    return prefix.rstrip("/")
