"""Documents as MCP resources: pages of the list, pages of a document, and who may see them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

import agentformer
from agentformer.access.permissions import Grant
from agentformer.errors import InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.mcp_server import resources
from agentformer.tools.caller import Caller

READ = frozenset({"read"})


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        yield af


def listed(af: AgentFormer, caller: Caller) -> list[str]:
    """Every name, in the order of the pages."""
    names: list[str] = []
    cursor = None
    while True:
        page = resources.list_resources(af, caller, cursor)
        names += [each.name for each in page.resources]
        cursor = page.next_cursor
        if cursor is None:
            return names


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_pages_of_a_list_hold_each_document_once_in_order(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(resources, "_PAGE_SIZE", size)
    for namespace, number in [("work", 1), ("default", 1), ("work", 2), ("default", 2), ("home", 1), ("default", 3)]:
        af.rag.upload(f"{namespace} {number}".encode(), name=f"{namespace}-{number}.txt", namespace=namespace)
    everything = ["default-1.txt", "default-2.txt", "default-3.txt", "home-1.txt", "work-1.txt", "work-2.txt"]
    assert listed(af, Caller()) == everything
    assert listed(af, Caller(grant=Grant(READ, ("home", "work")))) == everything[3:]
    assert listed(af, Caller(namespace="work")) == everything[4:]
    assert listed(af, Caller(grant=Grant(READ, ("nowhere",)))) == []
    assert listed(af, Caller(grant=Grant(frozenset({"write"})))) == []


@pytest.mark.parametrize(
    "cursor", ["", "x", "é", "\ud800", "W10=", "bnVsbA==", base64.b64encode(b"[" * 9_999).decode()]
)
def test_a_cursor_of_nobodys_is_refused(af: AgentFormer, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor: is not from this server"):
        resources.list_resources(af, Caller(), cursor)


def test_a_cursor_reaches_no_other_namespace(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PAGE_SIZE", 1)
    for namespace in ("home", "work"):
        for number in range(2):
            af.rag.upload(f"{namespace} {number}".encode(), name=f"{namespace}-{number}.txt", namespace=namespace)
    foreign = resources.list_resources(af, Caller(grant=Grant(READ, ("home",))), None).next_cursor
    seen = resources.list_resources(af, Caller(grant=Grant(READ, ("work",))), foreign).resources
    assert [each.name for each in seen] == ["work-0.txt"]


def test_a_document_that_is_too_long_for_one_reading_says_where_to_go_on(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = af.rag.upload("\f".join(f"Page {number} of the tides." for number in range(1, 6)).encode(), name="a.txt")
    pages = af.rag.pages(document.id)
    uri = f"agentformer://documents/{document.id}"
    whole = resources.read_resource(af, Caller(), uri).contents[0].text
    for page in pages:
        assert f"[page {page.number} of {len(pages)}]\n{page.text}\n" in whole
        assert resources.read_resource(af, Caller(), f"{uri}/pages/{page.number}").contents[0].text == page.text

    two = len(pages[0].text) + len(pages[1].text)
    for limit, shown in ((1, 1), (two - 1, 1), (two, 2), (two + 1, 2)):
        monkeypatch.setattr(resources, "_MAX_CHARS", limit)
        cut = resources.read_resource(af, Caller(), uri).contents[0].text
        assert cut.startswith(f"[page 1 of {len(pages)}]\n{pages[0].text}\n")
        assert cut.count("[page ") == shown, limit
        assert cut.endswith(f"[pages {shown + 1} to {len(pages)} are at {uri}/pages/NUMBER]\n")


@pytest.mark.process
def test_a_resource_says_the_number_of_pages_and_the_size_of_a_text(af: AgentFormer) -> None:
    for name, text, pages in (
        ("a.txt", b"One.", "1 page"),
        ("b.txt", b"One.\fTwo.", "2 pages"),
        ("c.md", b"# One", "1 page"),
    ):
        af.rag.upload(text, name=name, namespace=name)
        (resource,) = resources.list_resources(af, Caller(namespace=name), None).resources
        assert (resource.description or "").endswith(f", {pages}, namespace {name}")
        assert resource.size == (None if name == "c.md" else len(text))


@pytest.mark.parametrize(
    "place",
    ["/pages/0", "/pages/-1", "/pages/01", "/pages/1/2", "/pages/", "/pages", "/chunks/1", "/", "x", "?a=1", "\ud800"],
)
def test_a_place_in_a_document_that_is_not_there_is_not_found(af: AgentFormer, place: str) -> None:
    document = af.rag.upload(b"The crane is blue.", name="a.txt")
    with pytest.raises(NotFound, match="there is no resource") as missing:
        resources.read_resource(af, Caller(), f"agentformer://documents/{document.id}{place}")
    str(missing.value).encode("utf-8")


def test_other_entries_are_no_documents(af: AgentFormer) -> None:
    entry = af.memory.store("The safe opens with 4711.")
    for uri in (f"agentformer://documents/{entry.id}", f"agentformer://core/{entry.id}", "http://localhost/", ""):
        with pytest.raises(NotFound):
            resources.read_resource(af, Caller(), uri)


def test_a_core_block_is_read_by_whom_it_belongs_to(af: AgentFormer) -> None:
    af.memory.core.append("persona", "Answer briefly.", user_id="aino", namespace="work")
    aino = Caller(user_id="aino", grant=Grant(READ, ("work",)))
    assert resources.read_resource(af, aino, "agentformer://core/persona").contents[0].text == "Answer briefly."
    for other in (Caller(user_id="bo", grant=Grant(READ, ("work",))), Caller(user_id="aino")):
        with pytest.raises(NotFound):
            resources.read_resource(af, other, "agentformer://core/persona")


def test_a_user_sees_the_own_documents_and_those_of_no_user(af: AgentFormer) -> None:
    made = {
        user: af.rag.upload(f"The heron of {user}.".encode(), name="a.txt", user_id=user) for user in ("aino", None)
    }
    assert [len(listed(af, Caller(user_id=user))) for user in ("aino", "väinö", None)] == [2, 1, 2]
    own = f"agentformer://documents/{made['aino'].id}"
    for uri in (own, f"{own}/pages/1"):
        for user in ("aino", None):
            (contents,) = resources.read_resource(af, Caller(user_id=user), uri).contents
            assert "heron of aino" in contents.text  # type: ignore[union-attr]
        with pytest.raises(NotFound):
            resources.read_resource(af, Caller(user_id="väinö"), uri)
