"""The HTTP API: a Flask application, and an extension that adds the endpoints to an existing application."""

from agentformer.errors import MissingExtra

try:
    import flask as _flask  # noqa: F401
except ImportError as error:
    raise MissingExtra("server", "the HTTP API", error) from None

from agentformer.api.app import close_app, create_app, init_app

__all__ = ["close_app", "create_app", "init_app"]
