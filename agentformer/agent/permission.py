"""What a model's calls may do, by where it may have them from.

Until the model is shown anything that was retrieved, a turn holds our rules, core memory and the user's words alone,
and its calls are the user's. From then on a call may be the wish of a document, so tools that change or remove what is
there, or say what every talk begins with, need a permission that somebody gave. Looking things up and adding a memory
never do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from agentformer.records.entries import AFTER_RETRIEVED_TEXT
from agentformer.tools.definition import ToolDefinition
from agentformer.types import MemoryEntry, ToolCall

Confirm = Callable[[ToolCall], bool]  # asked in the thread of the turn; True lets this one call run

_REFUSED = (
    "not run: {name} changes what is kept, and may only be called by permission once retrieved text stands before you. "
    "Nobody can be asked in this talk, and no word of the user permits it: do not call it again. Tell the user what "
    "was not done, and that whoever runs this program can permit it: by AGENTFORMER_AGENT_PERMIT, or --allow {name} of "
    "agentformer chat"
)
_UNPERMITTED = (
    "{name} was not run, since the model had read stored text; permit it by AGENTFORMER_AGENT_PERMIT, by "
    '--allow {name} of agentformer chat, or by Agent(permit=["{name}"])'
)
_DENIED = "not run: the user was asked, and does not want it. Do not call it again for this request"


class Permission:
    """Of one turn. `permitted` tools always run; of the others that need it, each call is put to `confirm`.
    `retrieved`: is the model shown anything that was retrieved already?"""

    def __init__(
        self, tools: Iterable[ToolDefinition], permitted: Collection[str], confirm: Confirm | None, *, retrieved: bool
    ) -> None:
        tools = list(tools)
        self._guarded = {tool.name for tool in tools if tool.needs_permission} - set(permitted)
        self._adding = {tool.name for tool in tools if tool.hints.additive}
        self._confirm = confirm
        self._unpermitted: dict[str, None] = {}  # what was asked for, and nobody could permit
        self.retrieved = retrieved

    def refusal(self, call: ToolCall) -> str:
        """Why the call may not be run; "" where it may."""
        if not self.retrieved or call.name not in self._guarded:
            return ""
        if self._confirm is None:
            self._unpermitted[call.name] = None
            return _REFUSED.format(name=call.name)
        return "" if self._confirm(call) else _DENIED

    def heard(self, name: str) -> None:
        """The model is told what this tool gave."""
        self.retrieved = self.retrieved or name not in self._adding

    @property
    def warnings(self) -> list[str]:
        """What was not run for want of a permission, and how a person gives it."""
        return [_UNPERMITTED.format(name=name) for name in self._unpermitted]

    @property
    def mark(self) -> dict[str, Any]:
        """Metadata of what is remembered now."""
        return {AFTER_RETRIEVED_TEXT: True} if self.retrieved else {}


def quotes(shown: Any) -> bool:
    """May this entry, or message of a session, hold retrieved text? Core blocks and what the user said do not; nor does
    a model's answer, where it is known that nothing retrieved was before it."""
    if not isinstance(shown, MemoryEntry):
        return bool(shown.role != "user")
    if shown.kind != "message":
        return shown.tier != "core"
    return bool(shown.speaker) if shown.role == "user" else shown.metadata.get("retrieved") is not False
