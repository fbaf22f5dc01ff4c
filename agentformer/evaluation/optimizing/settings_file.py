"""Writes settings into a file with lines such as `AGENTFORMER_NAME=value`, which `load_settings` can read."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from dotenv.parser import parse_stream

from agentformer.errors import InvalidInput
from agentformer.records.integrity.files import read_file, write_atomically
from agentformer.settings import ENV_PREFIX

_BOM = b"\xef\xbb\xbf"
_BEFORE = re.compile(r"\s*(?:export[^\S\r\n]+)?")  # the text before a name in a line, and the empty lines above


def write_settings(path: Path, values: Mapping[str, object], comment: str = "") -> list[str]:
    """Write these settings into a file, atomically, and return the lines that were replaced. Settings without a line
    are added at the end, after `comment`. Other lines and the permissions of the file do not change. Raises
    `InvalidInput` if the file cannot be read or written."""
    former = _read(path)
    text = former.removeprefix(_BOM).decode()
    lines = {ENV_PREFIX + name.upper(): f"{ENV_PREFIX}{name.upper()}={value}" for name, value in values.items()}
    parts, replaced = [], {}
    for binding in parse_stream(io.StringIO(text, newline="")):
        part = binding.original.string
        if not binding.error and binding.key in lines and (before := _BEFORE.match(part)):
            body = part[before.end() :]
            replaced[binding.key] = body.strip()
            part = before.group() + lines[binding.key] + body[len(body.rstrip("\r\n")) :]
        parts.append(part)
    added = [line for name, line in lines.items() if name not in replaced]
    if comment and added:
        added.insert(0, f"# {' '.join(comment.split())}")  # a single line, even if a name contains line breaks
    end = "\r\n" if "\r\n" in text else "\n"
    if added and text and not text.endswith("\n"):
        parts.append(end)
    content = "".join([*parts, *(line + end for line in added)]).encode()
    target = path.resolve()
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else None
        write_atomically(target, (_BOM if former.startswith(_BOM) else b"") + content, mode=mode)
        if mode is not None:
            target.chmod(mode)  # the umask does not affect it
    except OSError as error:
        raise _refused(path, f"cannot be written ({error.strerror or error}); choose another file") from None
    return list(replaced.values())


def check_writable(path: Path) -> None:
    """Raise `InvalidInput` if `write_settings` cannot write this file."""
    _read(path)
    target = path.resolve()
    if not target.parent.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        reason = "its folder does not exist, or you have no permission; choose another file"
        raise _refused(path, f"cannot be written: {reason}")


def _read(path: Path) -> bytes:
    """Return the content of the file, which is UTF-8. It is empty if the file does not exist."""
    try:
        data = read_file(path) if path.exists() else b""
        data.decode()
        return data
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror or error}); choose another file") from None
    except UnicodeDecodeError:
        raise _refused(path, "is not UTF-8 text, so nothing was written; convert the file to UTF-8") from None


def _refused(path: Path, reason: str) -> InvalidInput:
    return InvalidInput("--write", f"{path} {reason}")
