"""What pyproject.toml cannot state: the commit of a build, and a README whose links work outside the repository.

A wheel and an sdist get the file `agentformer/build.json`; `agentformer --version` shows its commit. The address of the
repository comes from the variables of the workflow that makes a release. Without it, the README of a package has no
links to files of the repository, rather than links that lead nowhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
RECORD = Path("agentformer", "build.json")  # exists in an sdist only, never in a clone
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|`[^`]*`)*)\]\((?!\w+:|#)([^)\s]+)\)")


def build() -> dict[str, str]:
    """Return the commit, its date and the address of the repository. A value that is not known is empty."""
    if (ROOT / RECORD).exists():
        return dict(json.loads((ROOT / RECORD).read_text(encoding="utf-8")))
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    return {
        "commit": _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"),
        "date": _git("show", "--no-patch", "--format=%cs", "HEAD"),
        "repository": f"{server}/{name}" if server and name else "",
    }


def _git(*words: str) -> str:
    if not (ROOT / ".git").exists():
        return ""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def readme(text: str, repository: str, commit: str) -> str:
    """Return the README for a page of the package: links to files and pictures of the repository are absolute, or, if
    the repository is not known, a link is its text and a picture is left out."""

    def absolute(link: re.Match[str]) -> str:
        picture, shown, path = link.groups()
        if repository:
            return f"{picture}[{shown}]({repository}/{'raw' if picture else 'blob'}/{commit or 'HEAD'}/{path})"
        return "" if picture else shown

    return _LINK.sub(absolute, text)


def _write(folder: str) -> None:
    record = Path(folder) / RECORD
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(build()), encoding="utf-8")


class BuildPackage(build_py):
    """Copies the modules, and records the commit. An editable copy is the clone itself and has no record."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            _write(self.build_lib)


class BuildSources(sdist):
    """Makes the sdist, and records the commit in it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        _write(base_dir)


THIS = build()
setup(
    long_description=readme((ROOT / "README.md").read_text(encoding="utf-8"), THIS["repository"], THIS["commit"]),
    long_description_content_type="text/markdown",
    project_urls={"Repository": THIS["repository"]} if THIS["repository"] else {},
    cmdclass={"build_py": BuildPackage, "sdist": BuildSources},
)
