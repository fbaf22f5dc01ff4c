"""Writes settings into a file with lines such as `AGENTFORMER_NAME=value`, which `load_settings` can read. All other
lines of the file stay unchanged."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv.parser import parse_stream

from agentformer.errors import InvalidInput
from agentformer.evaluation.optimizing.space import Value
from agentformer.records.integrity.files import read_file, write_atomically
from agentformer.settings import ENV_PREFIX

_BOM = b"\xef\xbb\xbf"
_BEFORE = re.compile(r"\s*(?:export[^\S\r\n]+)?")  # the text before a name in a line, and the empty lines above


@dataclass(frozen=True, slots=True)
class Written:
    """The changes to a settings file: the former text of each line that was replaced, and the lines that were added."""

    path: Path
    replaced: tuple[str, ...]
    added: tuple[str, ...]


def write_settings(path: Path, values: Mapping[str, Value], comment: str = "") -> Written:
    """Write these settings into a file, atomically. The file is created if it does not exist. A line that sets one of
    the settings is replaced. Settings without such a line are added at the end, after `comment`. Other lines and the
    permissions of the file do not change. Raises `InvalidInput` if the file cannot be read or written."""
    target, former, text = _read(path)
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else None
        lines = {ENV_PREFIX + name.upper(): f"{ENV_PREFIX}{name.upper()}={value}" for name, value in values.items()}
        unchanged, replaced = _replaced(text, lines)
        comment = " ".join(comment.split())  # a single line, even if a name contains line breaks
        added = [line for name, line in lines.items() if name not in replaced]
        end = "\r\n" if "\r\n" in text else "\n"
        new = [f"# {comment}", *added] if comment and added else added
        border = end if new and unchanged and not unchanged.endswith("\n") else ""
        content = unchanged + border + "".join(line + end for line in new)
        bom = _BOM if former.startswith(_BOM) else b""
        write_atomically(target, bom + content.encode(), mode=mode)
        if mode is not None:
            target.chmod(mode)  # the umask does not affect it
    except OSError as error:
        raise InvalidInput(
            "--write", f"{path} cannot be written ({error.strerror or error}); choose another file"
        ) from None
    return Written(target, tuple(replaced.values()), tuple(added))


def check_writable(path: Path) -> None:
    """Raise `InvalidInput` if `write_settings` cannot write this file."""
    target, _, _ = _read(path)
    if not target.parent.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        raise InvalidInput(
            "--write",
            f"{path} cannot be written: its folder does not exist, or you have no permission; choose another file",
        )


def _read(path: Path) -> tuple[Path, bytes, str]:
    """Return the path after links are resolved, the bytes of the file, and its text. The bytes and the text are empty
    if the file does not exist. Raises `InvalidInput` if the file cannot be read."""
    try:
        target = path.resolve()
        former = read_file(target) if target.exists() else b""
        return target, former, former.removeprefix(_BOM).decode("utf-8")
    except OSError as error:
        raise InvalidInput(
            "--write", f"{path} cannot be read ({error.strerror or error}); choose another file"
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(
            "--write", f"{path} is not UTF-8 text, so nothing was written; convert the file to UTF-8"
        ) from None


def _replaced(text: str, lines: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Replace each line of `text` that sets one of the variables. `lines` maps each variable to its new line. Return
    the new text, and a mapping of each replaced variable to its former line."""
    parts: list[str] = []
    replaced: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text, newline="")):
        written, name = binding.original.string, binding.key
        if binding.error or name is None or name not in lines:
            parts.append(written)
            continue
        before = _BEFORE.match(written)
        lead = before.group() if before else ""
        body = written[len(lead) :]
        end = body[len(body.rstrip("\r\n")) :]
        parts.append(lead + lines[name] + end)
        replaced[name] = body.strip()
    return "".join(parts), replaced
