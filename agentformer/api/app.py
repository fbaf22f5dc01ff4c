"""The Flask application, and `init_app`, which adds the endpoints to an existing Flask application."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import BoundedSemaphore

from flask import Blueprint, Flask

from agentformer.access.permissions import Grant
from agentformer.api.auth import Guard
from agentformer.api.concurrency import MAX_BODIES, MAX_WAITING_UPLOADS, ThreadLimit
from agentformer.api.endpoints import (
    console,
    documents,
    entries,
    events,
    jobs,
    keys,
    memory,
    metrics,
    openapi,
    server,
    tools,
    trail,
    uploads,
)
from agentformer.api.openai import chat, embeddings, files, vector_stores
from agentformer.api.operations import Operation, Router, Service, add_rules
from agentformer.api.proxies import BehindProxy
from agentformer.api.response import handle_errors
from agentformer.api.store_counts import StoreCounts
from agentformer.console.map import Maps
from agentformer.console.page import CheckRuns
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.jobs.queue import Jobs
from agentformer.lazy import Lazy
from agentformer.rag.removals import Removals
from agentformer.settings import Settings

_NAME = "agentformer"
_MOUNTED = "agentformer.mounted"
_ROUTERS: tuple[Router, ...] = (  # in the order of the OpenAPI document
    uploads.router,
    documents.router,
    jobs.router,
    entries.router,
    memory.router,
    memory.core_router,
    events.router,
    console.router,
    tools.router,
    files.router,
    vector_stores.router,
    embeddings.router,
    chat.router,
    server.router,
    metrics.router,
    keys.router,
    trail.router,
    openapi.router,
)
_OPERATIONS: tuple[Operation, ...] = tuple(operation for router in _ROUTERS for operation in router.operations)


def create_app(settings: Settings) -> Flask:
    """Open a memory, and return a Flask application that serves it. `app.extensions["agentformer"]` is the memory.
    Raises `InvalidInput` for invalid hosts or origins in the settings, and an error if the memory cannot be opened."""
    app = Flask(_NAME, static_folder=None)
    memory = AgentFormer(settings)
    try:
        _mount(app, memory, Guard(memory), "", whole=True)
        app.wsgi_app = BehindProxy(app.wsgi_app, settings)  # type: ignore[method-assign]
    except BaseException:
        memory.close()
        raise
    return app


def init_app(
    app: Flask, memory: AgentFormer, *, url_prefix: str = "", authorize: Callable[[], Grant] | None = None
) -> None:
    """Add the endpoints to an existing application, below the path `url_prefix`. The application keeps its own pages
    and error handlers. `authorize` is called for each request and returns a `Grant` (the rights of the client), or
    raises `Unauthenticated`. If `authorize` is None, the keys of the memory are checked. Raises `InvalidInput` for an
    invalid prefix, and for invalid hosts or origins in the settings."""
    if url_prefix.strip("/") and (not url_prefix.startswith("/") or "<" in url_prefix):
        raise InvalidInput("url_prefix", f"must be a path such as /memory, got {url_prefix[:80]!r}")
    _mount(app, memory, Guard(memory, authorize=authorize), url_prefix.rstrip("/"), whole=False)


def stop_jobs(app: Flask) -> None:
    """Interrupt the running upload jobs, and end the event streams of clients that follow these jobs. Do not wait for
    the end of the jobs. A server calls this function when it begins to stop."""
    for service in app.extensions.get(_MOUNTED, ()):
        service.jobs.stop()


def close_app(app: Flask) -> None:
    """Stop the upload jobs of all memories of the application, and close the memories. The unfinished jobs of a memory
    continue when this memory is opened again."""
    for service in app.extensions.get(_MOUNTED, ()):
        service.removals.close()
        service.jobs.close()
        service.af.close()


def _mount(app: Flask, af: AgentFormer, guard: Guard, prefix: str, *, whole: bool) -> None:
    """Add the endpoints of the memory `af` below the path `prefix`. If `whole` is true, the application has no other
    pages. Then the checks of `guard` and the error handlers also apply to unknown paths."""
    blueprint = Blueprint(_NAME + prefix.replace(".", "_"), __name__, url_prefix=prefix or None)
    removals = uploads.document_removals(af)
    queue = uploads.upload_jobs(af.ready(), removals)
    try:
        service = _service(af, queue, removals, prefix, guard, whole=whole)
        add_rules(blueprint, service)
        console.add_console(blueprint, prefix, at_root=whole or bool(prefix))
        handle_errors(app if whole else blueprint)
        guard.protect(app if whole else blueprint)
        app.register_blueprint(blueprint)
    except BaseException:
        queue.close()
        raise
    service.removals.start()
    app.extensions[_NAME] = af
    app.extensions.setdefault(_MOUNTED, []).append(service)


def _service(af: AgentFormer, queue: Jobs, removals: Removals, prefix: str, guard: Guard, *, whole: bool) -> Service:
    """Return the `Service` of the endpoints: the memory `af`, its upload jobs and removals, and the limits of requests.
    If `whole` is false, a host application owns the threads, so the number of busy threads is not limited here."""
    settings = af.settings
    return Service(
        af=af,
        jobs=queue,
        threads=ThreadLimit(
            settings.threads - 1 if whole else sys.maxsize,  # a host application has its own limits
            wait_seconds=settings.queue_seconds,
        ),
        uploads=ThreadLimit(
            settings.max_uploads,
            wait_seconds=settings.queue_seconds if whole else 0,  # the threads belong to the host application
            max_waiting=MAX_WAITING_UPLOADS,
            limit="max_uploads",
            reason=f"{settings.max_uploads} uploads are in progress",
        ),
        bodies=ThreadLimit(
            MAX_BODIES,
            wait_seconds=0,
            max_waiting=0,
            limit="max_bodies",
            reason=f"the bodies of {MAX_BODIES} requests are still arriving",
        ),
        followers=BoundedSemaphore(max(1, settings.threads // 4)),
        readiness=server.ReadinessChecks(af, guard.keys).parts,
        operations=_OPERATIONS,
        chat=Lazy(lambda: chat.build_chat(settings, af.model)),
        prefix=prefix,
        guard=guard,
        store_counts=StoreCounts(af, queue),
        checks=CheckRuns(af.verify),
        maps=Maps(af.backend),
        removals=removals,
    )


# The port after an address, which some proxies write: 192.0.2.1:5678, [2001:db8::1]:5678, or [2001:db8::1] without one.
