"""The error tree: one root, so that a caller can catch everything this package raises on purpose.

    AgentFormerError
    ├── InvalidInput            the caller's argument is wrong; `field` names it          (also ValueError)
    ├── NotFound                no such entry, document or backend                        (also LookupError)
    ├── Conflict                somebody changed it meanwhile; read again and repeat
    ├── AccessError             who asks may not
    │   ├── Unauthenticated     no key came, or one that is not valid
    │   └── Forbidden           the key lacks the right, does not reach the namespace, or the tool is switched off
    ├── LimitExceeded           a limit of this installation; `limit` names it
    │   ├── TooLarge            send less
    │   └── Busy                send it again later; `retry_after` says when
    ├── MissingExtra            an optional package is absent or broken; `extra` names it (also ImportError)
    ├── DocumentError           a file could not become text; nothing of it was stored
    │   ├── EmptyDocument       no bytes, or no pages
    │   ├── UnsupportedFormat   not a type that a reader knows
    │   ├── CorruptDocument     the file is damaged
    │   ├── EncryptedDocument   a password is needed, or the one given is wrong
    │   └── DocumentTooLarge    over a limit of size, pages, time or memory
    ├── EmbedderError
    │   ├── EmbedderUnavailable the model or its server cannot be reached now; texts stay pending
    │   ├── TextTooLong         a text does not fit the model; nothing is ever cut silently
    │   └── SpaceMismatch       the store holds vectors of another embedding space
    ├── LanguageModelError
    │   ├── LanguageModelUnavailable  no server answers now
    │   ├── PromptTooLong       the conversation does not fit the model
    │   └── InvalidReply        what the model said cannot be used, such as no valid JSON
    ├── RerankerUnavailable     the reranker cannot be used now; results keep the order that they had
    └── StoreError              the records could not be read or written
        ├── StoreFull           the disk is full or the folder cannot be written
        └── StoreDamaged        the system of record is unreadable; nothing was changed

Messages say what is wrong and what to do. Only edges (command line, HTTP, tools) translate errors.
"""

from __future__ import annotations


class AgentFormerError(Exception):
    """Root of every error that this package raises on purpose. Each can be copied and pickled, also those that are made
    from other arguments than their message: one that cannot would break the process pool that it is raised in."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (type(self), self.args), {**vars(self)})


def _again(kind: type[AgentFormerError], args: tuple[object, ...]) -> AgentFormerError:
    """An error with the message that another one has."""
    error = kind.__new__(kind, *args)
    super(AgentFormerError, error).__init__(*args)
    return error


class InvalidInput(AgentFormerError, ValueError):
    """An argument is wrong. `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NotFound(AgentFormerError, LookupError):
    """No such thing in the given scope."""


class Conflict(AgentFormerError):
    """The entry was changed by somebody else since it was read."""


class AccessError(AgentFormerError):
    """Who asks may not do this."""


class Unauthenticated(AccessError):
    """No key came, or one that is not valid."""


class Forbidden(AccessError):
    """The key lacks the right, does not reach the namespace, or the tool is switched off for it."""


class LimitExceeded(AgentFormerError):
    """A limit of this installation stands in the way. `limit` is the name of its setting."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(f"{limit}: {message}")
        self.limit = limit


class TooLarge(LimitExceeded):
    """What was sent is over a limit."""


class Busy(LimitExceeded):
    """Too much is under way now. `retry_after` is in seconds."""

    def __init__(self, limit: str, message: str, retry_after: int = 1) -> None:
        super().__init__(limit, message)
        self.retry_after = retry_after


class MissingExtra(AgentFormerError, ImportError):
    """An optional dependency is not installed, or it is and cannot be imported, which `error` says. `extra` names what
    to install."""

    def __init__(self, extra: str, what: str, error: ImportError | None = None) -> None:
        if error is None or isinstance(error, ModuleNotFoundError):
            message = f"{what} needs an optional part: pip install 'agentformer[{extra}]'"
        else:
            reason = " ".join(str(error).split())[:200]
            message = (
                f"{what} needs an optional part that is installed and cannot be imported ({reason}): "
                f"pip install --force-reinstall 'agentformer[{extra}]'"
            )
        super().__init__(message)
        self.extra = extra


class DocumentError(AgentFormerError):
    """A file could not be turned into text."""


class EmptyDocument(DocumentError):
    """The file has no bytes or no pages."""


class UnsupportedFormat(DocumentError):
    """No reader knows this type of content."""


class CorruptDocument(DocumentError):
    """The file is damaged beyond what the readers can recover."""


class EncryptedDocument(DocumentError):
    """The file needs a password, or the one given is wrong."""


class DocumentTooLarge(DocumentError):
    """The file exceeds a limit (size, pages, time or memory); the message names the limit."""


class EmbedderError(AgentFormerError):
    """An embedder refused or failed."""


class EmbedderUnavailable(EmbedderError):
    """The model or its server cannot be used now; what was to be embedded stays pending."""


class TextTooLong(EmbedderError):
    """A text has more tokens than the model reads."""


class SpaceMismatch(EmbedderError):
    """The vectors of the store and those of the embedder cannot be compared."""


class LanguageModelError(AgentFormerError):
    """A language model refused or answered nonsense."""


class LanguageModelUnavailable(LanguageModelError):
    """No language model can be reached now."""


class PromptTooLong(LanguageModelError):
    """The conversation has more tokens than the model reads."""


class InvalidReply(LanguageModelError):
    """The model answered, but not with what was asked for."""


class RerankerUnavailable(AgentFormerError):
    """The reranker cannot be used now; a search goes on without it."""


class StoreError(AgentFormerError):
    """Records could not be read or written."""


class StoreFull(StoreError):
    """The disk is full, or the folder cannot be written."""


class StoreDamaged(StoreError):
    """The system of record is unreadable."""
