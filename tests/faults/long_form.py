"""The mark of fault tests that only `make faults` runs. The variables of the long form begin with `FAULTS_`: commands
under test would warn of others that begin like settings."""

from __future__ import annotations

import os

import pytest

LONG = "FAULTS_LONG" in os.environ  # set by `make faults`
long_form = pytest.mark.skipif(not LONG, reason="part of the long form: run `make faults`")
