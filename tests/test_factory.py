"""What is built from settings: names, precedence, and errors that list what there is."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agentformer
from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra
from agentformer.factory import build_embedder, build_model
from agentformer.llms.echo import EchoModel
from agentformer.llms.guarded import GuardedModel
from agentformer.settings import Settings, load_settings
from agentformer.types import EmbeddingSpace


def test_an_argument_beats_the_environment_and_that_beats_the_default() -> None:
    environ = {"AGENTFORMER_TOP_K": "5", "AGENTFORMER_CHUNK_TOKENS": "200"}
    settings = load_settings({"top_k": 7, "fanout": None}, environ)
    assert (settings.top_k, settings.chunk_tokens, settings.fanout) == (7, 200, Settings().fanout)


def test_a_wrong_setting_is_named() -> None:
    for given, field in [
        ({"colour": "red"}, "colour"),
        ({"top_k": "three"}, "top_k"),
        ({"top_k": 0}, "top_k"),
        ({"chunk_overlap": 500}, "chunk_overlap"),
        ({"temperature": 3.0}, "temperature"),
        ({"port": 70_000}, "port"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            load_settings(given, {})
        assert caught.value.field == field


def test_a_key_is_not_shown() -> None:
    assert "canary" not in repr(load_settings({"llm_api_key": "canary"}, {}))


def test_an_unknown_part_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="hashing, minilm, multilingual, ollama, openai, sbert"):
        build_embedder(Settings(embedder="word2vec"))
    with pytest.raises(InvalidInput, match="known names are cosmos_db, faiss"):
        agentformer.connect(index_dir=tmp_path, backend="redis", embedder="hashing")


def inside(model: object) -> object:
    """Return the model behind its guard."""
    return model.provider() if isinstance(model, GuardedModel) else None


def test_a_models_own_colons_are_kept() -> None:
    pytest.importorskip("openai", reason="the extra `llm` is not installed")
    assert build_model(Settings()) is None
    assert isinstance(inside(build_model(Settings(llm_model="echo"))), EchoModel)
    for spec, name in (("gemma3:4b", "gemma3:4b"), ("openai:gpt-4o", "gpt-4o"), ("tiny", "tiny")):
        assert getattr(inside(build_model(Settings(llm_model=spec))), "_model", None) == name


def test_an_embedder_that_failed_to_load_is_not_loaded_for_every_call() -> None:
    loads: list[int] = []

    def load() -> None:
        loads.append(1)
        raise EmbedderUnavailable("no model")

    embedder = GuardedEmbedder(load)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(EmbedderUnavailable, match="no model"):
            embedder.embed_query("x")
    assert len(loads) == 1


@pytest.mark.parametrize("spec", ["minilm", "minilm:int8", "minilm:all-MiniLM-L6-v2@int8"])
def test_opening_a_store_with_its_own_embedder_loads_no_model(
    tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = EmbeddingSpace("minilm", "all-MiniLM-L6-v2@int8", dimension=384, max_tokens=254)
    monkeypatch.setattr("agentformer.memory.backends.faiss.folder.stored_space", lambda folder: space)
    with agentformer.connect(index_dir=tmp_path, embedder=spec) as af:
        assert af.embedder.current.known_space is None
    with pytest.raises(InvalidInput, match="minilm is always all-MiniLM-L6-v2"):
        agentformer.connect(index_dir=tmp_path, embedder="minilm:another")


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Exception | None]:
    """The local models: None for one that can be loaded. Each has as many dimensions as its name has letters."""
    choice: dict[str, Exception | None] = {}
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def loader(name: str) -> Callable[[str, Settings], HashingEmbedder]:
        def load(model: str, settings: Settings) -> HashingEmbedder:
            if error := choice.get(name):
                raise error
            embedder = HashingEmbedder(64 + len(name))
            embedder._space = dataclasses.replace(embedder.space, provider=name, model=model)
            return embedder

        return load

    for name, method in (("multilingual", "multilingual"), ("minilm", "minilm"), ("sbert", "from_settings")):
        monkeypatch.setattr(SbertEmbedder, method, loader(name))
    return choice


def in_the_hubs_cache(folder: Path, *files: str) -> None:
    model = folder / "hub" / "models--sentence-transformers--paraphrase-multilingual-mpnet-base-v2"
    (model / "snapshots" / "0123").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0123")
    for name in files:
        (model / "snapshots" / "0123" / name).touch()


UNUSABLE = {"multilingual": EmbedderUnavailable("damaged"), "minilm": MissingExtra("fast", "it")}


@pytest.mark.parametrize(
    ("unusable", "chosen"),
    [([], "multilingual"), (["multilingual"], "minilm"), (["multilingual", "minilm"], "hashing")],
)
def test_auto_takes_the_best_model_that_can_be_loaded_for_a_new_memory(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    choice: dict[str, Exception | None],
    unusable: list[str],
    chosen: str,
) -> None:
    choice |= {name: UNUSABLE[name] for name in unusable}
    with agentformer.connect(index_dir=tmp_path / "i", embedder="auto") as af:
        assert af.embedder.space.provider == chosen
    (said,) = [record.message for record in caplog.records if "embedder" in record.message]
    assert said.startswith(f"embedder of this new memory: {chosen} (")
    assert ("[multilingual]" in said) == bool(unusable)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [(["config.json", "model.safetensors"], "sbert"), (["config.json"], "multilingual"), ([], "multilingual")],
)
def test_auto_takes_a_multilingual_model_of_the_hub_only_if_it_is_on_this_machine(
    tmp_path: Path, choice: dict[str, Exception | None], files: list[str], chosen: str
) -> None:
    in_the_hubs_cache(tmp_path, *files)
    with agentformer.connect(index_dir=tmp_path / "i", embedder="auto") as af:
        assert af.embedder.space.provider == chosen
    choice["sbert"] = EmbedderUnavailable("damaged")
    with agentformer.connect(index_dir=tmp_path / "j", embedder="auto") as af:
        assert af.embedder.space.provider == "multilingual"


@pytest.mark.parametrize("first", ["minilm", "multilingual", "hashing"])
def test_a_memory_keeps_its_space_whatever_else_can_be_loaded_later(
    tmp_path: Path, choice: dict[str, Exception | None], first: str
) -> None:
    choice |= {name: error for name, error in UNUSABLE.items() if name != first}
    with agentformer.connect(index_dir=tmp_path / "i", embedder=first) as af:
        af.memory.store("the keys of the harbour")
        space = af.embedder.space
    choice.clear()
    in_the_hubs_cache(tmp_path, "config.json", "model.safetensors")
    with agentformer.connect(index_dir=tmp_path / "i", embedder="auto") as af:
        assert af.embedder.space == space
        assert af.memory.search("keys", mode="dense")[0].entry.content == "the keys of the harbour"


def test_a_memory_whose_model_is_gone_is_searched_by_words_and_takes_no_other_model(
    tmp_path: Path, choice: dict[str, Exception | None]
) -> None:
    with agentformer.connect(index_dir=tmp_path / "i", embedder="auto") as af:
        af.memory.store("the keys of the harbour")
    choice["multilingual"] = UNUSABLE["multilingual"]
    with agentformer.connect(index_dir=tmp_path / "i", embedder="auto") as af:
        with pytest.raises(EmbedderUnavailable, match="the embedder multilingual: cannot be used: damaged"):
            af.embedder.embed_query("keys")
        af.memory.store("the teapot")
        assert [hit.entry.content for hit in af.memory.search("teapot")] == ["the teapot"]
    choice.clear()
    with agentformer.connect(index_dir=tmp_path / "i", embedder="auto") as af:
        assert af.embedder.space.provider == "multilingual"
        assert len(af.memory.search("keys", mode="dense")) >= 1


def test_a_written_answer_comes_from_the_configured_model(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**folders, embedder="hashing", llm_model="echo") as af:
        af.rag.upload(b"The keys hang in the blue cupboard.", name="keys.txt")
        answer = af.rag.query("Where do the keys hang?")
    assert answer.mode == "llm"
    assert "The keys hang in the blue cupboard." in answer.text


def test_a_wrong_language_model_is_reported_by_ready_and_not_by_calls_without_one(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**folders, embedder="hashing", llm_model="openai:") as af:
        assert af.rag.documents() == []
        with pytest.raises(InvalidInput, match="llm_model"):
            af.ready()
    with agentformer.connect(**folders, embedder="hashing", llm_model="echo") as af:
        assert af.ready() is af


def test_several_threads_get_the_same_part_and_a_failed_part_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []

    def build(*arguments: object, **options: object) -> object:
        built.append(object())
        if len(built) == 1:
            raise InvalidInput("part", "is missing")
        time.sleep(0.05)
        return built[-1]

    monkeypatch.setattr("agentformer.factory.build_rag", build)
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        with pytest.raises(InvalidInput, match="is missing"):
            _ = af.rag
        with ThreadPoolExecutor(4) as threads:
            parts = list(threads.map(lambda _: af.rag, range(4)))
        assert len(built) == 2 and all(part is built[1] for part in parts)


@pytest.mark.process
def test_modules_are_reachable_after_a_plain_import() -> None:
    code = "import agentformer\nassert agentformer.errors.NotFound and agentformer.memory and agentformer.tools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(AttributeError, match="conect"):
        _ = agentformer.conect  # type: ignore[attr-defined]
