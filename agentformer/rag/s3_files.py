"""Original files in a bucket of Amazon S3 or a compatible store, so that every machine with the same memory can read
them."""

from __future__ import annotations

import base64
import functools
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

from agentformer.errors import MissingExtra, StoreBusy, StoreError
from agentformer.rag.original_files import digest_in, file_name, missing

if TYPE_CHECKING:
    from botocore.client import BaseClient

SCHEME = "s3://"
_TRY_LATER = {"500", "502", "503", "504", "InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout"}
_ABSENT = {"404", "NoSuchKey", "NotFound"}
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 60}  # seconds
_ATTEMPTS = 3  # attempts of one request, with growing pauses
_DELETED_AT_ONCE = 1000  # the limit of one request


class S3Files:
    """Original files under a prefix of a bucket. Thread-safe; the connection is made at the first use.

    `url` is `s3://BUCKET/PREFIX`. Address, region and credentials come from the environment or from the files of the
    AWS command line: `AWS_ENDPOINT_URL_S3`, `AWS_ACCESS_KEY_ID` and so on. A file is stored completely or not at all.
    Raises `MissingExtra` at the first use if boto3 is not installed.
    """

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self._bucket, _, prefix = self.place.removeprefix(SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._lock = threading.Lock()

    def put(self, digest: str, data: bytes) -> None:
        """Store a file under its SHA-256, unless an undamaged file is there. Raises `StoreError` if the bucket cannot
        be read or written."""
        if self.holds(digest, data):
            return
        with self._errors("written"):
            checksum = base64.b64encode(bytes.fromhex(digest)).decode()  # the server refuses a damaged transfer
            self._client.put_object(**self._at(digest), Body=data, ChecksumSHA256=checksum)

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        with self._errors("read"):
            try:
                head = self._client.head_object(**self._at(digest), ChecksumMode="ENABLED")
            except self._client.exceptions.ClientError as error:
                if _code(error) in _ABSENT:
                    return False
                raise
        if head["ContentLength"] != len(data):
            return False
        if checksum := head.get("ChecksumSHA256"):
            return bool(checksum == base64.b64encode(bytes.fromhex(digest)).decode())
        with self.open(digest) as file:  # stores that keep no checksum
            return file.read() == data

    def open(self, digest: str) -> BinaryIO:
        """Return the file, opened for reading. Raises `NotFound` if the file is missing."""
        with self._errors("read"):
            try:
                return BytesIO(self._client.get_object(**self._at(digest))["Body"].read())
            except self._client.exceptions.ClientError as error:
                if _code(error) in _ABSENT:
                    raise missing(digest, self.place) from None
                raise

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
            keys = [item["Key"].removeprefix(self._prefix) for page in pages for item in page.get("Contents", [])]
        return {key: digest_in(key) for key in keys}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        with self._errors("read"):
            try:
                return int(self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)["ContentLength"])
            except self._client.exceptions.ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise

    def _at(self, digest: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + file_name(digest)}

    @functools.cached_property
    def _connected(self) -> BaseClient:
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
            what = "region" if isinstance(error, exceptions.NoRegionError) else "complete credentials"
            advice = "set AWS_ACCESS_KEY_ID and the other AWS_... variables"
            raise StoreError(f"there are no {what} for {self.place}; {advice}") from None
        except (exceptions.BotoCoreError, exceptions.HTTPClientError, OSError) as error:
            advice = "check its address AWS_ENDPOINT_URL_S3, or try again later"
            raise StoreBusy(f"{self.place} cannot be reached ({type(error).__name__}); {advice}") from None

    def _refused(self, done: str, code: str) -> StoreError:
        """Return the error for a request that the store refused. `done` is this request as a participle, and `code` is
        the error code of the store."""
        if code == "NoSuchBucket":
            return StoreError(f"the bucket of {self.place} does not exist; create it, or correct `originals`")
        what = f"an original file in {self.place} cannot be {done}"
        if code in _TRY_LATER:
            return StoreBusy(f"{what} now ({code}); try again later")
        return StoreError(f"{what} ({code}); check the credentials and their rights in this bucket")


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
