"""Generate docs/CLI.md from the commands: `python scripts/cli_reference.py` writes it, `--check` compares it.

The text depends only on the commands, not on the terminal, the environment or installed packages.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from agentformer.cli import main
from agentformer.cli.group import EXIT_CODES, SECTIONS, first_sentence

PAGE = Path(__file__).parent.parent / "docs" / "CLI.md"
COMMON = ("--namespace", "--json", "--embedder", "--index-dir", "--upload-dir")
HEAD = """# The command line

Generated from the commands by `python scripts/cli_reference.py`; do not edit it.

`agentformer COMMAND --help` shows the same. (`agentformer` is `.venv/bin/agentformer` unless the environment is
active.) A value in brackets, such as `[10]`, is the default. Settings that are not given as options come from the
environment, `AGENTFORMER_<NAME>`, or a file `.env`.
"""


def page() -> str:
    shown = [name for names in SECTIONS.values() for name in names if name in main.commands]
    shown += sorted(set(main.commands) - set(shown))
    parts = [HEAD, _overview(), _exit_codes(), _common(main.commands["list"])]
    parts += [part for name in shown for part in _command(main.commands[name], f"agentformer {name}")]
    return "\n".join(parts)


def _overview() -> str:
    lines = []
    for title, names in SECTIONS.items():
        lines += [f"\n**{title}**\n", "| command | |", "|---|---|"]
        for name in names:
            if name in main.commands:
                lines.append(f"| [`{name}`](#agentformer-{name}) | {_cell(first_sentence(main.commands[name]))} |")
    return "\n".join(lines).lstrip() + "\n"


def _exit_codes() -> str:
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    return (
        f"## Exit codes\n\n| code | |\n|---|---|\n{rows}\n\n"
        "With `--json`, the result is JSON on standard output; errors are text on standard error.\nOn a terminal, "
        "tables have headings and fit its width; in a pipe they are complete rows without headings.\n"
    )


def _common(command: click.Command) -> str:
    options = [each for each in _options(command) if each.opts[0] in COMMON]
    return f"## Options of every command that opens a memory\n\n{_table(options)}\n"


def _command(command: click.Command, name: str) -> Iterator[str]:
    """Return the section of a command, and those of its subcommands."""
    pieces = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
    yield f"## {name}\n\n{_text(command)}\n\n```\n{name} {pieces}\n```\n"
    own = [each for each in _options(command) if each.opts[0] not in COMMON]
    if own:
        yield f"{_table(own)}\n"
    if command.epilog:
        yield f"```sh\n{_examples(command.epilog)}\n```\n"
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from _command(command.commands[below], f"{name} {below}")


def _options(command: click.Command) -> list[click.Option]:
    found = command.get_params(click.Context(command))
    return [each for each in found if isinstance(each, click.Option) and "--help" not in each.opts and not each.hidden]


def _table(options: list[click.Option]) -> str:
    rows = [f"| `{_cell(_spelled(each))}` | {_cell(each.help or '')} |" for each in options]
    return "\n".join(["| option | |", "|---|---|", *rows])


def _spelled(option: click.Option) -> str:
    """Return an option with its value, such as `--limit N`."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(str(choice) for choice in option.type.choices)}"
    number = isinstance(option.type, (click.types.IntParamType, click.IntRange))
    return f"{names} {option.metavar or ('N' if number else option.type.name.upper())}"


def _text(command: click.Command) -> str:
    """Return the help text as paragraphs; a paragraph with fixed lines becomes code."""
    said = inspect.cleandoc(command.help or "").partition("\f")[0]
    blocks = re.split(r"\n{2,}", said)
    told = [f"```\n{block[1:].strip()}\n```" if block.startswith("\b") else " ".join(block.split()) for block in blocks]
    return "\n\n".join(told)


def _examples(epilog: str) -> str:
    lines = inspect.cleandoc(epilog.replace("\b", "")).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and line.strip() != "Examples:")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def run() -> int:
    made = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == made:
            return 0
        sys.stderr.write("docs/CLI.md is not up to date: python scripts/cli_reference.py\n")
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run())
