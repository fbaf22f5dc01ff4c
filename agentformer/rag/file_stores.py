"""The places where original files are stored: a folder, the database that several nodes share, or a bucket of Amazon S3
or a compatible store.

The name of each file is the SHA-256 of its bytes, so a caller cannot choose the name.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol

from agentformer.errors import MissingExtra, StoreBusy, StoreError
from agentformer.lazy import Lazy
from agentformer.rag.local_files import SHA256, LocalFiles, digest_in, file_name, missing, unwritable
from agentformer.rag.ownership import PREFIX, Owner
from agentformer.types import SharedFiles

__all__ = ["SCHEME", "SHA256", "DatabaseOriginals", "LocalFiles", "OriginalFiles", "S3Files", "file_name", "unwritable"]

_SETTLED = ".settled"  # the name of the object that `S3Files.settle` writes
_ORIGINAL = "original/"  # the names in the database begin with this
SCHEME = "s3://"
_TRY_LATER = {"500", "502", "503", "504", "InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout"}
_ABSENT = {"404", "NoSuchKey", "NotFound"}
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 60}  # seconds
_ATTEMPTS = 3  # attempts of one request; the pauses between them grow
_DELETED_AT_ONCE = 1000  # the limit of one request


class OriginalFiles(Protocol):
    """A place that stores original files. `place` is its name in messages. A digest is the SHA-256 of a file's bytes as
    64 hexadecimal digits. Methods raise `StoreError` if the place cannot be read or written, and its subclass
    `StoreBusy` if the caller can try again later."""

    place: str

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged copy is stored already. After a crash, the file is complete or missing."""

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""

    def delete(self, digests: Collection[str]) -> None:
        """Delete files, and the temporary files that interrupted writes left for them. Missing files are ignored."""

    def names(self) -> dict[str, str]:
        """Return a dictionary: name of each stored file -> its digest, or "" if it is not an original file."""

    def size(self, name: str) -> int | None:
        """Return the size of the file `name` in bytes, or None if this file does not exist."""

    def owns(self, digest: str) -> bool:
        """Return whether the memory has stored a file with this digest. The file may be damaged."""

    def settle(self, needed: Lazy[set[str]]) -> None:
        """Make sure that the memory owns the files with the digests `needed`: copy those that only other
        memories own. Do nothing if an earlier call has done this."""

    def left(self, digests: Collection[str]) -> list[str]:
        """Return the names of files with these digests that `delete` leaves, because no memory is known to own them."""


class DatabaseOriginals:
    """Original files in the database. The methods are described in `OriginalFiles`."""

    def __init__(self, files: SharedFiles) -> None:
        self.place = files.place
        self._files = files

    def owns(self, digest: str) -> bool:
        """Return whether a file with this digest is stored."""
        return bool(self._files.sha256(_ORIGINAL + digest))

    def settle(self, needed: Lazy[set[str]]) -> None:
        """Do nothing: the files are in the store of the memory, and a copy of the store has copies of them."""

    def left(self, digests: Collection[str]) -> list[str]:
        return []

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged copy is stored already."""
        if not self.holds(digest, data):
            self._files.put(_ORIGINAL + digest, data)

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        return self._files.sha256(_ORIGINAL + digest) == hashlib.sha256(data).hexdigest()

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        data = self._files.get(_ORIGINAL + digest)
        if data is None:
            raise missing(digest, self.place)
        return io.BytesIO(data)

    def delete(self, digests: Collection[str]) -> None:
        """Delete files. Missing files are ignored."""
        if digests:
            self._files.delete(*(_ORIGINAL + digest for digest in digests))

    def names(self) -> dict[str, str]:
        """Return a dictionary: name of each stored file -> its digest."""
        digests = (name.removeprefix(_ORIGINAL) for name in self._files.sizes(_ORIGINAL))
        return {file_name(digest): digest for digest in digests}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        stored = _ORIGINAL + digest_in(name)
        return self._files.sizes(stored).get(stored)


class S3Files:
    """Original files under a prefix of a bucket. Thread-safe; the connection is made at the first use.

    `url` is `s3://BUCKET/PREFIX`. Address, region and credentials come from the environment or from the files of the
    AWS command line: `AWS_ENDPOINT_URL_S3`, `AWS_ACCESS_KEY_ID` and so on. A file is stored completely or not at all.
    Raises `MissingExtra` at the first use if boto3 is not installed.
    """

    def __init__(self, url: str, owner: Owner | None = None) -> None:
        """`owner` is the memory that owns the files. Its name is a part of their keys. Files of other memories, and
        of versions that knew no owners, are read and never deleted."""
        self.place = url.rstrip("/")
        self._bucket, _, prefix = self.place.removeprefix(SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._owner = owner
        self._own = f"{self._prefix}{PREFIX}{owner.id}/" if owner else self._prefix
        self._lock = threading.Lock()

    def owns(self, digest: str) -> bool:
        """Return whether the memory has stored a file with this digest."""
        return self._found("head_object", **self._at(digest)) is not None

    def settle(self, needed: Lazy[set[str]]) -> None:
        """Copy the files of the documents that only other memories own. For a memory on a server, whose nodes have no
        common mark, an object marks that this was done."""
        mark = {"Bucket": self._bucket, "Key": self._own + _SETTLED}
        if self._owner is None or not (digests := needed.get()):
            return
        if self._owner.mark is None and self._found("head_object", **mark) is not None:
            return
        others = [prefix for prefix in self._owners() if prefix != self._own]
        for digest in digests if others else ():
            if self.owns(digest):
                continue
            for prefix in others:
                source = {"Bucket": self._bucket, "Key": prefix + file_name(digest)}
                if self._found("head_object", **source) is not None:
                    with self._errors("copied"):
                        self._client.copy_object(**self._at(digest), CopySource=source)
                    break
        if self._owner.mark is None:
            with self._errors("written"):
                self._client.put_object(**mark, Body=b"")

    def left(self, digests: Collection[str]) -> list[str]:
        """Return the keys of the files of a version without owners that `delete` leaves."""
        keys = [self._prefix + file_name(digest) for digest in digests if self._owner]
        return [key for key in keys if self._found("head_object", Bucket=self._bucket, Key=key)]

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged copy is stored already. Raises `StoreError` if the bucket is not usable."""
        if self.holds(digest, data):
            return
        with self._errors("written"):
            checksum = base64.b64encode(bytes.fromhex(digest)).decode()  # the server refuses a damaged transfer
            self._client.put_object(**self._at(digest), Body=data, ChecksumSHA256=checksum)

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        head = self._found("head_object", **self._at(digest), ChecksumMode="ENABLED")
        if head is None or head["ContentLength"] != len(data):
            return False
        if checksum := head.get("ChecksumSHA256"):
            return bool(checksum == base64.b64encode(bytes.fromhex(digest)).decode())
        with self.open(digest) as file:  # stores that keep no checksum
            return file.read() == data

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        for key in self._keys(digest):
            if (found := self._found("get_object", Bucket=self._bucket, Key=key)) is not None:
                with self._errors("read"):
                    return io.BytesIO(found["Body"].read())
        raise missing(digest, self.place)

    def delete(self, digests: Collection[str]) -> None:
        """Delete files. Missing files are ignored. Raises `StoreError` if the server refuses to delete a file."""
        keys = [{"Key": self._at(digest)["Key"]} for digest in digests]
        with self._errors("deleted"):
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                objects = {"Objects": keys[start : start + _DELETED_AT_ONCE], "Quiet": True}
                refused = self._client.delete_objects(Bucket=self._bucket, Delete=objects).get("Errors", [])
                if refused:
                    code = refused[0].get("Code", "an error")
                    raise StoreError(f"{len(refused)} original files in {self.place} cannot be deleted ({code})")

    def names(self) -> dict[str, str]:
        """Return a dictionary: name of each stored file -> its digest, or "" if it is not an original file."""
        with self._errors("read"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        others = f"{self._prefix}{PREFIX}" if self._owner else "\0"
        own = {key: key.removeprefix(self._own) for key in keys if key.startswith(self._own)}
        shared = {key: key.removeprefix(self._prefix) for key in keys if not key.startswith((self._own, others))}
        named = {**own, **shared}
        return {key.removeprefix(self._prefix): digest_in(name) for key, name in named.items() if name != _SETTLED}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        head = self._found("head_object", Bucket=self._bucket, Key=self._prefix + name)
        return None if head is None else int(head["ContentLength"])

    def _keys(self, digest: str) -> Iterator[str]:
        """Yield the keys under which a file may be stored, the key of this memory first."""
        yield self._own + file_name(digest)
        if self._owner is not None:
            yield self._prefix + file_name(digest)
            yield from (prefix + file_name(digest) for prefix in self._owners() if prefix != self._own)

    def _owners(self) -> list[str]:
        """Return the prefixes of the keys of all owners."""
        with self._errors("read"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + PREFIX, Delimiter="/"
            )
            return [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])]

    def _found(self, request: str, **arguments: Any) -> Any:
        """Return the answer to a request for a file, or None if the file does not exist."""
        with self._errors("read"):
            try:
                return getattr(self._client, request)(**arguments)
            except self._client.exceptions.ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise

    def _at(self, digest: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._own + file_name(digest)}

    @functools.cached_property
    def _connected(self) -> Any:  # a client of boto3, which may not be installed
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise MissingExtra("s3", "the setting originals=s3://...", error) from None
        retries: Any = {"total_max_attempts": _ATTEMPTS, "mode": "standard"}
        return boto3.session.Session().client("s3", config=Config(retries=retries, **_TIMEOUTS))

    @property
    def _client(self) -> Any:
        with self._lock:
            return self._connected

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Convert the errors of boto3 to `StoreError`. `done` is the failed action as a participle, such as "deleted".
        Messages contain no credentials and no address of the store."""
        try:
            from botocore import exceptions
        except ImportError as error:
            raise MissingExtra("s3", "the setting originals=s3://...", error) from None
        try:
            yield
        except exceptions.ClientError as error:
            raise self._refused(done, _code(error)) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.NoRegionError) as error:
            missing_part = "region is" if isinstance(error, exceptions.NoRegionError) else "complete credentials are"
            advice = "set AWS_ACCESS_KEY_ID and the other AWS_... variables"
            raise StoreError(f"no {missing_part} configured for {self.place}; {advice}") from None
        except (exceptions.BotoCoreError, exceptions.HTTPClientError, OSError) as error:
            advice = "check its address AWS_ENDPOINT_URL_S3, or try again later"
            raise StoreBusy(f"{self.place} cannot be reached ({type(error).__name__}); {advice}") from None

    def _refused(self, done: str, code: str) -> StoreError:
        """Return the error for a refused request. `done` is the failed action as a participle, such as "deleted", and
        `code` is the error code of the store."""
        if code == "NoSuchBucket":
            return StoreError(f"the bucket of {self.place} does not exist; create it, or correct `originals`")
        what = f"an original file in {self.place} cannot be {done}"
        if code in _TRY_LATER:
            return StoreBusy(f"{what} now ({code}); try again later")
        return StoreError(f"{what} ({code}); check the credentials and their rights in this bucket")


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
