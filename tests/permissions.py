"""The view of a user whom the permissions of files bind."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION = 0x20080522  # of the structures of capget(2), third form
_IGNORE_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Drop, in this thread, the capabilities with which root ignores the permissions of files."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        pytest.skip("root cannot drop capabilities here")
    header, before = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, before)
    dropped = (ctypes.c_uint32 * 6)(*before)
    dropped[0] &= ~_IGNORE_PERMISSIONS
    if libc.capset(header, dropped) != 0:
        pytest.skip("root cannot drop capabilities here")
    try:
        yield
    finally:
        libc.capset(header, before)
