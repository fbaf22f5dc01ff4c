"""A confined reader reads its programs wherever they are installed, and none of the folders that they lie in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentformer.readers import read
from agentformer.readers.sandbox import process as sandbox

from .conftest import make_docx
from .takeover import LINUX, PDF, confines_files, taken_over, told, with_tesseract

pytestmark = pytest.mark.process

LAYERS = {
    "system": "worker.refuse_events = lambda *a: None",
    "python": "worker.refuse_calls = worker.confine_files = lambda *a, **o: False",
}
OPENING = "yield attempt(*[lambda path=path: open(path).read() for path in {paths}])"


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> str:
    """What switches the other layer off."""
    if request.param == "system" and not confines_files():
        pytest.skip("this system does not confine files")
    return LAYERS[request.param]


def secrets(folder: Path) -> list[str]:
    (folder / "indexes").mkdir()
    for secret in (folder / ".env", folder / "indexes" / "memory.sqlite3"):
        secret.write_text("secret")
    return [str(folder / ".env"), str(folder / "indexes" / "memory.sqlite3")]


def test_the_folder_of_a_script_stays_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layer: str) -> None:
    paths = secrets(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    taken_over(monkeypatch, OPENING.format(paths=paths), layer)

    assert told() == "PermissionError PermissionError"


def test_the_home_in_which_tesseract_lies_stays_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layer: str
) -> None:
    with_tesseract(monkeypatch, tmp_path)
    languages = tmp_path / "share" / "tessdata"
    languages.mkdir(parents=True)
    (languages / "eng.traineddata").write_text("letters")
    monkeypatch.setenv("TESSDATA_PREFIX", str(Path.home()))  # holds more than languages
    readable = [str(languages / "eng.traineddata"), str(tmp_path / "bin" / "tesseract")]
    body = (
        f"yield attempt(*[lambda path=path: open(path).read().strip() for path in {[*secrets(tmp_path), *readable]}])"
    )
    taken_over(monkeypatch, body, layer)

    assert told() == "PermissionError PermissionError letters #!/bin/sh"


def test_libraries_are_read_where_the_environment_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layer: str
) -> None:
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "libx.so").write_text("code")
    paths = [str(tmp_path / "libraries" / "libx.so"), *secrets(tmp_path)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join([str(tmp_path / "libraries"), "", ".", os.sep]))
    taken_over(monkeypatch, OPENING.format(paths=paths), layer)

    assert told() == "code PermissionError PermissionError"


def link_folder(store: Path, site: Path) -> None:
    (site / store.name).symlink_to(store)


def link_files(store: Path, site: Path) -> None:
    shutil.copytree(store, site / store.name, copy_function=lambda there, here: Path(here).symlink_to(there))


def move(store: Path, site: Path) -> None:
    store.rename(site / store.name)


@LINUX
@pytest.mark.parametrize("install", [link_folder, link_files, move])
def test_parsers_are_read_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Callable[[Path, Path], None]
) -> None:
    """As some installers do: links to a store that all environments share, and folders named in PYTHONPATH."""
    site = tmp_path / "modules"
    site.mkdir()
    for name in ("pypdfium2", "pypdfium2_raw", "pypdfium2_cfg"):
        spec = find_spec(name)
        assert spec and spec.origin
        store = tmp_path / "store" / f"{name}-1" / name
        shutil.copytree(Path(spec.origin).parent, store)
        install(store, site)
    (site / ".env").write_text("secret")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p] + [str(site)])

    assert read(PDF, "a.pdf").pages[0].text == "A page of text about ships."
    if confines_files():
        body = f"import pypdfium2\nyield attempt(lambda: pypdfium2.__file__, lambda: open({str(site / '.env')!r}))"
        taken_over(monkeypatch, body, LAYERS["system"])
        assert told() == f"{site / 'pypdfium2' / '__init__.py'} PermissionError"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.docx", make_docx("<w:p><w:r><w:t>Ships lie here.</w:t></w:r></w:p>")),
        ("a.rtf", b"{\\rtf1 Ships lie here.}"),
        ("a.html", b"<html><body><p>Ships lie here.</p></body></html>"),
        ("a.eml", b"From: a@example.org\nSubject: Ships\n\nShips lie here.\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_new_process_imports_its_parser_while_it_is_confined(
    monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    """A forked reader has imported the parsers without any limits."""
    monkeypatch.setattr(sandbox, "_FORKS", False)
    assert "Ships lie here." in read(data, name).pages[0].text
