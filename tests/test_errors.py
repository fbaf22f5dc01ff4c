"""Errors of the package: each can be copied and sent to another process, with all that it says."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from agentformer import errors
from agentformer.errors import (
    ATTEMPTS,
    IMAGE_EXTRAS,
    AgentFormerError,
    Busy,
    Conflict,
    InvalidInput,
    MissingExtra,
    NotFound,
    install_command,
    reinstall_command,
    retried,
)
from agentformer.rag.uploads import Refused

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, AgentFormerError)]


def made(kind: type[AgentFormerError]) -> AgentFormerError:
    """One whose fields are all different."""
    if not inspect.isfunction(kind.__init__):  # the message alone
        return kind("the message")
    values = {"retry_after": 7, "error": ImportError("it is broken")}
    return kind(*(values.get(name, f"the {name}") for name in inspect.signature(kind).parameters))


def refuse() -> None:
    raise Busy("max_running", "too much is under way", 30)


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_can_be_copied_and_pickled(
    kind: type[AgentFormerError], again: Callable[[AgentFormerError], AgentFormerError]
) -> None:
    error = made(kind)
    error.add_note("while it was read")
    other = again(error)
    assert type(other) is kind
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
    assert getattr(other, "msg", "") == getattr(error, "msg", "")  # of an ImportError


def test_one_that_is_raised_in_a_process_pool_does_not_break_it() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(Busy, match="too much is under way") as caught:
            pool.submit(refuse).result(timeout=60)
        assert (caught.value.limit, caught.value.retry_after) == ("max_running", 30)
        assert pool.submit(abs, -3).result(timeout=60) == 3


def test_a_missing_part_and_a_broken_one_are_told_apart() -> None:
    absent = MissingExtra("llm", "a server", ModuleNotFoundError("No module named 'openai'", name="openai"))
    assert str(absent) == str(MissingExtra("llm", "a server"))
    broken = MissingExtra("llm", "a server", ImportError("the library\n  is for another machine" + "!" * 900))
    assert "cannot be imported (the library is for another machine!" in str(broken)
    assert install_command("llm", "--force-reinstall") in str(broken)
    assert len(str(broken)) < 400


def test_what_was_said_of_a_field_is_still_a_value_error() -> None:
    with pytest.raises(ValueError, match="name: is empty"):
        raise pickle.loads(pickle.dumps(InvalidInput("name", "is empty")))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a virtual environment of Python's own `venv`, in which this process seems to run."""
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (None, "pip install 'agentformer[mcp]'"),
        (
            {"url": "file:///home/a/af", "dir_info": {"editable": True}},
            "pip install -e '.[mcp]' (in your clone of agentformer)",
        ),
        ({"url": "file:///home/a/af", "dir_info": {}}, "pip install '.[mcp]' (in your clone of agentformer)"),
        (
            {"url": "file:///home/a/agentformer-0.2-py3-none-any.whl", "archive_info": {}},
            "pip install 'agentformer-0.2-py3-none-any.whl[mcp]' (where this file is)",
        ),
        (
            {"url": "https://example.org/af.git", "vcs_info": {"vcs": "git"}},
            "pip install 'agentformer[mcp] @ git+https://example.org/af.git'",
        ),
        ("{", "pip install -e '.[mcp]' (in your clone of agentformer)"),
    ],
)
def test_the_command_for_an_extra_fits_how_this_copy_was_installed(
    monkeypatch: pytest.MonkeyPatch, environment: Path, recorded: object, command: str
) -> None:
    record(monkeypatch, recorded if isinstance(recorded, str | None) else json.dumps(recorded))
    assert install_command("mcp") == command
    assert "/home/" not in install_command("mcp"), "a path of this machine could reach a remote client"


def record(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """Set what the installer has recorded about this copy."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return text

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    monkeypatch.setattr(metadata, "distributions", lambda name: [Distribution()])


@pytest.mark.parametrize(
    ("folder", "mark", "added", "again", "package"),
    [
        (
            "tools/agentformer",
            "uv-receipt.toml",
            "uv tool install --force '.[all,mcp]' (in your clone of agentformer)",
            "uv tool install --force --reinstall '.[all,mcp]' (in your clone of agentformer)",
            "uv tool upgrade --reinstall agentformer",
        ),
        (
            "archive-v0/abc",
            "",
            "uvx --from '.[mcp]' agentformer (in your clone of agentformer)",
            "uvx --refresh --from '.[mcp]' agentformer (in your clone of agentformer)",
            "uv cache clean numpy",
        ),
        (
            ".venv",
            "",
            "uv pip install '.[mcp]' (in your clone of agentformer)",
            "uv pip install --reinstall '.[mcp]' (in your clone of agentformer)",
            "uv pip install --reinstall --no-deps numpy==2.0",
        ),
        (
            "venvs/agentformer",
            "pipx_metadata.json",
            "pipx install --force '.[mcp]' (in your clone of agentformer)",
            "pipx install --force '.[mcp]' (in your clone of agentformer)",
            "pipx reinstall agentformer",
        ),
        (
            "opt/agentformer",
            "agentformer-image",
            f"build the image again with --build-arg EXTRAS={IMAGE_EXTRAS},mcp",
            f"build the image again with --build-arg EXTRAS={IMAGE_EXTRAS},mcp",
            "pull or build the image again",
        ),
    ],
)
def test_the_command_is_of_the_program_that_made_the_environment(
    environment: Path, monkeypatch: pytest.MonkeyPatch, folder: str, mark: str, added: str, again: str, package: str
) -> None:
    (place := environment / folder).mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.13.8\n")
    if mark:
        (place / mark).write_text(
            '[tool]\nrequirements = [{ name = "agentformer", extras = ["all"], directory = "/a" }]\n'
        )
    monkeypatch.setattr(sys, "prefix", str(place))
    record(monkeypatch, json.dumps({"url": "file:///home/a/af", "dir_info": {}}))
    assert install_command("mcp") == added
    assert install_command("mcp", "--force-reinstall") == again
    assert reinstall_command("numpy==2.0") == package


class Call:
    """Fails `failures` times with `error`, and then returns "done". `calls` counts the calls."""

    def __init__(self, failures: int, error: AgentFormerError) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


def test_a_call_is_repeated_while_other_callers_change_its_data() -> None:
    for failures in (0, 1, ATTEMPTS - 1):
        call = Call(failures, Conflict("changed"))
        assert retried(call) == "done"
        assert call.calls == failures + 1
    assert retried(Call(1, NotFound("gone")), on=(Conflict, NotFound)) == "done"


def test_a_call_that_always_fails_raises_its_last_error_or_that_others_are_busy() -> None:
    call = Call(ATTEMPTS, Conflict("changed"))
    with pytest.raises(Conflict, match="changed"):
        retried(call)
    assert call.calls == ATTEMPTS
    with pytest.raises(Conflict, match="too many callers"):
        retried(Call(ATTEMPTS, NotFound("gone")), on=(NotFound,), busy="too many callers")


@pytest.mark.parametrize(
    ("error", "options"), [(NotFound("gone"), {}), (Refused("stored"), {"unless": (Refused,), "busy": "busy"})]
)
def test_an_error_that_another_attempt_cannot_mend_is_raised_at_once(
    error: AgentFormerError, options: dict[str, Any]
) -> None:
    call = Call(1, error)
    with pytest.raises(type(error), match=str(error)):
        retried(call, **options)
    assert call.calls == 1
