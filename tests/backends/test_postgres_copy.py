"""A memory moves to a PostgreSQL database and back while it is written."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import agentformer
from agentformer.cli import main
from agentformer.cli.inputs import address, same_place, shown_place
from agentformer.settings import Settings
from agentformer.testing import make_entry
from tests.archive.conftest import everything, exported, fill, same
from tests.backends.postgres_server import schema_of
from tests.faults.long_form import LONG

NOTES, WRITTEN = (20_000, 100_000) if LONG else (200, 60)  # entries before and, at most, during the copy


def _copy(source: str, target: str, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["copy", "--embedder", "hashing", "--from", source, "--to", target, *options])
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


@pytest.mark.process
def test_a_memory_moves_to_postgres_and_back_with_a_writer(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_POSTGRES_SCHEMA", schema_of(tmp_path))
    monkeypatch.setenv("AGENTFORMER_UPLOAD_DIR", str(tmp_path / "u"))
    source, back = f"faiss:{tmp_path / 'i'}", f"faiss:{tmp_path / 'back'}"
    stop = threading.Event()
    with agentformer.connect(backend="faiss", index_dir=tmp_path / "i", embedder="hashing") as af:
        fill(af.backend)
        for start in range(0, NOTES, 1_000):
            af.backend.store([make_entry(f"note {n}") for n in range(start, min(start + 1_000, NOTES))])

        def write() -> None:
            for n in range(WRITTEN):
                (entry,) = af.backend.store([make_entry(f"written meanwhile {n}")])
                af.backend.update(entry.id, {"title": f"changed {n}"})
                if n % 5 == 0:
                    af.backend.remove([entry.id])
                if stop.wait(0.02):
                    return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            done = CliRunner().invoke(
                main, ["copy", "--embedder", "hashing", "--json", "--from", source, "--to", postgres_url]
            )
        finally:
            stop.set()
            writer.join()
        assert done.exit_code in (0, 1) and done.stdout, done.output
        assert json.loads(done.stdout)["stored"] >= NOTES
        print("copied while it was written:", done.stdout)
        moved = json.loads(_copy(source, postgres_url, "--delete", "--json"))
        assert moved["equal"] and moved["passes"] <= 2
        returned = json.loads(_copy(postgres_url, back, "--json"))
        assert returned["source"] == moved["source"]
        print("the last pass:", moved, "and back:", returned)
        with agentformer.connect(backend="faiss", index_dir=tmp_path / "back", embedder="hashing") as copied:
            assert everything(copied.backend) == everything(af.backend)
            exported(af.backend, tmp_path / "x", vectors=True)
            exported(copied.backend, tmp_path / "y", vectors=True)
    assert same(tmp_path / "x", tmp_path / "y")


@pytest.mark.process
def test_an_address_is_printed_without_its_password(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_POSTGRES_SCHEMA", schema_of(tmp_path))
    monkeypatch.setenv("AGENTFORMER_UPLOAD_DIR", str(tmp_path / "u"))
    with agentformer.connect(backend="faiss", index_dir=tmp_path / "i", embedder="hashing") as af:
        af.memory.store("The sauna is free on Thursdays.")
    url = postgres_url.replace("postgres:@", "postgres:geheim@")
    assert "geheim" in url
    said = _copy(f"faiss:{tmp_path / 'i'}", url)
    assert "1 entry in postgresql:///postgres (stored: 1" in said and "geheim" not in said
    for source, target, message in (
        (url, url, "--to: is the same memory as --from"),
        ("postgres://me:geheim@127.0.0.1:1/x", f"faiss:{tmp_path / 'i'}", "cannot be reached"),
        ("postgres://me:geheim@[bad/x", f"faiss:{tmp_path / 'i'}", "postgres_url: must be the address"),
    ):
        failed = CliRunner().invoke(main, ["copy", "--embedder", "hashing", "--from", source, "--to", target])
        assert failed.exit_code and message in failed.stderr, failed.output
        assert "geheim" not in failed.output
    monkeypatch.setenv("AGENTFORMER_POSTGRES_SCHEMA", "nothing_here")
    assert "there is no memory in this database" in _copy(url, f"faiss:{tmp_path / 'i'}", code=2)


def test_addresses_are_places() -> None:
    assert address("--to", "postgres://db/x")["postgres_url"] == "postgres://db/x"
    assert address("--to", "postgres:nodes")["index_dir"] == Path("nodes")  # the address comes from the settings
    assert shown_place("postgres://me:a@b@db:5432/x?password=c") == "postgres://db:5432/x"
    assert shown_place("faiss:a@b?c") == "faiss:a@b?c"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"postgres_url": "postgres://db/x", "index_dir": Path("b")}, True),
        ({"postgres_url": "postgres://db/y"}, False),
        ({"postgres_url": "postgres://db/x", "backend": "faiss"}, False),
    ],
)
def test_the_same_memory_is_noticed(other: dict[str, object], same: bool) -> None:
    one = Settings(backend="postgres", postgres_url="postgres://db/x", index_dir=Path("a"))
    assert same_place(one, Settings(**{"backend": "postgres", **other})) is same  # type: ignore[arg-type]
