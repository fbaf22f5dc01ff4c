"""UUID version 7 (RFC 9562): sorts by time, and within one process by order of creation."""

from __future__ import annotations

import os
import threading
import time
import uuid

_lock = threading.Lock()
_last = 0  # 48 bits of milliseconds and 12 bits of counter, as one number that only grows


def new_id() -> str:
    """A fresh id, greater than every id that this process has made before."""
    global _last
    with _lock:
        _last = max(_last + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    value = (stamp >> 12 << 80) | (7 << 76) | ((stamp & 0xFFF) << 64) | (2 << 62) | random
    return str(uuid.UUID(int=value))
