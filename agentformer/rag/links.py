"""Addresses in a model's text. A page that shows an answer would load its images and offer its links, and an address of
the model's own making can carry away what it was shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_IMAGE = re.compile(r"!(?=\[(?!\d{1,3}\](?![(\[:])))")  # "![1]" ends a sentence with a citation
_MARKUP = re.compile(
    r"<(?=[a-zA-Z][^<>]{0,2000}?[\s/\"'](?:src|srcset|href|xlink:href|background|poster|data|action|style)\s*=)"
)
_CODED = re.compile(r"&(?=#\d|#[xX]|(?:colon|sol|bsol|period|excl|lsqb|lbrack|lpar);)")  # of what links are made of
_ADDRESS = re.compile(
    r"(?:\b(?:https?|ftp|wss?|file|data|javascript|vbscript|mailto|blob):(?=\S)|(?<![\w:])[/\\]{2}(?=[\w-]+\.\w)|\bwww\.(?=\w))"
    r"[^\s<>\"'`\[\]{}|^]+",
    re.IGNORECASE,
)
_LINK = re.compile(r"\[(?P<label>[^\[\]]{0,500})\]\(\s{0,9}(?P<target>[^()\s]{1,4000})(?:\s[^()\n]{0,300})?\)")
_LEFT_OUT = "…"
_ENDS = ".,;:!?*_)'\"/\\…"  # what may end a sentence rather than an address
_TOLD = 40  # characters of a host
# What may become an image or markup when more is said.
_UNDECIDED = re.compile(r"(?:!|!\[\d{0,3}|!\[\d{1,3}\]|<)\Z")
_SPOKEN_MARKUP = re.compile(r"<(?=[a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Checked:
    """A text without images, and without addresses that nothing holds which the model was given; `unknown` are their
    hosts."""

    text: str
    unknown: tuple[str, ...] = ()


def without_strange_links(text: str, given: Iterable[str]) -> Checked:
    """Images become links, markup that loads something is broken up, and what points to an address that stands
    nowhere in `given` keeps its label alone."""
    text = _CODED.sub("& ", _MARKUP.sub("‹", _IMAGE.sub("", text)))
    if not _ADDRESS.search(text):
        return Checked(text)
    known = "\n".join(given).casefold()
    unknown: dict[str, None] = {}

    def is_strange(address: str) -> bool:
        bare = _bare(address)
        strange = bool(bare) and bare not in known
        if strange:
            unknown.setdefault(re.split(r"[/?#;,&\\]", bare)[0][:_TOLD])
        return strange

    def link(found: re.Match[str]) -> str:
        target = _ADDRESS.match(found["target"])
        return found["label"] if target and is_strange(found["target"]) else found[0]

    def address(found: re.Match[str]) -> str:
        return _LEFT_OUT + found[0][len(found[0].rstrip(_ENDS)) :] if is_strange(found[0]) else found[0]

    return Checked(_ADDRESS.sub(address, _LINK.sub(link, text)), tuple(unknown))


def warned(unknown: Iterable[str]) -> list[str]:
    """What is told of addresses that were left out: whose they are, and nothing of what they carry."""
    told = ", ".join(unknown)
    return [f"the model gave addresses that stand in nothing it was shown; they were left out: {told}"] if told else []


@dataclass(slots=True)
class Plain:
    """A text that comes in pieces, without images and markup. Its links are judged when it is whole."""

    _held: str = field(default="")

    def feed(self, piece: str) -> str:
        """What may be shown of all so far."""
        text = self._held + piece
        undecided = _UNDECIDED.search(text)
        at = undecided.start() if undecided else len(text)
        shown, self._held = text[:at], text[at:]
        return _SPOKEN_MARKUP.sub("‹", _IMAGE.sub("", shown))

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def _bare(address: str) -> str:
    """An address as it may stand elsewhere: without scheme, and what ends its sentence."""
    return re.sub(r"\A(?:[a-z]+:)?[/\\]*", "", address.casefold()).rstrip(_ENDS)
