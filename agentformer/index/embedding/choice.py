"""The embedder that the settings choose. For the setting `auto`, it is the embedder of the stored vectors or, for a new
store, the best one that can be loaded on this machine."""

from __future__ import annotations

import logging
from contextlib import suppress

from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.embedders.hub import local_folder
from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra, install_command
from agentformer.index.embedding.active import ActiveEmbedder
from agentformer.registry import built_in_names, lookup, of_backends
from agentformer.settings import Settings
from agentformer.types import Embedder, EmbeddingSpace

log = logging.getLogger("agentformer")


def build_embedder(settings: Settings) -> ActiveEmbedder:
    """Return the embedder of the settings. After `reembed` has moved the store to another model, the returned embedder
    uses the new model. Each model is loaded when it is first used. Raises `InvalidInput` for an unknown provider."""
    seconds = settings.breaker_seconds

    def of_space(space: EmbeddingSpace) -> GuardedEmbedder:
        return GuardedEmbedder(lambda: _stored(space.spec, settings), seconds=seconds)

    if settings.embedder == "auto":
        automatic = GuardedEmbedder(lambda: _automatic(settings), seconds=seconds)
        return ActiveEmbedder(automatic, of_space, requested="", seconds=seconds)
    named = named_embedder(settings.embedder, settings)
    return ActiveEmbedder(named, of_space, requested=settings.embedder, seconds=seconds)


def named_embedder(spec: str, settings: Settings) -> GuardedEmbedder:
    """Return the embedder `spec`, which has the form `provider:model`. The model is loaded when it is first used.
    Raises `InvalidInput` for an unknown provider."""
    provider, _, model = spec.partition(":")
    if provider not in built_in_names("embedders"):
        lookup("embedders", provider)  # an unknown or broken plugin is reported now
    return GuardedEmbedder(lambda: lookup("embedders", provider)(model, settings), seconds=settings.breaker_seconds)


def _stored_space(settings: Settings) -> EmbeddingSpace | None:
    return next((space for space in of_backends("stored_spaces", settings) if space is not None), None)


def check_space(settings: Settings, embedder: ActiveEmbedder) -> None:
    """Raise `SpaceMismatch` if the vectors of the store are from another model than the configured embedder. If the
    embedder cannot be loaded now, only log a warning; the check is repeated when the embedder is loaded."""
    space = _stored_space(settings)
    if space is None or settings.embedder in ("auto", space.spec):
        embedder.follow_store()
        return
    # If the names are equal, the embedder is not loaded. A setting without a model means the provider's default model.
    provider, _, model = settings.embedder.partition(":")
    if provider == space.provider != "hashing" and (not model or space.model.endswith(f"@{model}")):
        return
    try:
        embedder.for_space(space)
    except EmbedderUnavailable as error:
        log.warning("the embedder %s cannot be used now: %s", settings.embedder, error)


def _automatic(settings: Settings) -> Embedder:
    """Return the embedder for the setting `auto`. This is the embedder of the stored vectors. If there are no vectors,
    but entries wait to be embedded, it is the embedder that was requested for these entries. For a new store, it is the
    first of these that can be loaded without the network: the multilingual model of the settings if it is on this
    machine, the packaged multilingual model, the packaged English model, and else hashing."""
    if space := _stored_space(settings):
        return _stored(space.spec, settings)
    if wanted := next(filter(None, of_backends("wanted_embedders", settings)), ""):
        log.warning("this memory uses the embedder %s, because stored entries still need its vectors", wanted)
        return _stored(wanted, settings)
    choices = [
        ("multilingual", "packaged, multilingual; another one: agentformer reembed --to NAME"),
        ("minilm", "packaged, English alone; for other languages: %s, then agentformer reembed --to multilingual"),
        ("hashing", "letters alone, not meaning; for more: %s, then agentformer reembed --to multilingual"),
    ]
    found = local_folder(name := settings.multilingual_model)
    if found and (found / "model.safetensors").exists():  # torch would download what an unfinished download lacks
        local = "multilingual, found on this machine; another one: agentformer reembed --to NAME"
        choices.insert(0, (f"sbert:{name}", local))
    for spec, described in choices:
        with suppress(EmbedderUnavailable):
            embedder = _stored(spec, settings)
            hint = described % install_command("multilingual") if "%s" in described else described
            log.warning("embedder of this new memory: %s (%s)", spec, hint)
            return embedder
    raise AssertionError("hashing can always be used")


def _stored(spec: str, settings: Settings) -> Embedder:
    """Return the embedder `spec`, which an existing store or the setting `auto` requires. Every problem is raised as
    `EmbedderUnavailable`, because the caller did not choose this embedder."""
    provider, _, model = spec.partition(":")
    try:
        embedder: Embedder = lookup("embedders", provider)(model, settings)
    except (EmbedderUnavailable, InvalidInput, MissingExtra) as error:
        raise EmbedderUnavailable(
            f"the embedder {spec} cannot be used: {error}. Until the embedder works, entries are stored "
            "without vectors, and only a search by words finds them"
        ) from error
    return embedder
