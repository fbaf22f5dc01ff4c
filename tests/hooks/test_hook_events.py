"""Hook events as each agent writes them, and what is kept of them: no secrets, no more than a limit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from agentformer.access.secret_masking import HIDDEN, reads_secrets, without_secrets
from agentformer.hooks.agent_formats import AGENTS, EVENTS, Agent, Event, answer_to, event_of
from agentformer.hooks.spool import Spool


def read(agent: Agent, name: str, **values: Any) -> Event | None:
    return event_of(agent, name, json.dumps(values).encode())


@pytest.mark.parametrize(
    ("agent", "name", "values", "kind", "text"),
    [
        ("claude-code", "UserPromptSubmit", {"prompt": "Hei"}, "prompt", "Hei"),
        ("claude-code", "Stop", {"last_assistant_message": "Done."}, "answer", "Done."),
        ("codex", "UserPromptSubmit", {"prompt": "Hei", "turn_id": "1"}, "prompt", "Hei"),
        ("gemini", "BeforeAgent", {"prompt": "Hei"}, "prompt", "Hei"),
        ("gemini", "AfterAgent", {"prompt": "Hei", "prompt_response": "Done."}, "answer", "Done."),
        ("cursor", "beforeSubmitPrompt", {"prompt": "こんにちは", "attachments": []}, "prompt", "こんにちは"),
        ("cursor", "afterAgentResponse", {"text": "Done."}, "answer", "Done."),
    ],
)
def test_each_agent_is_read_into_one_form(
    agent: Agent, name: str, values: dict[str, Any], kind: str, text: str
) -> None:
    event = read(agent, "", hook_event_name=name, session_id="s1", cwd="/nowhere", **values)
    assert event is not None
    assert (event.kind, event.text, event.session, event.project) == (kind, text, f"{agent}:s1", "/nowhere")


def test_a_tool_has_its_input_and_output() -> None:
    event = read(
        "claude-code", "PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response={"out": "a"}
    )
    assert event is not None
    assert (event.tool, event.given, event.output) == ("Bash", {"command": "ls"}, {"out": "a"})


def test_the_project_is_the_repository_above_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "deep").mkdir(parents=True)
    event = read("cursor", "sessionStart", conversation_id="c", workspace_roots=[str(tmp_path / "src" / "deep")])
    assert event is not None
    assert event.project == str(tmp_path)


@pytest.mark.parametrize("values", [{"hook_event_name": "Unknown"}, {"hook_event_name": 7}, {}])
def test_an_unknown_event_is_none(values: dict[str, Any]) -> None:
    assert read("claude-code", "Nothing", **values) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"null"])
def test_an_input_that_is_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        event_of("claude-code", "Stop", data)


def test_wrong_types_do_not_matter() -> None:
    event = read("claude-code", "UserPromptSubmit", prompt=["x"], session_id=5, cwd={"a": 1}, tool_name=None)
    assert event is not None
    assert (event.text, event.session, event.project, event.tool) == ("", "", "(unknown folder)", "")


@pytest.mark.parametrize("agent", AGENTS)
def test_an_answer_has_the_form_of_the_agent(agent: Agent) -> None:
    for name, kind in EVENTS[agent].items():
        written = answer_to(Event(agent, kind, name, "s", "p"), "remembered")
        values = json.loads(written or "{}")
        assert ("remembered" in written) == (kind == "start" or (kind == "prompt" and agent != "cursor"))
        if agent != "cursor" and values:
            assert values["hookSpecificOutput"]["hookEventName"] == name
        if agent == "cursor" and kind == "prompt":
            assert values == {"continue": True}
        assert "remembered" not in answer_to(Event(agent, kind, name, "s", "p"), "")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("export OPENAI_API_KEY=sk-proj-abcdefghijklmnop1234", "abcdefghijklmnop"),
        ("token: ghp_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnop"),
        ('{"password": "hunter2-x"}', "hunter2"),
        ("the password is correcthorse", "correcthorse"),
        ("salasana: kesä2026!", "kesä2026"),
        ("lösenordet är hemligt99", "hemligt99"),
        ("postgres://anna:s3cret@db/x", "s3cret"),
        ("Authorization: Bearer abc.def-123456", "abc.def"),
        ("aws AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefghijk", "eyJzdWIi"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----", "MIIEabc"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEabc and the end is cut", "MIIEabc"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOYBabc\n-----END PGP PRIVATE KEY BLOCK-----", "lQOYBabc"),
        ("DB_PASS=hunter2222", "hunter2222"),
        ("password is: hunter2222", "hunter2222"),
        ("password=correct-horse-9", "correct-horse"),
        ("API_KEY=string!9xx", "string!9xx"),
        ("password=$ecret12345", "ecret12345"),
        ("run --password hunter2222 --yes", "hunter2222"),
        ("curl -u anna:hunter2222 https://x.example", "hunter2222"),
        ("mysql -u root -phunter2222", "hunter2222"),
        ("sshpass -p hunter2222 ssh x", "hunter2222"),
        ("ANTHROPIC_KEY=hunter2222", "hunter2222"),
        ("AccountKey=hunter2222hunter==", "hunter2222"),
        ("<password>hunter2222</password>", "hunter2222"),
        ("password: |\n  hunter2222", "hunter2222"),
        ("パスワード: hunter2222", "hunter2222"),
        ("Passwort lautet hunter2222", "hunter2222"),
        ("Cookie: session=hunter2222abc", "hunter2222"),
        ("postgres://u:hunter@2222x@h/db", "2222x"),
        ("https://hooks.slack.com/services/T000/B000/hunter2222", "hunter2222"),
        (r"{\"password\": \"hunter2222\"}", "hunter2222"),
    ],
)
def test_secrets_are_hidden(text: str, secret: str) -> None:
    hidden = without_secrets(text)
    assert secret not in hidden
    assert HIDDEN in hidden


@pytest.mark.parametrize(
    "text",
    [
        "The token limit is 500 tokens.",
        "password = os.environ['DB_PASSWORD']",
        "Use $API_KEY from the environment",
        "commit 8b2a0274c1f0 fixed the tokenizer",
        "see https://example.org/a:b and user@example.org",
        "The secret of good soup is time.",
        "We rotate the token on Friday.",
        "max_tokens=4096",
        "secretary: Anna Virtanen",
        "Tokenizer: bert-base-cased",
        "The password is required",
        "def login(password: str|None = None, token=str(given)): ...",
        "Basic principles of design",
        "sk-learn-pipeline-classification",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_files_with_nothing_but_secrets_are_known() -> None:
    for text in (
        *("cat .env", "cat .env\nls", 'cat "$(pwd)/.env"', "cat<.env", "cat .env*", "git show HEAD:.env", "prod.env"),
        *(".envrc", "/a/.env.local", "~/.netrc", "~/.npmrc", "~/.git-credentials", "~/.kube/config", "id_rsa"),
        *("config/credentials.yml", "printenv"),
    ):
        assert reads_secrets({"command": text}), text
    assert not any(
        map(reads_secrets, [".envoy.yaml", "environment.py", "src/env.py", "my.environment", "process.env.X"])
    )


def test_secrets_in_the_values_of_a_tool_are_hidden(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    given = {"content": '{"password": "hunter2222"}', "api_key": "hunter3333", "n": 1, "list": ["token=hunter4444"]}
    spool.add(
        Event("codex", "tool", "PostToolUse", "s", "p", tool="Write", given=given, output={"stdout": "x" * 9_000})
    )
    spool.add(Event("codex", "tool", "PostToolUse", "s", "p", tool="sh", given={"command": "cat .env"}, output="A=1"))
    one, two = (event.values for event in spool.waiting())
    assert "hunter" not in json.dumps(one)
    assert one["given"].count(HIDDEN) == 3
    assert len(one["output"]) <= 2_000
    assert two["output"] == ""


@pytest.mark.parametrize("part", ["-----BEGIN PRIVATE KEY-----\n", "a.", "password=", "x://a:", "eyJ-"])
def test_a_large_tool_output_costs_no_time(tmp_path: Path, part: str) -> None:
    """What is searched for secrets is cut first: the processor time does not grow with the size."""
    begun = time.process_time()
    Spool(tmp_path).add(
        Event("codex", "tool", "PostToolUse", "s", "p", given=part * 50, output={"a": part * 1_000_000})
    )
    assert time.process_time() - begun < 5


def test_a_long_working_folder_is_shortened_to_a_name() -> None:
    event = read("claude-code", "Stop", cwd="/x" * 3_000)
    assert event is not None
    assert len(event.project) <= 200


def test_the_spool_keeps_events_in_order_and_without_secrets(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.add(Event("codex", "prompt", "UserPromptSubmit", "s", "p", text="first API_KEY=abcdef123456"))
    assert spool.add(
        Event("codex", "tool", "PostToolUse", "s", "p", tool="sh", given={"command": "cat .env"}, output="A=1")
    )
    assert spool.add(Event("codex", "answer", "Stop", "s", "p", text="x" * 100_000))
    assert not spool.add(Event("codex", "answer", "Stop", "s", "p", text="  "))
    first, tool, answer = (event.values for event in spool.waiting())
    assert first["text"] == "first API_KEY=[secret]"
    assert (tool["given"], tool["output"]) == ('{"command": "cat .env"}', "")
    assert len(answer["text"]) == 20_000
    assert spool.folder.stat().st_mode & 0o77 == 0


def test_a_file_that_is_no_event_is_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.make()
    (spool.folder / "1.json").write_text("{", "utf-8")
    (spool.folder / "2.json").write_text("[]", "utf-8")
    assert [*spool.waiting()] == []
    assert sorted(file.name for file in spool.folder.iterdir()) == ["1.bad", "2.bad"]


def test_the_switch_is_a_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.on
    spool.switch(False)
    assert not Spool(tmp_path).on
    spool.switch(True)
    assert Spool(tmp_path).on
