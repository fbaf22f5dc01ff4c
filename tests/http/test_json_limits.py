"""Refusing JSON costs little more than reading it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field

from agentformer.errors import TooLarge
from agentformer.http import json_limits
from agentformer.http.json_limits import MAX_VALUES, check_values, is_storable, with_few_unknown

VALUES = st.recursive(
    st.none() | st.integers() | st.text('a",{[\\ \n', max_size=6),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('a",{[\\', max_size=4), inner, max_size=5),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """Lists and objects, and the items but the first of each."""
    if not isinstance(value, (dict, list)):
        return 0
    inner = [*value.values()] if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(counted, inner))


@given(value=VALUES)
def test_the_values_of_a_text_are_counted_without_its_strings(value: Any) -> None:
    data, most = json.dumps(value).encode(), counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "MAX_VALUES", most)
        check_values(data)
        patch.setattr(json_limits, "MAX_VALUES", most - 1)
        if most:
            with pytest.raises(TooLarge, match="max_json_values"):
                check_values(data)


@pytest.mark.parametrize("data", [b'{"a":"' + b"," * 1_000_000, b'"' + b'\\",' * 300_000 + b'"', b"x" * 1_000_000])
def test_a_long_text_is_no_value(data: bytes) -> None:
    check_values(data)


@pytest.mark.parametrize("piece", [b'"a":0,', b"{},", b"[", b'{"a":', b"[[[]]],"])
def test_the_memory_for_counting_does_not_grow_with_the_text(piece: bytes) -> None:
    data = piece * (4_000_000 // len(piece))
    tracemalloc.start()
    with pytest.raises(TooLarge, match=f"at most {MAX_VALUES} values"):
        check_values(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


class Model(BaseModel):
    a: int = 0
    b: int = Field(0, validation_alias=AliasChoices("b", "c"))
    d: int = Field(0, validation_alias="e")


def test_the_first_unknown_names_and_all_known_names_are_kept() -> None:
    values = {"x": 1, "c": 2, **{f"y{n}": n for n in range(1000)}, "a": 3, "e": 4, "d": 5}
    assert with_few_unknown(values, Model, 2) == {"x": 1, "c": 2, "y0": 0, "a": 3, "e": 4}
    assert with_few_unknown({"a": 1}, Model, 0) == {"a": 1}


def test_a_value_that_cannot_be_stored_is_found_at_any_depth() -> None:
    assert is_storable({"a": [{"b": ["ä", 1, None]}]}, 4)
    assert not is_storable({"a": [{"b": ["\ud800"]}]}, 10)
    assert not is_storable({"\udfff": 1}, 10)
    assert not is_storable([[[1]]], 2)
