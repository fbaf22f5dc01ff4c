"""`agentformer chat`: talk with a language model that has this memory and its tools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from agentformer.access.grant import RIGHTS, Grant, Right
from agentformer.agent import Agent, Recalled, ToolRun, ToolStart, Turn, TurnEvent
from agentformer.cli.group import common, examples, in_place, main, namespace_asked
from agentformer.cli.inputs import text_of
from agentformer.cli.output import INTERRUPTED, entry_line, excerpt, fail, print_json, print_warnings, say
from agentformer.errors import InvalidInput, LanguageModelUnavailable
from agentformer.factory import AgentFormer, connect
from agentformer.records.fields import MAX_CONTENT, optional_name
from agentformer.tools.shapes import report_json
from agentformer.types import MemoryEntry, ToolCall, new_id

_LINE = 4 * MAX_CONTENT  # bytes of a line of standard input
_SHOWN = 60  # characters of a call's arguments
_MEMORIES = 5  # that a turn lists
_ASKED = 2_000  # characters of an argument that a person is shown who is to permit a call
_NAME, _NAMES = 60, 20  # characters of an argument's name, and arguments; no tool has so many
_WITHOUT = (
    "What works without one: agentformer ask, search, recall, remember and all other commands. "
    "Nothing was sent or stored."
)
_HELP = """/memories  what the last answer was given of memory
/tools     the tools that the model has
/new       begin a new session
/quit      end (or Ctrl-D); Ctrl-C stops an answer"""


@main.command(
    epilog=examples(
        'agentformer chat "What did we decide about the crane?"',
        "agentformer chat --session monday --user aino",
        "agentformer chat --read-only --without conversation_search",
        'agentformer chat "Bring in all reports of this folder" --allow rag_upload',
        "agentformer chat --json < questions.txt",
    )
)
@click.argument("message", metavar="[MESSAGE|-]", required=False)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Where the model may read files from, to bring them in [the current folder].",
)
@click.option("--read-only", is_flag=True, help="Only tools that look things up; nothing is stored, nor what is said.")
@click.option("--without", "switched_off", multiple=True, metavar="TOOL", help="Switch a tool off. May be repeated.")
@click.option(
    "--allow",
    multiple=True,
    metavar="TOOL",
    help="Let the model call it also after reading stored text. May be repeated.",
)
@common
@in_place
def chat(
    message: str | None,
    folder: Path,
    read_only: bool,
    switched_off: tuple[str, ...],
    allow: tuple[str, ...],
    place: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Talk with a language model that remembers, and answers from the documents.

    With MESSAGE one turn, with `-` all of standard input as one message; without, a talk on a terminal, or one turn for
    each line of standard input. Tools and memories that were used are told on standard error; --json prints one object
    for each turn. With --user, a session is what that user said and was answered; with --namespace, tools reach no
    other. Once the model has read stored text, a tool that changes or removes what is kept runs only if --allow names
    it, or the person at the terminal lets it. It needs a language model, such as AGENTFORMER_LLM_MODEL=ollama:gemma3.
    The exit code is 1 when some message got no answer, or one that a limit cut short.
    """
    said = None if message is None else text_of(message, "MESSAGE")
    place = {name: optional_name(name, value) for name, value in place.items()}
    place["namespace"] = namespace_asked(place["namespace"])
    session = place.pop("session_id") or new_session()
    with connect(**options) as af:
        try:
            agent = Agent(
                af,
                **place,
                grant=_grant(af, read_only, switched_off),
                folder=folder,
                permit=_permitted(af, allow),
                confirm=(lambda call: _confirmed(call, agent.meant(call))) if _may_ask(as_json) else None,
            )
        except LanguageModelUnavailable as error:
            fail(f"{error}. {_WITHOUT}", 3)
        talk = Talk(af, agent, session, as_json)
        try:
            code = _run(talk, said)
        finally:
            if not agent.close():
                say("note: a tool had not finished when the talk ended", err=True)
    sys.exit(code)


class Talk:
    """Turns of a session, shown as they come."""

    def __init__(self, af: AgentFormer, agent: Agent, session: str, as_json: bool) -> None:
        self.session = session
        self._af = af
        self._agent = agent
        self._as_json = as_json
        self._last: Turn | None = None

    def begin(self) -> None:
        """Tell by which name the talk can be taken up again."""
        if not self._as_json and self._agent.stores:
            dim(f"session {self.session}")

    def turn(self, message: str) -> bool:
        """Show the answer; is it one? Raises `KeyboardInterrupt`; the message is kept then."""
        turn = self._last = self._agent.turn(message, session_id=self.session, on_event=self._tell)
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

    def stopped(self) -> None:
        """Tell what became of a turn that was interrupted."""
        kept = "; your message is kept, without an answer" if self._agent.stores else ""
        say(f"\nnote: stopped{kept}", err=True)

    def asked(self) -> str:
        """What is typed next; `/quit` at the end of input. Ctrl-C takes back what was typed."""
        while True:
            try:
                return input("" if self._as_json else "> ").strip()
            except EOFError:
                say(err=True)
                return "/quit"
            except KeyboardInterrupt:
                say("\n/quit ends", err=True)

    def memories(self) -> None:
        """Show what the last turn was given."""
        for used in self._last.memories if self._last else ():
            say(f"{used.id}  {used.share}/{used.kind}  {used.excerpt}")
        if not (self._last and self._last.memories):
            say("no memories were used" if self._last else "nothing was asked yet")

    def tools(self) -> None:
        """Show what the model can do."""
        for tool in self._agent.tools:
            say(f"{tool.name:20} {tool.description.partition('. ')[0].rstrip('.')}")
        if not self._agent.tools:
            say("none: the model takes no tools")

    def _tell(self, event: TurnEvent) -> None:
        if self._as_json:
            return
        if isinstance(event, Recalled):
            for used in event.memories[:_MEMORIES]:
                dim(f"memory  {used.share}/{used.kind}  {excerpt(used.excerpt)}")
            if more := len(event.memories[_MEMORIES:]):
                dim(f"memory  and {more} more")
        elif isinstance(event, ToolStart):
            if sys.stderr is not None and sys.stderr.isatty():
                dim(f"tool    {_call(event)} ...")
        else:
            outcome = f"failed: {excerpt(event.text)}" if event.failed else "ok"
            dim(f"tool    {_call(event)}  {outcome}  {event.ms:.0f} ms")


def new_session() -> str:
    """A name that says when the session began."""
    return f"chat-{datetime.now(UTC):%Y%m%d-%H%M%S}-{new_id()[-6:]}"


def dim(text: str) -> None:
    """A line beside the answer, on standard error."""
    styled = sys.stderr is not None and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    if styled:
        click.echo("\x1b[2m", err=True, nl=False)
    say(text, err=True, nl=not styled)
    if styled:
        click.echo("\x1b[0m", err=True)


def _run(talk: Talk, said: str | None) -> int:
    """All turns; the exit code."""
    if said is not None:
        return _all(talk, iter([said]))
    if sys.stdin is None:  # closed by whoever started us
        raise InvalidInput("MESSAGE", "is missing, and standard input is closed")
    if sys.stdin.isatty():
        _converse(talk)
        return 0
    return _all(talk, _lines())


def _all(talk: Talk, messages: Iterator[str]) -> int:
    """One turn for each message; 1 where one of them has no answer."""
    talk.begin()
    answers: list[bool] = []
    try:
        for message in messages:
            answers.append(talk.turn(message))  # noqa: PERF401  each is shown as it comes
    except KeyboardInterrupt:
        talk.stopped()
        return INTERRUPTED
    if not answers:
        raise InvalidInput("MESSAGE", "is missing, and standard input has none")
    return 0 if all(answers) else 1


def _lines() -> Iterator[str]:
    """Lines of standard input that say something. Raises `InvalidInput` for one that is no text, or too long."""
    while line := sys.stdin.buffer.readline(_LINE + 1):
        if len(line) > _LINE:
            raise InvalidInput("MESSAGE", f"a line has over {_LINE} bytes; bring it in with: agentformer ingest FILE")
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise InvalidInput("MESSAGE", "standard input is not UTF-8; convert it") from None
        if text:
            yield text


def _converse(talk: Talk) -> None:
    """A talk on a terminal, until somebody ends it."""
    _edit_lines()
    talk.begin()
    dim("/help tells what can be typed")
    commands: dict[str, Callable[[], None]] = {
        "/help": lambda: say(_HELP),
        "/memories": talk.memories,
        "/tools": talk.tools,
    }
    while (line := talk.asked()) != "/quit":
        if line == "/new":
            talk.session = new_session()
            talk.begin()
        elif line in commands:
            commands[line]()
        elif line.startswith("/") and " " not in line and line.count("/") == 1:
            say(f"there is no {line}\n{_HELP}")
        elif line:
            _answer(talk, line)


def _answer(talk: Talk, line: str) -> None:
    """One turn; whatever ends it does not end the talk."""
    try:
        talk.turn(line)
    except KeyboardInterrupt:
        talk.stopped()
    except InvalidInput as error:
        say(f"error: {error}", err=True)


def _edit_lines() -> None:
    """Lines that can be edited and brought back, where the system has readline."""
    try:
        import readline
    except ImportError:
        return
    readline.parse_and_bind("tab: self-insert")  # a tab in a pasted text is a tab


def _grant(af: AgentFormer, read_only: bool, switched_off: tuple[str, ...]) -> Grant:
    """What the model may do. Raises `InvalidInput` for a tool that there is not."""
    _check_known(af, "--without", switched_off)
    rights: tuple[Right, ...] = ("read",) if read_only else RIGHTS
    return Grant(frozenset(rights), without=frozenset(switched_off))


def _permitted(af: AgentFormer, allow: tuple[str, ...]) -> set[str]:
    """What the options and the settings permit. Raises `InvalidInput` for a tool that there is not."""
    _check_known(af, "--allow", allow)
    return {*allow, *af.settings.agent_permit.split()}


def _check_known(af: AgentFormer, option: str, names: tuple[str, ...]) -> None:
    known = [tool.name for tool in af.toolbox.definitions()]
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(option, f"there is no tool {unknown[0]!r:.80}; there are: {', '.join(known)}")


def _may_ask(as_json: bool) -> bool:
    """Is there a person who sees a question, and can answer it?"""
    return not as_json and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _confirmed(call: ToolCall, meant: MemoryEntry | None) -> bool:
    """Ask the person whether a call may run; no answer is a no. `meant` is the memory that it names."""
    say(f"The model has read stored text, and now asks to call {call.name}:", err=True)
    for name, value in [*call.arguments.items()][:_NAMES]:
        say(f"  {_line(name, _NAME)}: {_line(json.dumps(value, ensure_ascii=False, default=str), _ASKED)}", err=True)
    if more := len([*call.arguments][_NAMES:]):
        say(f"  ... and {more} more arguments", err=True)
    if "id" in call.arguments:
        say(f"That memory is now: {_line(entry_line(meant), _ASKED) if meant else 'none that it reaches'}", err=True)
    say("Let it? [y/N] ", err=True, nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _line(text: str, most: int) -> str:
    """A text on one line, cut where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]} ... and {len(line) - most} more characters"


def _call(called: ToolStart | ToolRun) -> str:
    """A call in short."""
    given = ", ".join(f"{name}={_value(value)}" for name, value in called.arguments.items())
    return f"{called.name}({given if len(given) <= _SHOWN else given[:_SHOWN] + '…'})"


def _value(value: Any) -> str:
    return " ".join(json.dumps(value, ensure_ascii=False, default=str)[: 2 * _SHOWN].split())
