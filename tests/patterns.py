"""The regular expressions of the package, and hostile texts for a regular expression."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import agentformer

PACKAGE = Path(agentformer.__file__).parent
FUNCTIONS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"}
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
LONG = 100  # a repetition of at least so many times may take more than linear time
# Characters that stand for all others of their kind.
CHARACTERS = "aAzé1 \t\n.-_,:;'\"/\\()[]{}<>*#|=@&$%!?+~^`´。、一ä\u0301\u200b\x00"
ENDS = ("", "\x00", "\n\n a")  # after the repeated part; most patterns do not match one of them
# Lengths; only an exponential time is seen here. `FINE` is between two of them: if a text takes a while, the next one
# grows by little, so that the first one that takes long takes seconds and not minutes.
FIRST = (8, 16, 24, 32, 40, 48, 56, 64, 128, 300)
FINE = 2
A_WHILE = 0.0005  # seconds, for at most 64 characters
SHORT, LENGTH = 1_000, 4_000
NOISE = 0.004  # seconds
MOST = 9.0  # times as long for a text of four times the length: 4 is linear, 16 is quadratic


@dataclass
class Found:
    """A regular expression of the package: where it is, and the functions that use it."""

    pattern: re.Pattern[Any]
    places: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


def patterns() -> dict[tuple[Any, int], Found]:
    """Return all regular expressions of the package: the values of its modules and classes, those that are written in
    a call of `re`, and those that are made from data files."""
    found: dict[tuple[Any, int], Found] = {}

    def add(pattern: re.Pattern[Any], place: str, functions: Iterable[str]) -> None:
        each = found.setdefault((pattern.pattern, pattern.flags), Found(pattern))
        each.places.add(place)
        each.functions.update(FUNCTIONS.intersection(functions))

    for module in modules():
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        for name, value in [item for each in (module, *own) for item in vars(each).items()]:
            if values := [*compiled(value)]:
                calls = re.findall(rf"(?<!\w){re.escape(name)}(?:\[[^\[\]]+\])?\.(\w+)\b", source)
                for pattern in values:
                    add(pattern, f"{module.__name__}.{name}", calls)
        for text, function in written(source):
            add(re.compile(text), module.__name__, [function])
    for pattern in from_data():
        add(pattern, "a data file", ["search", "finditer"])
    return found


def modules() -> Iterator[ModuleType]:
    """Yield the modules of the package that can be imported: an extra may be missing."""
    for info in pkgutil.walk_packages([str(PACKAGE)], "agentformer."):
        if not info.name.endswith("__main__"):
            try:
                yield importlib.import_module(info.name)
            except ImportError:
                continue


def compiled(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """Yield the patterns in a value and in the collections that it contains."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        yield from (pattern for each in (*value.keys(), *value.values()) for pattern in compiled(each, depth - 1))
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        yield from (pattern for each in value for pattern in compiled(each, depth - 1))
    elif depth and "__dataclass_fields__" in vars(type(value)):
        yield from (pattern for name in value.__dataclass_fields__ for pattern in compiled(getattr(value, name, None)))


def written(source: str) -> Iterator[tuple[Any, str]]:
    """Yield the patterns that are written in calls of `re` such as `re.sub("a+", ...)`, with the function's name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS:
            of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if of_re and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, node.func.attr


def from_data() -> Iterator[re.Pattern[str]]:
    """Yield the patterns that functions make from data files and names."""
    from agentformer.agent.cited_pages import _BRACKETED, _NAMED, _WITH_WORD
    from agentformer.text import question_types
    from agentformer.text.dates.relative import _pattern
    from agentformer.text.facts.quantities import _numbers
    from agentformer.text.language_files import sections

    for language, kinds in sections("questions").items():
        yield from (pattern for kind in kinds if (pattern := question_types.pattern_of(kind, language)))
    yield from map(_numbers, question_types.question_words("numbers"))
    yield _pattern()[0]
    yield from (pattern for pairs in question_types._ratios().values() for pattern, _ in pairs)
    yield from (re.compile(each.replace("{name}", "a"), re.IGNORECASE) for each in (_BRACKETED, _WITH_WORD, _NAMED))


class Texts:
    """Hostile texts for a pattern. `pumps` are pairs: a beginning, and a part to repeat after it. They follow from the
    structure of the pattern: the beginning of what it matches, and what a repetition in it matches."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.is_bytes = isinstance(pattern.pattern, bytes)
        text = pattern.pattern.decode("latin-1") if self.is_bytes else pattern.pattern
        self.pumps: dict[tuple[str, str], None] = {}
        self.repeats = False  # True if a part may repeat at least `LONG` times
        self._walk(parser.parse(text, pattern.flags & ~re.UNICODE if self.is_bytes else pattern.flags), "")

    def made(self, beginning: str, part: str, end: str, length: int) -> Any:
        text = beginning + part * (length // len(part) + 1) + end
        return text.encode("utf-8", "surrogatepass") if self.is_bytes else text

    def _walk(self, items: Iterable[Any], before: str) -> None:
        for kind, argument in items:
            if str(kind) in REPEATS and argument[1] >= LONG:
                self.repeats = True
                for part in (*samples(argument[2]), *characters(argument[2])):
                    self._add(before, part)
                    self._add("", before + part)
            for inner in _inner(kind, argument):
                self._walk(inner, before)
            before = (before + samples([(kind, argument)])[0])[:200]
        self._add("", before[:-1])
        self._add("", before)

    def _add(self, before: str, part: str) -> None:
        if part:
            self.pumps[before, part] = None


def _inner(kind: Any, argument: Any) -> Iterable[Any]:
    match str(kind):
        case "SUBPATTERN":
            return (argument[-1],)
        case "ATOMIC_GROUP":
            return (argument,)
        case "BRANCH" | "ASSERT" | "ASSERT_NOT":
            return argument[1] if str(kind) == "BRANCH" else (argument[1],)
        case name if name in REPEATS:
            return (argument[2],)
    return ()


def samples(items: Iterable[Any], most: int = 3) -> list[str]:
    """Return at most `most` short texts that match a sequence of parsed items."""
    found = [""]
    for kind, argument in items:
        name, inner = str(kind), list(_inner(kind, argument))
        options = [""]
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            options = characters([(kind, argument)])[:most] or [""]
        elif name in REPEATS:
            times = max(min(int(argument[0]), 300), min(1, int(argument[1])))
            options = [each * times for each in samples(inner[0], most)]
        elif not name.startswith("ASSERT") and inner:
            options = [each for branch in inner[:8] for each in samples(branch, most if len(inner) == 1 else 1)]
        found = [one + other for one in found for other in options[:most]][:most]
    return found


def characters(items: Iterable[Any]) -> list[str]:
    """Return characters that an item matches, if it matches one character."""
    items = list(items)
    kind, argument = items[0] if len(items) == 1 else ("", None)
    match str(kind):
        case "SUBPATTERN":
            return characters(argument[-1])
        case "LITERAL":
            return [chr(argument)]
        case "ANY":
            return list(CHARACTERS)
        case "NOT_LITERAL":
            return [each for each in CHARACTERS if each != chr(argument)]
        case "IN":
            own = [chr(value if str(sort) == "LITERAL" else value[0]) for sort, value in argument if _is_own(sort)]
            accepted = _set_of(argument)
            return list(dict.fromkeys(each for each in (*CHARACTERS, *own[:4]) if accepted.match(each)))
    return []


def _is_own(sort: Any) -> bool:
    return str(sort) in ("LITERAL", "RANGE")


def _set_of(items: Any) -> re.Pattern[str]:
    categories = {
        "DIGIT": r"\d",
        "SPACE": r"\s",
        "WORD": r"\w",
        "NOT_DIGIT": r"\D",
        "NOT_SPACE": r"\S",
        "NOT_WORD": r"\W",
    }
    inside = ""
    for sort, value in items:
        if str(sort) == "NEGATE":
            inside = "^"
        elif str(sort) == "CATEGORY":
            inside += categories[str(value).removeprefix("CATEGORY_")]
        else:
            inside += "-".join(re.escape(chr(each)) for each in (value if str(sort) == "RANGE" else (value,)))
    return re.compile(f"[{inside}]")


def slow_text(pattern: re.Pattern[Any], function: str) -> str | None:
    """Return a description of a text for which a function of the pattern takes more than linear time, or None."""
    texts, work = Texts(pattern), _work(pattern, function)
    if not texts.repeats:
        return None
    for beginning, part in texts.pumps:
        for end in ENDS:

            def taken(length: int, times: int = 1, *, pump: tuple[str, str, str] = (beginning, part, end)) -> float:
                return min(_seconds(work, texts.made(*pump, length)) for _ in range(times))

            if is_exponential(taken):
                return f"{beginning!r} + {part!r} * n + {end!r}: exponential time"
            # On a busy machine, one comparison may be wrong by chance, so a slow text must be slow each time.
            if all(
                taken(LENGTH) > NOISE
                and taken(LENGTH, 3) > MOST * taken(SHORT, 3)
                and taken(4 * LENGTH, 2) > MOST * taken(LENGTH, 3)
                for _ in range(3)
            ):
                return f"{beginning!r} + {part!r} * n + {end!r}: more than linear time"
    return None


def is_exponential(taken: Callable[[int], float]) -> bool:
    """Does a short text take long? `taken` returns the seconds for a text of a length."""
    last = 0
    for length in FIRST:
        between = range(last + FINE, length, FINE) if last and taken(last) > A_WHILE else ()
        if any(taken(each) > 0.2 for each in (*between, length)):
            return True
        last = length
    return False


def _work(pattern: re.Pattern[Any], function: str) -> Callable[[Any], object]:
    if function in ("match", "fullmatch", "search"):
        return getattr(pattern, function)
    return lambda text: sum(1 for _ in pattern.finditer(text))


def _seconds(work: Callable[[Any], object], text: Any) -> float:
    started = time.process_time()
    work(text)
    return time.process_time() - started
