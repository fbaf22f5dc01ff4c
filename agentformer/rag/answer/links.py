"""Addresses in a model's text. A page that shows an answer would load its images and offer its links, and an address of
the model's own making can carry away what it was shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentformer.text.prompt_quoting import MarkerRestorer, strip_hidden

# "![1]" ends a sentence with a citation. In code, "! [" means what "![" does.
_IMAGE = re.compile(r"!(?=\[(?!\d{1,3}\](?![(\[:])))")
_MARKUP = re.compile(
    r"<(?=[a-zA-Z](?:[^<>]{0,2000}?[\s/\"'](?:src|srcset|href|xlink:href|background|poster|data|action|style)\s*="
    r"|[^<>]{2000}))"
)
# What links are made of, by its code: of characters beyond ASCII they are not made.
_CODED = re.compile(
    r"&(?=#0{0,9}(?!3[49]\b)(?:\d{1,2}|1[01]\d|12[0-7])\b|#[xX]0{0,9}(?!2[27]\b)[0-7]?[0-9a-fA-F]\b"
    r"|(?:colon|sol|bsol|period|excl|lsqb|lbrack|lpar|Tab|NewLine);)"
)
_STOPS = "“”„‘’«»‹›（）「」『』【】［］⟦⟧、。，；：！？—…"  # no part of an address, where they follow one
_IN_ADDRESS = rf"[^\s<>\"'`\[\]{{}}|^{_STOPS}"
_SCHEME = (
    r"https?\\?:(?=\\?[/\\])|(?<![a-zA-Z0-9])(?:(?:https?|ftp|wss?|javascript|vbscript|mailto)\\?:(?=\S)"
    r"|file\\?:(?=\\?[/\\])|blob\\?:(?=https?)|data\\?:(?=(?:[\w.+-]{1,80}/[\w.+-]{1,80})?(?:;[\w.=+-]{1,80}){0,9},)"
    r"|www\\?\.(?=\w))"
)
_NO_SCHEME = r"(?<=\]\()[/\\]{2,9}(?=[\w\[])|(?<![^\s;])[/\\]{2}(?=[\w-]+(?:\.[\w-]+)+[/?#\\])"
_ADDRESS = re.compile(
    rf"(?P<linked>(?<=\]\())?(?:{_SCHEME}|{_NO_SCHEME})"
    rf"(?(linked)(?:{_IN_ADDRESS}()]|\([^\s()]{{0,500}}\))+|{_IN_ADDRESS}]+)",
    re.IGNORECASE,
)
_LINK = re.compile(r"\[(?P<label>[^\[\]]{0,500})\]\(\s{0,9}(?P<target>[^()\s]{1,4000})(?:\s[^()\n]{0,300})?\)")
_DEFINED = re.compile(
    r"(?P<label>^[ \t>]{0,9}\[[^\[\]]{1,500}\]:\s{0,9}<?)(?P<target>[/\\]{2}[^\s<>]{1,4000})", re.MULTILINE
)
_LEFT_OUT = "…"
_ENDS = ".,;:!?*_)'\"/\\" + _STOPS  # what may end a sentence rather than an address
_TOLD = 40  # characters of a host
_ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])")  # Markdown's
_LETTERS = re.compile(r"(?:%[89a-f][0-9a-f])+")  # of other scripts, as addresses code them
_LINE_END = re.compile(r"[ \t]*\r?\n[ \t]*")
# What stands directly behind an address: a page may take it for a part of one.
_REACH = 200  # characters of that
_BEHIND = re.compile(rf"[^\s<]{{0,{_REACH}}}")
_CITED = re.compile(r"\[\d{1,3}\]")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffdc]")  # Thai to Hangul
_OPENED_BY = {")": "(", "]": "[", "}": "{", ">": "<", '"': '"', "'": "'", "`": "`"}
# What may become an image, markup or a quoted token when more is said.
_UNDECIDED = re.compile(
    r"(?:!|!\[\d{0,3}|!\[\d{1,3}\]|!?⟦[^⟦⟧<>‹›\n]{0,60}(?:⟧[ \t*_]{0,4})?|[<‹](?:[a-zA-Z][^<>‹›]{0,2000})?)\Z"
)


@dataclass(frozen=True, slots=True)
class CheckedText:
    """A text without images and unknown addresses. `unknown_hosts` are the hosts of the removed addresses."""

    text: str
    unknown_hosts: tuple[str, ...] = ()


def remove_unknown_links(text: str, given: Iterable[str]) -> CheckedText:
    """Images become links, markup that loads something is broken up, and what points to an address that stands
    nowhere in `given` keeps its label alone."""
    text = _CODED.sub("& ", _without_images(text))
    if not (_ADDRESS.search(text) or _LINK.search(text) or _DEFINED.search(text)):
        return CheckedText(text)
    known = _Known(given)

    def link(found: re.Match[str]) -> str:
        target = found["target"].removeprefix("<")
        points = _ADDRESS.match(target) or target.startswith(("//", "\\\\", "/\\", "\\/"))
        return found["label"] if points and known.misses(target) else found[0]

    def definition(found: re.Match[str]) -> str:
        return found["label"] + _LEFT_OUT if known.misses(found["target"]) else found[0]

    def address(found: re.Match[str]) -> str:
        if not known.holds(found[0]) and (parted := _parted(found[0], known)):
            return parted
        if known.misses(found[0]):
            return _LEFT_OUT + found[0][len(found[0].rstrip(_ENDS)) :]
        return found[0] + _gap(found, known)

    text = _DEFINED.sub(definition, _LINK.sub(link, text))
    return CheckedText(_ADDRESS.sub(address, text), tuple(known.missed))


def link_warnings(unknown: Iterable[str]) -> list[str]:
    """What is told of addresses that were left out: whose they are, and nothing of what they carry."""
    told = ", ".join(unknown)
    return [f"the model gave addresses that stand in nothing it was shown; they were left out: {told}"] if told else []


class _Known:
    """What was given, to look addresses up in; `missed` are the hosts of those that are not there."""

    def __init__(self, given: Iterable[str]) -> None:
        forms: dict[str, None] = {}
        for text in given:
            plain = strip_hidden(text)
            # A document's lines may break an address: its rest is the first word of the next line.
            forms.update(dict.fromkeys(map(_alike, (text, plain, _LINE_END.sub("", plain)))))
        self._text = "\n".join(forms)
        self.missed: dict[str, None] = {}

    def holds(self, address: str) -> bool:
        return _bare(address) in self._text

    def misses(self, address: str) -> bool:
        if self.holds(address):
            return False
        self.missed.setdefault(re.split(r"[/?#;,&\\]", _bare(address))[0][:_TOLD])
        return True


def _gap(found: re.Match[str], known: _Known) -> str:
    """A space, where a page might take what directly follows a known address for its end."""
    behind = _BEHIND.match(found.string, found.end())
    more = behind[0] if behind else ""
    if len(more) < _REACH and (not any(map(str.isalnum, _CITED.sub("", more))) or known.holds(found[0] + more)):
        return ""
    opened = found.string[found.start() - 1 : found.start()]
    return "" if _OPENED_BY.get(more[0]) == opened else " "


def _parted(run: str, known: _Known) -> str:
    """A known address and the words after it, where these are written without spaces; "" where it is none."""
    words = _UNSPACED.search(run)
    if not words or _ADDRESS.search(run, words.start()):
        return ""
    address = run[: words.start()]
    return f"{address} {run[words.start() :]}" if "." in _bare(address) and known.holds(address) else ""


def _without_images(text: str) -> str:
    return _MARKUP.sub("‹", _IMAGE.sub("! ", text))


class LinkFilter:
    """A text that comes in pieces, without images and markup, and with the brackets that the texts `given` were quoted
    without. Its links are judged when it is whole."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._restorer = MarkerRestorer(given)
        self._held = ""

    def feed(self, piece: str) -> str:
        """What may be shown of all so far."""
        text = self._held + piece
        undecided = _UNDECIDED.search(text)
        at = undecided.start() if undecided else len(text)
        shown, self._held = text[:at], text[at:]
        return _without_images(self._restorer.restore(shown))

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return _without_images(self._restorer.restore(held))


def _alike(text: str) -> str:
    """A text in which an address stands as `_bare` has it."""
    return _LETTERS.sub(_decoded, _ESCAPE.sub("", text).casefold()).casefold()


def _decoded(coded: re.Match[str]) -> str:
    """The letters of a coded run; the run itself where it has others, which may not be seen or end an address."""
    try:
        letters = bytes.fromhex(coded[0].replace("%", "")).decode()
    except UnicodeDecodeError:
        return coded[0]
    strange = any(ch.isspace() or ch in _STOPS for ch in letters) or strip_hidden(letters) != letters
    return coded[0] if strange else letters


def _bare(address: str) -> str:
    """An address as it may stand elsewhere: without scheme, and what ends its sentence."""
    return re.sub(r"\A(?:[a-z]+:)?[/\\]*", "", _alike(address)).rstrip(_ENDS)
