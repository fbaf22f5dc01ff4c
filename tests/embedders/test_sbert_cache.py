"""The folder of exported models: whole or not there at all, whoever asks for it and whatever became of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import textwrap
import urllib.error
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentformer.embedders.sbert.export import ExportCache
from agentformer.embedders.sbert.openvino import NotExportable, OpenVinoUnavailable
from agentformer.embedders.sbert.runtime import load_model
from agentformer.errors import EmbedderUnavailable


class Maker:
    """Writes a small export, and counts how often it had to."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, target: Path) -> None:
        self.made += 1
        (target / "model.bin").write_bytes(b"weights" * self.made)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return folder


def test_an_export_is_made_once_and_found_again(model: Path, tmp_path: Path) -> None:
    make = Maker()
    first = ExportCache(tmp_path / "cache").export(model, "", make)
    assert ExportCache(tmp_path / "cache").export(model, "", make) == first
    assert make.made == 1
    assert (first / "model.bin").read_bytes() == b"weights"


def test_a_copy_of_the_model_has_the_same_export_and_another_precision_has_its_own(model: Path, tmp_path: Path) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert cache.export(copy, "", make) == cache.export(model, "", make)
    assert cache.export(model, "int8", make) != cache.export(model, "", make)
    assert make.made == 2


def test_weights_that_changed_without_changing_size_or_time_are_another_model(model: Path, tmp_path: Path) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    first = cache.export(model, "", make)
    weights = model / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(bytes(999) + b"x")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.export(model, "", make) != first


@pytest.mark.parametrize("damage", ["shorter", "missing", "no list", "half a list"])
def test_a_torn_export_is_made_anew(model: Path, tmp_path: Path, damage: str) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    place = cache.export(model, "", make)
    listed = place / "whole.json"
    match damage:
        case "shorter":
            (place / "model.bin").write_bytes(b"wei")
        case "missing":
            (place / "model.bin").unlink()
        case "no list":
            listed.unlink()
        case _:
            listed.write_text(listed.read_text()[:5])
    assert cache.export(model, "", make) == place
    assert make.made == 2
    assert (place / "model.bin").read_bytes() == b"weights" * 2


def test_one_that_is_no_good_is_replaced_when_asked_and_nothing_is_left_beside_it(model: Path, tmp_path: Path) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    place = cache.export(model, "", make)
    assert cache.export(model, "", make, replace=True) == place
    assert make.made == 2
    assert [left.name for left in place.parent.iterdir() if left.is_dir()] == [place.name]


def test_an_export_that_fails_leaves_nothing_and_the_next_one_works(model: Path, tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        (target / "model.bin").write_bytes(b"half")
        raise OpenVinoUnavailable("no space")

    cache = ExportCache(tmp_path / "cache")
    with pytest.raises(OpenVinoUnavailable, match="no space"):
        cache.export(model, "", fail)
    assert [left for left in (tmp_path / "cache" / "models").iterdir() if left.is_dir()] == []
    assert (cache.export(model, "", Maker()) / "model.bin").exists()


def test_what_a_killed_process_left_is_removed(model: Path, tmp_path: Path) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    place = cache.export(model, "", make)
    left = place.with_name(f"{place.name}.dead.part")
    left.mkdir()
    (left / "model.bin").write_bytes(b"half")
    (place / "model.bin").unlink()
    cache.export(model, "", make)
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_told_and_not_used(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenVinoUnavailable, match=r"cache folder .*file cannot be used"):
        ExportCache(tmp_path / "file").export(model, "", Maker())
    with pytest.raises(OpenVinoUnavailable, match="cannot be used"):
        ExportCache(Path(os.devnull)).export(model, "", Maker())


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OpenVinoUnavailable, match="contains no model files"):
        ExportCache(tmp_path / "cache").export(tmp_path / "empty", "", Maker())


@pytest.mark.process
def test_of_processes_that_ask_at_once_one_exports(model: Path, tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from agentformer.embedders.sbert.export import ExportCache
        model, cache, log = map(Path, sys.argv[1:])
        def make(target):
            with log.open("a") as out:
                out.write("made\\n")
            (target / "model.bin").write_bytes(b"half")
            time.sleep(0.5)
            (target / "model.bin").write_bytes(b"whole")
        place = ExportCache(cache).export(model, "", make)
        sys.stdout.write((place / "model.bin").read_text())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(model), str(tmp_path / "cache"), str(tmp_path / "log")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in running] == ["whole"] * 3
    assert (tmp_path / "log").read_text() == "made\n"


def test_an_export_is_used_where_nothing_can_be_noted_of_the_model(model: Path, tmp_path: Path) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    first = cache.export(model, "", make)
    for file in (tmp_path / "cache" / "stamps").iterdir():
        file.unlink()
    (tmp_path / "cache" / "stamps").rmdir()
    (tmp_path / "cache" / "stamps").write_text("not a folder, so that nothing can be written there, not even by root")
    assert cache.export(model, "", make) == first
    assert make.made == 1


class Refusing(Maker):
    """A model that cannot be exported."""

    def __call__(self, target: Path) -> None:
        super().__call__(target)
        raise NotExportable("some layer")


def test_a_model_that_cannot_be_exported_is_tried_once_and_the_reason_told_each_time(
    model: Path, tmp_path: Path
) -> None:
    make = Refusing()
    for _ in range(3):
        with pytest.raises(NotExportable, match="some layer"):
            ExportCache(tmp_path / "cache").export(model, "int8", make)
    assert make.made == 1
    assert ExportCache(tmp_path / "cache").export(model, "", Maker())  # the other precision may well be


def test_another_version_of_a_package_is_another_try(model: Path, tmp_path: Path) -> None:
    cache = ExportCache(tmp_path / "cache")
    with pytest.raises(NotExportable):
        cache.export(model, "", Refusing())
    (refusal,) = (tmp_path / "cache" / "models").glob("*.refused")
    told = json.loads(refusal.read_text())
    refusal.write_text(json.dumps({**told, "versions": {**told["versions"], "torch": "0.1"}}))
    assert cache.export(model, "", Maker())
    assert not refusal.exists()


def test_what_fails_for_the_moment_is_tried_again(model: Path, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise OpenVinoUnavailable("no memory")

    with pytest.raises(OpenVinoUnavailable):
        ExportCache(tmp_path / "cache").export(model, "", fail)
    assert ExportCache(tmp_path / "cache").export(model, "", Maker())


def test_an_export_that_is_refused_when_made_anew_is_not_made_again(model: Path, tmp_path: Path) -> None:
    make, cache = Maker(), ExportCache(tmp_path / "cache")
    cache.export(model, "", make)
    cache.export(model, "", make, replace=True)
    cache.refuse(model, "", "other vectors")
    with pytest.raises(NotExportable, match="other vectors"):
        cache.export(model, "", make, replace=True)
    assert make.made == 2


def test_exports_of_the_same_model_by_other_versions_go_when_nobody_loads_them(model: Path, tmp_path: Path) -> None:
    cache = ExportCache(tmp_path / "cache")
    place, quantised = cache.export(model, "", Maker()), cache.export(model, "int8", Maker())
    unused, used = place.with_name("former"), place.with_name("shared")
    for former in (unused, used):
        shutil.copytree(place, former)
    for folder in (unused, quantised):
        os.utime(folder / "of.json", (1, 1))
    assert cache.export(model, "", Maker()) == place
    assert [folder.exists() for folder in (unused, used, quantised)] == [False, True, True]


@pytest.mark.slow
def test_a_model_that_no_hub_can_send_is_unavailable_without_the_retries_of_the_hubs_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    failures: list[OSError] = []

    def answer(url: str, timeout: float) -> Any:
        asked.append(url)
        raise urllib.error.URLError(failures[-1])

    def load(*arguments: Any, **options: Any) -> Any:
        raise OSError("the hub's client was asked")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("urllib.request.urlopen", answer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=load))
    for failure, said in (
        (OSError("no address"), "it is not cached, and the model hub does not answer; check the connection"),
        (ssl.SSLError("another certificate"), "the hub's client was asked"),
    ):
        failures.append(failure)
        with pytest.raises(EmbedderUnavailable, match=re.escape(said)):
            load_model("no-such-model", local_only=False, device="")
    assert asked and all("sentence-transformers/no-such-model" in url for url in asked)
