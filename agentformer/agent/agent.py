"""The class `Agent`: a language model that answers messages and uses a memory through tools. A turn is one message of
the user with the answer of the agent."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.agent.calls import CallResult, Calls, Confirm, Permission, Workers
from agentformer.agent.cited_pages import excerpt, find_citations
from agentformer.agent.conversation import Briefing, Conversation, brief, system_prompt
from agentformer.agent.loop import Loop, ModelOptions, Outcome, ToolsRefused
from agentformer.agent.turn import (
    Limits,
    Meter,
    OnEvent,
    Recalled,
    Turn,
)
from agentformer.embedders.guarded import token_counter
from agentformer.errors import AgentFormerError, InvalidInput, LanguageModelUnavailable, NotFound
from agentformer.factory import AgentFormer
from agentformer.http import tracing
from agentformer.lazy import Lazy
from agentformer.rag.answer import model_output
from agentformer.records import fields
from agentformer.records.integrity.files import kind_of
from agentformer.settings import Settings
from agentformer.text.prompt_quoting import MarkerRestorer
from agentformer.tools.caller import Caller
from agentformer.types import ChatMessage, MemoryEntry, Scope, ToolCall

_OWNER = ("user_id", "agent_id", "project")
_REPLY_TOKENS = 1024  # least tokens of a reply, which contains arguments of calls and the reasoning of some models
_SMALLER = 4  # divisor of the context after the model refused a long prompt
_MESSAGES = 200  # messages of a session that are read
_NOTED = 20  # at most this many calls are stored in the metadata of an answer
_NO_ROOM = (
    "There is no room for an answer: {error}. Shorten the message or core blocks, upload a long text as a document, or "
    "raise AGENTFORMER_CONTEXT_TOKENS."
)
_KEPT = " Your message is kept in the session {session}."
_NO_TOOLS = (
    "the model does not support tools, so the answer uses only the memories in the prompt, and no tool was run: "
    "{error} Configure another model to use tools"
)
_NO_MODEL = (
    "an agent needs a language model, and no language model is configured; set AGENTFORMER_LLM_MODEL to ollama:gemma3, "
    "lmstudio:MODEL or openai:MODEL, for example. For openai, also set OPENAI_API_KEY"
)


class AgentOptions(TypedDict, total=False):
    """The options of an `Agent`. Every option has a default. In the comments of the options, a name in square brackets
    is the setting that provides the default."""

    user_id: str | None  # owner of the memories; if given, the agent reads only the conversations of this user
    agent_id: str | None
    project: str | None
    namespace: str | None  # if given, tools use only this namespace
    grant: Grant  # rights to namespaces and tools; without the right to write, messages are not stored
    folder: Path | None  # folder from which `rag_upload` may read files
    permit: Collection[str] | None  # names of tools that need no permission [agent_permit]
    confirm: Confirm | None  # asked before each other call that needs a permission; True permits the call
    max_steps: int | None  # of a turn [agent_steps]
    max_seconds: float | None  # of a turn [agent_seconds]
    max_tokens: int | None  # of a turn [agent_tokens]


class Agent:
    """Answers messages with a language model, a memory and tools, and stores the conversation. Thread-safe. Raises
    `TypeError` for an unknown option, `InvalidInput` for an invalid value, `LanguageModelUnavailable` if no language
    model is configured, and `Forbidden` if the option `grant` does not allow to read the namespace."""

    def __init__(self, af: AgentFormer, **options: Unpack[AgentOptions]) -> None:
        if unknown := set(options) - set(AgentOptions.__annotations__):
            raise TypeError(f"Agent has no option {', '.join(sorted(unknown))}; AgentOptions lists the options")
        if af.model is None:
            raise LanguageModelUnavailable(_NO_MODEL)
        self._af = af
        self._model = af.model
        given: Mapping[str, Any] = options  # a TypedDict allows only literal keys
        self._owner: dict[str, Any] = {name: fields.optional_name(name, given.get(name)) for name in _OWNER}
        grant = options.get("grant", EVERYTHING)
        grant.require("read")
        self._namespace = grant.namespace(options.get("namespace"))
        if options.get("namespace") is not None:
            grant = replace(grant, namespaces=(self._namespace,))
        folder = options.get("folder")
        if folder is not None and kind_of(folder, "folder") != "folder":
            raise InvalidInput("folder", f"{str(folder)!r:.200} is not a folder; give an existing folder")
        self._caller = Caller(grant, self._namespace, folder=folder, extractive=True, **self._owner)
        self.stores = grant.may("write")  # whether messages are stored
        self.tools = af.toolbox.tools(grant)  # of the model; empty once it has refused tools
        self._refusal = ""  # the message of the model server that refused tools
        self._permitted = _permitted(af, options.get("permit"))
        self._confirm = options.get("confirm")
        self._limits = _limits(af.settings, options)
        self._count_tokens = token_counter(af.embedder)
        self._tool_workers, self._model_workers = Workers(), Workers()
        self._unstored: dict[str, list[ChatMessage]] = {}  # by session; used without the right to write
        self._lock = threading.Lock()

    def turn(self, message: str, *, session_id: str, on_event: OnEvent | None = None) -> Turn:
        """Answer a message of the session. `on_event` is called with each event of the turn, such as the start of a
        tool call.

        The message is stored before the model is called. If there is no answer, `text` of the turn is the reason, which
        is not stored, and `finish` is `failed` or the limit that was reached. Raises `InvalidInput` for a message or a
        session id that cannot be stored, and the errors of the store."""
        message, session = fields.content(message), fields.name("session_id", session_id)
        named = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "agentformer"}
        with tracing.span("invoke_agent agentformer", {**named, "gen_ai.conversation.id": session}) as span:
            turn = self._turn(message, session, on_event)
            span.set({"agentformer.agent.finish": turn.finish})
            return turn

    def _turn(self, message: str, session: str, on_event: OnEvent | None) -> Turn:
        """Answer a message as `turn` describes. If the model refuses tools, it is asked again without tools, and later
        turns of this object offer none."""
        meter = Meter(self._limits)
        stored = self._keep("user", message, session)
        earlier = self._messages(session)
        try:
            briefing = self._brief(message, earlier, self._af.settings.context_tokens)
        except InvalidInput as error:
            text = _NO_ROOM.format(error=error) + (_KEPT.format(session=session) if stored else "")
            return Turn(session, text, "failed", 0, ms=meter.ms)
        on_event = on_event or (lambda event: None)
        on_event(Recalled(briefing.memories))
        permission = Permission(self._af.toolbox.definitions(), self._permitted, self._confirm)
        permission.note_prompt((*briefing.entries, *earlier), complete=briefing.complete)
        caller = replace(self._caller, session_id=session)
        calls = Calls(self._af.toolbox, caller, permission, self._tool_workers, on_event)
        smaller = Lazy(partial(self._brief_shorter, message, earlier, permission))
        loop = self._loop(calls, meter, briefing, smaller)
        try:
            outcome = loop.run()
        except ToolsRefused as refusal:
            self.tools, self._refusal = [], str(refusal)
            loop = self._loop(calls, meter, briefing, smaller)
            outcome = loop.run()
        if not outcome.from_model and stored:
            outcome = replace(outcome, text=outcome.text + _KEPT.format(session=session))
        return self._finish(loop, outcome, session, permission, earlier)

    def referenced_memory(self, call: ToolCall) -> MemoryEntry | None:
        """Return the entry that the argument `id` of the call names, so that a person can read the entry before
        permitting the call. Return None if there is no such entry, or if the agent may not see the entry."""
        try:
            entries = self._af.backend.get([fields.name("id", call.arguments.get("id"))])
            return self._caller.require_visible(entries[0]) if entries else None
        except (InvalidInput, NotFound):
            return None

    def close(self, seconds: float = 10.0) -> bool:
        """Wait at most `seconds` for tool calls that still run after the end of their turn. Return True if all calls
        have finished. Call this method before closing the memory."""
        return self._tool_workers.close(seconds)

    def _loop(self, calls: Calls, meter: Meter, briefing: Briefing, smaller: Lazy[Briefing]) -> Loop:
        settings = self._af.settings
        tools = self.tools
        system = system_prompt([tool.name for tool in tools], datetime.now(UTC))
        model = ModelOptions(self._model, tools, settings.temperature, max(settings.answer_tokens, _REPLY_TOKENS))
        conversation = Conversation(system, briefing.messages, self._count_tokens, settings.context_tokens)
        return Loop(model, calls, conversation, meter, self._model_workers, briefing, smaller)

    def _brief(self, message: str, earlier: Sequence[Any], tokens: int) -> Briefing:
        """Return the first messages for the model: the memories that are relevant to the new message, the earlier
        messages, and the new message. Together they have at most `tokens` tokens. Raises `InvalidInput` if the core
        blocks and the new message do not fit into this limit."""
        context = self._af.memory.build_context(message, earlier, tokens, namespace=self._namespace, **self._owner)
        if not context.report.tokens["task"]:
            raise InvalidInput("message", f"is too long for a context of {tokens} tokens")
        return brief(message, context)

    def _brief_shorter(self, message: str, earlier: Sequence[Any], permission: Permission) -> Briefing:
        """Return the first messages for the model with at most a quarter of the usual tokens. If the messages do not
        fit into this limit, return only the new message. The memories are searched again, so other ones may be found:
        `permission` notes them."""
        try:
            briefing = self._brief(message, earlier, self._af.settings.context_tokens // _SMALLER)
        except InvalidInput:
            return brief(message, None)
        permission.note_prompt(briefing.entries, complete=briefing.complete)
        return briefing

    def _messages(self, session: str) -> list[Any]:
        """Return the last messages of the session, oldest first. If the agent has a user, return only messages of this
        user."""
        scope = Scope(self._namespace, kinds=("message",), session_id=session, user_id=self._owner["user_id"])
        stored = self._af.backend.latest(scope, limit=_MESSAGES)
        with self._lock:
            return [*reversed(stored), *self._unstored.get(session, ())]

    def _keep(self, role: Literal["user", "assistant"], text: str, session: str, **metadata: Any) -> bool:
        """Store a message and return True. Without the right to write, keep it in this object and return False."""
        if self.stores:
            place: Any = {"namespace": self._namespace, **self._owner}
            self._af.memory.add_message(session, role, text, metadata=fields.ProgramMetadata(metadata), **place)
            return True
        with self._lock:
            messages = self._unstored.setdefault(session, [])
            messages.append(ChatMessage(role, text))
            del messages[:-_MESSAGES]
        return False

    def _finish(
        self, loop: Loop, outcome: Outcome, session: str, permission: Permission, earlier: Sequence[Any]
    ) -> Turn:
        """Remove links that the model may have invented, find the citations, store the answer, and return the turn."""
        checked = (
            _check_links(loop, outcome.text, earlier) if outcome.from_model else model_output.CheckedText(outcome.text)
        )
        citations = find_citations(checked.text, [result.value for result in loop.results], loop.briefing.entries)
        warnings = [*loop.briefing.warnings, *outcome.warnings, *model_output.link_warnings(checked.unknown_hosts)]
        warnings += [*citations.warnings(), *permission.warnings]
        if self._refusal:
            warnings.append(_NO_TOOLS.format(error=self._refusal))
        if outcome.from_model:
            calls = {"tools": [*map(_noted, loop.results[:_NOTED])], fields.RETRIEVED: permission.retrieved}
            try:
                self._keep("assistant", checked.text, session, finish=outcome.finish, **calls)
            except AgentFormerError as error:  # the answer is still returned
                warnings.append(f"the answer could not be stored: {error}")
        return Turn(
            session_id=session,
            text=checked.text,
            finish=outcome.finish,
            steps=loop.meter.steps,
            tool_runs=tuple(result.run for result in loop.results),
            memories=loop.briefing.memories,
            citations=citations.known,
            warnings=tuple(warnings),
            tokens_in=loop.meter.tokens_in,
            tokens_out=loop.meter.tokens_out,
            ms=loop.meter.ms,
        )


def _permitted(af: AgentFormer, permit: Collection[str] | None) -> frozenset[str]:
    """Return the names of the tools that never need a permission. These are the names in `permit` or, if `permit` is
    None, in the setting `agent_permit`. Raises `InvalidInput` for an unknown tool."""
    names = af.settings.agent_permit.split() if permit is None else permit
    tools = [tool.name for tool in af.toolbox.definitions()]
    if isinstance(names, str) or (unknown := sorted(set(names) - set(tools))):
        name = names if isinstance(names, str) else unknown[0]
        raise InvalidInput("permit", f"there is no tool {name!r:.80}; the tools are {', '.join(tools)}")
    return frozenset(names)


def _limits(settings: Settings, options: AgentOptions) -> Limits:
    steps, seconds, tokens = options.get("max_steps"), options.get("max_seconds"), options.get("max_tokens")
    return Limits(
        settings.agent_steps if steps is None else steps,
        settings.agent_seconds if seconds is None else seconds,
        settings.agent_tokens if tokens is None else tokens,
    )


def _check_links(loop: Loop, text: str, earlier: Sequence[Any]) -> model_output.CheckedText:
    """Return the answer `text` without links to addresses that the model has not read. Before this check, brackets are
    restored: the prompt shows some brackets of stored text as other signs, and the answer may repeat these signs."""
    results = [result.text for result in loop.results]
    raw = chain((entry.content for entry in chain(earlier, loop.briefing.entries)), results)
    shown = chain((message.content for message in loop.conversation.messages), results)
    return model_output.remove_unknown_links(MarkerRestorer(raw).restore(text), shown)


def _noted(result: CallResult) -> dict[str, Any]:
    arguments = excerpt(json.dumps(result.call.arguments, ensure_ascii=False, default=str))
    return {"name": result.call.name, "arguments": arguments, "failed": result.failed}
