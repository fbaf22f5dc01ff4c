"""The backend `cosmos_db`: all records are in a container of Azure Cosmos DB, and each node searches a local copy. The
indexes of the local copy (FAISS and words) follow its change feed, as in the backend `faiss`, whose code is shared."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from agentformer.errors import Conflict, InvalidInput, StoreDamaged, StoreError
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends.cosmos_db import CACHE_FOLDER, SEARCHED_FOLDER, CosmosAddress
from agentformer.memory.backends.cosmos_db.container import Container
from agentformer.memory.backends.cosmos_db.head import Heads
from agentformer.memory.backends.cosmos_db.replica import ReplicaDatabase
from agentformer.memory.backends.cosmos_db.server_mode import ServerSearch, local_properties, server_properties
from agentformer.memory.backends.faiss import DEFAULT_OPTIONS, FaissOptions
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, OpenIndexes, search_options
from agentformer.records.database import Database
from agentformer.settings import Settings
from agentformer.types import Check, Embedder, Hits, MemorySnapshot, Query, Reembedding, new_id

log = logging.getLogger("agentformer")
P = ParamSpec("P")
T = TypeVar("T")

_EMULATORS = ("127.0.0.1", "::1", "localhost")  # an emulator does not know the addresses of its regions
_MOVE = "cosmos_db:reembed"  # the lease of a move to another embedding space
_MOVE_SECONDS = 120.0


class CosmosMemoryBackend(FaissMemoryBackend):
    """A `MemoryBackend` whose records are in a container. `folder` contains the local copy; it may be deleted while no
    process uses it. Raises `StoreError` if the account cannot be reached or refuses the key, `StoreBusy` if the account
    is overloaded, `TooLarge` for a text that needs more than 2 MB, and `MissingExtra` if the client of Cosmos DB is not
    installed."""

    _database: ReplicaDatabase

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        open_indexes: OpenIndexes,
        address: CosmosAddress,
        options: FaissOptions = DEFAULT_OPTIONS,
    ) -> None:
        properties = server_properties(embedder.space.dimension) if address.searched else local_properties()
        self._container = Container(address, properties)
        if address.discover:  # not for an emulator, which has only one copy of the data
            check_consistency(self._container)
        heads = Heads(self._container)

        def open_copy(path: Path) -> Database:
            return ReplicaDatabase(path, self._container, heads, searched=address.searched)

        try:
            super().__init__(folder, embedder, open_indexes, options, open_copy)
        except StoreDamaged as error:
            log.warning("The local copy %s is damaged and is read again from Cosmos DB: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            super().__init__(folder, embedder, open_indexes, options, open_copy)
        self._server = ServerSearch(self._container, self._database, embedder) if address.searched else None

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder, open_indexes: OpenIndexes) -> CosmosMemoryBackend:
        """Open the container of the settings. The local copy is in the folder `cosmos` of `Settings.index_dir`. Raises
        `InvalidInput` if the settings have no address or no key."""
        for name in ("cosmos_endpoint", "cosmos_key"):
            if not getattr(settings, name):
                raise InvalidInput(
                    name, f"is missing, but the backend cosmos_db needs it; set AGENTFORMER_{name.upper()}"
                )
        searched = settings.cosmos_mode == "server"
        address = CosmosAddress(
            settings.cosmos_endpoint,
            settings.cosmos_key,
            settings.cosmos_database,
            "searched" if searched else "memory",  # the policies of a container cannot be changed later
            searched=searched,
            discover=urlsplit(settings.cosmos_endpoint).hostname not in _EMULATORS,
        )
        return cls(
            settings.index_dir / (SEARCHED_FOLDER if searched else CACHE_FOLDER),
            embedder,
            open_indexes,
            address,
            search_options(settings),
        )

    def search(self, query: Query) -> Hits:
        """Return the hits of a query, best first. If `Settings.cosmos_mode` is `server`, Cosmos DB ranks them, and
        otherwise the local indexes."""
        self._refresh()
        if self._server is None:
            return super().search(query)
        return self._reranking.search(self._server.search, query) if self._reranking else self._server.search(query)

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        self._refresh()
        return super().snapshot()

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Run the checks of the backend `faiss` on the local copy, and check that the local copy and the container have
        the same items."""
        self._refresh()
        return [*super().verify(repair=repair), self._database.compare()]

    def embed_pending(self, progress: Progress | None = None, *, refused: bool = True) -> int:
        self._refresh()
        return super().embed_pending(progress, refused=refused)

    def abandon_reembedding(self) -> bool:
        """Abandon an unfinished move to another embedding space; see `MemoryBackend.abandon_reembedding`."""
        holder = new_id()
        self._begin_move(holder)
        try:
            return super().abandon_reembedding()
        finally:
            self.release(_MOVE, holder)

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Progress | None = None
    ) -> Reembedding:
        """Embed all entries again with the embedder `target`; see `MemoryBackend.reembed`. Raises `Conflict` while
        another process does this."""
        if self._server is not None and target.space.dimension != self._embedder.space.dimension:
            raise InvalidInput(
                "target",
                "has vectors of another length, and the vector policy of a container of Cosmos DB cannot be changed; "
                "copy the memory into a new database with `agentformer copy`",
            )
        holder = new_id()

        def renew(done: int, total: int) -> None:
            self.lease(_MOVE, holder, _MOVE_SECONDS)
            if progress is not None:
                progress(done, total)

        self._begin_move(holder)
        try:
            return super().reembed(target, queries=queries, progress=renew)
        finally:
            self.release(_MOVE, holder)

    def status(self) -> dict[str, Any]:
        """Return the state of the local copy, the address of the container, and the number of transactions."""
        self._refresh()
        return {**super().status(), "container": self._container.name, "transactions": self._database.last}

    def close(self) -> None:
        """Save the indexes, and close the local copy and the connections."""
        super().close()
        self._container.close()

    def _begin_move(self, holder: str) -> None:
        if not self.lease(_MOVE, holder, _MOVE_SECONDS):
            raise Conflict("another node is re-embedding this store; wait until it has finished, or stop that node")

    def _refresh(self) -> None:
        """Apply the transactions of other nodes. If one of them removed all entries of a scope, delete the index files,
        because they may contain the removed text."""
        self._database.refresh()
        if self._database.erasures:
            self._database.erasures = False
            self._secure_delete.run()

    def _read(self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **options: P.kwargs) -> T:
        self._refresh()
        return super()._read(query, *args, **options)


def check_consistency(container: Container) -> None:
    """Raise `StoreError` if the account may return former versions of items, because a node could then read only a part
    of another node's transaction."""
    if (level := container.consistency()) != "Strong":
        raise StoreError(
            f"the account at {container.name} has the default consistency {level}, with which a machine can read "
            "former versions of what another machine has written; set it to Strong in the settings of the account"
        )
