"""The command line `agentformer COMMAND`. `agentformer --help` lists the commands and the exit codes.

`start` contains the entry point of the program. `group` defines the root command and the options that every command
has. Each module of `commands` defines some commands. docs/CLI.md is generated from the commands.
"""

TYPE_CHECKING = False  # true for type checkers; an import of `typing` would come before Ctrl-C is handled
if TYPE_CHECKING:
    from agentformer.cli.commands import main

__all__ = ["main"]

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import `main` only when it is first used, because `start` must handle Ctrl-C before this import."""
        if name != "main":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from agentformer.cli.commands import main

        return main
