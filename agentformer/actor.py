"""Who acts: the key, the person and the door through which a call came. The trail of a memory records it with each
change. The doors set it for their thread; a call of the library, or of a thread in the background, has none."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Actor(NamedTuple):
    """Who acts. `key` is the id of an API key. `user` is the user of the system on the command line, or the user of an
    access token. `via` is the door: cli, http, mcp, job, or program. `client` is the address from which a request came,
    and `request` its id. A value that is unknown is ""."""

    key: str = ""
    user: str = ""
    via: str = "program"
    client: str = ""
    request: str = ""


NOBODY = Actor()
ACTOR: ContextVar[Actor] = ContextVar("agentformer_actor", default=NOBODY)
