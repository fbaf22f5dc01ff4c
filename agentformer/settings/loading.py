"""Reads the settings from the arguments, the file `.env`, and the environment. No other module reads settings from the
environment. `fields` defines the settings, with their types, defaults and checks.

The value of a setting is the first of these that exists: the argument; the variable `AGENTFORMER_<NAME>` in the
environment; the same variable in the file `.env` of the current folder; the default. The variables of the providers,
such as `OPENAI_API_KEY`, have no prefix.

A key or the address of a database may also be in a file of its own, as Docker, Kubernetes and systemd provide secrets:
the variable with the ending `_FILE` has the path of this file, or a file in the folder `CREDENTIALS_DIRECTORY` has the
name of the variable. Such a value counts as a value in the environment.

An API key and the address to which the key is sent are a pair. If `.env` has the key, `.env` comes before the
environment for the key and for the address. A key and an address from different sources are never combined, so that no
key is sent to an address for which it was not made.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.settings.fields import GOT, PLAIN, SECRETS, Route, Settings, invalid

__all__ = ["Route", "Settings", "load_settings", "parse_routes", "unused_values"]

log = logging.getLogger("agentformer")

ENV_PREFIX = "AGENTFORMER_"
ENV_FILE = ".env"
_NAMED_FILE = f"{ENV_PREFIX}ENV_FILE"
_FILE = "_FILE"  # ending of a variable whose value is the path of a file with a secret
_CREDENTIALS = "CREDENTIALS_DIRECTORY"  # systemd sets it, see LoadCredential=
_LONGEST_SECRET = 64 * 1024  # bytes of such a file
_KINDS = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


def parse_routes(text: str) -> tuple[Route, ...]:
    """Return the routes that a text such as `core,working=hierarchical; kind:fact=faiss` describes. Raises
    `InvalidInput` if the text is not valid."""
    routes = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        selector, _, target = (part.strip() for part in rule.partition("="))
        words = [word.strip() for word in selector.split(",") if word.strip()]
        if not words or not target:
            raise invalid("routes", "must be SELECTOR=TARGET; ..., such as core,working=hierarchical", rule)
        kinds, namespaces = (
            tuple(word.removeprefix(prefix) for word in words if word.startswith(prefix))
            for prefix in ("kind:", "namespace:")
        )
        tiers = tuple(word for word in words if ":" not in word and word != "*")
        routes.append(Route(target, tiers, kinds, namespaces))
        if unknown := [w for w in words if ":" in w and w.split(":")[0] not in ("kind", "namespace")]:
            raise invalid("routes", "must select by the name of a tier, kind:NAME, namespace:NAME or *", unknown[0])
    return tuple(routes)


def _parse_rates(text: str) -> dict[str, float]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {category.strip(): float(rate) for category, _, rate in pairs}


_PARSED: dict[str, Callable[[str], Any]] = {"routes": parse_routes, "decay_rates": _parse_rates}
_EXAMPLES = {"routes": "SELECTOR=TARGET; ...", "decay_rates": "CATEGORY=RATE, ..., such as context=0.9"}
_BY_NAME = {f.name: f for f in dataclasses.fields(Settings)}
_VARIABLES: dict[str, str] = {name: PLAIN.get(name, ENV_PREFIX + name.upper()) for name in _BY_NAME}
_SECRETS = tuple(_VARIABLES[name] for name in SECRETS)

# The variable of a key, and the variable of the address to which this key is sent.
_PAIRS = tuple((_VARIABLES[f"{name}_api_key"], _VARIABLES[f"{name}_base_url"]) for name in ("llm", "embed", "openai"))
_PAIRS = (*_PAIRS, (_VARIABLES["cosmos_key"], _VARIABLES["cosmos_endpoint"]))


def load_settings(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings. A value in `given` comes first, then the environment, then `.env`, then the default. A key
    and its address come from `.env` first, if `.env` has the key. If `environ` is given, this mapping is read instead
    of the environment and `.env`.

    `None` in `given` and an empty variable count as missing. A variable that begins with `AGENTFORMER_` but is not a
    setting causes one warning. Raises `InvalidInput` for an unknown setting or an invalid value. The message names the
    variable and its file, but not the value, which may be a key in the wrong variable."""
    file = _env_file(env_path()) if environ is None else {}
    environ = _combine(file, _with_secrets(os.environ)) if environ is None else _with_secrets(environ)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, variable in _VARIABLES.items():
        if raw := environ.get(variable):
            values[name] = raw
            origins[name] = f"{variable} in {env_path().resolve()}" if raw == file.get(variable) else variable
    for variable in environ:
        if variable.startswith(ENV_PREFIX) and variable not in (
            *(_NAMED_FILE, *_VARIABLES.values()),
            *(f"{secret}{_FILE}" for secret in _SECRETS),
        ):
            _warn_unknown(variable)
    for name, value in (given or {}).items():
        if name not in _BY_NAME:
            raise InvalidInput(name, f"is not a setting; the settings are {', '.join(sorted(_BY_NAME))}")
        if value is not None:
            values[name] = value
            origins.pop(name, None)
    if (caches := environ.get("XDG_CACHE_HOME")) and "cache_dir" not in values:
        values["cache_dir"] = Path(caches) / "agentformer"
    try:
        return Settings(**{name: _convert(name, value) for name, value in values.items()})
    except InvalidInput as error:
        problem = error
    if origin := origins.get(problem.field):
        wanted = str(problem).removeprefix(f"{problem.field}: ").partition(GOT)[0]
        problem = InvalidInput(problem.field, f"{wanted} (set by {origin})")
    raise problem  # outside the `except` block, so that no traceback shows the value


def unused_values() -> list[str]:
    """Return one sentence for each variable in `.env` or in the environment that is not used, because another source
    comes first (see `load_settings`). The sentences do not contain the values. Raises `InvalidInput` if `.env` cannot
    be read."""
    file, path = _env_file(env_path()), env_path().resolve()
    used = _combine(file, _with_secrets(os.environ))
    sentences = []
    for variable in _VARIABLES.values():
        if file.get(variable, used.get(variable)) != used.get(variable):
            sentences.append(f"{variable} in {path} is not used, because the environment has another value")
        elif os.environ.get(variable) and os.environ[variable] != used.get(variable):
            reason = "has a key or an address of the same provider"
            sentences.append(f"{variable} in the environment is not used, because {path} {reason}")
    return sentences


def _with_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the secrets that are in files. Raises `InvalidInput` if such a file cannot be read,
    or if a secret is also in the environment."""
    values = dict(environ)
    for variable in _SECRETS:
        if named := environ.get(f"{variable}{_FILE}"):
            if environ.get(variable):
                raise InvalidInput(f"{variable}{_FILE}", f"cannot be used together with {variable}; remove one of them")
            values[variable] = _secret(f"{variable}{_FILE}", Path(named))
        elif (folder := environ.get(_CREDENTIALS)) and not environ.get(variable):
            path = Path(folder) / variable
            if path.exists():
                values[variable] = _secret(_CREDENTIALS, path)
    return values


def _secret(source: str, path: Path) -> str:
    """Return the content of a file without the white space around it. `source` is the variable that names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_SECRET + 1)
        text = content.decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        reason = "is not UTF-8 text" if isinstance(error, ValueError) else f"cannot be read ({type(error).__name__})"
        raise InvalidInput(source, f"the file {path} {reason}") from None
    if not text or len(content) > _LONGEST_SECRET:
        raise InvalidInput(source, f"the file {path} is {'too long' if text else 'empty'}; it must contain one secret")
    return text


def _combine(file: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Merge the variables of `file` (the content of `.env`) and of the environment. If both have a variable, the rules
    in the docstring of this module decide which value is returned."""
    values = {**environment, **{name: value for name, value in file.items() if not environment.get(name)}}
    for key, address in _PAIRS:
        if key in file:
            for variable in (key, address):
                values[variable] = file.get(variable, "")
        elif address in file and values.get(key) and not environment.get(address):
            values[key] = ""
            advice = f"write the key into {ENV_FILE} too, or set {address} in the environment"
            _warn(f"{key} in the environment is not used, because only {ENV_FILE} has {address}; {advice}")
    return values


def _env_file(path: Path) -> dict[str, str]:
    """Return the variables of the file `.env` that have a value. If the file does not exist, return an empty mapping.
    Variables inside a value, such as `$HOME`, are not replaced. An invalid line causes a warning. Raises `InvalidInput`
    if the file cannot be read or is not UTF-8."""
    try:
        if path.is_symlink() and not path.exists():
            _warn(f"{path.absolute()} is a link to {path.readlink()}, which does not exist; the link is ignored")
        if not path.is_file():  # a folder with this name is a virtual environment
            return {}
        from dotenv.parser import parse_stream

        with path.open(encoding="utf-8-sig") as lines:
            assignments = list(parse_stream(lines))
    except (OSError, ValueError) as error:
        reason = "is not UTF-8 text" if isinstance(error, ValueError) else f"cannot be read ({type(error).__name__})"
        raise InvalidInput(ENV_FILE, f"{path.resolve()} {reason}; repair or remove it") from None
    for line in assignments:
        if line.error:
            text = line.original.string
            number = line.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            problem = "this line is ignored, because it does not have the form NAME=value"
            _warn(f"{path.resolve()}, line {number}: {problem}")
    last = {line.key: line.value for line in assignments if line.key}
    return {name: value for name, value in last.items() if value}


@functools.cache
def _warn(message: str) -> None:
    """Log a warning. Log the same warning only once in a process."""
    log.warning("%s", message)


def env_path() -> Path:
    """Return the path of the file with variables: the value of `AGENTFORMER_ENV_FILE`, or `.env` in the working folder.
    The value `none` stands for no file, for programs that run in folders of others, such as a server that a coding
    agent starts in a repository."""
    named = os.environ.get(_NAMED_FILE) or ENV_FILE
    return Path(os.devnull if named == "none" else named)


def _warn_unknown(variable: str) -> None:
    """Log a warning that a variable is not a setting. The warning suggests the most similar setting, and does not
    contain the value of the variable."""
    bare = variable.removeprefix(ENV_PREFIX)
    similar = [bare] if bare in PLAIN.values() else difflib.get_close_matches(variable, _VARIABLES.values(), 1)
    _warn(f"{variable} is not a setting and has no effect{f'; did you mean {similar[0]}?' if similar else ''}")


def _convert(name: str, value: Any) -> Any:
    """Return the value in the type of the default of the setting. Raises `InvalidInput` if it cannot be converted."""
    if name in _PARSED:
        return _parsed(name, value)
    wanted: type[Any] = type(_BY_NAME[name].default)
    try:
        if isinstance(value, bool) or (wanted is int and isinstance(value, float) and not value.is_integer()):
            raise ValueError(value)
        if isinstance(value, wanted):
            return value
        if issubclass(wanted, Path):
            return Path(value)
        return wanted(value)
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, f"must be {_KINDS[wanted]}", value) from None


def _parsed(name: str, value: Any) -> Any:
    """Return the value of a setting that has several parts, such as `routes`. If the value is a text, parse the text.
    Raises `InvalidInput` if the value is not valid."""
    try:
        if isinstance(value, str):
            return _PARSED[name](value)
        if name == "decay_rates":
            return {str(key): float(rate) for key, rate in value.items()}
        if not all(isinstance(route, Route) for route in value):
            raise TypeError("each route must be a `Route` object")
        return tuple(value)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise invalid(name, f"must be {_EXAMPLES[name]}", value) from None
