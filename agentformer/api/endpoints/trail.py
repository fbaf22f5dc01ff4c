"""The endpoint of the trail: who changed what, when, and from where."""

from __future__ import annotations

from flask import Response
from pydantic import Field

from agentformer.access.permissions import Grant
from agentformer.api.models import Limit, Moment, Name, ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.request import ParameterModel
from agentformer.api.response import reply
from agentformer.records import fields
from agentformer.records.trail import Wanted

router = Router("server")


class TrailQuery(ParameterModel):
    """Query parameters of the trail."""

    subject: Name | None = Field(default=None, description="Only rows about this entry, document or key (its id).")
    key: Name | None = Field(default=None, description="Only what the key with this id did.")
    since: Moment | None = Field(default=None, description="Only rows of this time or later.")
    after: int = Field(default=0, ge=0, le=2**53, description="Only rows after this `seq`: the last row of a page.")
    limit: Limit = 100


class ActShown(ResponseModel):
    """What was done, and by whom. A value that is unknown is empty."""

    seq: int
    at: str
    action: str = Field(description="stored, learnt, changed, superseded, removed, or a word such as key-added.")
    subject: str = Field(description="The id of the entry, document or key.")
    namespace: str
    kind: str
    version: int
    key: str = Field(description="The id of the key that was used.")
    user: str = Field(description="The user of the system (command line) or of the access token.")
    via: str = Field(description="cli, http, mcp, job, or program.")
    client: str = Field(description="The address of the client.")
    request: str = Field(description="The id of the request, which the log has, too, or of the job.")


class TrailPage(ResponseModel):
    """Rows of the trail, oldest first."""

    acts: list[ActShown]


@router.route("GET", "/api/trail", "trail", {200: TrailPage}, errors=(501,))
def read_trail(service: Service, grant: Grant, query: TrailQuery) -> Response:
    """Show who changed what, when, and from where, oldest first.

    A key that is limited to namespaces sees what was done to their entries. Rows have no texts. They are deleted after
    the setting `trail_days`."""
    wanted = Wanted(query.subject or "", query.key or "", grant.namespaces, fields.moment("since", query.since))
    acts = service.af.trail.page(wanted, after=query.after, limit=query.limit)
    return reply({"acts": [{**act._asdict(), "at": act.at.isoformat()} for act in acts]})
