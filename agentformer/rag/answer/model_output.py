"""Checks of the output of a model: which text may be shown while the output arrives, and which links the output may
contain.

A web page that shows an answer may load its images, and a user may follow its links. The address of an image or link
that the model made up may contain private data, which a foreign server would then receive.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from agentformer.llms.reasoning import ReasoningFilter, strip_reasoning
from agentformer.rag.answer.prompts import NO_ANSWER
from agentformer.text.prompt_quoting import MarkerRestorer, strip_hidden
from agentformer.types import Reply

_DECORATION = r"[\s*_`\"'“”\[\](){}#>.:!,–—-]*"
_DECLINE = NO_ANSWER.replace("_", r"(?:\\?_| (?=\w+[^\w]*\Z))")  # a plain space is allowed only if nothing follows
_REFUSAL = re.compile(rf"\A{_DECORATION}{_DECLINE}(?!\w){_DECORATION}")
_SPELLINGS = tuple(NO_ANSWER.replace("_", between) for between in ("_", " ", r"\_"))
_MAX_DECORATION = 16  # characters before the token, at most
# "![1]" is an exclamation mark and a citation, not an image. In code, "! [" means the same as "![".
_IMAGE = re.compile(r"!(?=\[(?!\d{1,3}\](?![(\[:])))")
_MARKUP = re.compile(
    r"<(?=[a-zA-Z](?:[^<>]{0,2000}?[\s/\"'](?:src|srcset|href|xlink:href|background|poster|data|action|style)\s*="
    r"|[^<>]{2000}))"
)
# Character references, such as "&#47;" for "/", can spell a link.
_CODED = re.compile(
    r"&(?=#0{0,9}(?!3[49]\b)(?:\d{1,2}|1[01]\d|12[0-7])\b|#[xX]0{0,9}(?!2[27]\b)[0-7]?[0-9a-fA-F]\b"
    r"|(?:colon|sol|bsol|period|excl|lsqb|lbrack|lpar|Tab|NewLine);)"
)
_STOPS = "“”„‘’«»‹›（）「」『』【】［］⟦⟧、。，；：！？—…"  # an address ends before these characters
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
_REMOVED = "…"
_ENDS = ".,;:!?*_)'\"/\\" + _STOPS  # at the end of an address, these belong to the sentence
_MAX_HOST = 40  # characters of a host in a warning
_ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])")  # Markdown's
_LETTERS = re.compile(r"(?:%[89a-f][0-9a-f])+")  # percent-encoded letters beyond ASCII
_LINE_END = re.compile(r"(?:(?<![ \t])[ \t]++)?\r?\n[ \t]*+")
# Text directly after an address. A web page may take it for a part of the address.
_REACH = 200  # characters
_TEXT_AFTER = re.compile(rf"[^\s<]{{0,{_REACH}}}")
_CITED = re.compile(r"\[\d{1,3}\]")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffdc]")  # Thai to Hangul
_OPENED_BY = {")": "(", "]": "[", "}": "{", ">": "<", '"': '"', "'": "'", "`": "`"}
# A text that may become an image, markup or an escaped token when more follows.
_UNDECIDED = re.compile(
    r"(?:!|!\[\d{0,3}|!\[\d{1,3}\]|!?⟦[^⟦⟧<>‹›\n]{0,60}(?:⟧[ \t*_]{0,4})?|[<‹](?:[a-zA-Z][^<>‹›]{0,2000})?)\Z"
)


class AnswerStream:
    """The output of a model, which arrives in pieces. Reasoning is not shown. The beginning of the output is held back
    while it may become `NO_ANSWER`, the token with which a model declines to answer."""

    def __init__(self) -> None:
        self.shown = False  # whether anything was shown
        self.reply: Reply | None = None  # set when the model has finished; some models return none
        self._pieces: list[str] = []
        self._filter = ReasoningFilter()
        self._half = ""  # the first half of a character that arrived in two pieces
        self._opening: str | None = ""  # the beginning of the output while it may become `NO_ANSWER`, then None

    @property
    def text(self) -> str:
        """The output that has arrived, without reasoning."""
        return visible_text("".join(self._pieces) or (self.reply.text if self.reply else ""))

    def read(self, pieces: Iterable[str]) -> Generator[str, None, None]:
        """Yield the parts of the output that may be shown. Closing this generator closes the stream of the model."""
        stream = iter(pieces)
        try:
            while True:
                try:
                    piece = next(stream)
                except StopIteration as end:
                    self.reply = end.value
                    break
                if shown := self._add(piece):
                    self.shown = True
                    yield shown
        finally:
            if close := getattr(stream, "close", None):  # a plain iterator has none
                close()

    def rest(self) -> str:
        """Return the text that was held back and may be shown now. Call this method when the output has ended."""
        last = self._unless_refusal(self._filter.rest())
        if self._opening and not refuses(self._opening):
            last, self._opening = self._opening, None
        self.shown = self.shown or bool(last)
        return last

    def _add(self, piece: str) -> str:
        self._pieces.append(piece)
        piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return self._unless_refusal(self._filter.feed(_encodable(piece)))

    def _unless_refusal(self, text: str) -> str:
        """Return the text that may be shown: "" while the beginning of the answer is, or may become, `NO_ANSWER`."""
        if self._opening is None:
            return text
        self._opening += text
        if refuses(self._opening) or _may_refuse(self._opening):
            return ""
        text, self._opening = self._opening, None
        return text


def visible_text(text: str) -> str:
    """Return the output of a model without reasoning and without invalid characters (halves of surrogate pairs)."""
    return strip_reasoning(_encodable(text))


def refuses(text: str) -> bool:
    """Return whether the text begins with `NO_ANSWER`, the token with which a model declines to answer."""
    return _REFUSAL.match(text) is not None


def without_refusal(text: str) -> str:
    """Return the text without the token `NO_ANSWER` at its beginning."""
    return _REFUSAL.sub("", text)


def _may_refuse(text: str) -> bool:
    core = text.lstrip(" \t\r\n*_`\"'“[({#>")
    return len(text) - len(core) <= _MAX_DECORATION and any(spelling.startswith(core) for spelling in _SPELLINGS)


def _encodable(text: str) -> str:
    """Return the text as valid Unicode: the halves of a surrogate pair are joined, and a single half is removed,
    because it cannot be stored."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")


@dataclass(frozen=True, slots=True)
class CheckedText:
    """The text of a model without images and unknown addresses, and the hosts of the removed addresses."""

    text: str
    unknown_hosts: tuple[str, ...] = ()


def remove_unknown_links(text: str, given: Iterable[str]) -> CheckedText:
    """Return the text of a model with safe links. Images become links, markup that loads data is disabled, and unknown
    addresses are removed. An address is unknown if no text in `given` contains the address; `given` are the texts that
    the model received. If a link has an unknown address, only the label of the link is kept."""
    text = _CODED.sub("& ", _without_images(text))
    if not (_ADDRESS.search(text) or _LINK.search(text) or _DEFINED.search(text)):
        return CheckedText(text)
    known = _KnownAddresses(given)

    def link(match: re.Match[str]) -> str:
        target = match["target"].removeprefix("<")
        is_address = _ADDRESS.match(target) or target.startswith(("//", "\\\\", "/\\", "\\/"))
        return match["label"] if is_address and known.misses(target) else match[0]

    def definition(match: re.Match[str]) -> str:
        return match["label"] + _REMOVED if known.misses(match["target"]) else match[0]

    def address(match: re.Match[str]) -> str:
        if not known.contains(match[0]) and (parts := _split_unspaced(match[0], known)):
            return parts
        if known.misses(match[0]):
            return _REMOVED + match[0][len(match[0].rstrip(_ENDS)) :]
        return match[0] + _gap(match, known)

    text = _DEFINED.sub(definition, _LINK.sub(link, text))
    return CheckedText(_ADDRESS.sub(address, text), tuple(known.missing_hosts))


def link_warnings(unknown_hosts: Iterable[str]) -> list[str]:
    """Return a list with one warning about removed addresses, or an empty list if `unknown_hosts` is empty. The warning
    names only hosts, because complete addresses may contain private data."""
    hosts = ", ".join(unknown_hosts)
    return (
        [f"addresses that the model wrote but no passage contains were removed; their hosts: {hosts}"] if hosts else []
    )


class _KnownAddresses:
    """Finds out whether the model has received an address: `given` are the texts that the model received."""

    def __init__(self, given: Iterable[str]) -> None:
        forms: dict[str, None] = {}
        for text in given:
            plain = strip_hidden(text)
            # A line break in a document may split an address; the first word of the next line is its rest.
            forms.update(dict.fromkeys(map(_canonical, (text, plain, _LINE_END.sub("", plain)))))
        self._text = "\n".join(forms)
        self.missing_hosts: dict[str, None] = {}  # the hosts of the addresses that no text contains

    def contains(self, address: str) -> bool:
        """Return whether one of the texts that the model received contains the address."""
        return _bare(address) in self._text

    def misses(self, address: str) -> bool:
        """Return whether no text contains the address. If so, record its host in `missing_hosts`."""
        if self.contains(address):
            return False
        self.missing_hosts.setdefault(re.split(r"[/?#;,&\\]", _bare(address))[0][:_MAX_HOST])
        return True


def _gap(match: re.Match[str], known: _KnownAddresses) -> str:
    """Return the space to insert after an address, or "" if none is needed. Without the space, a web page that shows
    the text could make the following characters a part of the link."""
    following = _TEXT_AFTER.match(match.string, match.end())
    more = following[0] if following else ""
    if len(more) < _REACH and (not any(map(str.isalnum, _CITED.sub("", more))) or known.contains(match[0] + more)):
        return ""
    opened = match.string[match.start() - 1 : match.start()]
    return "" if _OPENED_BY.get(more[0]) == opened else " "


def _split_unspaced(run: str, known: _KnownAddresses) -> str:
    """Insert a space between an address and Chinese, Japanese or similar text that follows it without a space. Return
    the address, the space and this text. Return "" if the model did not receive the address, because the end of an
    unknown address is uncertain."""
    words = _UNSPACED.search(run)
    if not words or _ADDRESS.search(run, words.start()):
        return ""
    address = run[: words.start()]
    return f"{address} {run[words.start() :]}" if "." in _bare(address) and known.contains(address) else ""


def why_cut(reply: Reply | None, limit: int) -> str:
    """Return a warning that says why the server cut off the reply, or "" if the reply is complete or None. `limit` is
    the maximum number of tokens of the reply."""
    if reply is None or reply.finish not in ("length", "filtered"):
        return ""
    if reply.finish == "filtered":
        return "the content filter of the model's server cut off the answer"
    return f"the answer was cut off at {limit} tokens; raise answer_tokens, or max_tokens of the question"


def _without_images(text: str) -> str:
    return _MARKUP.sub("‹", _IMAGE.sub("! ", text))


class LinkFilter:
    """Removes images and markup from a text that arrives in pieces. Also restores the brackets that were escaped in the
    prompt: `given` are the texts of the prompt before escaping. Links are checked later, in the complete text."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._restorer = MarkerRestorer(given)
        self._pending = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the text, and return the text that may be shown now. The end of the text is held back while it
        may be the beginning of an image or of markup."""
        text = self._pending + piece
        undecided = _UNDECIDED.search(text)
        at = undecided.start() if undecided else len(text)
        shown, self._pending = text[:at], text[at:]
        return _without_images(self._restorer.restore(shown))

    def rest(self) -> str:
        """Return the text that was held back. Call this method after the last piece."""
        pending, self._pending = self._pending, ""
        return _without_images(self._restorer.restore(pending))


def _canonical(text: str) -> str:
    """Return a text for comparisons: in lower case, without Markdown escapes, with percent-encoded letters decoded."""
    return _LETTERS.sub(_decoded, _ESCAPE.sub("", text).casefold()).casefold()


def _decoded(coded: re.Match[str]) -> str:
    """Return the letters of a percent-encoded group of bytes, such as "é" for "%c3%a9". Return the group unchanged if
    it is not valid UTF-8, or if a letter is invisible or cannot be a part of an address."""
    try:
        letters = bytes.fromhex(coded[0].replace("%", "")).decode()
    except UnicodeDecodeError:
        return coded[0]
    strange = any(ch.isspace() or ch in _STOPS for ch in letters) or strip_hidden(letters) != letters
    return coded[0] if strange else letters


def _bare(address: str) -> str:
    """Return an address for comparisons, without scheme ("https://") and without the punctuation after it."""
    return re.sub(r"\A(?:[a-z]+:)?[/\\]*", "", _canonical(address)).rstrip(_ENDS)
