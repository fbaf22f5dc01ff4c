"""The command line: `agentformer COMMAND`, the top edge. `agentformer --help` lists the commands and the exit codes.

`commands` names the module of each command; docs/CLI.md is made from them. `start` is where the program begins.
"""

TYPE_CHECKING = False  # true for type checkers; `typing` would be imported before Ctrl-C is guarded
if TYPE_CHECKING:
    from agentformer.cli.group import main

__all__ = ["main"]

if not TYPE_CHECKING:

    def __getattr__(name):
        """`main`, imported when it is asked for: behind the guard of `start`."""
        from importlib import import_module

        if name != "main":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.group").main
