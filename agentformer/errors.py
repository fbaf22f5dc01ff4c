"""The exception classes of this package. All errors that the package raises on purpose are `AgentFormerError`s.

    AgentFormerError
    ├── InvalidInput (also ValueError), NotFound (also LookupError), Conflict, NotOffered
    ├── MissingExtra (also ImportError)
    ├── AccessError: Unauthenticated, Forbidden
    ├── LimitExceeded: TooLarge, Busy
    ├── DocumentError: EmptyDocument, UnsupportedFormat, CorruptDocument, EncryptedDocument, DocumentTooLarge
    ├── FetchFailed: FetchRefused
    ├── EmbedderError: EmbedderUnavailable, TextTooLong, SpaceMismatch
    ├── LanguageModelError: LanguageModelUnavailable, PromptTooLong, InvalidReply
    ├── RerankerUnavailable
    └── StoreError: StoreBusy, StoreFull (also StoreReadOnly), StoreDamaged

A message says what is wrong and what the user can do. Only the command line, the HTTP API and the tools convert these
errors: to exit codes, status codes and tool results.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
IMAGE_EXTRAS = "server,mcp,multilingual,metrics,llm,postgres"  # of the Dockerfile

# Errors of the system that may pass: too many open files, too little memory, a failed read of a disk, an interruption,
# a lock that is not released in time.
_PASSING = frozenset(
    getattr(errno, name)
    for name in ("EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EIO", "EINTR", "EAGAIN", "EBUSY", "ETIMEDOUT", "ESTALE")
    if hasattr(errno, name)
)
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_PASSING_TEXTS = tuple(os.strerror(number) for number in sorted(_PASSING))


class AgentFormerError(Exception):
    """The base class of all errors that this package raises on purpose. An error can be copied and pickled, so that a
    worker process can send it to its parent process."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args), {**vars(self)})


def _rebuild(kind: type[AgentFormerError], args: tuple[object, ...]) -> AgentFormerError:
    """Create a copied or unpickled error of the class `kind` with the arguments `args`. The constructor of the class is
    not called, because its parameters can differ from `args`."""
    error = kind.__new__(kind, *args)
    super(AgentFormerError, error).__init__(*args)
    return error


class InvalidInput(AgentFormerError, ValueError):
    """An argument or a setting is invalid. `field` is the name of this argument or setting."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NotFound(AgentFormerError, LookupError):
    """The requested object (an entry, a document, a key, ...) does not exist in the namespaces of the request."""


class Conflict(AgentFormerError):
    """The request conflicts with the stored data, such as an entry that another call has changed meanwhile."""


# Each failed attempt means that another caller has succeeded, so many attempts are needed only under heavy contention.
ATTEMPTS = 100


def retried(
    call: Callable[[], T],
    *,
    on: tuple[type[AgentFormerError], ...] = (Conflict,),
    unless: tuple[type[AgentFormerError], ...] = (),
    busy: str = "",
) -> T:
    """Return the result of `call`, which reads stored data and then changes them. If it raises one of the errors `on`,
    because another caller has changed the same data meanwhile, repeat it. After `ATTEMPTS` attempts, raise the last
    error, or `Conflict(busy)` if `busy` is given. The errors `unless` are raised at once."""
    failed = 0
    while True:
        try:
            return call()
        except on as error:
            failed += 1
            if isinstance(error, unless) or (failed == ATTEMPTS and not busy):
                raise
            if failed == ATTEMPTS:
                raise Conflict(busy) from error


class NotOffered(AgentFormerError):
    """The store of this memory cannot do what the call needs, such as a snapshot. Another backend can."""


class AccessError(AgentFormerError):
    """The caller is not allowed to make this request."""


class Unauthenticated(AccessError):
    """The request has no key, or its key is not valid."""


class Forbidden(AccessError):
    """The key does not allow this operation or this namespace, or the tool is disabled for the key."""


class LimitExceeded(AgentFormerError):
    """A limit of this installation is exceeded. `limit` is the name of the setting that defines the limit."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(f"{limit}: {message}")
        self.limit = limit


class TooLarge(LimitExceeded):
    """The request is larger than a limit allows."""


class KeyFull(LimitExceeded):
    """The key may not store more than its namespaces contain. Waiting does not help; deleting does."""


class Busy(LimitExceeded):
    """Too many requests are in progress, or the limit of a key is reached. The caller can try again after `retry_after`
    seconds. `headers` are headers of HTTP that say more."""

    def __init__(
        self, limit: str, message: str, retry_after: int = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(limit, message)
        self.retry_after = retry_after
        self.headers = headers or {}


class MissingExtra(AgentFormerError, ImportError):
    """An optional package is not installed, or it cannot be imported. `what` is the feature that needs the package,
    `extra` is the extra of agentformer that installs the package, and `error` is the import error."""

    def __init__(self, extra: str, what: str, error: ImportError | None = None) -> None:
        if error is None or isinstance(error, ModuleNotFoundError):
            message = f"{what} needs an optional package: {install_command(extra)}"
        else:
            reason = " ".join(str(error).split())[:200]
            message = (
                f"{what} needs an optional package that is installed but cannot be imported ({reason}): "
                f"{install_command(extra, '--force-reinstall')}"
            )
        super().__init__(message)
        self.extra = extra


def install_command(extra: str, option: str = "") -> str:
    """Return the command that installs an extra for this copy of agentformer, with the program that has installed it:
    pip, pipx, uv or uvx, or the build of an image. A copy that was installed from a folder or a file, such as a clone
    or a wheel, is installed from there again; no path of this machine is in the command. A copy that no installer has
    recorded runs from the folder of its sources. `option` is `--force-reinstall` or empty."""
    source = _recorded_source()
    project = "agentformer"
    editable = note = ""
    if "dir_info" in source:
        project, note = ".", "(in your clone of agentformer)"
        editable = "-e" if source["dir_info"].get("editable") else ""
    elif "archive_info" in source:
        project, note = str(source.get("url", "")).rpartition("/")[2], "(where this file is)"
    installer = _installer()
    if installer == "uv tool":  # it makes the environment anew
        extra = ",".join(dict.fromkeys((*_extras_of_tool(), extra)))
    wanted = f"{project}[{extra}]"
    if "vcs_info" in source:
        wanted += f" @ {source['vcs_info'].get('vcs', 'git')}+{source.get('url', '')}"
    mark = '"' if os.name == "nt" else "'"
    asked = " ".join(filter(None, (editable, f"{mark}{wanted}{mark}")))
    again = "--reinstall " if option else ""
    command = {
        "pip": f"pip install {option} {asked}",
        "uv pip": f"uv pip install {again}{asked}",
        "uv tool": f"uv tool install --force {again}{asked}",
        "uvx": f"uvx {'--refresh ' if option else ''}--from {asked} agentformer",
        "pipx": f"pipx install --force {asked}",
        "image": f"build the image again with --build-arg EXTRAS={IMAGE_EXTRAS},{extra}",
    }
    return " ".join(f"{command[installer]} {note if installer != 'image' else ''}".split())


def reinstall_command(requirement: str) -> str:
    """Return the command that installs a damaged package again, such as `numpy` or `numpy==2.3.1`."""
    return {
        "pip": f"pip install --force-reinstall --no-deps {requirement}",
        "uv pip": f"uv pip install --reinstall --no-deps {requirement}",
        "uv tool": "uv tool upgrade --reinstall agentformer",
        "uvx": f"uv cache clean {requirement.partition('==')[0]}",
        "pipx": "pipx reinstall agentformer",
        "image": "pull or build the image again",
    }[_installer()]


def _recorded_source() -> dict[str, Any]:
    """Return what the installer has recorded about the origin of this copy (`direct_url.json`, PEP 610). It is empty
    for a copy from a package index."""
    import json  # here, because only an error needs them, and every command imports this module
    from importlib import metadata

    try:
        found = metadata.distributions(name="agentformer")  # a clone may have an egg-info beside the installed copy
        recorded = next(filter(None, (each.read_text("direct_url.json") for each in found)), None)
        recorded = recorded or metadata.distribution("agentformer").read_text("direct_url.json")
        return dict(json.loads(recorded)) if recorded else {}
    except (metadata.PackageNotFoundError, ValueError):
        return {"dir_info": {"editable": True}}


def _extras_of_tool() -> list[str]:
    """Return the extras with which `uv tool` has installed this copy."""
    import tomllib
    from pathlib import Path

    try:
        receipt = tomllib.loads((Path(sys.prefix) / "uv-receipt.toml").read_text(encoding="utf-8"))
        return [str(extra) for each in receipt["tool"]["requirements"] for extra in each.get("extras", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _installer() -> str:
    """Return the name of the program that made this environment. Each program leaves a file in its environments."""
    from pathlib import Path

    folder = Path(sys.prefix)
    for name, mark in (("image", "agentformer-image"), ("uv tool", "uv-receipt.toml"), ("pipx", "pipx_metadata.json")):
        if (folder / mark).exists():
            return name
    try:
        with_uv = "\nuv = " in (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        with_uv = False
    if with_uv and any(part.startswith(("archive-v", "environments-v")) for part in folder.resolve().parts):
        return "uvx"
    return "uv pip" if with_uv else "pip"


def failed_package(error: ImportError) -> str:
    """Return the name of the package that could not be imported, for a message: the package that agentformer was
    importing when `error` was raised, or else the missing module."""
    importing = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
    package = ""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if module == "agentformer":
            package = ""
        elif module not in importing:
            package = package or module
        trace = trace.tb_next
    return package or (error.name or "a package").partition(".")[0]


class DocumentError(AgentFormerError):
    """A file cannot be converted to text. `code` is a word for programs (see `types.ReasonCode`): of the class, or of
    the argument `code`."""

    code = "unreadable"

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class EmptyDocument(DocumentError):
    """The file has no bytes or no pages."""

    code = "empty"


class UnsupportedFormat(DocumentError):
    """No reader supports this file format."""

    code = "unsupported"


class CorruptDocument(DocumentError):
    """The file is damaged and cannot be read."""

    code = "damaged"


class EncryptedDocument(DocumentError):
    """The file requires a password, or the given password is wrong."""

    code = "encrypted"


class DocumentTooLarge(DocumentError):
    """The file exceeds a limit of size, pages, time or memory. The message names the limit."""

    code = "too_large"


class FetchFailed(AgentFormerError):
    """A document cannot be fetched from its URL. The message contains the URL without its query."""


class FetchRefused(FetchFailed):
    """The settings of this installation do not allow fetching from this host or address."""


class EmbedderError(AgentFormerError):
    """The embedder cannot compute vectors of the given texts."""


class EmbedderUnavailable(EmbedderError):
    """The model of the embedder, or the server of this model, cannot be used now. Stored texts wait in a queue and are
    embedded later."""


class TextTooLong(EmbedderError):
    """A text has more tokens than the model of the embedder can read."""


class SpaceMismatch(EmbedderError):
    """The stored vectors and the vectors of the embedder come from different models and cannot be compared."""


class LanguageModelError(AgentFormerError):
    """The language model refused the request, or the reply of the model cannot be used."""


class LanguageModelUnavailable(LanguageModelError):
    """No language model can be reached now."""


class PromptTooLong(LanguageModelError):
    """The prompt has more tokens than the language model can read."""


class InvalidReply(LanguageModelError):
    """The reply of the language model does not have the required form."""


class RerankerUnavailable(AgentFormerError):
    """The reranker cannot be used now. The search returns its hits without reranking."""


class StoreError(AgentFormerError):
    """The records of the store cannot be read or written."""


class StoreBusy(StoreError):
    """The store cannot be used now, for example because another process holds its write lock. The caller can try again
    after `retry_after` seconds."""

    retry_after = 5


class StoreFull(StoreError):
    """The store cannot be written: the disk is full, or the program may not write into the folder."""


class StoreReadOnly(StoreFull):
    """The store can only be read: the disk or the database server is read-only, as a standby server is, or the program
    has no right to write. Nothing was changed."""


class StoreDamaged(StoreError):
    """The stored records are damaged. The operation that raises this error has changed nothing."""


def is_passing(error: BaseException) -> bool:
    """Return whether an error of the system may pass. Such an error does not say that a file is damaged or that the
    disk is full, so nothing may be deleted, replaced or quarantined because of it. Libraries report such an error with
    a class of their own and the text of the system."""
    if isinstance(error, (MemoryError, StoreBusy)) or getattr(error, "errno", None) in _PASSING:
        return True
    return not isinstance(error, OSError) and any(text in str(error) for text in _PASSING_TEXTS)


def store_failure(problem: str, error: BaseException, advice: str) -> StoreError:
    """Return the error for an operation on a file that failed: `StoreBusy` for an error that may pass, else
    `StoreReadOnly` or `StoreFull`. `problem` says what was not done, `advice` what helps against the last two."""
    reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
    if is_passing(error):
        return StoreBusy(f"{problem}: {reason}; nothing was changed; try again, and check the disk if this repeats")
    kind = StoreReadOnly if getattr(error, "errno", None) in _READ_ONLY else StoreFull
    return kind(f"{problem}: {reason}; {advice}")
