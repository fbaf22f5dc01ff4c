"""The body of an upload: read wholly before anything is done with it, within limits, and told what is wrong with it."""

from __future__ import annotations

import errno
from typing import IO, Any

from flask import request
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType
from werkzeug.formparser import FormDataParser

from agentformer.api.bounded import BoundedBody
from agentformer.errors import InvalidInput, StoreFull, TooLarge
from agentformer.settings import Settings

FORM_BYTES = 1024 * 1024  # of a body beside its files: names, metadata, borders
FILES = "file"  # the name of the parts that are files
_FIELDS = 20  # parts beside the files; more than are known
_FIELD_BYTES = 500_000  # of each of these, which are held in memory
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def read_multipart(settings: Settings) -> None:
    """Read the body of the request that is being answered; `files_of_request` and `request.form` have it then. Large
    files are on the disk, and gone with the request.

    Raises `InvalidInput`, `TooLarge`, `StoreFull`; a body of another type is a 415, and one that ends too early a 400.
    """
    if request.mimetype != "multipart/form-data":
        if not request.mimetype and not request.content_length:
            raise _missing()
        raise UnsupportedMediaType("send the files as multipart/form-data, in parts named 'file'")
    if not request.mimetype_params.get("boundary"):
        raise InvalidInput("Content-Type", "has no boundary; let your HTTP library write this header")
    request.form_data_parser_class = _Parser
    request.max_form_memory_size = _FIELD_BYTES
    request.max_form_parts = settings.max_upload_files + _FIELDS
    try:
        request.files  # noqa: B018 (reads the body)
    except RequestEntityTooLarge:
        raise _too_large(settings) from None
    except ValueError as error:
        raise InvalidInput("body", f"is not multipart/form-data as its boundary tells: {str(error)[:120]}") from None
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StoreFull(f"the upload cannot be kept: {error.strerror}; free space for temporary files") from error
        raise
    files_of_request(settings)  # before the fields are looked at, which would take a file without a name for one


def files_of_request(settings: Settings) -> list[FileStorage]:
    """The parts named `file`. Raises `InvalidInput`; `TooLarge` where the host application has read them."""
    if FILES in request.form:
        raise InvalidInput(FILES, "must be a file: its part needs a filename")
    if unknown := next((name for name in request.files if name != FILES), None):
        raise InvalidInput(unknown[:80], f"is not known here; files are parts named '{FILES}'")
    files = request.files.getlist(FILES)
    if not files:
        raise _missing()
    _check_number(len(files), settings.max_upload_files)
    return files


class _Parser(FormDataParser):
    """Tells what is wrong with a body, where the usual parser takes it for an empty one; and that it has too many
    files, where the usual one only says that something was too much. Raises `TooLarge`."""

    silent = property(lambda self: False, lambda self, value: None)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._make, self._files = self.stream_factory, 0
        self.stream_factory = self._counted

    def _counted(self, *arguments: Any, **named: Any) -> IO[bytes]:
        self._files += 1
        _check_number(self._files, (self.max_form_parts or 0) - _FIELDS)
        return self._make(*arguments, **named)


def _check_number(files: int, most: int) -> None:
    if files > most:
        raise TooLarge("max_upload_files", f"over {most} files came; send at most {most} at once")


def _too_large(settings: Settings) -> TooLarge:
    """Which limit it was, if it was not the number of files. Werkzeug does not say."""
    most = settings.max_file_bytes + FORM_BYTES
    body = request.environ["wsgi.input"]
    if (request.content_length or 0) > most or (isinstance(body, BoundedBody) and body.over):
        return TooLarge("max_file_bytes", f"a body has at most {most} bytes here; send fewer files, or raise the limit")
    told = f"a field beside the files has over {_FIELD_BYTES} bytes, or there are over {_FIELDS} of them; send less"
    return TooLarge("max_field_bytes", told)


def _missing() -> InvalidInput:
    return InvalidInput(FILES, "is missing; send multipart/form-data with one or more parts named 'file'")
