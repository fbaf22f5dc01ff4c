"""The hook events of coding agents, read into one form, and the answers in the form that each agent expects.

The formats are those that the agents document, as of November 2026: Claude Code 2.1 and Codex 0.1xx (the same fields),
Gemini CLI 0.26 or later, and Cursor 2 (`hooks.json`, version 1). Unknown events and unknown fields are ignored.

These are no events of the memory: `records/events.py` has the types of those, which are changes of entries, and the
folder `events/` delivers them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

Agent = Literal["claude-code", "codex", "gemini", "cursor"]
AGENTS: tuple[Agent, ...] = get_args(Agent)
Kind = Literal["start", "prompt", "tool", "answer", "end"]

# The kind of each event by its name. An event without a kind is ignored.
_CLAUDE: Mapping[str, Kind] = {
    "SessionStart": "start",
    "UserPromptSubmit": "prompt",
    "PostToolUse": "tool",
    "Stop": "answer",
    "PreCompact": "end",
    "SessionEnd": "end",
}
EVENTS: Mapping[Agent, Mapping[str, Kind]] = {
    "claude-code": _CLAUDE,
    "codex": _CLAUDE,
    "gemini": {
        "SessionStart": "start",
        "BeforeAgent": "prompt",
        "AfterTool": "tool",
        "AfterAgent": "answer",
        "PreCompress": "end",
        "SessionEnd": "end",
    },
    "cursor": {
        "sessionStart": "start",
        "beforeSubmitPrompt": "prompt",
        "postToolUse": "tool",
        "afterAgentResponse": "answer",
        "preCompact": "end",
        "sessionEnd": "end",
    },
}
_ANSWER = ("last_assistant_message", "prompt_response", "text")  # the fields with what the agent has answered
_OUTPUT = ("tool_response", "tool_output")
_UNKNOWN = "(unknown folder)"  # the project of an event without a working folder; entries without a project are of all
_MAX_NAME = 200  # characters of an id of a session
_PARENTS = 40  # folders above the working folder that are searched for a repository


class Event(NamedTuple):
    """One event of an agent. `text` is the prompt, or what the agent has answered. `project` is the folder of the
    repository in which the agent works, or its working folder."""

    agent: Agent
    kind: Kind
    name: str
    session: str
    project: str
    text: str = ""
    tool: str = ""
    given: Any = None  # the input of the tool, as a JSON value
    output: Any = None  # the output of the tool


def event_of(agent: Agent, name: str, data: bytes) -> Event | None:
    """Return the event that an agent wrote to standard input, or None for an unknown event. `name` is the event that
    the hook was configured for, and is used if the input names none. Raises `ValueError` for an input that is not a
    JSON object."""
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError("the input is not a JSON object")
    name = _text(values.get("hook_event_name")) or name
    if (kind := EVENTS[agent].get(name)) is None:
        return None
    text = _text(values.get("prompt")) if kind == "prompt" else ""
    if kind == "answer":
        text = next(filter(None, (_text(values.get(field)) for field in _ANSWER)), "")
    session = _text(values.get("session_id") or values.get("conversation_id"))
    return Event(
        agent,
        kind,
        name,
        session=f"{agent}:{session[:_MAX_NAME]}" if session else "",  # as an import of the agent's files names it
        project=_project(values),
        text=text,
        tool=_text(values.get("tool_name"))[:_MAX_NAME],
        given=values.get("tool_input"),
        output=next(filter(None, (values.get(field) for field in _OUTPUT)), None),
    )


def answer_to(event: Event, context: str) -> str:
    """Return what a hook writes to standard output, so that the agent adds `context` to its conversation. An agent that
    takes no context at this event gets its empty answer."""
    if event.agent == "cursor":
        if event.kind == "prompt":
            return json.dumps({"continue": True})
        return json.dumps({"additional_context": context}) if context and event.kind == "start" else "{}"
    if not context or event.kind not in ("start", "prompt"):
        return ""
    return json.dumps({"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": context}})


def _project(values: Mapping[str, Any]) -> str:
    """Return the nearest folder with a repository (`.git`) above the working folder, else the working folder."""
    roots = values.get("workspace_roots")
    written = _text(values.get("cwd")) or (_text(roots[0]) if isinstance(roots, list) and roots else "")
    if not written or "\0" in written:
        return _UNKNOWN
    if len(written) > _MAX_NAME:
        digest = hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:16]
        return f"{digest} {written[-_MAX_NAME + 20 :]}"
    folder = Path(written)
    try:
        for parent in [folder, *folder.parents][:_PARENTS]:
            if (parent / ".git").exists():
                return str(parent)
    except OSError:
        return written
    return written


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
