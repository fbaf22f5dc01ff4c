"""What an entry's salience is worth today: exponential decay by the day since it was last used, derived at read time.

Nothing is ever written back, so that asking a hundred times gives what asking once gives (the forgetting curve
as retention `rate ** days`, after Ebbinghaus 1885; a use resets the clock, as in MemoryBank, Zhong et al. 2023).
"""

from __future__ import annotations

from datetime import UTC, datetime

from agentformer.types import Decay, MemoryEntry

_DAY = 86_400_000_000  # microseconds


def effective_salience(entry: MemoryEntry, decay: Decay) -> float:
    """What is left of `entry.salience`, in 0..1: never more than is stored, and all of it without a rate.

    The days count from `last_accessed`, or from `created_at` while nobody has used it. Time to come counts
    nothing.
    """
    used = entry.last_accessed or entry.created_at
    rate = decay.rates.get(entry.category, 1.0)
    if used is None or rate == 1.0:
        return entry.salience
    elapsed = (decay.at or datetime.now(UTC)) - used
    return decayed(entry.salience, rate, (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds)


def decayed(salience: float, rate: float, micros: int) -> float:
    """`salience` after `micros` microseconds at a daily `rate`. SQLite calls this one too."""
    return float(salience * rate ** (max(0, micros) / _DAY))
