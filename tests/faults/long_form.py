"""The mark of fault tests that only `make faults` runs."""

from __future__ import annotations

import os

import pytest

LONG = "AGENTFORMER_FAULTS" in os.environ  # set by `make faults`
long_form = pytest.mark.skipif(not LONG, reason="part of the long form: run `make faults`")
