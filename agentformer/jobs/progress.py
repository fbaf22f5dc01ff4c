"""The progress of a file of an upload job."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # receives the number of windows that are done, and of all windows of the file


class FileProgress:
    """Records the progress of one file of an upload job. The object is called with the number of finished windows
    (embedded text passages) and the number of all windows of the file, and passes both to `report`. `text` has the
    number of pages and the number of chunks. Both are 0 until the file was read."""

    def __init__(self, report: Progress) -> None:
        self._report = report
        self.text = (0, 0)

    def __call__(self, done: int, windows: int) -> None:
        self._report(done, windows)

    def read(self, pages: int, chunks: int) -> None:
        """Set the number of pages and of chunks, after the file was read."""
        self.text = pages, chunks
