"""Print the result of `agentformer eval FILE --json` as Markdown, for the action of this repository.

    python scripts/eval_table.py RESULT LEAST

The exit code is 1 if recall@5 is lower than LEAST. In a workflow, the table is added to its summary, and the output
`recall` is set.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MOST = 20  # questions that are listed
_SPECIAL = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|#@"})


def table(result: dict[str, Any]) -> str:
    """Return the figures, and the questions whose passage was not found."""
    lines = ["### Questions about the documents", "", "| | @1 | @3 | @5 | @10 |", "|---|---:|---:|---:|---:|"]
    lines += [_row("recall", result["recall"], result["answerable"])]
    if result["with_page"]:
        lines += [_row("page recall", result["page_recall"], result["with_page"])]
    declined = result["declined"]
    lines += ["", f"MRR@10 {result['mrr@10']:.3f}. " + _declined(declined)]
    missed = [each for each in result["results"] if each["rank"] is None and not each["unanswerable"]]
    if missed:
        lines += ["", f"No correct passage among the first ten ({len(missed)}):", ""]
        lines += [f"- line {each['line']}: {each['question'].translate(_SPECIAL)}" for each in missed[:MOST]]
        lines += [f"- and {len(missed) - MOST} more"] if len(missed) > MOST else []
    return "\n".join(lines) + "\n"


def _row(name: str, figures: dict[str, float], count: int) -> str:
    values = " | ".join(f"{figures[k]:.3f}" for k in ("1", "3", "5", "10"))
    return f"| {name} of {count} questions | {values} |"


def _declined(declined: dict[str, dict[str, Any]]) -> str:
    parts = [f"{each['declined']} of {each['asked']} {name}" for name, each in declined.items() if each["asked"]]
    return f"Declined: {', '.join(parts)}." if parts else ""


def main() -> None:
    """Print the table of a result, and compare it with the least recall."""
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text, recall = table(result), result["recall"]["5"]
    print(text, end="")
    for variable, added in (("GITHUB_STEP_SUMMARY", text), ("GITHUB_OUTPUT", f"recall={recall}\n")):
        if path := os.environ.get(variable):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(added)
    if recall < float(sys.argv[2]):
        sys.exit(f"recall@5 is {recall:.3f}, less than {sys.argv[2]}")


if __name__ == "__main__":
    main()
