"""`agentformer completion SHELL`: the script by which a shell completes our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from agentformer.cli.group import examples, main
from agentformer.cli.output import say

_SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "agentformer"


@main.command(
    epilog=examples(
        "agentformer completion bash > ~/.local/share/bash-completion/completions/agentformer",
        'agentformer completion zsh > "${fpath[1]}/_agentformer"',
        "agentformer completion fish > ~/.config/fish/completions/agentformer.fish",
        "source <(agentformer completion bash)    # in this shell only",
    )
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    Write it where the shell looks for such scripts, as below, and begin a new shell. Commands, options, their choices
    and files are completed; ids and namespaces are not.
    """
    kind = get_completion_class(shell)
    if kind is not None:
        # Not the class's own `source`: bash's would run bash to see its version.
        say(ShellComplete.source(kind(main, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")))
