"""The version, in a module of its own so that a build can read it without importing the package."""

from __future__ import annotations

__version__ = "0.2.0"


def build() -> str:
    """Return the commit and the date from which this copy was built, such as "1b3eb13c0d1e, 2026-11-30". A copy that
    runs from the folder of its sources has no build, and the result is ""."""
    import json  # here, because only `--version` and the API show the build
    from pathlib import Path

    try:
        record = json.loads(Path(__file__).with_name("build.json").read_text(encoding="utf-8"))
        return ", ".join(filter(None, (str(record["commit"]), str(record["date"]))))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
