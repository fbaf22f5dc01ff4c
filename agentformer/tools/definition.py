"""`ToolDefinition`: a tool that is made from a method with type annotations. It checks arguments by a JSON Schema."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentformer.access.permissions import Permission
from agentformer.errors import InvalidInput
from agentformer.http.json_limits import is_storable, with_few_unknown

_HIDDEN = ("self", "caller")  # parameters that the schema leaves out
_SHOWN = 80  # characters of a wrong value that a message contains
_REPORTED = 3  # wrong arguments that a message describes
_MAX_DEPTH = 100  # levels of nested arguments; metadata have the same limit


@dataclass(frozen=True, slots=True)
class Hints:
    """The permission that a tool requires (see `access.permissions`), and the effects of a call on the stored data.

    `idempotent`: a second call with the same arguments changes nothing. `additive`: the call adds entries and does not
    change existing entries. `changes_prompt`: the stored text becomes part of every later prompt.
    """

    permission: Permission
    idempotent: bool = False
    additive: bool = False
    changes_prompt: bool = False


def tool(title: str, hints: Hints) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that marks a method as a tool with this title and these effects (`hints`). The language model
    gives all arguments except `self` and `caller`."""

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        method.title = title  # type: ignore[attr-defined]
        method.hints = hints  # type: ignore[attr-defined]
        return method

    return mark


class ToolDefinition:
    """A tool with `name`, `title`, `description`, `parameters` (the JSON Schema of the arguments) and `hints`."""

    def __init__(self, function: Callable[..., dict[str, Any]]) -> None:
        self._function = function
        self.name: str = function.__name__
        self.title: str = function.title  # type: ignore[attr-defined]
        self.description = inspect.cleandoc(function.__doc__ or "")
        self.hints: Hints = function.hints  # type: ignore[attr-defined]
        self._arguments = _arguments_model(getattr(function, "__func__", function))
        self.parameters: dict[str, Any] = copy.deepcopy(_schema(self._arguments))

    @property
    def read_only(self) -> bool:
        return self.hints.permission.right == "read"

    @property
    def needs_permission(self) -> bool:
        """True if a person must permit a call after the language model has read stored text, because this text may
        contain instructions of other people."""
        return not self.read_only and (self.hints.changes_prompt or not self.hints.additive)

    def run(self, caller: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments, run the tool and return its result. Raises `InvalidInput` for wrong arguments; the
        message explains to a language model how to correct the call."""
        return self._function(caller, **self._checked(arguments))

    def _checked(self, arguments: Any) -> dict[str, Any]:
        if not isinstance(arguments, Mapping):
            raise InvalidInput("arguments", f"must be a JSON object. {self._usage()}")
        arguments = with_few_unknown(arguments, self._arguments, _REPORTED)
        for name, value in arguments.items():
            if not is_storable(name, _MAX_DEPTH):
                raise InvalidInput("arguments", f"have a name that is not valid text. {self._usage()}")
            if not is_storable(value, _MAX_DEPTH):
                problem = f"contains half of a surrogate pair, or is nested more than {_MAX_DEPTH} levels deep"
                raise InvalidInput(name[:_SHOWN], f"{problem}; send another value")
        try:
            checked = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise self._correction(error) from None
        return {name: getattr(checked, name) for name in self._arguments.model_fields}

    def _correction(self, error: ValidationError) -> InvalidInput:
        """Return an error that describes up to three wrong arguments, and lists all arguments of the tool."""
        faults = error.errors(include_url=False, include_context=False)
        first = _location(faults[0]) or "arguments"
        problems = "; ".join(self._problem(fault) for fault in faults[:_REPORTED]).removeprefix(f"{first} ")
        return InvalidInput(first, f"{problems}{'' if problems.endswith('?') else '.'} {self._usage()}")

    def _problem(self, fault: Any) -> str:
        name = _location(fault)
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, self._arguments.model_fields)
            return f"{name} is not an argument of this tool" + (f"; did you mean {near[0]}?" if near else "")
        if fault["type"] == "missing":
            return f"{name} is missing"
        return f"{name} is wrong: {fault['msg']}, got {_short(fault['input'])}"

    def _usage(self) -> str:
        """Return the names of all arguments in one line. A star marks a required argument."""
        required = self.parameters.get("required", ())
        names = ", ".join(f"{name}{'*' if name in required else ''}" for name in self.parameters["properties"])
        return f"{self.name} takes: {names or 'no arguments'}{' (* required)' if required else ''}"


@functools.cache  # computed once per function, even if many memories are opened
def _arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return a pydantic model of the arguments that a language model gives: all except `self` and `caller`."""
    hints = get_type_hints(function, include_extras=True)
    model_fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in _HIDDEN
    }
    model: type[BaseModel] = create_model(
        function.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **model_fields
    )
    return model


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments, without generated titles and null defaults, to save tokens."""
    schema = model.model_json_schema()
    schema.pop("title", None)
    for value in schema.setdefault("properties", {}).values():
        value.pop("title", None)
        if value.get("default", ...) is None:
            del value["default"]
    return schema


def _location(fault: Any) -> str:
    """Return the path to a wrong argument, such as `kinds.0` for the first item of `kinds`."""
    return ".".join(str(part) for part in fault["loc"])[:_SHOWN]


def _short(value: Any) -> str:
    value = value[: _SHOWN + 1] if isinstance(value, (str, list)) else value  # the rest is not shown
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
