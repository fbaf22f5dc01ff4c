"""Every regular expression of the package takes linear time, whatever the text."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests import patterns
from tests.patterns import Found, slow_text

PARTS = 8
# Patterns whose time may grow faster, because their texts are short or ours.
SHORT_TEXTS = {
    "agentformer.memory.summaries.extractive._QUESTION": "reads the last 8 characters of a sentence",
    "agentformer.readers.office.xlsx._QUOTED": "reads 200 characters of a number format",
    "agentformer.readers.html._ATTRIBUTE": "reads a tag that consists of its matches",
    "agentformer.readers.html._LIST_STYLE": "reads 500 characters of a style",
    "agentformer.text.dates.notation._BEGINS": "reads 24 characters before a month",
    "agentformer.text.facts.unsupported_claims._OPENING": "reads 3 characters before a name",
    "agentformer.api.endpoints.openapi": "reads names of our own schemas",
    "agentformer.readers.sandbox.linux": "reads a table of our own",
}


@cache
def found() -> list[Found]:
    return sorted(patterns.patterns().values(), key=lambda each: min(each.places))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_time_is_linear_in_the_text(part: int) -> None:
    slow = {}
    for each in found()[part::PARTS]:
        if each.places & SHORT_TEXTS.keys():
            continue
        functions = {name if name in ("match", "fullmatch", "search") else "finditer" for name in each.functions}
        for function in sorted(functions or {"finditer"}):
            if text := slow_text(each.pattern, function):
                slow[min(each.places), function] = text
    assert slow == {}


def test_all_patterns_of_the_modules_are_read() -> None:
    for package, extra in (("flask", "server"), ("mcp", "mcp"), ("openai", "llm")):
        pytest.importorskip(package, reason=f"the extra `{extra}` is not installed")
    names = set()
    for path in patterns.PACKAGE.rglob("*.py"):
        module = ".".join(("agentformer", *path.relative_to(patterns.PACKAGE).with_suffix("").parts))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("re.compile("):
                names |= {
                    f"{module.removesuffix('.__init__')}.{each.id}" for each in node.targets if hasattr(each, "id")
                }
    read = {place for each in found() for place in each.places}
    assert len(names) > 300
    assert names - read == set()
    assert SHORT_TEXTS.keys() - read == set()


@pytest.mark.parametrize(
    ("pattern", "function", "is_slow"),
    [
        (r"(a+)+b", "match", True),
        (r"(?:a|aa)*b", "fullmatch", True),
        (r"\s+$", "search", True),
        (r"<!--.*?-->", "finditer", True),
        (r"\w+@\w+", "search", True),
        (r"x\s*\s*\n", "match", True),
        (r"a+b", "match", False),
        (r"(?<!\w)\w++@\w+", "search", False),
        (r"[^\s]+", "finditer", False),
    ],
)
def test_the_hostile_texts_tell_slow_patterns_from_others(pattern: str, function: str, is_slow: bool) -> None:
    assert (slow_text(re.compile(pattern), function) is not None) == is_slow
