"""Validation of HTTP requests: JSON bodies, query strings, forms, and the constraints of the request models."""

from __future__ import annotations

import io
import json
from typing import Annotated, Any

import pytest

flask = pytest.importorskip("flask", reason="the extra `server` is not installed")

from pydantic import BaseModel, Field  # noqa: E402
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge, UnsupportedMediaType  # noqa: E402

from agentformer.api import request as api_request  # noqa: E402
from agentformer.api.endpoints.jobs import JobsParameters  # noqa: E402
from agentformer.api.models import documents, requests  # noqa: E402
from agentformer.api.openai.models import EmbeddingsRequest, StoreChanges  # noqa: E402
from agentformer.api.request import BoundedBody, ParameterModel, RequestModel, body_of, parameters_of  # noqa: E402
from agentformer.errors import InvalidInput, TooLarge  # noqa: E402


class Body(RequestModel):
    text: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=10)] = 1
    share: float | None = None
    flag: bool = False
    data: dict[str, Any] | None = Field(default=None, max_length=100)


class Parameters(ParameterModel):
    count: int = 1
    name: list[str] = Field(default=[])


def body(data: bytes, model: type[BaseModel] = Body, content_type: str = "application/json") -> Any:
    with flask.Flask("test").test_request_context(method="POST", data=data, content_type=content_type):
        return body_of(model)  # type: ignore[type-var]


def query(text: str, model: type[BaseModel] = Parameters) -> Any:
    with flask.Flask("test").test_request_context(f"/?{text}"):
        return parameters_of(model, flask.request.args, "query")  # type: ignore[type-var]


def error_of(data: bytes, model: type[BaseModel] = Body) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        body(data, model)
    return raised.value


def test_invalid_json_names_the_field_or_the_body() -> None:
    keys = b",".join(b'"k%d": 1' % n for n in range(101))
    cases = {
        b"{not json": "body",
        b"[1]": "body",
        b"null": "body",
        b'"x"': "body",
        b"7": "body",
        b'{"text": "x"} more': "body",
        b'{"text": "\xff"}': "body",
        b"\xef\xbb\xbf{}": "body",
        b'{"text": "x", "\\ud800": 1}': "body",
        b'{"text": "x", "count": ' + b"9" * 5000 + b"}": "body",
        b'{"text": "x", "data": ' + b'{"a":' * 20000 + b"1" + b"}" * 20000 + b"}": "body",
        b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "body",
        b"": "text",
        b"{}": "text",
        b'{"text": ""}': "text",
        b'{"text": 7}': "text",
        b'{"text": null}': "text",
        b'{"text": "\\ud800"}': "text",
        b'{"text": "x", "count": "3"}': "count",
        b'{"text": "x", "count": true}': "count",
        b'{"text": "x", "count": 0}': "count",
        b'{"text": "x", "count": 11}': "count",
        b'{"text": "x", "count": 3.5}': "count",
        b'{"text": "x", "count": NaN}': "count",
        b'{"text": "x", "count": 1e400}': "count",
        b'{"text": "x", "share": "1"}': "share",
        b'{"text": "x", "flag": "true"}': "flag",
        b'{"text": "x", "data": []}': "data",
        b'{"text": "x", "data": {"a": ' + b"[" * 500 + b"]" * 500 + b"}}": "data",
        b'{"text": "x", "data": {"\\udfff": 1}}': "data",
        b'{"text": "x", "data": {"a": {"b": ["\\ud800"]}}}': "data",
        b'{"text": "x", "data": {' + keys + b"}}": "data",
        b'{"text": "x", "color": "red"}': "color",
    }
    assert {data: error_of(data).field for data in cases} == cases


class Bodies(RequestModel):
    items: Annotated[list[Body], Field(max_length=1000)]


def test_an_error_is_made_for_one_unknown_name_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    best = api_request._most_specific
    monkeypatch.setattr(api_request, "_most_specific", lambda errors: (made.append(len(errors)), best(errors))[1])
    names = b",".join(b'"name%d": 1' % n for n in range(50_000))
    assert str(error_of(b'{"text": "x", %s}' % names)).startswith("name0: is not a known name")
    items = b",".join([b'{"text": "x", %s}' % names[:10_000].rpartition(b",")[0]] * 100)
    assert error_of(b'{"items": [%s]}' % items, Bodies).field == "items[0].name0"
    assert made == [1, 100]


def test_a_body_with_too_many_values_is_refused_before_it_is_decoded() -> None:
    for data in (b'{"text": [' + b"1," * 300_000 + b"1]}", b"[" * 300_000, b'{"a": 1,' * 200_000):
        with pytest.raises(TooLarge) as raised:
            body(data)
        assert raised.value.limit == "max_json_values"
    assert body(b'{"text": "' + b"," * 300_000 + b'"}').text == "," * 300_000


def test_half_a_surrogate_deep_inside_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    search = api_request.is_storable
    monkeypatch.setattr(api_request, "is_storable", lambda value, most: (read.append(1), search(value, most))[1])
    data = b'{"text": [' + b'{"items": [' * 90 + b'"\\ud800"' + b"]}" * 90 + b"]}"
    assert str(error_of(data)).startswith("text[0].items: contains half of a surrogate pair")
    assert len(read) == 3


def test_a_long_name_or_value_is_shortened_before_it_is_described() -> None:
    long = b"x" * 1_000_000
    assert len(str(error_of(b'{"text": "a", "%s": 1}' % long))) < 300
    assert len(str(error_of(b'{"text": "a", "count": "%s"}' % long))) < 300


def test_messages_are_short_and_name_the_expected_type() -> None:
    assert str(error_of(b'{"text": 5}')) == "text: must be text, got 5"
    assert str(error_of(b'{"text": ""}')) == "text: is empty, got ''"
    assert str(error_of(b"{}")) == "text: is missing"
    assert str(error_of(b'{"text": "x", "shar": 1}')) == "shar: is not a known name; did you mean share?"
    assert "names are count, data, flag, share, text" in str(error_of(b'{"text": "x", "zzz": 1}'))
    assert len(str(error_of(json.dumps({"text": ["x" * 100_000]}).encode()))) < 200
    assert len(str(error_of(json.dumps({"text": "x", "y" * 100_000: 1}).encode()))) < 300


def test_messages_do_not_name_types_of_the_library() -> None:
    assert str(error_of(b'{"input": [1, 2]}', EmbeddingsRequest)) == "input: must be text, got [1, 2]"
    changes = error_of(b'{"expires_after": {"days": 1}}', StoreChanges)
    assert str(changes) == "expires_after: must be null, got an object"


def test_a_blank_text_is_called_empty_and_another_pattern_is_shown() -> None:
    blank = error_of(b'{"text": " \\u2003"}', requests.MemorySearch)
    assert str(blank) == "text: is empty, got ' \\u2003'"

    class Code(RequestModel):
        code: Annotated[str, Field(pattern="^[a-z]+$")]

    assert "should match pattern" in str(error_of(b'{"code": "7"}', Code))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"items": [{"content": "x"}, {"content": 5}]}', "items[1].content: must be text, got 5"),
        (
            b'{"items": [{"content": "x"}, "plain"]}',
            'items[1]: must be a JSON object, such as {"content": "Aino prefers tea."}, got \'plain\'',
        ),
        (b'{"items": [{"content": "x"}, {}]}', "items[1].content: is missing"),
        (b'{"items": [{"content": "x", "tex": "y"}]}', "items[0].tex: is not a known name"),
        (b'{"items": []}', 'items: is empty; send at least one item, such as [{"content": "Aino prefers tea."}]'),
        (b'["plain"]', 'body: must be a JSON object, such as {"items": [{"content": "Aino prefers tea."}]}'),
        (
            b'{"items": [{"content": "x"}, {"content": "\\ud800"}]}',
            "items[1].content: contains half of a surrogate pair, or is nested too deep; send another value",
        ),
        (
            b'["\\ud800"]',
            "body: contains half of a surrogate pair, or is nested too deep; send another value",
        ),
        (
            b'{"items": [{"content": "x"}, "\\ud800"]}',
            "items[1]: contains half of a surrogate pair, or is nested too deep; send another value",
        ),
        (
            b'{"items": [{"content": "x", "metadata": {"a": ["\\ud800"]}}]}',
            "items[0].metadata: contains half of a surrogate pair, or is nested too deep; send another value",
        ),
    ],
)
def test_a_wrong_item_of_a_list_is_named_with_its_number_and_an_example(data: bytes, message: str) -> None:
    error = error_of(data, requests.NewMemories)
    assert (error.field, str(error)) == (message.partition(":")[0], message)


def test_a_long_value_is_shortened() -> None:
    assert str(error_of(json.dumps({"text": "x", "count": "y" * 78}).encode())).endswith(f"got '{'y' * 78}'")
    assert str(error_of(json.dumps({"text": "x", "count": "y" * 79}).encode())).endswith(f"got '{'y' * 79}…")


def test_whole_floats_nulls_and_nul_characters_are_valid() -> None:
    assert body(b'{"text": "a\\u0000", "count": 3.0, "share": null, "data": null}').count == 3
    assert body(b'{"text": "x", "share": 1e3}').share == 1000


def test_a_body_needs_the_content_type_of_json() -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        with pytest.raises(UnsupportedMediaType):
            body(b'{"text": "x"}', content_type=content_type)
    assert body(b'{"text": "x"}', content_type="application/vnd.example+json").text == "x"


def test_query_strings_are_converted_and_lists_may_repeat() -> None:
    assert query("count=3&name=a&name=b") == Parameters(count=3, name=["a", "b"])
    for text, field in {"count=two": "count", "count=1&count=2": "count", "color=red": "color", "=1": ""}.items():
        with pytest.raises(InvalidInput) as raised:
            query(text)
        assert raised.value.field == field


def test_required_parameters_are_named() -> None:
    with pytest.raises(InvalidInput, match="session_id: is missing"):
        query("", requests.TranscriptQuery)


def test_a_query_string_is_refused_where_none_is_expected() -> None:
    with flask.Flask("test").test_request_context("/?dry_run=1"), pytest.raises(InvalidInput, match="dry_run"):
        api_request.check_no_query()


CONSTRAINTS: list[tuple[type[BaseModel], dict[str, Any], dict[str, list[Any]]]] = [
    (
        requests.NewMemory,
        {"content": "x"},
        {
            "content": ["", " \n", 5, None],
            "tier": ["basement", None],
            "salience": [2, -0.1, "1"],
            "metadata": [[1]],
            "namespace": ["", "n" * 201, 5],
            "speaker": ["s" * 201],
        },
    ),
    (
        requests.NewMemories,
        {"items": [{"content": "x"}]},
        {"items": [[], [{"content": ""}], [{"content": "x"}] * 1001]},
    ),
    (
        requests.NewMessage,
        {"session_id": "s", "role": "user", "content": "x"},
        {"session_id": [None, ""], "role": ["robot"], "content": [""], "tier": ["core"]},
    ),
    (
        requests.MemoryChange,
        {},
        {"content": [None, " "], "namespace": ["b"], "version": [7], "salience": [-1], "kind": [""]},
    ),
    (
        requests.MemorySearch,
        {"text": "x"},
        {
            "text": ["", "\u2003"],
            "limit": [0, 1001, "2", True],
            "mode": ["psychic"],
            "tiers": ["core", ["attic"]],
            "kinds": [[7], ["k"] * 101],
            "min_salience": [7],
            "query": ["y"],
        },
    ),
    (requests.ContextRequest, {}, {"task": [5], "max_tokens": [0, 10_000_001], "conversation": ["hello"]}),
    (requests.CleaningRequest, {}, {"everything": [True], "namespace": ["", ["default"]], "session_id": [7]}),
    (requests.RestoreRequest, {"summary_id": "x"}, {"summary_id": [None, ["x"], ""], "namespace": ["y"]}),
    (requests.BlockAddition, {"text": "x"}, {"text": [" "]}),
    (requests.BlockReplacement, {"old": "x", "new": ""}, {"old": [""], "new": [None]}),
    (
        documents.Question,
        {"question": "x"},
        {
            "question": [[], "", "  ", None],
            "top_k": ["3", 0, 10_001],
            "metadata": [[1], {f"k{n}": 1 for n in range(101)}],
            "filters": [[1], {f"k{n}": 1 for n in range(101)}],
            "max_tokens": [0, 4097],
            "stream": ["true"],
        },
    ),
]


def test_models_refuse_values_out_of_their_constraints() -> None:
    for model, valid, invalid in CONSTRAINTS:
        body(json.dumps(valid).encode(), model)
        for field, values in invalid.items():
            for value in values:
                named = error_of(json.dumps({**valid, field: value}).encode(), model).field
                assert named.partition("[")[0] == field, (field, value)


def test_the_largest_allowed_values_are_accepted() -> None:
    body(
        json.dumps({"text": "x", "limit": 1000, "kinds": ["k"] * 100, "min_salience": 1}).encode(),
        requests.MemorySearch,
    )
    body(json.dumps({"items": [{"content": "x", "salience": 1}] * 1000}).encode(), requests.NewMemories)
    body(json.dumps({"question": "x", "top_k": 10_000, "max_tokens": 4096}).encode(), documents.Question)
    for model in (requests.EntriesQuery, documents.DocumentsParameters, JobsParameters):
        assert query(f"limit=200&after={'a' * 200}&namespace={'n' * 200}", model).limit == 200


def test_lists_have_bounded_pages_and_names() -> None:
    for model in (requests.EntriesQuery, documents.DocumentsParameters, documents.PartsParameters, JobsParameters):
        for text in (
            *("limit=0", "limit=201", "limit=many", "limit=1&limit=2", "after=" + "a" * 201, "color=red"),
            *("namespace=", "namespace=%20", "namespace=%C2%85", "namespace=%EF%BB%BF", "namespace=" + "n" * 201),
        ):
            with pytest.raises(InvalidInput) as raised:
                query(text, model)
            assert raised.value.field == text.partition("=")[0]
    for text in ("tier=basement", "kind=", "include_archived=perhaps", "min_salience=2"):
        with pytest.raises(InvalidInput, match=text.partition("=")[0]):
            query(text, requests.EntriesQuery)


def test_a_body_that_is_too_long_or_incomplete_is_an_error() -> None:
    whole = BoundedBody(io.BytesIO(b"a\nbc"), 4, 4)
    assert [*whole] == [b"a\n", b"bc"] and not whole.too_long
    assert BoundedBody(io.BytesIO(b"abcd more"), 10, 4).read() == b"abcd"  # a server that does not know the end
    pieces = BoundedBody(io.BytesIO(b"abcd more"), 10, 4)
    assert (pieces.read(1), pieces.read(0), pieces.read(None), pieces.read()) == (b"a", b"", b"bcd", b"")  # type: ignore[arg-type]
    with pytest.raises(ClientDisconnected):
        incomplete = BoundedBody(io.BytesIO(b"abc"), 10, 4)
        while incomplete.read(2):
            pass
    unknown = BoundedBody(io.BytesIO(b"x" * 5), 4, None)
    with pytest.raises(RequestEntityTooLarge):
        unknown.read()
    assert unknown.too_long
    assert BoundedBody(io.BytesIO(b"x" * 4), 4, None).read() == b"x" * 4
