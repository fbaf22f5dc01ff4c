"""The files of the console: served with strict headers, small, offline, in two languages, and without inline script."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.app import close_app, create_app
from agentformer.console import page as console
from agentformer.settings import load_settings
from agentformer.types import DocumentStatus
from tests.edges.mounted import mounted

STATIC = Path(console.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
KEY = re.compile(r'^  "([\w.-]+)": "(.*)",$', re.M)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    yield app.test_client()
    close_app(app)


@pytest.mark.parametrize("path", ["/", "/console"])
def test_the_page_is_served_with_a_policy_that_allows_only_its_own_files(client: Any, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_that_the_page_and_the_scripts_name_exists(client: Any) -> None:
    page = client.get("/").text
    named = {*re.findall(r'(?:href|src)="(/console/[^"]+)"', page)}
    assert {"/console/main.js", "/console/console.css", "/console/icon.svg"} <= named
    for script in SCRIPTS:
        named |= {f"/console/{name}" for name in re.findall(r'from "\./([\w-]+\.js)"', script.read_text())}
    for path in named:
        assert client.get(path).status_code == 200, path


def test_an_unchanged_file_is_not_sent_again(client: Any) -> None:
    first = client.get("/console/main.js")
    again = client.get("/console/main.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2f__init__.py", "__init__.py"])
def test_other_files_are_not_served(client: Any, name: str) -> None:
    assert client.get(f"/console/{name}").status_code == 404


def test_below_a_prefix_the_page_names_its_files_with_the_prefix(tmp_path: Path) -> None:
    with mounted(tmp_path) as there:
        for path in ("/", "/console"):
            answer = there.ask("GET", path)
            assert answer.status_code == 200
            assert 'data-root="/m"' in answer.text
            assert 'src="/m/console/main.js"' in answer.text
        assert there.ask("GET", "/console/main.js").status_code == 200


def test_the_page_has_no_inline_script_style_or_handler_and_names_no_other_host() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)
    for file in STATIC.iterdir():
        addresses = set(re.findall(r"https?://[^\s\"']+", file.read_text())) - {"http://www.w3.org/2000/svg"}
        assert not addresses, file.name


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_turns_text_into_markup(script: Path) -> None:
    code = script.read_text()
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert name not in code


def test_both_languages_have_the_same_texts_with_the_same_values() -> None:
    english, finnish = (dict(KEY.findall((STATIC / f"{name}.js").read_text())) for name in ("en", "fi"))
    assert len(english) > 100
    assert english.keys() == finnish.keys()
    for key, text in english.items():
        values = [set(re.findall(r"{(\w+)}", part)) for part in (text, finnish[key])]
        assert values[0] == values[1], key
        assert ("|" in text) == ("|" in finnish[key]), key


@pytest.mark.parametrize("language", ["en", "fi"])
def test_every_status_of_a_document_has_a_text(language: str) -> None:
    known = dict(KEY.findall((STATIC / f"{language}.js").read_text()))
    assert {f"status.{name}" for name in get_args(DocumentStatus)} == {
        key for key in known if key.startswith("status.")
    }


def test_every_text_that_a_script_names_exists() -> None:
    known = dict(KEY.findall((STATIC / "en.js").read_text()))
    for script in SCRIPTS:
        for key in re.findall(r'\bt\("([\w.-]+)"', script.read_text()):
            assert key in known, f"{script.name}: {key}"


def test_the_first_view_has_less_than_100_kb_and_all_files_together_less_than_200() -> None:
    """The first view loads the modules that it imports, and the texts of one language."""
    first, found = {"index.html", "console.css", "icon.svg", "ask.js", "fi.js"}, ["main.js", "ask.js"]
    while found:
        first.add(name := found.pop())
        imported = re.findall(r'from "\./([\w-]+\.js)"', (STATIC / name).read_text())
        found += [other for other in imported if other not in first]
    assert "i18n.js" in first and "map.js" not in first
    assert sum((STATIC / name).stat().st_size for name in first) < 100_000
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < 200_000


@pytest.mark.process
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_a_valid_module(script: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    run = subprocess.run([node, "--check", "--input-type=module"], input=script.read_bytes(), capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


def test_the_page_is_refused_for_a_foreign_host_and_knows_the_path_of_its_application(client: Any) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert 'src="/app/console/main.js"' in client.get("/", base_url="http://localhost/app").text
