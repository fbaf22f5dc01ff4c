"""A summarizer that is built when there is something to summarize."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentformer.errors import AgentFormerError
from agentformer.types import LanguageModel, MemoryEntry

if TYPE_CHECKING:
    from agentformer.memory.summaries.summarizer import Summarizer, Summary

log = logging.getLogger("agentformer")


class OnDemandSummarizer:
    """Builds a `Summarizer` for each summary, and works without the language model if that cannot be built.

    A caller that adds a message cannot repair the model's settings, so its messages are summarized all the same.
    """

    def __init__(
        self,
        build: Callable[[LanguageModel | None], Summarizer],
        model: Callable[[], LanguageModel | None],
        *,
        instant: bool,
    ) -> None:
        """`instant` is true if no language model is configured."""
        self._build = build
        self._model = model
        self._logged = ""
        self.instant = instant

    def summarize(self, originals: Sequence[MemoryEntry]) -> Summary:
        """Return a summary; see `Summarizer.summarize`."""
        try:
            model = self._model()
        except Exception as error:  # noqa: BLE001 - a plugin's model can raise anything
            problem = str(error) if isinstance(error, AgentFormerError) else f"{type(error).__name__}: {error}"[:200]
            self._log_once(problem)
            summary = self._build(None).summarize(originals)
            return dataclasses.replace(summary, outcome="extractive_unavailable", problems=(problem,))
        return self._build(model).summarize(originals)

    def _log_once(self, problem: str) -> None:
        if problem != self._logged:
            self._logged = problem
            log.warning("summaries are made without the language model: %s", problem)
