"""The modules that define the commands. A module is imported when one of its commands is used, for a fast start."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import click

from agentformer.cli.group import HELP, main

__all__ = ["main"]


class Commands(MutableMapping[str, click.Command]):
    """A mapping from names to commands, in the order of the help. A command is imported when it is looked up."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._commands:
            _define(name)
        return self._commands[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*HELP, *self._commands]))

    def __len__(self) -> int:
        return len(set(HELP) | set(self._commands))


def _define(name: str) -> None:  # noqa: C901 - one branch per module
    """Import the module that defines the command `name`. The import adds the command to `main`, the root command."""
    if name in ("ingest", "ask", "list", "remove"):
        import agentformer.cli.commands.documents
    elif name == "sync":
        import agentformer.cli.commands.sync
    elif name in ("search", "recall", "context"):
        import agentformer.cli.commands.search
    elif name in ("remember", "memories", "update", "supersede", "history", "forget", "core"):
        import agentformer.cli.commands.memory
    elif name in ("learn", "profile"):
        import agentformer.cli.commands.learning
    elif name in ("status", "doctor"):
        import agentformer.cli.commands.doctor
    elif name in ("clean", "restore", "audit", "reindex", "reembed", "vacuum", "upgrade", "trail", "spaces"):
        import agentformer.cli.commands.maintenance
    elif name in ("backup", "copy", "export", "import"):
        import agentformer.cli.commands.export
    elif name == "eval":
        import agentformer.cli.commands.evaluate
    elif name == "optimize":
        import agentformer.cli.commands.optimize
    elif name in ("install", "uninstall", "hooks", "hook"):
        import agentformer.cli.commands.hooks
    elif name == "chat":
        import agentformer.cli.commands.chat
    elif name == "keys":
        import agentformer.cli.commands.keys
    elif name in ("worker", "nodes", "webhooks"):
        import agentformer.cli.commands.nodes
    elif name in ("serve", "mcp", "completion"):
        import agentformer.cli.commands.serve  # noqa: F401  (the imports have an effect, and no name is used)


main.commands = Commands()
