"""The mark of fault tests that only `make faults` runs."""

from __future__ import annotations

import os

import pytest

LONG = "AGENTFORMER_FAULTS" in os.environ  # set by `make faults`
long_form = pytest.mark.skipif(not LONG, reason="part of the long form: run `make faults`")

# The variables that set the long form of tests. Commands under test would warn of them, because they are no settings.
KEPT = {
    f"AGENTFORMER_{name}"
    for name in (
        "FAULTS",
        "KILLS",
        "KILLS_SEED",
        "DISK",
        "CLIENTS",
        "SECONDS",
        "PASSAGES",
        "REEMBED",
        "EXAMPLES",
        "DAMAGES",
        "DAMAGES_SEED",
        "HOSTILE",
        "MUTANTS",
        "MUTANTS_SEED",
        "OPERATIONS",
        "OPERATIONS_SEED",
    )
}
