"""The error tree. All errors that this package raises on purpose have one root.

    AgentFormerError
    ├── InvalidInput (also ValueError), NotFound (also LookupError), Conflict, MissingExtra (also ImportError)
    ├── AccessError: Unauthenticated, Forbidden
    ├── LimitExceeded: TooLarge, Busy
    ├── DocumentError: EmptyDocument, UnsupportedFormat, CorruptDocument, EncryptedDocument, DocumentTooLarge
    ├── EmbedderError: EmbedderUnavailable, TextTooLong, SpaceMismatch
    ├── LanguageModelError: LanguageModelUnavailable, PromptTooLong, InvalidReply
    ├── RerankerUnavailable
    └── StoreError: StoreFull, StoreDamaged

Messages say what is wrong and what to do. Only the edges (command line, HTTP, tools) translate errors.
"""

from __future__ import annotations


class AgentFormerError(Exception):
    """Root of every error that this package raises on purpose. Each error can be copied and pickled, so that it can
    pass between the processes of a pool."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args), {**vars(self)})


def _rebuild(kind: type[AgentFormerError], args: tuple[object, ...]) -> AgentFormerError:
    """Return an error with this message without calling its constructor."""
    error = kind.__new__(kind, *args)
    super(AgentFormerError, error).__init__(*args)
    return error


class InvalidInput(AgentFormerError, ValueError):
    """An argument is wrong. `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NotFound(AgentFormerError, LookupError):
    """Nothing with this name or id exists in the given scope."""


class Conflict(AgentFormerError):
    """Another call has changed the entry since the caller read it."""


class AccessError(AgentFormerError):
    """The caller lacks a right."""


class Unauthenticated(AccessError):
    """The key is missing or not valid."""


class Forbidden(AccessError):
    """The key lacks the right or the namespace, or the tool is switched off for it."""


class LimitExceeded(AgentFormerError):
    """A limit of this installation is exceeded. `limit` is the name of the setting."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(f"{limit}: {message}")
        self.limit = limit


class TooLarge(LimitExceeded):
    """A request is over a limit."""


class Busy(LimitExceeded):
    """Too many requests are under way. `retry_after` is in seconds."""

    def __init__(self, limit: str, message: str, retry_after: int = 1) -> None:
        super().__init__(limit, message)
        self.retry_after = retry_after


class MissingExtra(AgentFormerError, ImportError):
    """An optional package is not installed, or its import fails with `error`. `extra` is the name of the extra to
    install."""

    def __init__(self, extra: str, what: str, error: ImportError | None = None) -> None:
        if error is None or isinstance(error, ModuleNotFoundError):
            message = f"{what} needs an optional package: pip install 'agentformer[{extra}]'"
        else:
            reason = " ".join(str(error).split())[:200]
            message = (
                f"{what} needs an optional package that is installed but cannot be imported ({reason}): "
                f"pip install --force-reinstall 'agentformer[{extra}]'"
            )
        super().__init__(message)
        self.extra = extra


def failed_package(error: ImportError) -> str:
    """Return the name of the package that agentformer tried to import when `error` was raised, or the name of the
    missing module."""
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
    """A file could not be turned into text."""


class EmptyDocument(DocumentError):
    """The file has no bytes or no pages."""


class UnsupportedFormat(DocumentError):
    """No reader supports this type of content."""


class CorruptDocument(DocumentError):
    """The file is damaged and no reader can read it."""


class EncryptedDocument(DocumentError):
    """The file needs a password, or the given password is wrong."""


class DocumentTooLarge(DocumentError):
    """The file exceeds a limit (size, pages, time or memory). The message names the limit."""


class EmbedderError(AgentFormerError):
    """An embedder refused or failed."""


class EmbedderUnavailable(EmbedderError):
    """The model or its server cannot be used now. Texts stay in the queue and are embedded later."""


class TextTooLong(EmbedderError):
    """A text has more tokens than the model can read."""


class SpaceMismatch(EmbedderError):
    """The vectors of the store and of the embedder cannot be compared."""


class LanguageModelError(AgentFormerError):
    """A language model refused, or its reply cannot be used."""


class LanguageModelUnavailable(LanguageModelError):
    """No language model can be reached now."""


class PromptTooLong(LanguageModelError):
    """The conversation has more tokens than the model can read."""


class InvalidReply(LanguageModelError):
    """The reply of the model does not fit the request."""


class RerankerUnavailable(AgentFormerError):
    """The reranker cannot be used now. The search returns its results without reranking."""


class StoreError(AgentFormerError):
    """Records could not be read or written."""


class StoreFull(StoreError):
    """The disk is full, or the folder cannot be written."""


class StoreDamaged(StoreError):
    """The records are damaged. Nothing was changed."""
