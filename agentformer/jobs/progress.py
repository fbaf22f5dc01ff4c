"""The progress of a file of an upload job."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # receives the number of windows that are done, and of all windows of the file


class FileProgress:
    """The progress of a file. A window is a text passage that is embedded. A call with the number of finished windows
    and the number of all windows of the file passes both numbers to `report`. `text` is a pair: the number of pages and
    the number of chunks. Both are 0 until the file was read."""

    def __init__(self, report: Progress) -> None:
        self._report = report
        self.text = (0, 0)

    def __call__(self, done: int, windows: int) -> None:
        self._report(done, windows)

    def read(self, pages: int, chunks: int) -> None:
        """Set the number of pages and of chunks, after the file was read."""
        self.text = pages, chunks
