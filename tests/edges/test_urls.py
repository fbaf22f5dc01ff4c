"""Documents from URLs, through the command line, Python and the tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.access.permissions import Grant
from agentformer.errors import FetchRefused, InvalidInput
from agentformer.factory import AgentFormer
from agentformer.tools.caller import Caller
from tests.edges.conftest import Invoke
from tests.readers.office_files import make_xlsx, sheet, text_cells
from tests.url_server import Server, answer, serving

pytestmark = pytest.mark.process
TEXT = b"The caretaker keeps the keys in the blue cupboard."
Opens = Callable[..., AgentFormer]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    with ExitStack() as stack:

        def open_memory(**settings: Any) -> AgentFormer:
            folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
            return stack.enter_context(agentformer.connect(**folders, embedder="hashing", **settings))

        yield open_memory


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(answer(TEXT)) as server:
        yield server


def test_the_command_line_ingests_a_url_and_shows_it_as_the_source(run: Invoke, server: Server, tmp_path: Path) -> None:
    url, local = server.url("/keys.txt?token=s3cret"), tmp_path / "boats.txt"
    local.write_text("Boats are blue.")
    refused = run("ingest", url, str(local))
    assert refused.exit_code == 1 and "private, loopback or other special address" in refused.output
    assert "url_private_hosts, or give --allow-private" in refused.output
    assert "ready      boats.txt" in refused.output and "s3cret" not in refused.output
    done = run("ingest", url, "--allow-private")
    shown = server.url("/keys.txt")
    assert done.exit_code == 0 and f"ready      keys.txt  from {shown}  1 page" in done.output
    again = json.loads(run("ingest", url, "--allow-private", "--json").stdout)["documents"][0]
    assert (again["unchanged"], again["url"]) == (True, shown)
    assert f"keys.txt (from {shown})" in run("list").stdout
    assert "keys.txt" in run("ask", "Who keeps the keys?").stdout


def test_a_url_is_a_document_whose_new_version_replaces_the_former_one(opens: Opens) -> None:
    af = opens()
    with serving(answer(TEXT)) as server:
        url = server.url("/x.txt")
        first = af.rag.upload_url(url, allow_private=True)
        server.play = answer(b"The keys are lost.")
        second = af.rag.upload_url(url, allow_private=True)
        server.play = answer(make_xlsx({"Costs": sheet(text_cells("Boats", "5"))}))
        other = af.rag.upload_url(server.url("/y/x.txt"), allow_private=True, metadata={"year": 2026})
    assert (first.name, first.origin, second.replaced) == ("x.txt", url, first.id)
    assert (other.name, other.media_type.rpartition(".")[2], dict(other.metadata)) == (
        "y/x.txt",
        "sheet",
        {"year": 2026},
    )
    assert [document.name for document in af.rag.documents()] == ["x.txt", "y/x.txt"]


def test_tools_fetch_only_from_hosts_that_the_settings_name(opens: Opens, server: Server) -> None:
    call = {"url": server.url("/keys.txt")}
    with pytest.raises(FetchRefused, match="is not in the setting url_hosts"):
        opens().toolbox.call("rag_upload", call)
    allowed = opens(url_hosts="*", url_private_hosts=f"127.0.0.1:{server.port}").toolbox
    with pytest.raises(FetchRefused, match=r"127\.0\.0\.1:1 is not in the setting url_hosts"):
        allowed.call("rag_upload", {"url": "http://127.0.0.1:1/"})
    with pytest.raises(InvalidInput, match="exactly one of path, text, content_base64, url"):
        allowed.call("rag_upload", {**call, "text": "x", "name": "a.txt"})
    document = allowed.call("rag_upload", call)["document"]
    assert (document["status"], document["url"], document["name"]) == ("ready", call["url"], "keys.txt")
    writer = Caller(grant=Grant(rights=frozenset({"write"})))
    hidden = allowed.call("rag_upload", call, writer)["document"]
    assert (hidden["id"], hidden["unchanged"], hidden["url"], hidden["name"]) == ("", False, "", call["url"])


def test_a_list_of_hosts_holds_for_the_command_line_and_python_too(opens: Opens, server: Server) -> None:
    af = opens(url_hosts="example.org")
    with pytest.raises(FetchRefused, match="is not in the setting url_hosts"):
        af.rag.upload_url(server.url())
    with pytest.raises(InvalidInput, match="url_hosts: must be hosts"):
        opens(url_hosts="http://example.org/")
