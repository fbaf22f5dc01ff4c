"""Report known vulnerabilities of all locked packages, and of torch, which is installed separately.

    python scripts/audit.py PIP_AUDIT LOCK torch==VERSION

Exit code 0: no package has a known one; 1: some have; 2: some packages could not be looked up, because the advisory
service was not reached or does not know them. `pip-audit` itself reports success for those.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OPTIONS = ("--progress-spinner", "off", "--format", "json", "--disable-pip")


def verdict(packages: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return the exit code and the message for the packages as `pip-audit` reports them."""
    lines = [
        f"{package['name']} {package['version']}: {fault['id']}, fixed in {', '.join(fault['fix_versions']) or 'none'}"
        for package in packages
        for fault in package.get("vulns", ())
    ]
    unknown = [package["name"] for package in packages if "vulns" not in package]
    code = 1 if lines else 2 if unknown or not packages else 0
    if unknown:
        few = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        lines.append(
            f"{len(unknown)} of {len(packages)} packages could not be looked up: the service does not know them ({few})"
        )
    lines.append(f"{len(packages) - len(unknown)} packages were looked up")
    return code, lines


def reported(auditor: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the report of `pip-audit` for each package. Exits if there is none."""
    done = subprocess.run([auditor, *OPTIONS, *arguments], capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"audit: no result; the advisory service was not reached: {last}", file=sys.stderr)
        sys.exit(2)
    return packages


def main() -> None:
    auditor, lock, torch = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "torch.txt"
        alone.write_text(torch + "\n")
        packages = reported(auditor, "--require-hashes", "-r", lock) + reported(auditor, "--no-deps", "-r", str(alone))
    code, lines = verdict(packages)
    for line in lines:
        print(f"audit: {line}")
    sys.exit(code)


if __name__ == "__main__":
    main()
