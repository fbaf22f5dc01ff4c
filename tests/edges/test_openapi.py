"""The OpenAPI document: valid, complete, true to what the endpoints do, and readable as a page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="the extra `llm` is not installed")

from flask import abort, request  # noqa: E402
from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: E402

from agentformer.access import keys  # noqa: E402
from agentformer.access.keys import KeyStore  # noqa: E402
from agentformer.access.permissions import RIGHTS  # noqa: E402
from agentformer.api import create_app  # noqa: E402
from agentformer.api.app import close_app  # noqa: E402
from agentformer.api.endpoints.openapi import openapi_document  # noqa: E402
from agentformer.settings import load_settings  # noqa: E402
from tests.readers.conftest import make_pdf  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = os.environ.get("FAULTS_EXAMPLES", "")  # of each endpoint; the acceptance run takes many
# Checks that the document is one of OpenAPI, and then runs the command line, in one process: the import takes seconds.
SCHEMATHESIS = """
import json, schemathesis
with open("openapi.json") as file:
    schemathesis.openapi.from_dict(json.load(file)).validate()
from schemathesis.cli import schemathesis as main
main()
"""
BOUND = 3600  # seconds that a run takes at most, however many examples

# What a schema cannot say, so that some requests which fit it are refused: that 412 and 422 are proper answers to
# proper requests; and of these endpoints, that fields go together, or what a text holds.
# Random keys are not generated, because the key of the command line replaces them.
CHECKS = """
[generation]
with-security-parameters = false
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409, 412, 422, 429]
[checks.negative_data_rejection]
expected-statuses = [400, 404, 405, 409, 412, 415, 422, 429]
"""
REFUSED = """
[[operations]]
include-name = {}
[operations.checks.positive_data_acceptance]
enabled = false
"""
# A memory may be given the kind that it has, also one that no other memory can be changed to, such as "message".
KEPT = """
[[operations]]
include-name = "PATCH /api/memory/{entry_id}"
[operations.checks]
positive_data_acceptance = {enabled = false}
negative_data_rejection = {enabled = false}
"""
PARTICULAR = (
    "GET /api/memory",  # a filter is JSON in a parameter of text
    "POST /api/memory/search",  # a filter is a tree
    "POST /api/memory/count",
    "POST /api/memory/remove",  # exactly one way to select
    "POST /api/memory",  # working memory needs a session
    "POST /api/memory/batch",
    "POST /api/memory/messages",  # source_type and source_id go together
    "POST /api/memory/context",  # core memory must find room
    "POST /api/memory/core/{name}/append",  # a block has a limit of tokens
    "POST /api/memory/core/{name}/replace",  # nothing may be left empty
    "DELETE /api/memory/{entry_id}",  # a part of a document is not deleted alone
    "POST /api/tools/{name}",  # every tool has a schema of its own, which GET /api/tools tells
    "POST /v1/files",  # exactly one file
    "POST /v1/vector_stores/{vector_store_id}/search",  # a filter is a tree
    "POST /v1/embeddings",  # a number of dimensions, and texts that the model can read
    "POST /v1/chat/completions",  # headers are numbers and flags in text
    "PATCH /api/keys/{key_id}",  # one field at least
    "POST /api/keys",  # a time of expiry is in the future, and not beside `days`
    "POST /api/rag/query",  # a period ends after its beginning
    "POST /api/rag/context",
    "POST /api/rag/upload",  # metadata is a JSON object in a field of text
    "POST /api/rag/sync",  # only folders that the setting `sync_roots` allows
)


class Served(NamedTuple):
    app: Any
    key: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    roots = {"sync_roots": str(folder / "notes")}  # so that every tool is offered
    settings = {"index_dir": folder / "i", "upload_dir": folder / "u", "embedder": "hashing", **roots}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "WRONG_A_MINUTE", 1_000_000)  # this client is to see each refusal of a wrong key
        patch.setenv("PATH", "")  # so that no reader starts a program: OCR of random images takes minutes
        app = create_app(load_settings(settings))
        memory = app.extensions["agentformer"]
        memory.rag.upload(make_pdf([["Nothing."], ["The caretaker keeps the keys."]]), name="rules.pdf")
        memory.memory.store("Aino prefers tea.")
        key, secret = KeyStore(folder / "i").make("everything", RIGHTS)

        @app.before_request
        def spare_the_own_key() -> None:
            if key.id in request.path:
                abort(404)

        yield Served(app, secret)
        close_app(app)


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    answer = served.app.test_client().get("/openapi.json")
    assert (answer.status_code, answer.content_type) == (200, "application/json")
    found: dict[str, Any] = answer.json
    return found


@pytest.fixture(scope="module")
def page(served: Served) -> Any:
    return served.app.test_client().get("/docs")


@pytest.fixture
def address(served: Served) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, served.app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Thousands of requests would hide what a failure tells."""


@pytest.mark.process
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="the extra `dev` is not installed")
def test_the_document_is_valid_and_every_endpoint_does_what_it_says(
    served: Served, document: dict[str, Any], address: str, tmp_path: Path
) -> None:
    particular = REFUSED.format(json.dumps(PARTICULAR))  # one entry: each is merged with the others for each request
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "schemathesis.toml").write_text(CHECKS + particular + KEPT)
    phases = "examples,coverage,fuzzing,stateful" if EXAMPLES else "examples,fuzzing"
    command = ["run", f"{address}/openapi.json", f"--phases={phases}", "--seed=1", "--no-color"]
    # On a busy machine, dozens of images in one upload, each with its own reader process, take longer than 10 s.
    command += ["--generation-database=none", "--request-timeout=60"]
    command += [f"--header=Authorization: Bearer {served.key}", f"--max-examples={EXAMPLES or 8}"]
    done = subprocess.run(
        [sys.executable, "-c", SCHEMATHESIS, *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # where it reads its settings, and leaves what it has found
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")},  # tables of all characters
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_schemas_of_the_document_are_valid(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_route_is_in_the_document(served: Served, document: dict[str, Any]) -> None:
    client = served.app.test_client()
    routes = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method)
        for rule in served.app.url_map.iter_rules()
        for method in client.options(rule.rule).headers["Allow"].split(", ")
        if method not in ("HEAD", "OPTIONS")
    }
    told = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    console = {(path, "GET") for path in ("/", "/console", "/console/{name}")}  # a page and its files
    assert routes - console == told
    assert len(told) > 15


def test_every_reference_leads_somewhere_and_nothing_is_left_over(document: dict[str, Any]) -> None:
    meant = set(re.findall(r"'#/components/schemas/(\w+)'", str(document)))
    assert meant == set(document["components"]["schemas"])


def test_every_endpoint_has_a_summary_a_tag_a_name_of_its_own_and_problems(document: dict[str, Any]) -> None:
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert all(each["summary"].endswith(".") and all(each["tags"]) for each in operations)
    assert len({each["operationId"] for each in operations}) == len(operations)
    for each in operations:
        for status, answer in each["responses"].items():
            if status == "default" or int(status) >= 400:
                assert answer["content"].keys() & {"application/problem+json", "application/json"}


def test_who_needs_no_key_is_told(document: dict[str, Any]) -> None:
    open_to_all = {
        path for path, methods in document["paths"].items() for each in methods.values() if not each["security"]
    }
    assert {"/openapi.json", "/docs", "/healthz", "/readyz"} == open_to_all
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}


def test_a_query_is_told_in_full(document: dict[str, Any]) -> None:
    query = document["paths"]["/api/rag/query"]["post"]
    asked = document["components"]["schemas"]["Question"]
    limits = {"namespace", "metadata", "document_id", "since", "until", "as_of", "sources", "user_id", "project"}
    assert set(asked["properties"]) == {"question", "top_k", "max_tokens", "stream", *limits}
    assert asked["required"] == ["question"]
    assert query["requestBody"]["required"] is True
    assert set(query["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"400", "401", "403", "413", "415", "default"} < set(query["responses"])


def test_an_upload_is_told_as_a_form_with_files(document: dict[str, Any]) -> None:
    body = document["paths"]["/api/rag/upload"]["post"]["requestBody"]
    form = body["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["file"]
    assert form["properties"]["file"]["items"] == {"type": "string", "format": "binary"}
    assert {"namespace", "metadata", "password"} < set(form["properties"])


def test_the_tools_are_named(served: Served, document: dict[str, Any]) -> None:
    (name,) = document["paths"]["/api/tools/{name}"]["post"]["parameters"]
    assert (name["in"], name["required"]) == ("path", True)
    toolbox = served.app.extensions["agentformer"].toolbox
    assert name["schema"]["enum"] == [tool.name for tool in toolbox.definitions()]


def test_no_endpoint_makes_a_document_too() -> None:
    assert openapi_document(())["paths"] == {}


class _Read(HTMLParser):
    """The ids and links of a page, and whatever it would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.append(value or "")
            if name in ("src", "srcset", "style") or name.startswith("on") or (name == "href" and tag != "a"):
                self.fetched.append(f"{tag} {name}={value}")


def test_the_page_has_every_endpoint_and_no_link_is_broken(page: Any, document: dict[str, Any]) -> None:
    read = _Read(page.text)
    names = {each["operationId"] for methods in document["paths"].values() for each in methods.values()}
    schemas = {f"schema-{name}" for name in document["components"]["schemas"]}
    assert set(read.ids) == names | schemas
    assert len(read.ids) == len(set(read.ids))
    assert {link.removeprefix("#") for link in read.links} - set(read.ids) == {"/openapi.json"}


def test_the_page_fetches_nothing_and_runs_nothing(page: Any) -> None:
    read = _Read(page.text)
    assert read.fetched == []
    assert not read.tags & {"script", "link", "img", "iframe", "form", "object"}
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_page_has_the_headers_of_every_response(served: Served, page: Any) -> None:
    others = served.app.test_client().get("/openapi.json").headers
    for name in ("X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy"):
        assert page.headers[name] == others[name]
    assert page.headers["Cache-Control"] == others["Cache-Control"] == "no-store"


def test_the_page_tells_parameters_bodies_answers_and_examples(page: Any) -> None:
    text = " ".join(re.sub(r"<[^>]+>", " ", page.text).split())
    assert "limit whole number (1..200) The maximum number of items." in text
    assert "question * text (not empty)" in text
    assert "/api/memory/ENTRY_ID -H &#39;Content-Type: application/json&#39; -d &#39;{&#34;content&#34;:" in text
    assert "curl -sS -X POST http://localhost/api/rag/query -H &#39;Content-Type: application/json&#39;" in text
    assert "curl -sS http://localhost/api/rag/upload -F file=@report.pdf" in text


def test_what_a_client_says_of_itself_is_never_html(served: Served) -> None:
    """The host stands in the examples."""
    host = "127.0.0.1:<b>"
    answer = served.app.test_client().get("/docs", headers={"Host": host})
    assert answer.status_code in (200, 400, 421)
    assert "<b>" not in answer.text
