"""The console: the page that a browser shows. The files of the page are in the folder `static`.

The page is plain HTML, one style sheet and small ES modules, without a build step. `page` returns the HTML, which
contains the base path of the server, and `asset` returns any other file of the page.
"""

from __future__ import annotations

import functools
from html import escape
from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = "index.html"
# No inline script or style, no other host, no frames. Images of pages are made from data that the page has fetched.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@functools.cache
def _files() -> dict[str, tuple[str, bytes]]:
    """Return the media type and the bytes of each file that the page loads, by name."""
    return {
        path.name: (_TYPES[path.suffix], path.read_bytes())
        for path in sorted(_STATIC.iterdir())
        if path.suffix in _TYPES
    }


def asset(name: str) -> tuple[str, bytes] | None:
    """Return the media type and the bytes of a file of the page. Return None if there is no such file."""
    return _files().get(name)


@functools.lru_cache(maxsize=16)
def page(root: str) -> bytes:
    """Return the HTML of the page. `root` is the base path of the server, such as "" or "/memory"."""
    text = (_STATIC / PAGE).read_text(encoding="utf-8")
    return text.replace("{root}", escape(root)).encode()
