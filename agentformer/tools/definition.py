"""A tool from a typed function: its schema follows from the signature, and wrong arguments are told how to be right."""

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

from agentformer.access.grant import Right
from agentformer.errors import InvalidInput
from agentformer.types import Tool

_HIDDEN = ("self", "caller")  # parameters that no model sees
_SHOWN = 80  # characters of a wrong value that a message repeats
_MAX_DEPTH = 100  # of nested arguments; as deep as metadata may be


@dataclass(frozen=True, slots=True)
class Hints:
    """What a tool does to the store. `destructive`: something may be gone for good afterwards. `idempotent`: the same
    call again changes nothing more. `additive`: what it stores stands beside what is there, all of which stays as it is.
    `changes_prompt`: what it stores is shown in every talk."""

    right: Right
    destructive: bool = False
    idempotent: bool = False
    additive: bool = False
    changes_prompt: bool = False


def tool(title: str, hints: Hints) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a method as a tool that people know as `title`: its first parameters are `self` and `caller`, the others
    what a model gives."""

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        method.title = title  # type: ignore[attr-defined]
        method.hints = hints  # type: ignore[attr-defined]
        return method

    return mark


class ToolDefinition:
    """A tool as every edge shows it: `name`, `title`, `description`, `parameters` (JSON Schema), `hints`."""

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
        return self.hints.right == "read"

    @property
    def needs_permission(self) -> bool:
        """Does it need a permission where its call may be the wish of a text that was retrieved?"""
        return not self.read_only and (self.hints.changes_prompt or not self.hints.additive)

    def as_tool(self) -> Tool:
        """What a language model is given."""
        return Tool(self.name, self.description, self.parameters)

    def __call__(self, caller: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments and run the tool. Raises `InvalidInput` that a model can act on."""
        values = self._checked(arguments)
        return self._function(caller, **values)

    def _checked(self, arguments: Any) -> dict[str, Any]:
        if not isinstance(arguments, Mapping):
            raise InvalidInput("arguments", f"must be a JSON object. {self._usage()}")
        for name, value in arguments.items():
            if not _sound(name, 1):
                raise InvalidInput("arguments", f"have a name that is no text. {self._usage()}")
            if not _sound(value, _MAX_DEPTH):
                raise InvalidInput(
                    name[:_SHOWN], f"holds half of a surrogate pair, which is no text, or is over {_MAX_DEPTH} deep"
                )
        try:
            checked = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise self._correction(error) from None
        return {name: getattr(checked, name) for name in self._arguments.model_fields}

    def _correction(self, error: ValidationError) -> InvalidInput:
        """Each thing that is wrong once, and what the tool takes."""
        faults = error.errors(include_url=False, include_context=False)
        first = _place(faults[0]) or "arguments"
        told = "; ".join(self._fault(fault) for fault in faults[:3]).removeprefix(f"{first} ")
        return InvalidInput(first, f"{told}{'' if told.endswith('?') else '.'} {self._usage()}")

    def _fault(self, fault: Any) -> str:
        name = _place(fault)
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, self._arguments.model_fields, 1)
            return f"{name} is no argument of this tool" + (f"; did you mean {near[0]}?" if near else "")
        if fault["type"] == "missing":
            return f"{name} is missing"
        return f"{name} is wrong: {fault['msg']}, got {_short(fault['input'])}"

    def _usage(self) -> str:
        """The arguments in one line; those that must be given have a star."""
        required = self.parameters.get("required", ())
        told = ", ".join(f"{name}{'*' if name in required else ''}" for name in self.parameters["properties"])
        return f"{self.name} takes: {told or 'no arguments'}{' (* must be given)' if required else ''}"


@functools.cache  # once for a function, however many memories are opened
def _arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model whose fields are the function's parameters."""
    hints = get_type_hints(function, include_extras=True)
    given: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in _HIDDEN
    }
    model: type[BaseModel] = create_model(
        function.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **given
    )
    return model


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of the arguments, without the titles that tell a model nothing."""
    schema = model.model_json_schema()
    schema.pop("title", None)
    for value in schema.setdefault("properties", {}).values():
        value.pop("title", None)
        if value.get("default", ...) is None:
            del value["default"]
    return schema


def _place(fault: Any) -> str:
    """Where in the arguments it is, such as `kinds.0`."""
    return ".".join(str(part) for part in fault["loc"])[:_SHOWN]


def _sound(value: Any, depth: int) -> bool:
    """Whether this can be sent and stored: no half of a surrogate pair, and not nested without end."""
    if isinstance(value, str):
        try:
            return value.isascii() or bool(value.encode("utf-8"))
        except UnicodeEncodeError:
            return False
    if isinstance(value, Mapping):
        value = (*value.keys(), *value.values())
    if not isinstance(value, (list, tuple)):
        return True
    return depth > 0 and all(_sound(each, depth - 1) for each in value)


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
