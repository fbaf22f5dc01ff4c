"""AgentFormer's runtimes: which are available here, and their settings.

`python -m bench.speed.variants NAME` checks one in a process of its own, so that no model stays in the measuring
process.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import tempfile
from dataclasses import dataclass

import agentformer
from bench.speed.children import python, run
from bench.speed.timing import Values, report

MODEL = "minilm"


@dataclass(frozen=True)
class Variant:
    """A name for tables, and its settings."""

    name: str
    embedder: str
    runtime: str

    def settings(self) -> dict[str, str]:
        """Return the arguments of `agentformer.connect`. A version without runtimes gets none."""
        known = {field.name for field in dataclasses.fields(agentformer.Settings)}
        return {"embedder": self.embedder} | ({"runtime": self.runtime} if "runtime" in known else {})

    def environ(self) -> dict[str, str]:
        """Return the same for the command line."""
        return {f"AGENTFORMER_{name.upper()}": value for name, value in self.settings().items()}


TORCH = Variant("torch", MODEL, "torch")
FAST = Variant("fast", MODEL, "openvino")
INT8 = Variant("fast int8", f"{MODEL}:int8", "openvino")
VARIANTS = {variant.name: variant for variant in (TORCH, FAST, INT8)}


@functools.cache
def missing(variant: Variant) -> str:
    """Return why this variant cannot be measured here, or "". Also creates what is created once per model."""
    reason: str = run(python("bench.speed.variants", variant.name))["error"]
    return reason


def _tried(variant: Variant) -> Values:
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            agentformer.connect(index_dir=f"{folder}/i", upload_dir=f"{folder}/u", **variant.settings()) as af,
        ):
            space = af.embedder.space
    except agentformer.AgentFormerError as error:
        return {"error": " ".join(str(error).split())[:200]}
    return {"error": "" if variant is not INT8 or "int8" in space.spec else "this version has no int8"}


if __name__ == "__main__":
    report(_tried(VARIANTS[sys.argv[1]]))
