"""Escape stored text before it becomes part of a prompt. Escaped text cannot close a tag of the prompt, cannot contain
a token of a chat template, and has no hidden characters.

Only the text in the prompt is changed. Stored text and cited text stay the same. In a prompt, data is between tags with
angle brackets. So in the data, `‹` and `›` replace angle brackets. In text that looks like a tag or a token, `⟦`
replaces the opening bracket. The time of each function is linear in the length of the text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from agentformer.text.normalize import normalized

# Tags that enclose data or roles in the prompts of this package or of other programs.
_FRAMES = {
    *(
        "passage",
        "passages",
        "memory",
        "core-memory",
        "recalled-memory",
        "standing-instructions",
        "tool-result",
        "note",
        "message",
        "messages",
        "known-fact",
        "known-facts",
    ),
    *("mistakes", "question", "system", "user", "assistant"),
}
_BREAK = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Characters that a model reads and a person does not see: controls, direction marks, selectors, fillers, tags. Joiners
# stay between letters that need them, as in Persian and in emoji sequences.
_JOINERS = re.compile("([\u200c\u200d])[\u200c\u200d]+")
_STRAY = re.compile("(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])")
_HIDDEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_ENTITY = re.compile(r"&(?:amp;){0,9}(?:(?P<opens>lt|#0{0,9}60|#x0{0,9}3c)|gt|#0{0,9}62|#x0{0,9}3e);", re.IGNORECASE)
_ANGLES = str.maketrans("<>＜＞﹤﹥", "‹›‹›‹›")
# An apparent tag of a frame, with any kind of bracket.
_TAG = re.compile(
    r"(?:[<＜﹤‹〈⟨❮〈《⟪«≪˂ᐸ≺]|\\u003c|\\x3c|%3c)"
    r"(?=[\s\u200c\u200d]{0,9}/?[\s\u200c\u200d]{0,9}(?P<name>[\w‐‑–\u200c\u200d-]{4,40}))",
    re.IGNORECASE,
)
_LIKE_LATIN = str.maketrans("аеорсухіѕԁɡһјοαι_‐‑–", "aeopcyxisdghjoai----")
# Tokens of chat templates in square brackets (Mistral, BERT, GLM, EXAONE, MiniMax). In a document, any word in capitals
# counts as a token. In a person's message, only known tokens count, so that "[OK]" stays.
_KNOWN = (
    r"INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|ARGS|CALL_ID|THINK|CLS|SEP|MASK|PAD|UNK|BOS|EOS"
    r"|UNUSED_TOKEN_\d{1,6}|[gs]MASK"
)
_ROLES = r"(?i:\s?/?\s?(?:inst|system|user|assistant)\s?)"
_OTHERS = r"\[(?=\||e~\[)|\](?=~!?b[\[\]])"
_SQUARE = re.compile(rf"\[(?P<token>/?(?:[A-Z][A-Z_]{{1,28}}[A-Z](?:_\d{{1,6}})?|{_KNOWN})|{_ROLES})\]|{_OTHERS}")
_SQUARE_KNOWN = re.compile(rf"\[(?P<token>/?(?:{_KNOWN})|{_ROLES})\]|{_OTHERS}")
# Known tokens in angle brackets, for people's messages, where other angle brackets stay.
_ANGLED = re.compile(
    r"<(?=[|｜]|</?SYS>>|/?(?:s|unk|pad|bos|eos|sop|eop|mask|(?:start|end|begin)_of_\w{1,20}|im_(?:start|end|sep)"
    r"|endoftext|(?:unused|extra_id|reserved)_?\d{1,6})>)",
    re.IGNORECASE,
)
_ROLE = re.compile(
    r"^(?P<before>[ \t>›*_\"'“-]{0,12})(?P<role>human|assistant|system|user|developer"
    r"|#{1,6}[ \t]{0,4}(?:human|assistant|system|user|instructions?|response|input))(?=[ \t*_]{0,4}[:：])",
    re.IGNORECASE | re.MULTILINE,
)
# The escaped brackets that a model repeats in its answer. An escaped frame, number or template token stays.
_QUOTED_ANGLE = re.compile(r"(?P<open>‹(?![|｜]))|(?P<frame>⟦[^⟦⟧‹›\n]{1,60}›)|›")
_QUOTED_SQUARE = re.compile(
    r"⟦(?P<role>(?:#{1,6}[ \t]{0,4})?[A-Za-z]{4,12})⟧(?=[ \t*_]{0,4}[:：])"
    r"|⟦(?P<token>/?[A-Z][A-Z_]{1,28}[A-Z](?:_\d{1,6})?)⟧|⟦(?=\|)"
)


def escape_text(text: str) -> str:
    """Escape a text that is put between the tags of a prompt."""
    text = strip_hidden(_BREAK.sub("\n", text))
    text = _ENTITY.sub(lambda entity: "‹" if entity["opens"] else "›", text)
    text = _TAG.sub(lambda tag: "⟦" if _is_frame(tag["name"]) else tag[0], text).translate(_ANGLES)
    return _ROLE.sub(r"\g<before>⟦\g<role>⟧", _SQUARE.sub(_broken, text))


def strip_hidden(text: str) -> str:
    """Return the text without invisible characters."""
    text = _HIDDEN.sub("", text)
    if "\u200c" not in text and "\u200d" not in text:
        return text
    return _STRAY.sub("", _JOINERS.sub(r"\1", text))


def escape_line(text: str) -> str:
    """Escape a text that is put between double quotes, as the value of an attribute. The result is one line without
    double quotes."""
    return " ".join(escape_text(text).replace('"', "'").split())


def escape_json(text: str) -> str:
    """Replace tags, tokens and hidden characters in JSON text with JSON escape codes. The parsed value stays the
    same."""
    for pattern in (_HIDDEN, _JOINERS, _STRAY, _BREAK, _SQUARE):
        text = pattern.sub(_coded, text)
    text = _ENTITY.sub(lambda entity: f"\\u0026{entity[0][1:]}", text)
    return _TAG.sub(_coded_tag, text).replace("<", "\\u003c")


def strip_template_tokens(text: str) -> str:
    """Escape the tokens of chat templates in a message, so that no model reads them as tokens. Other text stays the
    same."""
    return _SQUARE_KNOWN.sub(_broken, _ANGLED.sub("‹", text))


class MarkerRestorer:
    """Restores the original brackets in the answer of a model, which may repeat escaped text of its prompt. A sign such
    as `‹` is not replaced if one of the stored texts contains this sign."""

    def __init__(self, stored: Iterable[str]) -> None:
        signs = {sign for text in stored for sign in "‹›⟦⟧" if sign in text}
        self._angles, self._squares = not signs & set("‹›"), not signs & set("⟦⟧")

    def restore(self, text: str) -> str:
        """Return the answer `text` with the original brackets."""
        if self._angles:
            text = _QUOTED_ANGLE.sub(lambda sign: sign["frame"] or ("<" if sign["open"] else ">"), text)
        return _QUOTED_SQUARE.sub(_whole, text) if self._squares else text


def wrap_in_tag(tag: str, text: str) -> str:
    """Return the escaped text between the opening and the closing tag of the name `tag`."""
    return f"<{tag}>\n{escape_text(text)}\n</{tag}>"


def _is_frame(name: str) -> bool:
    """Return whether `name` looks like the name of a tag that surrounds data in a prompt. Letters of other scripts that
    look like Latin letters are compared as Latin letters."""
    plain = normalized("NFKC", name).casefold().translate(_LIKE_LATIN)
    return "".join(ch for ch in plain if ch.isalpha() or ch == "-").strip("-") in _FRAMES


def _broken(token: re.Match[str]) -> str:
    if token["token"] is not None:
        return f"⟦{token['token']}⟧"
    return "⟦" if token[0] == "[" else "⟧"


def _whole(quoted: re.Match[str]) -> str:
    """Return the original text of an escaped bracket, token or role name ("Human"), and other matches unchanged."""
    if quoted["role"]:
        return quoted["role"] if _ROLE.match(f"{quoted['role']}:") else quoted[0]
    if not quoted["token"]:
        return "["
    whole = f"[{quoted['token']}]"
    return quoted[0] if _SQUARE_KNOWN.fullmatch(whole) else whole


def _coded(match: re.Match[str]) -> str:
    """Return the matched characters as escape codes of JSON. If the match is a token of a chat template, only its two
    brackets become escape codes."""
    if match.re is not _SQUARE or match["token"] is None:
        return _codes(match[0])
    return f"{_codes('[')}{match['token']}{_codes(']')}"


def _coded_tag(tag: re.Match[str]) -> str:
    """Return the matched start of a tag, with its opening bracket as a JSON escape code. If the bracket is already an
    escape code, the character after its backslash is escaped instead. If no tag around data has this name, the match is
    returned unchanged."""
    if not _is_frame(tag["name"]):
        return tag[0]
    at = 1 if tag[0][0] == "\\" else 0
    return tag[0][:at] + _codes(tag[0][at]) + tag[0][at + 1 :]


def _codes(text: str) -> str:
    return "".join(f"\\u{code:04x}" for (code,) in struct.iter_unpack(">H", text.encode("utf-16-be")))
