"""The modules that define the commands. Each module is imported when one of its commands is first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

import click

from agentformer.cli.group import HELP, main

__all__ = ["main"]


def _documents() -> object:
    from agentformer.cli.commands import documents

    return documents


def _memory() -> object:
    from agentformer.cli.commands import memory

    return memory


def _edit() -> object:
    from agentformer.cli.commands import edit

    return edit


def _core() -> object:
    from agentformer.cli.commands import core

    return core


def _doctor() -> object:
    from agentformer.cli.commands import doctor

    return doctor


def _maintenance() -> object:
    from agentformer.cli.commands import maintenance

    return maintenance


def _export() -> object:
    from agentformer.cli.commands import export

    return export


def _eval() -> object:
    from agentformer.cli.commands import eval_file

    return eval_file


def _optimize() -> object:
    from agentformer.cli.commands import optimize

    return optimize


def _chat() -> object:
    from agentformer.cli.commands import chat

    return chat


def _serve() -> object:
    from agentformer.cli.commands import serve

    return serve


def _keys() -> object:
    from agentformer.cli.commands import keys

    return keys


_MODULES: dict[Callable[[], object], tuple[str, ...]] = {
    _documents: ("ingest", "ask", "list", "remove"),
    _memory: ("search", "remember", "recall", "context", "memories"),
    _edit: ("update", "supersede", "history", "forget"),
    _core: ("core",),
    _doctor: ("status", "doctor"),
    _maintenance: ("clean", "restore", "audit", "reindex", "reembed", "spaces"),
    _export: ("backup", "export", "import"),
    _eval: ("eval",),
    _optimize: ("optimize",),
    _chat: ("chat",),
    _serve: ("serve", "mcp", "completion"),
    _keys: ("keys",),
}
_IMPORT = {name: load for load, names in _MODULES.items() for name in names}


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, in the order of the help. The names are known before the commands are imported."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._commands:
            _IMPORT[name]()  # `@main.command` then adds the command
        return self._commands[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*HELP, *self._commands]))

    def __len__(self) -> int:
        return len(set(HELP) | set(self._commands))


main.commands = Commands()
