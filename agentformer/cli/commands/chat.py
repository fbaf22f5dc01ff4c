"""`agentformer chat`: a conversation with a language model. The model uses this memory through tools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from agentformer.access.permissions import RIGHTS, Grant, Right
from agentformer.agent import Agent, Recalled, ToolRun, ToolStart, Turn, TurnEvent
from agentformer.cli.group import common, examples, explicit_namespace, in_place, main, without_tools
from agentformer.cli.inputs import check_tools, open_existing, text_of
from agentformer.cli.output import INTERRUPTED, entry_line, excerpt, fail, on_terminal, print_json, print_warnings, say
from agentformer.errors import InvalidInput, LanguageModelUnavailable
from agentformer.factory import AgentFormer, connect
from agentformer.records.fields import MAX_CONTENT, optional_name
from agentformer.tools.result_json import report_json
from agentformer.types import MemoryEntry, ToolCall, new_id

_MAX_LINE = 4 * MAX_CONTENT  # limit for a line of standard input, in bytes
_SHOWN = 60  # characters of a call's arguments
_MEMORIES = 5  # at most this many memories are listed for a turn
_ARGUMENT = 2_000  # characters of an argument in a request for permission
_NAME, _NAMES = 60, 20  # characters of an argument's name, and number of arguments
_WITHOUT_MODEL = (
    "All other commands, such as ask, search, recall and remember, need no language model. Nothing was sent or stored."
)
_HELP = """/memories  show the memories of the last answer
/tools     show the tools of the model
/new       start a new session
/quit      end (also exit, quit or Ctrl-D); Ctrl-C stops an answer"""
_ENDS = ("/quit", "/exit", "quit", "exit")  # each of these lines ends the conversation


@main.command(
    epilog=examples(
        'agentformer chat "What did we decide about the crane?"',
        "agentformer chat --session monday --user aino",
        "agentformer chat --read-only --without conversation_search",
        'agentformer chat "Ingest all reports of this folder" --allow rag_upload',
        "agentformer chat --json < questions.txt",
    )
)
@click.argument("message", metavar="[MESSAGE|-]", required=False)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Folder from which the model may ingest files [default: the current folder].",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing, and do not store the messages.")
@without_tools
@click.option(
    "--allow",
    multiple=True,
    metavar="TOOL",
    help="Allow this tool to change data even after the model has read stored text. The option can be repeated.",
)
@click.option("--verbose", is_flag=True, help="Show the memories that the model gets.")
@common
@in_place
def chat(
    message: str | None,
    folder: Path,
    read_only: bool,
    without: tuple[str, ...],
    allow: tuple[str, ...],
    verbose: bool,
    place: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Chat with a language model that can use this memory and its documents.

    With MESSAGE, the command prints the answer to this message and ends. If MESSAGE is `-`, the message is all of
    standard input. Without MESSAGE, the command starts a conversation on the terminal. If standard input is not a
    terminal, each line of standard input is a message. The line `exit` or `quit` ends the conversation. The tools that
    the model uses are shown on standard error. With --verbose, the memories that the model gets are shown too. With
    --json, the command prints a JSON object for each turn. With --user, the model gets only the messages of this user
    in the session, and the answers to these messages. With --namespace, tools use only this namespace.

    After the model has read stored text, a tool that changes or deletes data runs only in two cases: --allow names the
    tool, or the user at the terminal allows the call. The command requires a language model; for example, set
    AGENTFORMER_LLM_MODEL=ollama:gemma3. The exit code is 1 if the answer to a message is missing or incomplete.
    """
    text = None if message is None else text_of(message, "MESSAGE")
    place = {name: optional_name(name, value) for name, value in place.items()}
    place["namespace"] = explicit_namespace(place["namespace"])
    session = place.pop("session_id") or new_session()
    # Without stored messages, the chat only reads, so it needs a memory that exists.
    with open_existing(**options) if read_only else connect(**options) as af:
        agent = _agent(af, place, folder, _grant(af, read_only, without), _permitted(af, allow), as_json)
        try:
            code = _run(Chat(agent, session, as_json=as_json, verbose=verbose), text)
        finally:
            if not agent.close():
                say("note: a tool was still running when the chat ended", err=True)
    sys.exit(code)


def _grant(af: AgentFormer, read_only: bool, without: tuple[str, ...]) -> Grant:
    """Return the rights of the model in this chat. If `read_only` is true, the model may only read. The tools in
    `without` are disabled. Raises `InvalidInput` if `without` contains an unknown tool."""
    check_tools("--without", without, _tool_names(af))
    rights: tuple[Right, ...] = ("read",) if read_only else RIGHTS
    return Grant(frozenset(rights), without=frozenset(without))


def _permitted(af: AgentFormer, allow: tuple[str, ...]) -> set[str]:
    """Return the tools that may change data without a question to the user, even after the model has read stored text.
    The option --allow and the setting `agent_permit` name these tools. Raises `InvalidInput` if `allow` contains an
    unknown tool."""
    check_tools("--allow", allow, _tool_names(af))
    return {*allow, *af.settings.agent_permit.split()}


def _tool_names(af: AgentFormer) -> list[str]:
    return [tool.name for tool in af.toolbox.definitions()]


class Chat:
    """The turns of a conversation. Shows tool calls when they happen and, if `verbose`, the memories for the model."""

    def __init__(self, agent: Agent, session: str, *, as_json: bool, verbose: bool) -> None:
        self.session = session
        self._agent = agent
        self._as_json = as_json
        self._verbose = verbose
        self._last: Turn | None = None

    def begin(self) -> None:
        """Show the name of the session. With --session and this name, the user can continue the session later."""
        if not self._as_json and self._agent.stores:
            dim(f"session {self.session}")

    def turn(self, message: str) -> bool:
        """Send a message to the model, and show the answer. Return False if the answer is not complete. Ctrl-C raises
        `KeyboardInterrupt`; at this time, the message is already stored."""
        turn = self._last = self._agent.turn(message, session_id=self.session, on_event=self._show)
        if self._as_json:
            print_json(report_json(turn), indent=None)
        else:
            print_warnings(turn.warnings)
            say(turn.text)
            for cited in turn.citations:
                page = f", {cited.page}" if cited.page else ""
                dim(f"[{cited.document}{page}] {excerpt(cited.quote)}")
            if turn.finish != "answer":
                dim(f"({turn.finish} after {turn.steps} steps)")
        return turn.finish == "answer"

    def interrupted(self) -> None:
        """Print a note that the turn was interrupted."""
        stored = "; your message is stored without an answer" if self._agent.stores else ""
        say(f"\nnote: interrupted{stored}", err=True)

    def read_line(self) -> str:
        """Return the next line that the user types, or `/quit` if the user ends the chat. Ctrl-C discards the line."""
        while True:
            try:
                line = input("" if self._as_json else "> ").strip()
                return "/quit" if line.lower() in _ENDS else line
            except EOFError:
                say(err=True)
                return "/quit"
            except KeyboardInterrupt:
                say("\n/quit ends the chat", err=True)

    def memories(self) -> None:
        """Show the memories that the model got in the last turn."""
        for memory in self._last.memories if self._last else ():
            say(f"{memory.id}  {memory.share}/{memory.kind}  {memory.excerpt}")
        if not (self._last and self._last.memories):
            say("no memories were used" if self._last else "there is no turn yet")

    def tools(self) -> None:
        """Show the tools that the model can call."""
        for tool in self._agent.tools:
            say(f"{tool.name:20} {tool.description.partition('. ')[0].rstrip('.')}")
        if not self._agent.tools:
            say("none: the model does not support tools")

    def _show(self, event: TurnEvent) -> None:
        if self._as_json:
            return
        if isinstance(event, Recalled):
            if not self._verbose:
                return
            for memory in event.memories[:_MEMORIES]:
                dim(f"memory  {memory.share}/{memory.kind}  {excerpt(memory.excerpt)}")
            if more := len(event.memories[_MEMORIES:]):
                dim(f"memory  and {more} more")
        elif isinstance(event, ToolStart):
            if on_terminal():
                dim(f"tool    {_call_text(event)} ...")
        else:
            outcome = f"failed: {excerpt(event.text)}" if event.failed else "ok"
            dim(f"tool    {_call_text(event)}  {outcome}  {event.ms:.0f} ms")


def new_session() -> str:
    """Return a new name for a session. The name contains the current time."""
    return f"chat-{datetime.now(UTC):%Y%m%d-%H%M%S}-{new_id()[-6:]}"


def dim(text: str) -> None:
    """Print a line in dim color on standard error."""
    styled = on_terminal() and "NO_COLOR" not in os.environ
    if styled:
        click.echo("\x1b[2m", err=True, nl=False)
    say(text, err=True, nl=not styled)
    if styled:
        click.echo("\x1b[0m", err=True)


def _agent(
    af: AgentFormer, place: dict[str, Any], folder: Path, grant: Grant, permit: set[str], as_json: bool
) -> Agent:
    """Return the agent that answers in this chat. If no language model can be used, exit with code 3."""

    def confirm(call: ToolCall) -> bool:
        return _confirm(call, agent.referenced_memory(call))

    interactive = not as_json and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
    try:
        agent = Agent(af, **place, grant=grant, folder=folder, permit=permit, confirm=confirm if interactive else None)
    except LanguageModelUnavailable as error:
        fail(f"{error}. {_WITHOUT_MODEL}", 3)
    return agent


def _run(chat: Chat, message: str | None) -> int:
    """Answer `message` if it is given. Otherwise, answer the lines that the user types or, without a terminal, the
    lines of standard input. Return the exit code, which is 1 if a message has no complete answer."""
    if message is None and sys.stdin is None:  # closed by the parent process
        raise InvalidInput("MESSAGE", "is missing, and standard input is closed; give the message as an argument")
    if message is None and sys.stdin.isatty():
        _converse(chat)
        return 0
    chat.begin()
    answers: list[bool] = []
    try:
        for text in _lines() if message is None else (message,):
            if message is None and text.lower() in _ENDS:
                return 0 if all(answers) else 1
            answers.append(chat.turn(text))
    except KeyboardInterrupt:
        chat.interrupted()
        return INTERRUPTED
    if not answers:
        raise InvalidInput("MESSAGE", "is missing, and standard input is empty; give the message as an argument")
    return 0 if all(answers) else 1


def _lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank. Raises `InvalidInput` for a line that is too long or not
    UTF-8."""
    while line := sys.stdin.buffer.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise InvalidInput(
                "MESSAGE", f"a line has over {_MAX_LINE} bytes; ingest the text with: agentformer ingest FILE"
            )
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise InvalidInput("MESSAGE", "standard input is not UTF-8 text; convert it to UTF-8") from None
        if text:
            yield text


def _converse(chat: Chat) -> None:
    with suppress(ImportError):  # `readline`, which not every system has, lets `input` edit lines
        import readline

        readline.parse_and_bind("tab: self-insert")  # the Tab key inserts a tab, so that pasted text keeps its tabs
    chat.begin()
    dim("/help lists the commands")
    commands: dict[str, Callable[[], None]] = {
        "/help": lambda: say(_HELP),
        "/memories": chat.memories,
        "/tools": chat.tools,
    }
    while (line := chat.read_line()) != "/quit":
        if line == "/new":
            chat.session = new_session()
            chat.begin()
        elif line in commands:
            commands[line]()
        elif line.startswith("/") and " " not in line and line.count("/") == 1:  # a path is a message
            say(f"there is no command {line}\n{_HELP}")
        elif line:
            try:
                chat.turn(line)
            except KeyboardInterrupt:
                chat.interrupted()
            except InvalidInput as error:
                say(f"error: {error}", err=True)


def _confirm(call: ToolCall, memory: MemoryEntry | None) -> bool:
    """Show a tool call, ask the user whether it may run, and return the answer. `memory` is the entry that the call
    would change; it is shown too. An empty answer means no."""
    say(f"The model has read stored text, and wants to call {call.name}:", err=True)
    for name, value in [*call.arguments.items()][:_NAMES]:
        say(f"  {_one_line(name, _NAME)}: {_one_line(_json(value), _ARGUMENT)}", err=True)
    if more := len([*call.arguments][_NAMES:]):
        say(f"  ... and {more} more arguments", err=True)
    if "id" in call.arguments:
        entry = _one_line(entry_line(memory), _ARGUMENT) if memory else "no memory that the call can use"
        say(f"The memory is: {entry}", err=True)
    say("Allow this call? [y/N] ", err=True, nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]} ... and {len(line) - limit} more characters"


def _call_text(call: ToolStart | ToolRun) -> str:
    values = {name: " ".join(_json(value)[: 2 * _SHOWN].split()) for name, value in call.arguments.items()}
    arguments = ", ".join(f"{name}={value}" for name, value in values.items())
    return f"{call.name}({arguments if len(arguments) <= _SHOWN else arguments[:_SHOWN] + '…'})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
