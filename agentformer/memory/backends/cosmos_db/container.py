"""A container of the backend `cosmos_db`: its address, its properties, and requests to it with typed errors. No error
contains the key of the account. `stored_space` and `wanted_embedder` read the local copy of the container without
opening the backend."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentformer.errors import InvalidInput, MissingExtra, StoreBusy, StoreError, TooLarge
from agentformer.http.redaction import redact_url
from agentformer.memory.backends.cosmos_db.items import PARTITION_KEY, Item, check_size
from agentformer.memory.backends.faiss import folder as faiss
from agentformer.types import EmbeddingSpace

if TYPE_CHECKING:
    from azure.cosmos import ContainerProxy, CosmosClient

CACHE_FOLDER = "cosmos"  # the folder of the local copy inside `Settings.index_dir`
SEARCHED_FOLDER = "cosmos-server"  # the folder of the local copy in the mode `server`
_PAGE = 500  # items of one page of a query
_CONNECT_SECONDS = 10
_THROTTLED_TRIES = 60  # maximum attempts; never reached, because `CosmosAddress.patience` ends earlier
_REFUSED = (401, 403)
_LATER = (408, 410, 429, 449, 503)  # the service asks for a later attempt
_LANGUAGE = "en-US"  # language in which the service analyzes words; only in the mode `server`
_INDEXED = ("pk", "seq", "type", "namespace")  # indexed fields that other queries use


@dataclass(frozen=True, slots=True)
class CosmosAddress:
    """The address of a container in Cosmos DB, and the key of its account. `repr` does not show the key."""

    endpoint: str
    key: str = field(default="", repr=False)
    database: str = "agentformer"
    container: str = "memory"
    discover: bool = True  # ask the account for the addresses of its regions; False for an emulator
    searched: bool = False  # the mode `server`: Cosmos DB ranks the entries of a separate container
    patience: float = 30.0  # seconds for which a throttled request is repeated


def stored_space(index_dir: Path) -> EmbeddingSpace | None:
    """Return the embedding space of the vectors in the local copy, or None if there is no copy or no vector."""
    spaces = (faiss.stored_space(index_dir / folder) for folder in (CACHE_FOLDER, SEARCHED_FOLDER))
    return next(filter(None, spaces), None)


def wanted_embedder(index_dir: Path) -> str:
    """Return the name of the embedder that was requested for the store, or ""; see `faiss.wanted_embedder`."""
    names = (faiss.wanted_embedder(index_dir / folder) for folder in (CACHE_FOLDER, SEARCHED_FOLDER))
    return next(filter(None, names), "")


class Exists(Exception):
    """An item with this id is already in the partition."""


class Changed(Exception):
    """Another client has changed or deleted the item since it was read."""


class Container:
    """A container of Cosmos DB. The database and the container are created if they are missing. Thread-safe. Raises
    `StoreError` if the account cannot be reached or refuses the key, `StoreBusy` if Cosmos DB throttles the requests
    for more than `CosmosAddress.patience` seconds, `TooLarge` for an item that is too large, and `MissingExtra` if the
    client of Cosmos DB is not installed."""

    def __init__(self, address: CosmosAddress, properties: Mapping[str, Any] | None = None) -> None:
        """Connect to the container. If the container is missing, this call creates it with the given `properties`, such
        as policies. An existing container is not changed."""
        try:
            from azure.cosmos import CosmosClient, PartitionKey
        except ImportError as error:
            raise MissingExtra("cosmos", "the backend cosmos_db", error) from error
        self._address = address
        with self._errors():
            self._client: CosmosClient = CosmosClient(
                address.endpoint,
                address.key,
                enable_endpoint_discovery=address.discover,
                connection_timeout=_CONNECT_SECONDS,
                retry_connect=1,
                retry_throttle_total=_THROTTLED_TRIES,
                retry_throttle_backoff_max=max(1, int(address.patience)),  # whole seconds; with 0, nothing is repeated
            )
            database = self._client.create_database_if_not_exists(address.database)
            # `default_ttl=-1`: an item expires only if it has a `ttl` of its own, as those of `gone_item` have
            self._container: ContainerProxy = database.create_container_if_not_exists(
                address.container, PartitionKey(f"/{PARTITION_KEY}"), default_ttl=-1, **(properties or {})
            )

    @property
    def name(self) -> str:
        """The address of the container, without the key, for messages."""
        address = self._address
        return f"{redact_url(address.endpoint)} ({address.database}/{address.container})"

    def create(self, item: Item) -> Item:
        """Create an item. Raises `Exists` if the partition has an item with this id."""
        with self._errors(item):
            return dict(self._container.create_item(item))

    def replace(self, item: Item, etag: str) -> Item:
        """Replace an item, and return it with its new etag. Raises `Changed` if another client has changed or deleted
        the stored item, so that it no longer has `etag`."""
        from azure.core import MatchConditions

        with self._errors(item):
            return dict(
                self._container.replace_item(item["id"], item, etag=etag, match_condition=MatchConditions.IfNotModified)
            )

    def read(self, item_id: str, partition: str) -> Item | None:
        """Return an item, or None if it does not exist."""
        with suppress(Changed), self._errors():
            return dict(self._container.read_item(item_id, partition))
        return None

    def delete(self, item_id: str, partition: str) -> None:
        """Delete an item. Nothing happens if it does not exist."""
        with suppress(Changed), self._errors():
            self._container.delete_item(item_id, partition)

    def query(self, text: str, **parameters: Any) -> Iterator[Item]:
        """Yield the results of a query over all partitions. The pages are read one by one, each with the continuation
        token of the previous page. Values are sent as parameters and are never a part of the text."""
        with self._errors():
            yield from self._container.query_items(
                text,
                parameters=[{"name": f"@{name}", "value": value} for name, value in parameters.items()],
                enable_cross_partition_query=True,
                max_item_count=_PAGE,
            )

    def consistency(self) -> str:
        """Return the default consistency level of the account, for example "Strong"."""
        with self._errors():
            policy = self._client.get_database_account().ConsistencyPolicy or {}
            return str(policy.get("defaultConsistencyLevel", ""))

    def close(self) -> None:
        """Close the connections. A second call has no effect."""
        self._client.close()

    @contextmanager
    def _errors(self, item: Item | None = None) -> Iterator[None]:
        """Convert the errors of the client to those of this package. If an `item` is given, check its size first."""
        from azure.core.exceptions import AzureError
        from azure.cosmos.exceptions import CosmosHttpResponseError

        if item is not None:
            check_size(item)
        try:
            yield
        except CosmosHttpResponseError as error:
            raise self._error_of(error.status_code or 0, error) from None
        except AzureError as error:
            raise StoreError(
                f"the Cosmos DB account at {self.name} cannot be reached ({type(error).__name__}); check "
                "AGENTFORMER_COSMOS_ENDPOINT and the network, and repeat the call"
            ) from None
        except binascii.Error:
            raise InvalidInput(
                "cosmos_key", "is not a key of Cosmos DB, because it is not Base64; copy the key again"
            ) from None

    def _error_of(self, status: int, error: Exception) -> Exception:
        if status == 409:
            return Exists()
        if status in (404, 412):
            return Changed()
        if status == 413:
            return TooLarge("cosmos_db", "an item is larger than 2 MB, the limit of Cosmos DB; store a shorter text")
        if status in _REFUSED:
            return StoreError(f"the Cosmos DB account at {self.name} refused the key; check AGENTFORMER_COSMOS_KEY")
        if status in _LATER:
            return StoreBusy(
                f"the Cosmos DB account at {self.name} is overloaded (status {status}); repeat the call later, or give "
                "the container more request units"
            )
        reason = " ".join(str(error).split())[:200]
        return StoreError(f"the Cosmos DB account at {self.name} answered with status {status}: {reason}")


def local_properties() -> dict[str, Any]:
    """Return the properties of a container for the mode `local`. Texts and vectors have no index in Cosmos DB, because
    an index would make each write more expensive."""
    return {"indexing_policy": _indexing(())}


def server_properties(dimension: int) -> dict[str, Any]:
    """Return the properties of a container for the mode `server`, with vectors of the fixed length `dimension`."""
    vector = {"path": "/embedding", "dataType": "float32", "distanceFunction": "cosine", "dimensions": dimension}
    indexes = {"vectorIndexes": [{"path": "/embedding", "type": "diskANN"}], "fullTextIndexes": [{"path": "/text"}]}
    return {
        "indexing_policy": {**_indexing(("/scope/*", "/row/space/?")), **indexes},
        "vector_embedding_policy": {"vectorEmbeddings": [vector]},
        "full_text_policy": {"defaultLanguage": _LANGUAGE, "fullTextPaths": [{"path": "/text", "language": _LANGUAGE}]},
    }


def _indexing(paths: Sequence[str]) -> dict[str, Any]:
    return {
        "indexingMode": "consistent",
        "automatic": True,
        "includedPaths": [{"path": path} for path in (*(f"/{name}/?" for name in _INDEXED), *paths)],
        "excludedPaths": [{"path": "/*"}],
    }
