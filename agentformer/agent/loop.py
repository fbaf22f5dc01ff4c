"""The loop of one turn: ask the model, run the tools that its reply calls, and ask again, until the model answers or a
limit is reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from agentformer.agent.calls import CallResult, Calls, OutOfTime, Workers, arguments_json, result
from agentformer.agent.conversation import EMPTY_REPLY, FINAL_ANSWER, UNUSABLE, Briefing, Conversation
from agentformer.agent.turn import Finish, Meter
from agentformer.embedders.guarded import estimated_spans
from agentformer.errors import InvalidReply, LanguageModelError, LanguageModelUnavailable, PromptTooLong
from agentformer.lazy import Lazy
from agentformer.rag.answer.model_output import visible_text
from agentformer.types import ChatMessage, LanguageModel, Reply, Tool

# Error messages of Ollama, OpenAI, Groq, vLLM and llama.cpp for a model without tools.
_NO_TOOLS = re.compile(
    r"not support.{0,40}\b(tool|function)|\b(tools?|functions?)\b.{0,40}not support"
    r"|tool choice requires|tools param requires|that support tool use",
    re.IGNORECASE,
)
_MAX_FAILED = 3  # consecutive replies in which all calls failed
_EMPTY = "The language model returned no text, even to a second request. Ask in other words, or use another model."
_FAILED = "The language model did not answer: {error}"
_TOO_LONG = (
    "The prompt is too long for the language model, even after it was shortened: {error} Give the model a larger "
    "context, lower AGENTFORMER_CONTEXT_TOKENS, or disable tools."
)
_STOPPED = "There is no answer, because {reason}. Ask for less at once, or raise the limit."
_REASONS = {
    "steps": "the model was called {steps} times, which is the limit (AGENTFORMER_AGENT_STEPS)",
    "time": "the time of the turn is over (AGENTFORMER_AGENT_SECONDS)",
    "tokens": "the limit of tokens is reached (AGENTFORMER_AGENT_TOKENS)",
    "repeating": "all tool calls of several replies failed",
}


class ToolsRefused(Exception):
    """Raised with the message of the model server if the model does not support tools. No tool has run in the turn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a turn. `text` is the answer of the model. If `from_model` is False, `text` is the reason why there is
    no answer."""

    text: str
    finish: Finish
    warnings: tuple[str, ...] = ()
    from_model: bool = True


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The language model, and the parameters of each request to this model."""

    language_model: LanguageModel
    tools: Sequence[Tool]
    temperature: float
    max_tokens: int  # of one reply


@dataclass(slots=True)
class Loop:
    """One turn. `run` asks the model and runs the tools that it calls. If the prompt is too long for the model,
    the shorter first messages `smaller` replace `briefing`, once. `results` contains the results of all
    tool calls."""

    model: ModelOptions
    calls: Calls
    conversation: Conversation
    meter: Meter
    workers: Workers
    briefing: Briefing
    smaller: Lazy[Briefing] | None
    results: list[CallResult] = field(default_factory=list)

    def run(self) -> Outcome:
        """Run the turn and return its end. If the model fails, the text of the outcome is the error. Raises
        `ToolsRefused` if the model does not support tools."""
        try:
            return self._run()
        except OutOfTime:
            return self._stopped("time")
        except PromptTooLong as error:
            return _failure(_TOO_LONG.format(error=_sentence(error)))
        except LanguageModelError as error:
            return _failure(_FAILED.format(error=_sentence(error)))

    def _run(self) -> Outcome:
        """Ask the model until it answers without calling a tool. After a reply that cannot be used, ask once more. At a
        limit, after two such replies in a row, and after `_MAX_FAILED` replies whose calls all failed, ask for a final
        answer without tools."""
        failed, unusable = 0, False  # replies in a row
        while True:
            limit: Finish | None = self.meter.reached() or ("repeating" if failed >= _MAX_FAILED else None)
            if limit:
                return self._final_answer(limit, self._stopped(limit))
            try:
                reply = self._ask(self.model.tools)
            except InvalidReply as error:
                if unusable:
                    return self._final_answer("repeating", _failure(_FAILED.format(error=_sentence(error))))
                unusable = True
                self.conversation.ask(UNUSABLE.format(reason=str(error).rstrip(".")))
                continue
            if reply.tool_calls:
                failed = 0 if self._call(reply) else failed + 1
                unusable = False
            elif text := visible_text(reply.text):
                return Outcome(text, "answer", self._length_warnings(reply))
            elif unusable:
                return self._final_answer("repeating", _failure(_EMPTY))
            else:
                unusable = True
                self.conversation.ask(EMPTY_REPLY)

    def _call(self, reply: Reply) -> bool:
        """Run the tool calls of a reply, and add the results to the conversation. Return whether a call succeeded."""
        with self.meter.paused():  # the time while a person decides does not count
            checked = self.calls.check(reply.tool_calls)
        results = self.calls.run(checked, self.meter.seconds_for_tools)
        self.results += results
        texts = [(each.text, each.failed) for each in results]
        self.conversation.add(reply.text, [each.call for each in checked], texts)
        return not all(each.failed for each in results)

    def _stopped(self, finish: Finish) -> Outcome:
        reason = _REASONS[finish].format(steps=self.meter.steps)
        return Outcome(_STOPPED.format(reason=reason), finish, from_model=False)

    def _final_answer(self, finish: Finish, otherwise: Outcome) -> Outcome:
        """Ask for an answer without tools, because the limit `finish` was reached. If there is no answer, return
        `otherwise`."""
        if not self.meter.may_ask:
            return otherwise
        self.conversation.ask(FINAL_ANSWER)
        try:
            reply = self._ask(())
        except LanguageModelUnavailable:
            raise
        except (OutOfTime, LanguageModelError):
            return otherwise
        text = visible_text(reply.text)
        return Outcome(text, finish, self._length_warnings(reply)) if text else otherwise

    def _ask(self, tools: Sequence[Tool]) -> Reply:
        """Return the next reply of the model. If the prompt is too long, shorten the prompt once and ask again."""
        try:
            return self._request(tools)
        except (InvalidReply, LanguageModelUnavailable) as error:
            if tools and not self.results and _NO_TOOLS.search(str(error)):
                raise ToolsRefused(_sentence(error)) from None
            raise
        except PromptTooLong:
            if self.smaller is None:
                raise
            self.briefing, self.smaller = self.smaller.get(), None
            self.conversation.shrink(self.briefing.messages)
            return self._request(tools)

    def _request(self, tools: Sequence[Tool]) -> Reply:
        """Ask the model once, and count the step and its tokens. Raises `OutOfTime` if no time of the turn is left."""
        self.meter.steps += 1
        messages, model = tuple(self.conversation.messages), self.model
        complete = partial(model.language_model.complete, messages, tools=tools)
        request = partial(complete, temperature=model.temperature, max_tokens=model.max_tokens)
        reply = result(self.workers.start(request)[0], self.meter.seconds_left)
        exchanged = [*messages, ChatMessage("assistant", reply.text, reply.tool_calls)]
        texts = [message.content for message in exchanged]
        texts += [arguments_json(call.arguments) for message in exchanged for call in message.tool_calls]
        self.meter.count(reply, sum(len(estimated_spans(text)) for text in texts))
        return reply

    def _length_warnings(self, reply: Reply) -> tuple[str, ...]:
        if reply.finish != "length":
            return ()
        return (
            f"the answer was cut at {self.model.max_tokens} tokens; raise AGENTFORMER_ANSWER_TOKENS for longer answers",
        )


def _failure(text: str) -> Outcome:
    return Outcome(text, "failed", from_model=False)


def _sentence(error: Exception) -> str:
    return f"{str(error).rstrip('. ')}."
