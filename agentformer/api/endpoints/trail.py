"""The endpoint of the trail: who changed what, when, and from where."""

from __future__ import annotations

from flask import Response
from pydantic import Field

from agentformer.access.permissions import Grant
from agentformer.api.models import Limit, Moment, Name, ResponseModel, fields_of
from agentformer.api.operations import Router, Service
from agentformer.api.request import ParameterModel
from agentformer.api.response import reply
from agentformer.records import fields
from agentformer.records.trail import Act, Wanted

router = Router("server")


class TrailQuery(ParameterModel):
    """Query parameters of the trail."""

    subject: Name | None = Field(default=None, description="Only rows about this entry, document or key (its id).")
    key: Name | None = Field(default=None, description="Only what the key with this id did.")
    since: Moment | None = Field(default=None, description="Only rows of this time or later.")
    after: int = Field(default=0, ge=0, le=2**53, description="Only rows after this `seq`: the last row of a page.")
    limit: Limit = 100


class ActShown(fields_of(Act, at=str)):  # type: ignore[misc]
    """What was done, and by whom. A value that is unknown is empty."""


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
