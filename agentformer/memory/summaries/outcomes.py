"""How a summary came about, and what its entry is called."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["model", "model_retried", "extractive", "extractive_unfaithful", "extractive_unavailable"]
OUTCOMES: tuple[Outcome, ...] = (
    "model",
    "model_retried",
    "extractive",
    "extractive_unfaithful",
    "extractive_unavailable",
)
CATEGORY = "summaries"
KIND = "summary"
