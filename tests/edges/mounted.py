"""A memory mounted on a host application, asked by whoever a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask import Flask
from pydantic import BaseModel

import agentformer
from agentformer.access.permissions import EVERYTHING, Grant, Right
from agentformer.api.app import close_app, init_app

SAME = {"X-Request-ID": "the-same"}  # answers to the same request by the same name differ by nothing else


def grant(*rights: Right, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Grant:
    return Grant(frozenset(rights), only, frozenset(without), "k1")


class Mounted:
    """`client` asks as `self.grant`."""

    def __init__(self, memory: agentformer.AgentFormer) -> None:
        self.af = memory
        self.grant = EVERYTHING
        self.app = Flask("host")
        init_app(self.app, memory, url_prefix="/m", authorize=lambda: self.grant)
        self.client = self.app.test_client()

    def ask(self, method: str, path: str, asking: Grant | None = None, **more: Any) -> Any:
        self.grant = asking or EVERYTHING
        return self.client.open(f"/m{path}", method=method, **more)

    def post(self, path: str, body: Any, asking: Grant | None = None, **more: Any) -> Any:
        return self.ask("POST", path, asking, json=body, **more)

    def add(self, content: str, **more: Any) -> str:
        made = self.post("/api/memory", {"content": content, **more})
        assert made.status_code == 201, made.text
        return str(made.json["id"])


@contextmanager
def mounted(folder: Path, **settings: Any) -> Iterator[Mounted]:
    where = {"index_dir": folder / "i", "upload_dir": folder / "u", "embedder": "hashing", "clean_every": 0}
    host = Mounted(agentformer.connect(**{**where, **settings}))
    try:
        yield host
    finally:
        close_app(host.app)


def shaped(model: type[BaseModel], answer: Any, status: int = 200) -> Any:
    """The JSON of an answer, which is exactly what the interface's document says."""
    assert answer.status_code == status, answer.text
    model.model_validate(answer.json, strict=True)
    return answer.json
