"""A sync of a memory home that is killed. Reads lines `STORE HOME POINT`, and syncs each in a fork that kills itself at
the effect of this number; answers the number of effects of a sync that came to its end, or `killed`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agentformer


def connect(store: str | Path) -> agentformer.AgentFormer:
    folder = Path(store)
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", clean_every=0)


class Points:
    """Counts effects on the disk, and dies before or after one of them, or in the midst of a written file."""

    def __init__(self, die_at: int) -> None:
        self.count = 0
        self._die_at = die_at

    def pass_point(self) -> None:
        if self.count == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def around(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.pass_point()
            result = effect(*arguments, **options)
            self.pass_point()
            return result

        return call

    def write_bytes(self, path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            self.pass_point()
            return file.write(data[len(data) // 2 :])


def sync(store: str, home: str, die_at: int) -> int:
    """Sync, and return the number of effects."""
    with connect(store) as af:
        points = Points(die_at)
        for name in ("store", "update", "restore"):
            setattr(af.backend, name, points.around(getattr(af.backend, name)))
        os.replace = points.around(os.replace)
        Path.rename = points.around(Path.rename)  # type: ignore[method-assign]
        Path.unlink = points.around(Path.unlink)  # type: ignore[method-assign]
        Path.write_bytes = lambda path, data: points.write_bytes(path, data)  # type: ignore[method-assign]
        af.markdown.sync(home)
        return points.count


def main() -> None:
    for line in sys.stdin:
        store, home, point = line.split("\t")
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(writer, str(sync(store, home, int(point))).encode())
            os._exit(0)
        os.close(writer)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = os.read(reader, 20).decode()
        os.close(reader)
        print("killed" if code == -signal.SIGKILL else told, flush=True)


if __name__ == "__main__":
    main()
