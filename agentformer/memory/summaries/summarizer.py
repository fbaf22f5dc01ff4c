"""`Summarizer`: a model's summary that was verified, or the extractive one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentformer.errors import LanguageModelError
from agentformer.llms.reasoning import strip_reasoning
from agentformer.memory.summaries import prompts
from agentformer.memory.summaries.entries import (
    SUMMARY_CATEGORY,
    SUMMARY_KIND,
    Outcome,
    flatten,
    sort_by_time,
    speaker_of,
    time_of,
)
from agentformer.memory.summaries.extractive import CountTokens, extract
from agentformer.memory.summaries.keeping import missing_facts
from agentformer.memory.summaries.verification import unsupported_claims
from agentformer.text.dates.calendar import format_range
from agentformer.text.languages import detect_language
from agentformer.types import ChatMessage, LanguageModel, Link, MemoryEntry, Reply, new_id

EXTRACTIVE = "extractive"  # the model's name in what no model wrote
# [1], [1, 2], [message 3], 【1】, with the space before
_CITING = re.compile(
    r"(?<![ \t])[ \t]*[\[【［](?:messages?[ \t]*)?\^?\d{1,3}(?:[ \t]*[,;–-][ \t]*\d{1,3})*[\]】］]", re.IGNORECASE
)
_MOST_NAMES = 8  # in title and context of a summary's entry; its metadata have all
_SHOWN = 12_000  # tokens of originals that a model is given; longer ones are given in extracts


@dataclass(frozen=True, slots=True)
class Summary:
    """A text that stands for its originals; `problems` are those of the texts that were refused."""

    text: str
    model: str
    prompt_version: str
    outcome: Outcome
    problems: tuple[str, ...] = ()

    def to_entry(self, originals: Sequence[MemoryEntry]) -> MemoryEntry:
        """Return the entry that stores this summary in its originals' place, linked to each in order of time.

        Speakers and time range go into title and context, which are searched and shown but are not part of the text.
        """
        originals = sort_by_time(originals)
        first, last = time_of(originals[0]), time_of(originals[-1])
        language = detect_language(self.text, detect_language(" ".join(entry.content[:1000] for entry in originals)))
        speakers = list(dict.fromkeys(flatten(entry.speaker) for entry in originals if entry.speaker.strip()))
        named = ", ".join(list(dict.fromkeys(filter(None, map(speaker_of, originals))))[:_MOST_NAMES])
        when = format_range(first, last, language) if first and last else ""
        known = {"language": language} if language else {}
        place = originals[0]
        return MemoryEntry(
            id=new_id(),
            content=self.text,
            tier="semantic",
            kind=SUMMARY_KIND,
            namespace=place.namespace,
            session_id=place.session_id,
            agent_id=place.agent_id,
            user_id=place.user_id,
            project=place.project,
            title=": ".join(filter(None, (named, when)))[:300],
            context=", ".join(filter(None, (named, when))),
            category=SUMMARY_CATEGORY,
            derived_from=tuple(Link(entry.id) for entry in originals),
            occurred_at=last,
            metadata={
                "from": first.isoformat() if first else None,
                "to": last.isoformat() if last else None,
                "entries": len(originals),
                "speakers": speakers,
                "model": self.model,
                "prompt_version": self.prompt_version,
                "outcome": self.outcome,
                **known,
            },
        )


class Summarizer:
    """Summarises entries within `max_tokens`. `model` is None where none is configured."""

    def __init__(
        self,
        model: LanguageModel | None,
        count_tokens: CountTokens,
        *,
        max_tokens: int = 512,
        temperature: float = 0.3,
    ) -> None:
        self._model = model
        self._count_tokens = count_tokens
        self._max_tokens = max_tokens
        self._temperature = temperature

    @property
    def instant(self) -> bool:
        """Is a summary a matter of milliseconds, since no model writes it?"""
        return self._model is None

    def summarize(self, originals: Sequence[MemoryEntry]) -> Summary:
        """A faithful summary of the originals, which need not be in order.

        What a model writes is held against them. A text that is too long, says what they do not, keeps nothing of what
        they do, or holds only the model's thoughts is asked for once more, with what was wrong, and then the
        extractive summary takes its place. It does so at once when the model raises `LanguageModelError`: it cannot
        be reached, or its adapter takes an answer without any text for no answer. Marks such as [1] that cite the
        messages are taken out. The text is empty only when `max_tokens` leave room for nothing.
        """
        originals = sort_by_time(originals)
        if self._model is None:
            return self._extractive(originals, "extractive")
        asked = prompts.messages(originals, self._shown(originals), self._max_tokens)
        problems: list[str] = []
        try:
            reply = self._ask(self._model, asked, originals)
            wrong = self._wrong(reply.text, originals)
            if not wrong:
                return self._written(reply, "model")
            problems += wrong
            reply = self._ask(self._model, prompts.again(asked, reply.text, wrong), originals)
            wrong = self._wrong(reply.text, originals)
            if not wrong:
                return self._written(reply, "model_retried", problems)
            problems += wrong
        except LanguageModelError as error:
            return self._extractive(originals, "extractive_unavailable", (*problems, str(error)))
        return self._extractive(originals, "extractive_unfaithful", problems)

    def _ask(self, model: LanguageModel, asked: Sequence[ChatMessage], originals: Sequence[MemoryEntry]) -> Reply:
        reply = model.complete(asked, temperature=self._temperature, max_tokens=self._max_tokens)
        text = _uncited(strip_reasoning(_encodable(reply.text)), originals)
        return Reply(text, _encodable(reply.model) or type(model).__name__)

    def _wrong(self, text: str, originals: Sequence[MemoryEntry]) -> list[str]:
        """What is wrong with a model's text, as it is told."""
        if not text:
            return [prompts.EMPTY]
        if (tokens := self._count_tokens(text)) > self._max_tokens:
            return [prompts.TOO_LONG.format(tokens=tokens, limit=self._max_tokens)]
        return [
            *(prompts.UNCHECKED.format(problem=problem) for problem in unsupported_claims(text, originals)),
            *(prompts.LOST.format(lost=each) for each in missing_facts(text, originals)),
        ]

    def _written(self, reply: Reply, outcome: Outcome, problems: Sequence[str] = ()) -> Summary:
        return Summary(reply.text, reply.model, prompts.PROMPT_VERSION, outcome, tuple(problems))

    def _extractive(self, originals: Sequence[MemoryEntry], outcome: Outcome, problems: Sequence[str] = ()) -> Summary:
        text = extract(originals, self._max_tokens, self._count_tokens)
        return Summary(text, EXTRACTIVE, prompts.PROMPT_VERSION, outcome, tuple(problems))

    def _shown(self, originals: Sequence[MemoryEntry]) -> list[str]:
        """The originals' contents, and of very long ones their own extracts, so that the model can read them all."""
        share = max(1, _SHOWN // max(1, len(originals)))
        return [
            entry.content
            if len(entry.content) <= share or self._count_tokens(entry.content) <= share
            else extract([entry], share, self._count_tokens)
            for entry in originals
        ]


def _uncited(text: str, originals: Sequence[MemoryEntry]) -> str:
    """The text without the numbers that a model gives as its sources; what an original has, such as code, stays."""

    def spelled(mark: re.Match[str]) -> str:
        return mark[0] if any(mark[0].strip() in entry.content for entry in originals) else ""

    return _CITING.sub(spelled, text).strip()


def _encodable(text: str) -> str:
    """The text without lone surrogates, which no store can write."""
    return text.encode("utf-8", "ignore").decode("utf-8")
