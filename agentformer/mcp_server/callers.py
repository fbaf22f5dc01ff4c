"""Who calls over MCP: what the server was started with, and over HTTP the request's key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentformer.access.grant import RIGHTS, Grant
from agentformer.tools.caller import Caller

GRANT = "agentformer.grant"  # of a request, in its ASGI scope


def caller_of(request: Any, own: Caller) -> Caller:
    """The caller of one request: `own`, and where the request came with a grant not more than both allow. A grant is
    asked for with every request, so that no connection carries another's."""
    scope = getattr(request, "scope", None)
    return own if scope is None else replace(own, grant=narrowed(scope[GRANT], own.grant))


def narrowed(grant: Grant, by: Grant) -> Grant:
    """What both grants allow."""
    if grant.namespaces and by.namespaces:
        shared = tuple(name for name in grant.namespaces if name in by.namespaces)
        if not shared:  # no namespaces would mean every one
            return replace(grant, rights=frozenset())
    else:
        shared = grant.namespaces or by.namespaces
    rights = frozenset(right for right in RIGHTS if grant.may(right) and by.may(right))
    return Grant(rights, shared, grant.without | by.without, grant.key_id)
