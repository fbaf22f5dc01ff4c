"""Read single pages of a PDF with pypdf. It is slower than PDFium, but reads some pages correctly that PDFium does
not."""

from __future__ import annotations

import io
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pypdf

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings concern authors of PDFs

# Errors of a Python parser on hostile input, in addition to pypdf's own. Only the page is lost.
PAGE_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
               NotImplementedError, OSError, AssertionError, ImportError, TimeoutError)  # fmt: skip
PAGE_SECONDS = 8.0  # ordinary pages take 0.03 s; a drawing of 40,000 paths takes 4


class PypdfDocument:
    """A document that pypdf has opened. If pypdf cannot read the file, the document has no pages and no text."""

    def __init__(self, data: bytes, passwords: tuple[str, ...]) -> None:
        self.encrypted = False
        self._reader: pypdf.PdfReader | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with _time_limit(PAGE_SECONDS * 2):
                    import pypdf

                    reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
                    self.encrypted = reader.is_encrypted and not any(_opens(reader, p) for p in passwords)
                    if not self.encrypted:
                        self._count = len(reader.pages)
                        self._reader = reader
            except _page_errors():
                self._reader = None

    def __len__(self) -> int:
        return self._count if self._reader is not None else 0

    def text(self, number: int) -> str | None:
        """Return the text of a page, or None if pypdf fails or takes too long."""
        if self._reader is None:
            return None
        try:
            with warnings.catch_warnings(), _time_limit(PAGE_SECONDS):
                warnings.simplefilter("ignore")
                return self._reader.pages[number].extract_text()
        except _page_errors():
            return None

    def decrypted(self) -> bytes | None:
        """Return the file without encryption. Use it for an extractor that does not support this kind of password."""
        if self._reader is None:
            return None
        try:
            import pypdf

            out = io.BytesIO()
            pypdf.PdfWriter(clone_from=self._reader).write(out)
            return out.getvalue()
        except _page_errors():
            return None


def _page_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that pypdf raises for a damaged file or page."""
    from pypdf.errors import PyPdfError

    return (PyPdfError, *PAGE_ERRORS)


def _opens(reader: pypdf.PdfReader, password: str) -> bool:
    """Return whether the password opens the file. As in every viewer, an empty owner password does not count."""
    from pypdf import PasswordType

    kind = reader.decrypt(password)
    return kind == PasswordType.USER_PASSWORD or bool(password and kind)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt Python code after `seconds`, if the platform supports it. On other platforms, only the time limit of
    the parent process applies."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
