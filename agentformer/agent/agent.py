"""`Agent`: a language model that works with a memory, one turn after another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.agent import prompts
from agentformer.agent.briefing import Briefing, briefing, excerpt
from agentformer.agent.calls import Calls, Done
from agentformer.agent.citing import citations, warned
from agentformer.agent.conversation import Conversation
from agentformer.agent.limits import Limits, Meter
from agentformer.agent.loop import Ended, Loop, Model, ToolsRefused
from agentformer.agent.permission import Confirm, Permission, quotes
from agentformer.agent.turns import OnEvent, Recalled, Turn, TurnEvent
from agentformer.agent.workers import Workers
from agentformer.errors import AgentFormerError, InvalidInput, LanguageModelUnavailable, NotFound
from agentformer.factory import AgentFormer
from agentformer.rag.answer import links
from agentformer.records import fields
from agentformer.text.prompt_quoting import MarkerRestorer
from agentformer.text.tokens import token_counter
from agentformer.tools.caller import Caller
from agentformer.types import ChatMessage, MemoryEntry, Scope, ToolCall

_REPLY_TOKENS = 1024  # of a reply at least: the arguments of calls are a part of it, and some models think first
_SMALLER = 4  # the part of the context that is left where the model cannot read all of it
_SAID = 200  # messages of a session that are read
_NOTED = 20  # calls that the answer's metadata tell of
_NO_ROOM = (
    "There is no room for an answer: {error}. Shorten it, upload it as a document, or raise AGENTFORMER_CONTEXT_TOKENS."
)
_KEPT = " Your message is kept in the session {session}."
_NO_TOOLS = "the model takes no tools, so it answers from what memory shows it, and changes nothing: {error}"
_NO_MODEL = (
    "no language model is configured, which an agent needs; set AGENTFORMER_LLM_MODEL, such as ollama:gemma3, "
    "lmstudio:MODEL, or openai:MODEL with OPENAI_API_KEY"
)


class Agent:
    """Answers messages with what memory holds and its tools give, and keeps what was said.

    `user_id`, `agent_id`, `project` and `namespace` say whose memories are meant: with a user, a session is what he
    said and was answered, and not what others said in it; with a namespace, tools reach no other. `grant` bounds
    namespaces and tools; without its right to write, nothing is stored, and what was said is known to this object
    alone. `folder` is where `rag_upload` may read files. Once anything retrieved stands before the model, tools that
    change or remove what is there run only if `permit` names them (else the setting `agent_permit`), or `confirm` says
    so of the call; see `agent.permission`. `max_steps`, `max_seconds` and `max_tokens` of a turn are
    those of the settings where they are not given. Thread-safe.

    Raises `LanguageModelUnavailable` without a configured model, `Forbidden` for a grant without the right to read or
    for a namespace that it does not reach, and `InvalidInput`.
    """

    def __init__(
        self,
        af: AgentFormer,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        project: str | None = None,
        grant: Grant = EVERYTHING,
        folder: Path | None = None,
        permit: Collection[str] | None = None,
        confirm: Confirm | None = None,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if af.model is None:
            raise LanguageModelUnavailable(_NO_MODEL)
        grant.require("read")
        own = {"user_id": user_id, "agent_id": agent_id, "project": project}
        self._own: dict[str, Any] = {name: fields.optional_name(name, value) for name, value in own.items()}
        self._af = af
        self._model = af.model
        self._namespace = grant.namespace(namespace)
        if namespace is not None:
            grant = replace(grant, namespaces=(self._namespace,))
        if folder is not None and not folder.is_dir():
            raise InvalidInput("folder", f"{str(folder)!r:.200} is no folder")
        self._caller = Caller(grant, self._namespace, folder=folder, extractive=True, **self._own)
        self.stores = grant.may("write")  # is what is said kept?
        self.tools = af.toolbox.tools(grant)  # that the model is offered; none once it has refused them
        self._refusal = ""
        self._count = token_counter(af.embedder)
        self._at_tools, self._at_model = Workers(), Workers()
        self._unstored: dict[str, list[ChatMessage]] = {}
        self._lock = threading.Lock()
        settings = af.settings
        self._permitted = _permitted(af, settings.agent_permit.split() if permit is None else permit)
        self._confirm = confirm
        self._limits = Limits(
            settings.agent_steps if max_steps is None else max_steps,
            settings.agent_seconds if max_seconds is None else max_seconds,
            settings.agent_tokens if max_tokens is None else max_tokens,
        )

    def turn(self, message: str, *, session_id: str, on_event: OnEvent | None = None) -> Turn:
        """Answer a message of the session. `on_event` is told what happens meanwhile.

        The message is stored before the model is asked, and stays also when there is no answer; then the text, which
        is not stored, says why, and `finish` is `failed` or a limit. Raises `InvalidInput` for a message or a session
        id that cannot be stored, and what the store raises.
        """
        said, session = fields.content(message), fields.name("session_id", session_id)
        meter = Meter(self._limits)
        kept = self._keep("user", said, session)
        earlier = self._conversation(session)
        try:
            given = self._briefed(said, earlier, self._af.settings.context_tokens)
        except InvalidInput as error:
            text = _NO_ROOM.format(error=error) + (_KEPT.format(session=session) if kept else "")
            return Turn(session, text, "failed", 0, ms=meter.ms)
        tell = on_event or _unheard
        tell(Recalled(given.memories))
        caller = replace(self._caller, session_id=session)
        retrieved = any(map(quotes, (*given.entries, *earlier)))
        permission = Permission(self._af.toolbox.definitions(), self._permitted, self._confirm, retrieved=retrieved)
        calls = Calls(self._af.toolbox, caller, permission, self._at_tools, tell)
        less = partial(self._briefed_less, said, earlier)
        loop = self._loop(calls, meter, given, less)
        try:
            ended = loop.run()
        except ToolsRefused as refused:
            self.tools, self._refusal = [], str(refused)
            loop = self._loop(calls, meter, given, less)
            ended = loop.run()
        return self._told(loop, ended, session, kept, permission, earlier)

    def meant(self, call: ToolCall) -> MemoryEntry | None:
        """The memory that a call names by its id, as it is now; None where it names none that the call would reach. For
        showing a person who is asked to permit the call."""
        try:
            found = self._af.backend.get([fields.name("id", call.arguments.get("id"))])
            return self._caller.require_visible(found[0]) if found else None
        except (InvalidInput, NotFound):
            return None

    def close(self, seconds: float = 10.0) -> bool:
        """Give tools that ran over the time of their turn so many seconds to finish; False when one did not. To be
        called before the memory is closed."""
        return self._at_tools.close(seconds)

    def _loop(self, calls: Calls, meter: Meter, given: Briefing, less: Callable[[], Briefing]) -> Loop:
        settings = self._af.settings
        tools = self.tools
        rules = prompts.system([tool.name for tool in tools], datetime.now(UTC))
        model = Model(self._model, tools, settings.temperature, max(settings.answer_tokens, _REPLY_TOKENS))
        conversation = Conversation(rules, given.messages, self._count, settings.context_tokens)
        return Loop(model, calls, conversation, meter, self._at_model, given, less)

    def _briefed(self, said: str, earlier: Sequence[Any], tokens: int) -> Briefing:
        """What the model is shown. Raises `InvalidInput` where core memory or the message does not fit."""
        place: Any = {"namespace": self._namespace, **self._own}
        context = self._af.memory.build_context(said, earlier, tokens, **place)
        if not context.report.tokens["task"]:
            raise InvalidInput("message", f"is too long for a context of {tokens} tokens")
        return briefing(said, context, self._af.backend)

    def _briefed_less(self, said: str, earlier: Sequence[Any]) -> Briefing:
        """The same with a part of the context, and where that has no room, the message alone."""
        try:
            return self._briefed(said, earlier, self._af.settings.context_tokens // _SMALLER)
        except InvalidInput:
            return briefing(said, None, self._af.backend)

    def _conversation(self, session: str) -> list[Any]:
        """The last of what was said in the session, with the message: of the agent's user, where it has one."""
        scope = Scope(self._namespace, kinds=("message",), session_id=session, user_id=self._own["user_id"])
        stored = self._af.backend.latest(scope, limit=_SAID)
        with self._lock:
            return [*reversed(stored), *self._unstored.get(session, ())]

    def _keep(self, role: Literal["user", "assistant"], text: str, session: str, **metadata: Any) -> bool:
        """Store what was said; is it stored?"""
        if self.stores:
            place: Any = {"namespace": self._namespace, **self._own}
            self._af.memory.add_message(session, role, text, metadata=metadata, **place)
            return True
        with self._lock:
            said = self._unstored.setdefault(session, [])
            said.append(ChatMessage(role, text))
            del said[:-_SAID]
        return False

    def _told(
        self, loop: Loop, ended: Ended, session: str, kept: bool, permission: Permission, earlier: Sequence[Any]
    ) -> Turn:
        checked = _checked(loop, ended.text, earlier) if ended.said else links.CheckedText(ended.text)
        text = checked.text
        warnings = [*loop.briefing.warnings, *ended.warnings, *links.link_warnings(checked.unknown_hosts)]
        cited = citations(text, loop.done, loop.briefing.entries)
        warnings += [*warned(cited), *permission.warnings]
        if self._refusal:
            warnings.append(_NO_TOOLS.format(error=self._refusal))
        if ended.said:
            try:
                noted = {"tools": _noted(loop.done), "retrieved": permission.retrieved}
                self._keep("assistant", text, session, finish=ended.finish, **noted)
            except AgentFormerError as error:  # the answer is worth more than its place in memory
                warnings.append(f"the answer could not be stored: {error}")
        elif kept:
            text += _KEPT.format(session=session)
        return Turn(
            session_id=session,
            text=text,
            finish=ended.finish,
            steps=loop.meter.steps,
            tool_runs=tuple(done.run for done in loop.done),
            memories=loop.briefing.memories,
            citations=cited.known,
            warnings=tuple(warnings),
            tokens_in=loop.meter.tokens_in,
            tokens_out=loop.meter.tokens_out,
            ms=loop.meter.ms,
        )


def _permitted(af: AgentFormer, names: Collection[str]) -> frozenset[str]:
    """Raises `InvalidInput` for a tool that there is not."""
    known = [tool.name for tool in af.toolbox.definitions()]
    if isinstance(names, str) or (unknown := sorted(set(names) - set(known))):
        told = names if isinstance(names, str) else unknown[0]
        raise InvalidInput("permit", f"there is no tool {told!r:.80}; there are: {', '.join(known)}")
    return frozenset(names)


def _unheard(event: TurnEvent) -> None:
    """Where nobody wants to be told."""


def _checked(loop: Loop, text: str, earlier: Sequence[Any]) -> links.CheckedText:
    """A model's text with the brackets that its sources have, and without addresses of its own making."""
    results = [one.text for one in loop.done]
    raw = chain((entry.content for entry in chain(earlier, loop.briefing.entries)), results)
    shown = chain((message.content for message in loop.conversation.messages), results)
    return links.remove_unknown_links(MarkerRestorer(raw).restore(text), shown)


def _noted(done: Sequence[Done]) -> list[dict[str, Any]]:
    """The calls in short, as the answer's metadata keep them."""
    runs = [one.run for one in done[:_NOTED]]
    return [{"name": run.name, "arguments": _short(run.arguments), "failed": run.failed} for run in runs]


def _short(arguments: Mapping[str, Any]) -> str:
    return excerpt(json.dumps(arguments, ensure_ascii=False, default=str))
