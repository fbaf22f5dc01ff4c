"""The backend `cosmos_db`: all records are in a container of Azure Cosmos DB, and each node searches a local copy. The
local copy is a SQLite database with a FAISS index and a word index, which use the code of the backend `faiss`. In the
mode `server`, Cosmos DB itself ranks the passages, and not the local indexes (`ServerSearch`)."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlsplit

from agentformer.errors import Conflict, EmbedderError, InvalidInput, SpaceMismatch, StoreDamaged, StoreError
from agentformer.index.embedding.active import embedder_for
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends.cosmos_db.container import (
    CACHE_FOLDER,
    SEARCHED_FOLDER,
    Container,
    CosmosAddress,
    local_properties,
    server_properties,
)
from agentformer.memory.backends.cosmos_db.head import Heads
from agentformer.memory.backends.cosmos_db.items import PARTITION_KEY, partition_of
from agentformer.memory.backends.cosmos_db.replica import ReplicaDatabase
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, search_options
from agentformer.memory.backends.faiss.folder import DEFAULT_OPTIONS, FaissOptions
from agentformer.records import entries as records
from agentformer.records.scopes import SEARCHED
from agentformer.records.spaces import active_space
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.records.sqlite.scopes import searchable_numbers, where
from agentformer.settings import Settings
from agentformer.types import (
    NOTHING_SEARCHED,
    UNSEARCHED_KINDS,
    WORDS_ALONE,
    Check,
    Connection,
    Embedder,
    Hit,
    Hits,
    MemorySnapshot,
    Query,
    Reembedding,
    Scope,
    Span,
    Vector,
    new_id,
)

log = logging.getLogger("agentformer")
P = ParamSpec("P")
T = TypeVar("T")

_EMULATORS = ("127.0.0.1", "::1", "localhost")  # an emulator does not know the addresses of its regions
_MOVE = "cosmos_db:reembed"  # the lease of a move to another embedding space
_MOVE_SECONDS = 120.0
_MAX_ROWS = 1_000  # the client refuses a longer hybrid search
_MAX_TERMS = 30
_MAX_NUMBERS = 20_000  # entry numbers in a query, because its text and parameters may have at most 512 kB
_MAX_READ = 2 * _MAX_NUMBERS  # entry numbers that are read for one search
_PASSAGES = 4  # requested passages for each wanted entry; an entry can have several
_K = 60  # the score of a hit is 61/(60 + rank), which is 1 for the first hit


class CosmosMemoryBackend(FaissMemoryBackend):
    """A `MemoryBackend` whose records are in a container. `folder` contains the local copy; it may be deleted while no
    process uses it. Raises `StoreError` if the account cannot be reached or refuses the key, `StoreBusy` if the account
    is overloaded, `TooLarge` for a text that needs more than 2 MB, and `MissingExtra` if the client of Cosmos DB is not
    installed."""

    def __init__(
        self, folder: Path, embedder: Embedder, address: CosmosAddress, options: FaissOptions = DEFAULT_OPTIONS
    ) -> None:
        properties = server_properties(embedder.space.dimension) if address.searched else local_properties()
        self._container = Container(address, properties)
        if address.discover:  # not for an emulator, which has only one copy of the data
            check_consistency(self._container)
        heads = Heads(self._container)

        def open_copy(path: Path) -> Database:
            self._replica = ReplicaDatabase(path, self._container, heads, searched=address.searched)
            return self._replica

        try:
            super().__init__(folder, embedder, options, open_copy)
        except StoreDamaged as error:
            log.warning("The local copy %s is damaged and is read again from Cosmos DB: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            super().__init__(folder, embedder, options, open_copy)
        self.feed = None  # the local copy is a cache
        self._server = ServerSearch(self._container, self._replica, embedder) if address.searched else None

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> CosmosMemoryBackend:
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
        folder = settings.index_dir / (SEARCHED_FOLDER if searched else CACHE_FOLDER)
        return cls(folder, embedder, address, search_options(settings))

    @property
    def owner(self) -> str:
        """The address of the container, which a copy of the container does not have."""
        return self._container.name

    def search(self, query: Query) -> Hits:
        """Return the hits, best first. In the mode `server`, Cosmos DB ranks them; otherwise, the local indexes rank
        them."""
        self._refresh()
        if self._server is None:
            return super().search(query)
        return self._reranking.search(self._server.search, query) if self._reranking else self._server.search(query)

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        self._refresh()
        return super().snapshot()

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Check the local copy as the backend `faiss` does, and check that the container and the local copy have the
        same items."""
        self._refresh()
        return [*super().verify(repair=repair), self._replica.compare()]

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
        """Embed all entries again with the embedder `target`; see `MemoryBackend.reembed`."""
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
        return {**super().status(), "container": self._container.name, "transactions": self._replica.last}

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
        self._replica.refresh()
        if self._replica.erasures:
            self._replica.erasures = False
            self._secure_delete.run()

    def _read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **options: P.kwargs) -> T:
        self._refresh()
        return super()._read(query, *args, **options)


def check_consistency(container: Container) -> None:
    """Raise `StoreError` if the account may return former versions of items, because a node could then read only a part
    of another node's transaction."""
    if (level := container.consistency()) != "Strong":
        raise StoreError(
            f"the account at {container.name} has the default consistency {level}, with which one machine can "
            "read old versions of items that another machine has changed; set it to Strong in the account settings"
        )


class ServerQuery(NamedTuple):
    """The text of a query, and the values of its parameters by name."""

    text: str
    parameters: Mapping[str, Any]


def words_of(text: str) -> list[str]:
    """Return the distinct words of a query in lower case. They are not analyzed here, because Cosmos DB does this."""
    return list(dict.fromkeys(re.findall(r"\w+", text.casefold())))[:_MAX_TERMS]


def search_query(
    selected: ServerQuery, space: int, terms: Sequence[str], vector: Sequence[float] | None, limit: int
) -> ServerQuery:
    """Return the query that ranks the passages of the `selected` entries by words, by a vector, or by both (`RRF`).
    `space` is the number of the embedding space. At least one term or a vector is required."""
    parameters = {**selected.parameters, "limit": limit, "space": space}
    fields = ["c.scope.num AS num", "c.row.span_start AS spanStart", "c.row.span_end AS spanEnd"]
    rankings = []
    if terms:
        parameters |= {f"term{n}": term for n, term in enumerate(terms)}
        rankings.append(f"FullTextScore(c.text, {', '.join(f'@term{n}' for n in range(len(terms)))})")
    if vector is not None:
        parameters["vector"] = list(vector)
        rankings.append("VectorDistance(c.embedding, @vector)")
        fields.append("VectorDistance(c.embedding, @vector) AS cosine")
    passages = (
        "c.row.space = @space" if vector is not None and not terms else "(c.type = 'entry' OR c.row.space = @space)"
    )
    order = rankings[0] if len(rankings) == 1 else f"RRF({', '.join(rankings)})"
    rank = "" if order.startswith("VectorDistance") else "RANK "
    text = (
        f"SELECT TOP @limit {', '.join(fields)} FROM c WHERE {selected.text} AND IS_DEFINED(c.text) AND {passages} "
        f"ORDER BY {rank}{order}"
    )
    return ServerQuery(text, parameters)


def select_scope(connection: SqliteConnection, scope: Scope) -> ServerQuery | None:
    """Return the SQL condition for the items of a scope, and its parameters, or None if the scope is empty. The local
    copy decides which entries are in the scope, and the query names them by number, or names the other entries of the
    namespace if these are fewer. If both lists are too long, the condition selects the whole namespace, and the caller
    selects from the results."""
    parts = [
        f"c.{PARTITION_KEY} = @partition",
        "c.namespace = @namespace",
        "NOT ARRAY_CONTAINS(@unsearched, c.scope.kind)",
    ]
    values: dict[str, Any] = {"partition": partition_of(scope.namespace), "namespace": scope.namespace}
    values["unsearched"] = sorted(UNSEARCHED_KINDS)
    inside = _some_numbers(connection, scope)
    everything = _some_numbers(connection, Scope(scope.namespace, include_archived=True))
    known = set(inside)
    outside = [num for num in everything if num not in known]
    if len(inside) <= _MAX_NUMBERS and (len(inside) <= len(outside) or len(everything) > _MAX_READ):
        parts.append("ARRAY_CONTAINS(@numbers, c.scope.num)")
        values["numbers"] = inside
    elif outside and len(outside) <= _MAX_NUMBERS and len(everything) <= _MAX_READ:
        parts.append("NOT ARRAY_CONTAINS(@numbers, c.scope.num)")
        values["numbers"] = outside
    return ServerQuery(" AND ".join(parts), values) if inside else None


def _some_numbers(connection: SqliteConnection, scope: Scope) -> list[int]:
    """Return the numbers of the entries of a scope that a search may return, or only more than `_MAX_READ` of them."""
    condition, values = where(scope)
    query = f"SELECT num FROM entries WHERE {condition} AND {SEARCHED} LIMIT ?"
    return [row[0] for row in connection.execute(query, [*values, _MAX_READ + 1])]


class ServerSearch:
    """The search of the mode `server`: Cosmos DB ranks the passages in `container`, and their entries are read from
    `database`, the local copy. To be safe, a query compares the namespace both with the partition key and with a field.
    All values in a query are parameters."""

    def __init__(self, container: Container, database: Database, embedder: Embedder) -> None:
        self._container = container
        self._database = database
        self._embedder = embedder

    def search(self, query: Query) -> Hits:
        """Return the hits, best first. More passages are requested until enough entries of the scope are found."""
        if query.limit < 1 or not query.text.strip():
            return Hits()
        with self._database.reading() as connection:
            active = active_space(connection)
            selected = select_scope(connection, query.scope)
        vector: Vector | None = None
        warnings: tuple[str, ...] = ()
        if active is not None and query.mode != "lexical":
            try:
                vector = embedder_for(self._embedder, active[1]).embed_query(query.text)
            except SpaceMismatch:
                raise
            except EmbedderError as error:
                warnings = ((NOTHING_SEARCHED if query.mode == "dense" else WORDS_ALONE).format(error),)
        terms = words_of(query.text) if query.mode != "dense" else []
        if selected is None or (not terms and vector is None):
            return Hits([], warnings)
        values = None if vector is None else [float(value) for value in vector]
        rows, top = 0, min(_MAX_ROWS, query.limit * _PASSAGES)
        while True:
            space = active[0] if active else 0
            text, parameters = search_query(selected, space, terms, values, top)
            found = list(self._container.query(text, **parameters))
            hits = self._hits(query, found)
            if len(hits) >= query.limit or len(found) < top or top == _MAX_ROWS or len(found) == rows:
                return Hits(hits[: query.limit], warnings, one_sided=bool(warnings))
            rows, top = len(found), min(_MAX_ROWS, top * _PASSAGES)

    def _hits(self, query: Query, rows: list[dict[str, Any]]) -> list[Hit]:
        """Return a hit for each entry of the scope, with its best passage. `rows` are passages, best first. The score
        of a hit depends only on its rank (see `_K`)."""
        passages: dict[int, Mapping[str, Any]] = {}  # number of an entry -> its best passage
        for row in rows:
            passages.setdefault(int(row["num"]), row)
        with self._database.reading() as connection:
            allowed = set(searchable_numbers(connection, query.scope, list(passages)).tolist())
            entries = records.by_num(connection, [num for num in passages if num in allowed])
        hits = []
        for rank, num in enumerate((num for num in passages if num in entries), 1):
            passage = passages[num]
            span = Span(passage["spanStart"], passage["spanEnd"]) if passage.get("spanEnd") is not None else None
            hit = Hit(entries[num], (_K + 1) / (_K + rank), dense_score=passage.get("cosine"), span=span)
            if hit.score >= query.min_score:
                hits.append(hit)
        return hits
