"""The HTTP edge: a Flask application, and an extension for an application that exists already."""

from agentformer.api.app import create_app, init_app

__all__ = ["create_app", "init_app"]
