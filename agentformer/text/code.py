"""Detects source code by its appearance, and separates its comments from its statements.

A stored text may be code without being marked as code. Its identifiers, such as `len` or `dict`, look like words of
several human languages, so they must not be stemmed by the rules of one of these languages.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

CODE_LANGUAGE = "en"  # identifiers and comments: nearly all programming languages and libraries use English words

_SAMPLE = 4000  # code points read
_MARKS = re.compile(r"[(){}\[\]=;_<>]")
_LEAST_MARKS = 0.015  # least share of code points that are such marks; prose has fewer and is rejected fast
_LEAST_LINES = 0.5  # share of the lines that look like code
_COMMENT_MARKS = ("#", "/", '"')
_COMMENT = re.compile(
    r"[rRbBuUfF]{0,2}(?P<quotes>\"\"\"|''')(?P<text>.*?)(?:(?P=quotes)|\Z)"  # a string of several lines is a comment
    r"|/\*+(?P<block>.*?)(?:\*/|\Z)"
    r"|(?:(?<=\s)|\A)(?:\#(?!!|include\b|define\b|if|endif\b|else\b|pragma\b)|//+!?)(?P<line>[^\n]*)",
    re.DOTALL,
)
_STATEMENT = re.compile(
    r"\s*+(?:"
    r"(?:(?:async |export |default |public |private |protected |static |final |abstract |pub |inline |virtual )*"
    r"(?:def|class|function|func|fn|struct|interface|enum|trait|impl|void|fun|sub) +\*?[\w.<>~:]+ *[({:<\[=]?)"
    r"|(?:import|using|package) [\w.{*\"'(]++(?:[\w.* ,{}\"':/]*+;?\s*$|[\w.* ,{}\"':/]*? from )"
    r"|from [\w.]+ import [\w(*]"
    r"|\#(?:include|define|ifdef|ifndef|endif|pragma)\b"
    r"|(?:if|elif|while|for|with|except|try|else|finally|switch|catch|unless)\b[^.?!]*[:{]\s*$"
    r"|(?:\} *)?(?:else|catch|finally)\b.*\{\s*$"
    r"|(?:var|let|const|auto|local|my|int|float|double|char|bool|string|unsigned|long) +[\w$*&]+ *(?:=|;|:|\[)"
    r"|return\b(?: *[\w\"'({\[\]-].*)?$|raise \w+|throw new \w+|yield \w|assert \w|del \w|pass$|break;?$|continue;?$"
    r"|@\w+(?:\.\w+)*(?:\(.*)?$"
    r")"
)
_EXPRESSION = re.compile(
    r"[\w.\])] *(?:[-+*/|&%]|<<|>>|//|:)?= *\S"  # an assignment
    r"|\w\.*\("  # a call
    r"|[,(\[+*|&{;]\s*$|^\s*[)\]}]++[,;:)]*+\s*$"  # a statement of several lines, or its end
    r"|\w\[[^\]]{0,200}\]|->|=>|::|&&|\|\||==|!=|^\s*[\"'][^\"']*[\"'] *[,:]"
)
_SENTENCE = re.compile(r"[A-Z][a-z]+(?: [\w,'-]+){5,}[.?!]\s*$")
_WORDS = re.compile(r"\d+(?:\.\d+)+|\w+")
_CHAIN = re.compile(r"(?<![\w.])(?!(?:self|this|cls)\.)[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_NAMED = re.compile(r"\b(?:def|class|function|func|fn|fun|sub|struct|interface|enum|trait|impl) +([^\W\d]\w*)")


class CodeParts(NamedTuple):
    """The parts of a source text: its comments, its other words, the names that it defines, and dotted names."""

    comments: str
    words: tuple[str, ...]
    names: tuple[str, ...]
    chains: tuple[str, ...]


@lru_cache(maxsize=256)
def is_code(text: str) -> bool:
    """Return whether the text looks like source code of a programming language. Prose that quotes some code is not
    code. Only the start of a long text is read."""
    sample = text[:_SAMPLE]
    if sample.lstrip()[:1] in _COMMENT_MARKS:  # perhaps a licence
        sample = _COMMENT.sub("\n", text[: 4 * _SAMPLE])[:_SAMPLE]
    if len(_MARKS.findall(sample)) < _LEAST_MARKS * len(sample):
        return False
    lines = [line for line in _COMMENT.sub("\n", sample).splitlines() if line.strip()]
    statements = [bool(_STATEMENT.match(line)) for line in lines]
    if not any(statements):
        return False
    code_lines = [
        line
        for line, is_statement in zip(lines, statements, strict=True)
        if is_statement or (_EXPRESSION.search(line) and not _SENTENCE.match(line))
    ]
    return len(code_lines) >= _LEAST_LINES * len(lines)


def code_parts(text: str) -> CodeParts:
    """Divide a source text into its comments, its other words, the names that it defines, and its dotted names."""
    statements = _COMMENT.sub(" \n", text)
    comments = "\n".join(match["text"] or match["block"] or match["line"] or "" for match in _COMMENT.finditer(text))
    named = tuple(_NAMED.findall(statements))
    return CodeParts(comments, tuple(_WORDS.findall(statements)), named, tuple(_CHAIN.findall(statements)))
