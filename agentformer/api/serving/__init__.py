"""Running the application until SIGTERM: by gunicorn where it runs, else by waitress."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from agentformer.registry import lookup
from agentformer.settings import Settings


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress have 20 seconds to finish, and the memory is closed.
    What they have not finished by then is cut off; nothing that is stored is harmed by it.

    `started` is told the address once requests are answered; port 0 takes a free one. Raises `InvalidInput` for an
    address that cannot be used, or one that others reach while there is no key, and what opening the memory raises.
    """
    server = settings.server
    if server == "auto":
        server = "gunicorn" if os.name == "posix" and importlib.util.find_spec("gunicorn") else "waitress"
    lookup("servers", server)(settings, started)
