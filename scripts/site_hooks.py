"""Hooks of mkdocs: links to files of the repository, the page of changes, Markdown beside each page, and llms.txt."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((\.\./[^)\s]+)\)")  # the text may have brackets of its own
_BESIDE = re.compile(r"\]\(docs/([^)\s]+)\)")
REPOSITORY = "/".join(filter(None, (os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY"))))
pages: list[tuple[str, str, str]] = []  # title, path of the Markdown, first paragraph


def on_files(files: Any, config: Any) -> Any:
    """Add CHANGELOG.md, which stands in the root of the repository, to the pages."""
    text = _BESIDE.sub(r"](\1)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "CHANGELOG.md", content=text))
    pages.clear()
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files of the repository into links to their web address or, without one, into plain text."""

    def elsewhere(link: re.Match[str]) -> str:
        shown, target = link[1], link[2].removeprefix("../")
        if target == "CHANGELOG.md":
            return f"[{shown}](CHANGELOG.md)"
        return f"[{shown}]({REPOSITORY}/blob/HEAD/{target})" if REPOSITORY.count("/") > 2 else shown

    text = _OUTSIDE.sub(elsewhere, markdown)
    paragraphs = [part for part in text.split("\n\n") if part[:1].isalpha()]
    pages.append(
        (page.title or page.file.name, page.file.src_uri, " ".join(paragraphs[0].split()) if paragraphs else "")
    )
    target = Path(config.site_dir, page.file.src_uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return text


def on_post_build(config: Any) -> None:
    """Write llms.txt: the site in one page for a language model, with a line for each page."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n\n## Pages\n\n"
    lines = [f"- [{title}]({path}): {first[:300]}" for title, path, first in pages]
    Path(config.site_dir, "llms.txt").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
