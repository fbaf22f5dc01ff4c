"""Tools as they are shown: schemas that follow from signatures, hints, and corrections that a model can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
from pydantic import Field

import agentformer
from agentformer.access.permissions import EVERYTHING, Grant, Permission
from agentformer.errors import InvalidInput
from agentformer.tools.definition import Hints, ToolDefinition, tool
from agentformer.tools.document_tools import DocumentTools
from agentformer.tools.memory_tools import MemoryTools
from agentformer.tools.toolbox import HINTS, Toolbox


class Tides:
    @tool("Tell the tide", Hints(Permission("read"), idempotent=True))
    def tide(
        self,
        caller: Any,
        pier: Annotated[str, Field(min_length=1, description="Which pier.")],
        hours: Annotated[int, Field(ge=0, le=48, description="From now.")] = 0,
        units: Annotated[list[str] | None, Field(description="Of what.")] = None,
    ) -> dict[str, Any]:
        """Tell the height of the tide."""
        return {"pier": pier, "hours": hours, "units": units, "caller": caller}


TIDE = ToolDefinition(Tides().tide)


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolbox]:
    folder: Path = tmp_path_factory.mktemp("memory")
    with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing") as af:
        yield af.toolbox


def test_a_definition_is_derived_from_the_function() -> None:
    assert (TIDE.name, TIDE.title, TIDE.description) == ("tide", "Tell the tide", "Tell the height of the tide.")
    assert TIDE.read_only
    assert TIDE.parameters == {
        "additionalProperties": False,
        "type": "object",
        "required": ["pier"],
        "properties": {
            "pier": {"type": "string", "minLength": 1, "description": "Which pier."},
            "hours": {"type": "integer", "minimum": 0, "maximum": 48, "default": 0, "description": "From now."},
            "units": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "description": "Of what.",
            },
        },
    }
    assert TIDE.run("somebody", {"pier": "north"}) == {"pier": "north", "hours": 0, "units": None, "caller": "somebody"}


CORRECTIONS: tuple[tuple[Any, str, str], ...] = (  # arguments, the field that the error names, a part of its message
    ({}, "pier", "pier: is missing. tide takes: pier*, hours, units (* required)"),
    ({"peer": "x"}, "pier", "pier: is missing; peer is not an argument of this tool; did you mean pier? tide takes"),
    ({"pier": "x", "caller": "me"}, "caller", "caller: is not an argument of this tool. tide takes: pier*"),
    ({"pier": "x", "hours": 49}, "hours", "hours: is wrong: Input should be less than or equal to 48, got 49."),
    ({"pier": "x", "hours": "soon"}, "hours", "hours: is wrong: Input should be a valid integer"),
    ({"pier": "x", "units": [1]}, "units.0", "units.0: is wrong: Input should be a valid string, got 1."),
    ({"pier": "x" * 10_000, "hours": "y" * 10_000}, "hours", f'got "{"y" * 79}…. tide takes'),
    ({"pier": "x", "z" * 10_000: 1}, "z" * 80, "z: is not an argument of this tool"),
    ({"pier": "\ud800"}, "pier", "pier: contains half of a surrogate pair"),
    ({"pier": "x", "units": ["\udc00"]}, "units", "units: contains half of a surrogate pair"),
    ({"pier": "x", "\ud800": 1}, "arguments", "arguments: have a name that is not valid text."),
    ([], "arguments", "arguments: must be a JSON object. tide takes"),
    (None, "arguments", "arguments: must be a JSON object"),
)


def test_an_error_names_the_wrong_field_and_the_arguments_of_the_tool() -> None:
    for arguments, field, message in CORRECTIONS:
        with pytest.raises(InvalidInput) as caught:
            TIDE.run(None, arguments)
        assert caught.value.field == field
        assert message in str(caught.value)
        assert len(str(caught.value)) < 700
        str(caught.value).encode("utf-8")


def test_an_error_lists_at_most_three_faults() -> None:
    with pytest.raises(InvalidInput) as caught:
        TIDE.run(None, {"pier": "x", **{f"extra{number}": 1 for number in range(1000)}})
    assert str(caught.value).count("is not an argument") == 3


def test_a_wrong_value_is_quoted_up_to_80_characters() -> None:
    for length, quoted in ((78, f'got "{"y" * 78}". tide takes'), (79, f'got "{"y" * 79}…. tide takes')):
        with pytest.raises(InvalidInput) as caught:
            TIDE.run(None, {"pier": "x", "hours": "y" * length})
        assert quoted in str(caught.value)


def test_a_tool_needs_permission_unless_it_only_reads_or_adds_entries() -> None:
    for hints, needed in (
        (Hints(Permission("read")), False),
        (Hints(Permission("write"), additive=True), False),
        (Hints(Permission("write")), True),
        (Hints(Permission("change"), additive=True, changes_prompt=True), True),
    ):
        assert ToolDefinition(tool("Tell the tide", hints)(lambda self: {})).needs_permission is needed


def test_arguments_may_be_nested_100_deep() -> None:
    def nested(depth: int) -> Any:
        value: Any = "x"
        for _ in range(depth):
            value = [value]
        return value

    endless: dict[str, Any] = {}
    endless["inner"] = endless
    for value in (endless, nested(101)):
        with pytest.raises(InvalidInput, match=r"units: contains .* or is nested more than 100 levels deep"):
            TIDE.run(None, {"pier": "x", "units": value})
    with pytest.raises(InvalidInput, match=r"units\.0: is wrong"):  # of the wrong type, and not too deep
        TIDE.run(None, {"pier": "x", "units": nested(100)})


def test_every_schema_is_one_of_json_schema_and_of_openais_tools(toolbox: Toolbox) -> None:
    schemas = toolbox.schemas()
    assert len(schemas) == 16
    for schema in schemas:
        assert set(schema) == {"type", "function"}
        function = schema["function"]
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"])
        assert 20 <= len(function["description"]) <= 1024
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        assert function["parameters"]["type"] == "object"
        assert function["parameters"]["additionalProperties"] is False
        assert "caller" not in function["parameters"]["properties"]
        for value in function["parameters"]["properties"].values():
            assert value["description"]
            assert "$ref" not in json.dumps(value), "models read references badly"
    assert len(json.dumps(schemas)) < 16_000, "a small model has to read all of it before each answer"


def test_a_schema_and_its_tool_accept_the_same_arguments(toolbox: Toolbox) -> None:
    definitions = {definition.name: definition for definition in toolbox.definitions()}
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("memory_search", {"query": "tea", "tiers": ["core"], "limit": 50}, True),
        ("memory_search", {"query": "tea", "tiers": ["deep"]}, False),
        ("memory_search", {"query": "tea", "limit": 51}, False),
        ("memory_search", {"query": "tea", "kinds": None, "namespace": None}, True),
        ("memory_search", {"query": ""}, False),
        ("memory_status", {}, True),
        ("memory_status", {"namespace": 1}, False),
        ("rag_list", {"limit": 1, "after": None}, True),
        ("rag_list", {"limits": 1}, False),
        ("core_memory_replace", {"name": "a", "old": "", "new": ""}, False),
    ]
    for name, arguments, right in cases:
        definition = definitions[name]
        assert jsonschema.Draft202012Validator(definition.parameters).is_valid(arguments) is right, (name, arguments)
        if right:
            definition._checked(arguments)
        else:
            with pytest.raises(InvalidInput):
                definition._checked(arguments)


OFFERED = [name for name in HINTS if name != "rag_sync"]  # which needs the setting sync_roots


def test_hints_describe_the_effect_of_a_tool(toolbox: Toolbox) -> None:
    assert {name for name, hints in HINTS.items() if hints.permission.right == "write"} == {"memory_add", "rag_upload"}
    assert {name for name, hints in HINTS.items() if hints.permission.right == "change"} == {
        "memory_update",
        "memory_delete",
        "core_memory_append",
        "core_memory_replace",
        "memory_consolidate",
        "memory_learn",
        "rag_sync",
    }
    destructive = {"memory_delete", "rag_upload", "rag_sync"}
    assert {name for name, hints in HINTS.items() if hints.permission.destructive} == destructive
    assert [definition.name for definition in toolbox.definitions()] == OFFERED
    assert len({definition.title for definition in toolbox.definitions()}) == 16


def test_a_grant_decides_which_tools_are_shown(toolbox: Toolbox) -> None:
    assert [tool.name for tool in toolbox.definitions(Grant(frozenset({"write"})))] == ["memory_add", "rag_upload"]
    writing = Grant(frozenset({"read", "write"}), without=frozenset({"memory_delete", "rag_upload"}))
    shown = [definition.name for definition in toolbox.definitions(writing)]
    assert shown == [name for name in OFFERED if name not in writing.without]
    assert [each.name for each in toolbox.tools(writing)] == shown
    assert [each["function"]["name"] for each in toolbox.schemas(writing)] == shown
    assert len(toolbox.definitions(EVERYTHING)) == 16
    assert toolbox.definitions(Grant(frozenset())) == []


# The least, the greatest and the default value of each number, and the least and the greatest length of each text.
BOUNDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "memory_add": {"content": (1, 1_000_000), "salience": (0, 1, 1.0)},
    "memory_search": {"query": (1, 8_000), "limit": (1, 50, 5)},
    "memory_get": {"id": (1, 200), "start": (0, None, 0)},
    "memory_update": {"id": (1, 200), "content": (1, 1_000_000), "salience": (0, 1), "expected_version": (1,)},
    "memory_delete": {"id": (1, 200)},
    "core_memory_append": {"name": (1, 200), "text": (1, 1_000_000)},
    "core_memory_replace": {"name": (1, 200), "old": (1,)},
    "conversation_search": {"query": (1, 8_000), "limit": (1, 50, 10)},
    "memory_profile": {"user_id": (1, 200), "max_tokens": (1, 8_000, 1_000)},
    "rag_query": {"question": (1,), "top_k": (1, 20), "context_tokens": (1, 20_000)},
    "rag_list": {"limit": (1, 200, 50)},
    "rag_sync": {"folder": (1,), "seconds": (None, 600, 60.0)},
}


def test_numbers_and_texts_have_bounds() -> None:
    for name, function in ((name, getattr(MemoryTools, name, None)) for name in HINTS):
        properties = ToolDefinition(function or getattr(DocumentTools, name)).parameters["properties"]
        bounds = {}
        for argument, schema in properties.items():
            values = {**next(iter(schema.get("anyOf", ())), {}), **schema}
            least, greatest = (
                next((values[key] for key in (f"{bound}imum", f"{bound}Length") if key in values), None)
                for bound in ("min", "max")
            )
            default = values.get("default") if values["type"] in ("integer", "number") else None
            found = [least, greatest, default]
            while found and found[-1] is None:
                found.pop()
            if found:
                bounds[argument] = tuple(found)
        assert bounds == BOUNDS.get(name, {}), name
