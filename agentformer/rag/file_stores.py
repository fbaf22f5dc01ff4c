"""The places where original files are stored: a folder, the database that several nodes share, or a bucket of Amazon S3
or a compatible store.

The name of each file is the SHA-256 of its bytes, so a caller cannot choose the name.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from agentformer.errors import MissingExtra, NotFound, StoreBusy, StoreError, store_failure
from agentformer.records.integrity.files import open_regular_file, read_file, sync_folder, write_atomically
from agentformer.types import SharedFiles

SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"\.?([0-9a-f]{64})\.bin(\.[0-9]+\.[0-9]+)?")  # an original file, or a temporary file for it
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


class LocalFiles:
    """Original files in a folder, which is created when the first file is stored."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def path(self, digest: str) -> Path:
        """Return the path of the original file with this SHA-256. The file may be missing."""
        return self._folder / file_name(digest)

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged copy is stored already. Raises `StoreFull` if the folder cannot be
        written."""
        path = self.path(digest)
        if self.holds(digest, data):
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        path = self.path(digest)
        try:
            return path.stat().st_size == len(data) and read_file(path) == data
        except OSError:
            return False

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        try:
            return open_regular_file(self.path(digest))
        except FileNotFoundError:
            raise missing(digest, self.place) from None
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot read the original file {digest[:12]} in {self.place}: {reason}") from None

    def delete(self, digests: Collection[str]) -> None:
        """Delete files, and the temporary files that interrupted writes left for them. Missing files are ignored."""
        paths = [self.path(digest) for digest in digests]
        for path in paths:
            for file in (path, *path.parent.glob(f".{path.name}.*")):
                file.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)

    def names(self) -> dict[str, str]:
        """Return a dictionary: name of each file in the folder -> its digest, or "" if it is not an original file.
        Hidden files and folders, such as locks and background uploads, are left out."""
        files = (path.relative_to(self._folder) for path in sorted(self._folder.rglob("*")) if not path.is_dir())
        return {str(file): digest_in(file.as_posix()) for file in files if not file.parts[0].startswith(".")}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        try:
            return (self._folder / name).lstat().st_size
        except OSError:
            return None


def file_name(digest: str) -> str:
    """Return the path of an original file in the folder of the originals. The name of its subfolder is the beginning of
    the digest, so that no folder contains too many files."""
    return f"{digest[:2]}/{digest}.bin"


def digest_in(name: str) -> str:
    """Return the SHA-256 in the name of an original file, or "" if the name belongs to another file."""
    folder, _, last = name.rpartition("/")
    match = _FILE.fullmatch(last)
    return match[1] if match and folder == match[1][:2] else ""


def missing(digest: str, place: str) -> NotFound:
    """Return the error for an original file that is not in `place`."""
    return NotFound(f"the original file {digest[:12]} is missing in {place}; ingest the file again")


def unwritable(folder: Path, error: OSError) -> StoreError:
    """Return the error for a folder of original files that cannot be written."""
    advice = "free some disk space or choose another folder with --upload-dir"
    return store_failure(f"the original file cannot be written to {folder}", error, advice)


class DatabaseOriginals:
    """Original files in the database. The methods are described in `OriginalFiles`."""

    def __init__(self, files: SharedFiles) -> None:
        self.place = files.place
        self._files = files

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

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self._bucket, _, prefix = self.place.removeprefix(SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._lock = threading.Lock()

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
        found = self._found("get_object", **self._at(digest))
        if found is None:
            raise missing(digest, self.place)
        with self._errors("read"):
            return io.BytesIO(found["Body"].read())

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
        head = self._found("head_object", Bucket=self._bucket, Key=self._prefix + name)
        return None if head is None else int(head["ContentLength"])

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
        return {"Bucket": self._bucket, "Key": self._prefix + file_name(digest)}

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
