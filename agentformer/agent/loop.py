"""The loop of one turn: ask the model, run what it calls, until it answers or a limit is reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentformer.agent import prompts
from agentformer.agent.briefing import Briefing
from agentformer.agent.calls import Calls, Done, written
from agentformer.agent.conversation import Conversation
from agentformer.agent.limits import Meter
from agentformer.agent.turns import Finish
from agentformer.agent.workers import OutOfTime, Workers, result
from agentformer.errors import InvalidReply, LanguageModelError, LanguageModelUnavailable, PromptTooLong
from agentformer.rag.answer.stream import visible_text
from agentformer.text.tokens import estimated_spans
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool

# How servers say that they or the model take no tools: Ollama, OpenAI, Groq; vLLM and llama.cpp by their options.
_TAKES_NO_TOOLS = re.compile(
    r"not support.{0,40}\b(tool|function)|\b(tools?|functions?)\b.{0,40}not support"
    r"|tool choice requires|tools param requires|that support tool use",
    re.IGNORECASE,
)
_FRUITLESS = 3  # replies in a row none of whose calls gave anything
_SAID_NOTHING = "The language model said nothing, also when it was asked again. Ask in other words, or another model."
_FAILED = "The language model did not answer: {error}"
_TOO_LONG = (
    "What the language model has to read for this does not fit it, also when cut: {error} Give it a larger context, "
    "lower AGENTFORMER_CONTEXT_TOKENS, or switch tools off."
)


class ToolsRefused(Exception):
    """The model takes no tools; the text is its server's. Nothing was called yet."""


@dataclass(frozen=True, slots=True)
class Ended:
    """`said`: by the model; False where the text is ours, since none came of it."""

    text: str
    finish: Finish
    warnings: tuple[str, ...] = ()
    said: bool = True


@dataclass(frozen=True, slots=True)
class Model:
    """How the model is asked."""

    language_model: LanguageModel
    tools: Sequence[Tool]
    temperature: float
    max_tokens: int  # of one reply


@dataclass(slots=True)
class Loop:
    """One turn. `smaller` briefs the model anew with less, once, where it cannot read so much; `briefing` is what it
    was given in the end, and `done` are its calls."""

    model: Model
    calls: Calls
    conversation: Conversation
    meter: Meter
    workers: Workers
    briefing: Briefing
    smaller: Callable[[], Briefing] | None
    done: list[Done] = field(default_factory=list)

    def run(self) -> Ended:
        """The turn's end, whatever the model did: its errors are told in the text, and not raised. Raises
        `ToolsRefused`."""
        try:
            return self._run()
        except OutOfTime:
            return self._stopped("time")
        except PromptTooLong as error:
            return _failed(_TOO_LONG.format(error=_sentence(error)))
        except LanguageModelError as error:
            return _failed(_FAILED.format(error=_sentence(error)))

    def _run(self) -> Ended:
        fruitless, unusable = 0, False
        while True:
            reached: Finish | None = self.meter.reached() or None
            if reached or fruitless >= _FRUITLESS:
                return self._last_words(reached or "repeating", self._stopped(reached or "repeating"))
            try:
                reply = self._ask(self.model.tools)
            except InvalidReply as error:
                if unusable:
                    return self._last_words("repeating", _failed(_FAILED.format(error=_sentence(error))))
                unusable = True
                self.conversation.ask(prompts.UNUSABLE.format(reason=str(error).rstrip(".")))
                continue
            if reply.tool_calls:
                fruitless = 0 if self._call(reply) else fruitless + 1
                unusable = False
            elif text := visible_text(reply.text):
                return Ended(text, "answer", self._cut_short(reply))
            elif unusable:
                return self._last_words("repeating", _failed(_SAID_NOTHING))
            else:
                unusable = True
                self.conversation.ask(prompts.NOTHING_SAID)

    def _call(self, reply: Reply) -> bool:
        """Run what the reply calls, and tell the model; has any of it come to something?"""
        with self.meter.paused():  # a person takes their time
            asked = self.calls.asked(reply.tool_calls)
        done = self.calls.run(asked, self.meter.seconds_for_tools)
        self.done += done
        self.conversation.add(reply.text, [each.call for each in asked], [(one.text, one.failed) for one in done])
        return not all(one.failed for one in done)

    def _stopped(self, finish: Finish) -> Ended:
        return Ended(prompts.stopped(finish, self.meter.steps), finish, said=False)

    def _last_words(self, finish: Finish, ours: Ended) -> Ended:
        """The model's answer with what it has, or `ours` where none comes."""
        if not self.meter.may_ask:
            return ours
        self.conversation.ask(prompts.LAST_WORDS)
        try:
            reply = self._ask(())
        except OutOfTime:
            return ours
        except LanguageModelUnavailable:
            raise
        except LanguageModelError:
            return ours
        text = visible_text(reply.text)
        return Ended(text, finish, self._cut_short(reply)) if text else ours

    def _ask(self, tools: Sequence[Tool]) -> Reply:
        try:
            return self._asked(tools)
        except (InvalidReply, LanguageModelUnavailable) as error:
            if tools and not self.done and _TAKES_NO_TOOLS.search(str(error)):
                raise ToolsRefused(_sentence(error)) from None
            raise
        except PromptTooLong:
            if self.smaller is None:
                raise
            self.briefing, self.smaller = self.smaller(), None
            self.conversation.shrink(self.briefing.messages)
            return self._asked(tools)

    def _asked(self, tools: Sequence[Tool]) -> Reply:
        self.meter.steps += 1
        messages = tuple(self.conversation.messages)
        ask = partial(
            self.model.language_model.complete,
            messages,
            tools=tools,
            temperature=self.model.temperature,
            max_tokens=self.model.max_tokens,
        )
        reply = result(self.workers.begin(ask)[0], self.meter.seconds_left)
        self.meter.count(reply, _tokens([*messages, ChatMessage("assistant", reply.text, reply.tool_calls)]))
        return reply

    def _cut_short(self, reply: Reply) -> tuple[str, ...]:
        if reply.finish != "length":
            return ()
        return (f"the answer was cut at {self.model.max_tokens} tokens; AGENTFORMER_ANSWER_TOKENS raises that",)


def _failed(text: str) -> Ended:
    return Ended(text, "failed", said=False)


def _tokens(messages: Sequence[ChatMessage]) -> int:
    """Of what is said and of the arguments of calls; an estimate."""
    calls = (written(call.arguments) for message in messages for call in message.tool_calls)
    return sum(len(estimated_spans(text)) for text in (*(message.content for message in messages), *calls))


def _sentence(error: Exception) -> str:
    """The error's words, with a full stop."""
    return f"{str(error).rstrip('. ')}."
