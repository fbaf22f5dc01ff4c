"""The scale of cosines: what it maps, which spaces have none, and how often a space is measured."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.calibration import (
    CALIBRATIONS,
    FOREIGN,
    IDENTITY,
    Anchors,
    Calibration,
    Calibrations,
    Scale,
    keep_calibration,
    measure,
)
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable
from agentformer.types import Embedder, EmbeddingSpace, Matrix, TokenEmbedder, TokenVectors, Vector


class Spelling(HashingEmbedder):
    """Passes for an embedder that knows meaning; `broken` ones fail."""

    def __init__(self, languages: str = "*") -> None:
        super().__init__()
        self.languages = languages
        self.broken = False
        self.read: list[str] = []

    @property
    def space(self) -> EmbeddingSpace:
        return dataclasses.replace(super().space, provider=type(self).__name__, languages=self.languages)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if self.broken:
            raise EmbedderUnavailable("away")
        self.read += texts
        return super().embed_documents(texts)


class Squeezed(Spelling):
    """All cosines are between .7 and 1."""

    @property
    def space(self) -> EmbeddingSpace:
        return dataclasses.replace(super().space, dimension=257)

    def embed_query(self, text: str) -> Vector:
        return np.append(np.sqrt(np.float32(0.3)) * super().embed_query(text), np.sqrt(np.float32(0.7)))


class Read(Spelling):
    """Has vectors of tokens: the words of a text."""

    def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
        words = [text.split() for text in texts]
        rows = [np.stack([self.embed_query(word) for word in each]) for each in words]
        return [TokenVectors(self.embed_query(text), (), row) for text, row in zip(texts, rows, strict=True)]


def test_the_anchors_become_those_of_minilm_and_its_own_cosines_do_not_change() -> None:
    scale = Scale({"": Anchors(0.78, 0.89), "fi": Anchors(0.76, 0.88)}, IDENTITY.reference)
    unrelated, related = IDENTITY.reference
    for language, low, high in (("fi", 0.76, 0.88), ("", 0.78, 0.89), ("sw", 0.78, 0.89)):
        assert scale.of(low, language) == pytest.approx(unrelated)
        assert scale.of(high, language) == pytest.approx(related)
        assert (scale.of(1.0, language), scale.of(-1.0, language)) == (1.0, -1.0)
        mapped = scale.map(np.linspace(-1, 1, 500), language)
        assert (np.diff(mapped) >= 0).all() and -1 <= mapped[0] < mapped[-1] == 1
    assert [IDENTITY.of(cosine) for cosine in (-1.0, 0.3, 0.37, 1.0)] == [-1.0, 0.3, 0.37, 1.0]


@pytest.mark.parametrize("languages", ["", "*", "fi sv", "tlh"])
def test_a_space_whose_cosines_are_all_high_has_the_scale_of_one_whose_are_not(languages: str) -> None:
    plain, squeezed = measure(Spelling(languages)).texts, measure(Squeezed(languages)).texts
    assert plain is not None and squeezed is not None and plain.anchors.keys() == squeezed.anchors.keys()
    assert all(math.isfinite(number) for pair in plain.anchors.values() for number in pair)
    for language in ("en", "fi", "xx", FOREIGN):
        for cosine in (-0.3, 0.0, 0.2, 0.35, 0.5, 0.8, 1.0):
            assert squeezed.of(0.7 + 0.3 * cosine, language) == pytest.approx(plain.of(cosine, language), abs=1e-4)


def test_the_packaged_minilm_keeps_its_cosines(minilm: Embedder) -> None:
    calibration = measure(minilm)
    for scale in calibration:
        assert scale is not None
        for cosine in np.linspace(-1, 1, 41):
            assert scale.of(float(cosine), "en") == pytest.approx(float(cosine), abs=0.005)
            assert scale.of(float(cosine), "fi") == scale.of(float(cosine), "en")


def test_the_hashing_embedder_keeps_its_cosines() -> None:
    assert measure(HashingEmbedder()) == Calibration()


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.05, 1.0, float("nan")])
def test_vectors_that_do_not_separate_related_texts_have_no_scale(noise: float) -> None:
    class Constant(Spelling):
        def embed_query(self, text: str) -> Vector:
            seed = int.from_bytes(text.encode()[:40], "little")
            row = np.eye(256)[0] + noise * np.random.default_rng(seed).normal(size=256) / 16
            return (row / np.linalg.norm(row)).astype(np.float32)

    assert measure(Constant()) == Calibration(None, None)


def test_a_language_that_the_model_hardly_knows_does_not_turn_noise_into_nearness() -> None:
    class Western(Spelling):
        def embed_query(self, text: str) -> Vector:
            known: Vector = super().embed_query(text if text.isascii() or max(text) < "\u0fff" else "?")
            return known

    scale = measure(Western()).texts
    assert scale is not None
    unrelated, related = scale.anchors["zh"]
    assert unrelated == pytest.approx(1.0) and related - unrelated > 0.05


def test_texts_of_two_languages_are_compared_with_such_texts() -> None:
    class Apart(Spelling):
        """Gives the texts in ASCII another direction than all other texts."""

        def embed_query(self, text: str) -> Vector:
            row = np.append(super().embed_query(text), 2.0 if text.isascii() else -2.0)
            return (row / np.linalg.norm(row)).astype(np.float32)

    scale = measure(Apart("en ja")).texts
    assert scale is not None and scale.anchors[FOREIGN].unrelated < 0 < scale.anchors["en"].unrelated
    assert scale.of(0.0, FOREIGN) > scale.of(0.0, "en")
    assert scale.anchors[""].unrelated > 0, "the mean is that of single languages"
    english = measure(Apart("en")).texts
    assert english is not None and FOREIGN not in english.anchors


def test_tokens_have_a_scale_of_their_own() -> None:
    assert isinstance(Read(), TokenEmbedder)
    calibration = measure(Read("en"))
    assert calibration.texts is not None and calibration.tokens is not None
    assert calibration.texts.anchors == measure(Spelling("en")).texts.anchors  # type: ignore[union-attr]
    assert calibration.tokens.anchors["en"].unrelated > calibration.texts.anchors["en"].unrelated


def test_a_stored_calibration_is_read_and_saves_the_measurement() -> None:
    for embedder in (Read(), Spelling("fi"), HashingEmbedder()):
        measured = measure(embedder)
        assert Calibration.from_json(json.loads(json.dumps(measured.to_json()))) == measured
    assert Calibration.from_json(Calibration(None, None).to_json()) == Calibration(None, None)
    calibrations, reader = Calibrations(), Spelling()
    calibrations.add(reader.space, Calibration())
    assert calibrations.of(reader) == Calibration() and reader.read == []


def test_a_space_is_measured_once_in_the_languages_that_it_knows() -> None:
    calibrations = Calibrations()
    readers = {languages: Spelling(languages) for languages in ("", "fi sv", "*")}
    with ThreadPoolExecutor(8) as pool:
        measured = list(pool.map(lambda n: calibrations.of(readers["*" if n % 2 else ""]), range(40)))
    assert measured[0] == measured[2] != measured[1] == measured[3]
    assert calibrations.of(readers["fi sv"]).texts is not None
    assert [len(reader.read) for reader in readers.values()] == [4, 4, 22]
    assert {*readers["fi sv"].read} < {*readers["*"].read} > {*readers[""].read}


def test_an_embedder_that_fails_is_asked_again() -> None:
    calibrations, reader = Calibrations(), Spelling()
    reader.broken = True
    with pytest.raises(EmbedderUnavailable):
        calibrations.of(reader)
    reader.broken = False
    assert calibrations.of(reader).texts is not None


@pytest.mark.parametrize(
    "texts", ["{}", '{"en": [0.1, 0.6]}', '{"": [0.6, 0.1]}', '{"": [NaN, 0.6]}', '{"": [1]}', '{"": 1}', "[", None]
)
def test_a_damaged_file_of_a_scale_is_measured_again(tmp_path: Path, texts: str | None) -> None:
    embedder = Squeezed()
    keep_calibration(embedder, tmp_path)
    (file,) = tmp_path.glob("scales/*.json")
    whole = file.read_text()
    file.write_text("[]" if texts is None else f'{{"texts": {texts}}}')
    keep_calibration(embedder, tmp_path)
    assert file.read_text() == whole
    assert CALIBRATIONS.of(embedder).texts is not None
