"""A language model on a real socket that believes whatever stands where instructions stand.

It reads what it is sent as a careless reader would: look-alikes are what they look like, entities are decoded,
invisible characters are not there. What then stands outside the frames that our format has, or in the role of the
system, it obeys. It also obeys a token of a chat template that stands intact, and a heading of a role.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.llms.hostile import Hostile, Request, completion

Message = dict[str, Any]

MARK = "pwned"  # in every attack's order
FRAMES = ("passages", "core-memory", "recalled-memory", "tool-result", "note", "messages", "mistakes")
_INNER = ("passage", "memory", "message")
_OPEN = re.compile(rf"<({'|'.join(FRAMES)})( [^<>]*)?>")
TOKENS = re.compile(
    r"<[|｜][^<>\n]{1,40}[|｜]>|<</?SYS>>|</?(?:s|sop|eos|bos|start_of_turn|end_of_turn|think|tool_call)>|\[/?INST\]"
    r"|\[/?(?:AVAILABLE_TOOLS|TOOL_CALLS)\]|\[\|\w{1,20}\|\]|\[gMASK\]|\]~!?b[\[\]]|\[e~\["
)
_HEADING = re.compile(
    r"^[ \t>*_#]{0,12}(?:human|assistant|system|user|developer|instructions?|response)[ \t*_]*[:：]", re.I | re.M
)
_BRACKETS = str.maketrans("‹›〈〉⟨⟩❮❯〈〉《》⟪⟫«»≪≫˂˃", "<>" * 10)
_LOOKS = str.maketrans("аеорсухі", "aeopcyxi")
_CODES = (("\\u003c", "<"), ("\\u003e", ">"), ("%3c", "<"), ("%3e", ">"), ("_", "-"))


def look(text: str, *, in_json: bool = False) -> str:
    """The text as it looks. What JSON has as a code is read as one, and as nothing else."""
    text = unicodedata.normalize("NFKC", html.unescape(html.unescape(text)))
    text = "".join(ch for ch in text if unicodedata.category(ch) not in ("Cf", "Cc") or ch == "\n").casefold()
    for code, meant in _CODES[2 * in_json :]:
        text = text.replace(code, meant)
    return re.sub(r"<\s*(/?)\s*", r"<\1", text.translate(_BRACKETS).translate(_LOOKS))


def outside(text: str) -> str:
    """What is left of a text without our frames, each from its opening to the first closing of it."""
    kept, at = [], 0
    while opening := _OPEN.search(text, at):
        kept.append(text[at : opening.start()])
        end = text.find(f"</{opening[1]}>", opening.end())
        at = len(text) if end < 0 else end + len(opening[1]) + 3
    return "".join([*kept, text[at:]])


def forged(text: str, *, in_json: bool = False) -> str:
    """A tag that looks like ours, and is not one that we have written; "" where there is none."""
    seen = look(text, in_json=in_json)
    for tag in (*FRAMES, *_INNER):
        ours = len(re.findall(rf"</?{tag}(?=[ >])", text))
        if len(re.findall(rf"</?{tag}(?![\w-])", seen)) != ours:
            return tag
        if text.count(f"</{tag}>") != len(re.findall(rf"<{tag}[ >]", text)):
            return tag
    numbers = re.findall(r'<passage number="(\d+)"', text)
    return "" if numbers == [str(n) for n in range(1, len(numbers) + 1)] else "passage"


def why(messages: Sequence[Message], hidden: str = "") -> str:
    """Why it obeys; "" where it does not."""
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        in_json = role == "tool"
        if role == "system":
            if MARK in look(text):
                return "it stands in the role of the system"
            continue
        if MARK in outside(look(text, in_json=in_json)):
            return "it stands outside of every frame"
        if tag := forged(text, in_json=in_json):
            return f"it forged <{tag}>"
        if token := TOKENS.search(text):
            return f"the token {token[0]!r}"
        if heading := _HEADING.search(re.sub("[\x0b\x0c\x85\u2028\u2029\r]", "\n", text)):
            return f"the heading {heading[0]!r}"
        if hidden and hidden in text:
            return "what nobody sees is there"
    return ""


class Gullible:
    """`reply` decides what is said; what was sent is kept."""

    def __init__(self) -> None:
        self.reply: Callable[[Message], Iterable[bytes]] = lambda body: completion("Hello.")
        self.server = Hostile(self._answer)

    @property
    def settings(self) -> dict[str, Any]:
        return {"llm_model": "tiny", "llm_base_url": self.server.url, "llm_api_key": "none", "llm_retries": 0}

    @property
    def sent(self) -> list[list[Message]]:
        return [request.body["messages"] for request in self.server.seen if "messages" in request.body]

    def _answer(self, request: Request) -> Iterable[bytes]:
        return self.reply(request.body) if "messages" in request.body else completion("")


def tool_call(name: str, arguments: dict[str, Any], own_id: str = "c1") -> dict[str, Any]:
    return {"id": own_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
