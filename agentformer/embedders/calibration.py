"""Maps the cosines of each embedding space to one scale, so that a constant means the same for every model.

The cosines of unrelated texts are about 0 with all-MiniLM-L6-v2, and about .78 with multilingual-e5-small. Therefore,
`measure` embeds a few questions and passages (`related_texts.txt`) and finds two anchors in each language that the
model knows: the mean cosine of unrelated texts and the mean cosine of related texts. A `Scale` maps these anchors to
those of all-MiniLM-L6-v2, because the constants of this package were chosen on its cosines. The cosines of
all-MiniLM-L6-v2 itself do not change. Texts of two languages are often further apart, so such pairs have anchors of
their own."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.settings.access import make_folder, write_whole
from agentformer.types import Embedder, EmbeddingSpace, Matrix, TokenEmbedder

Cosines = NDArray[np.floating[Any]]

_ALL = ""  # the key of the mean anchors, for texts in a language without samples
FOREIGN = "foreign"  # the key of the anchors of a question and a passage in two languages
_SPELLING = "hashing"  # an embedder that compares spelling; its cosines are as low as those of MiniLM
_LEAST_GAP = 0.005  # minimum distance of the two anchors; vectors that are all equal have a smaller one
_LEAST_DEVIATIONS = 2.0  # and minimum in standard deviations of unrelated texts; random vectors have a smaller one
_LEAST_OF_LANGUAGE = 0.5  # minimum gap of a language, relative to the mean; a smaller one would amplify noise
_CALLS = 8  # questions that are embedded at the same time


class _Sample(NamedTuple):
    """A line of `related_texts.txt`. Texts with the same topic are related, in any language."""

    language: str
    topic: str
    kind: str
    text: str


_LINES = Path(__file__).with_name("related_texts.txt").read_text("utf-8").splitlines()
_SAMPLES = [_Sample(*line.split(" ", 3)) for line in _LINES if line and not line.startswith("#")]


class Anchors(NamedTuple):
    """The mean cosine of unrelated texts, and the mean cosine of a question and a passage that answers it."""

    unrelated: float
    related: float


# The anchors of the packaged all-MiniLM-L6-v2: for whole texts, and for a token and the nearest token of another text.
_TEXTS = Anchors(0.0458, 0.6485)
_TOKENS = Anchors(0.1510, 0.6754)


class Scale(NamedTuple):
    """Maps cosines of one embedding space to the cosines that all-MiniLM-L6-v2 gives to texts of the same similarity.
    `anchors` is a dictionary: language code -> the anchors of the space; "" -> their means, for other languages;
    `FOREIGN` -> the anchors of texts in two languages, if the model knows several. `reference` are the
    anchors of all-MiniLM-L6-v2."""

    anchors: Mapping[str, Anchors]
    reference: Anchors

    def map(self, cosines: Cosines, language: str = _ALL) -> Cosines:
        """Return the mapped cosines (-1..1) of texts in a language. A cosine up to `related` is mapped by the line on
        which both anchors get the values of `reference`. A higher one is mapped by the line from there to 1, so 1 stays
        1 if `related` is less than 1. A higher cosine never gives a lower value."""
        own = self.anchors.get(language) or self.anchors[_ALL]
        if own == self.reference:
            return cosines
        (unrelated, related), (low, high) = own, self.reference
        below = low + (cosines - unrelated) * ((high - low) / (related - unrelated))
        above = 1 - (1 - cosines) * ((1 - high) / max(1 - related, 1e-6))
        return np.clip(np.where(cosines <= related, below, above), -1.0, 1.0)

    def of(self, cosine: float, language: str = _ALL) -> float:
        """Return one mapped cosine."""
        return float(self.map(np.array(cosine), language))


IDENTITY = Scale({_ALL: _TEXTS}, _TEXTS)  # of all-MiniLM-L6-v2


class Calibration(NamedTuple):
    """The scales of an embedding space: of the cosines of whole texts, and of the cosines of a token and the nearest
    token of another text. A scale is None if such cosines cannot be used."""

    texts: Scale | None = IDENTITY
    tokens: Scale | None = None

    def to_json(self) -> dict[str, dict[str, Anchors]]:
        """Return the anchors of each scale, as an object that `json.dumps` accepts and `from_json` reads."""
        return {name: dict(scale.anchors) for name, scale in self._asdict().items() if scale}

    @classmethod
    def from_json(cls, values: Any) -> Calibration:
        """Return the calibration that `to_json` has written. Raises `ValueError` for values that are no anchors."""

        if not isinstance(values, dict):
            raise ValueError("the values are no object")

        def scale(name: str, reference: Anchors) -> Scale | None:
            if name not in values:
                return None
            anchors = {code: Anchors(*map(float, pair)) for code, pair in values[name].items()}
            if _ALL not in anchors or not all(-1.01 <= low < high <= 1.01 for low, high in anchors.values()):
                raise ValueError("anchors are missing, or related texts are not nearer than unrelated ones")
            return Scale(anchors, reference)

        return cls(scale("texts", _TEXTS), scale("tokens", _TOKENS))


class Calibrations:
    """A cache of the calibration of each embedding space. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[EmbeddingSpace, Calibration] = {}
        self._measuring = threading.Lock()

    def of(self, embedder: Embedder) -> Calibration:
        """Return the calibration of the embedder's space. The first call for a space embeds the samples, at most 44
        short texts. If the embedder fails, its error is raised, and the next call measures again."""
        space = embedder.space
        if space not in self._known:
            with self._measuring:
                if space not in self._known:
                    self._known[space] = measure(embedder)
        return self._known[space]

    def add(self, space: EmbeddingSpace, calibration: Calibration) -> None:
        """Store a calibration that was measured earlier, so that the samples are not embedded."""
        self._known[space] = calibration


CALIBRATIONS = Calibrations()


def keep_calibration(embedder: Embedder, folder: Path) -> None:
    """Take the calibration of the embedder's space from a file in the folder. If there is no such file, measure the
    calibration and write the file, so that no later process has to. A folder that cannot be written costs only time."""
    space = embedder.space
    key = [space.spec, space.fingerprint, space.query_prefix, space.document_prefix, space.languages, *_LINES]
    name = hashlib.blake2b("\n".join(key).encode(), digest_size=16).hexdigest()
    file = folder / "scales" / f"{name}.json"
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        CALIBRATIONS.add(space, Calibration.from_json(json.loads(file.read_text(encoding="utf-8"))))
        return
    calibration = CALIBRATIONS.of(embedder)
    with suppress(OSError):
        make_folder(file.parent)
        write_whole(file, json.dumps(calibration.to_json()))


def measure(embedder: Embedder) -> Calibration:
    """Measure the anchors of the embedder's space. Raises `EmbedderError` if the embedder fails."""
    space = embedder.space
    if space.provider == _SPELLING:
        return Calibration()
    samples = _samples(space)
    questions = [sample for sample in samples if sample.kind == "question"]
    passages = [sample for sample in samples if sample.kind == "passage"]
    of_texts, of_tokens = _compared(embedder, [each.text for each in questions], [each.text for each in passages])
    same_topic = np.array([[one.topic == other.topic for other in passages] for one in questions])
    inside = {
        code: np.array([[one.language == code == other.language for other in passages] for one in questions])
        for code in dict.fromkeys(sample.language for sample in samples)
    }

    foreign = ~np.any(list(inside.values()), axis=0)
    if (foreign & same_topic).any():
        inside[FOREIGN] = foreign

    def scale(cosines: Matrix, reference: Anchors) -> Scale | None:
        pairs = {code: (cosines[mask & ~same_topic], cosines[mask & same_topic]) for code, mask in inside.items()}
        return _scale(pairs, reference)

    return Calibration(scale(of_texts, _TEXTS), None if of_tokens is None else scale(of_tokens, _TOKENS))


def _samples(space: EmbeddingSpace) -> list[_Sample]:
    """Return the samples in the languages of the space. If there are none, return the English samples."""
    known = [each for each in _SAMPLES if space.languages == "*" or each.language in space.languages.split()]
    return known or [each for each in _SAMPLES if each.language == "en"]


def _compared(embedder: Embedder, questions: list[str], passages: list[str]) -> tuple[Matrix, Matrix | None]:
    """Return the cosines of each question (row) and each passage (column), and the mean cosines of the question's
    tokens with the nearest tokens of the passage. The latter is None if the embedder has no vectors of tokens."""
    if isinstance(embedder, TokenEmbedder):
        asked, read = embedder.embed_tokens(questions, query=True), embedder.embed_tokens(passages)
        if asked is not None and read is not None:
            texts = np.stack([each.vector for each in asked]) @ np.stack([each.vector for each in read]).T
            nearest = [[float((one.rows @ other.rows.T).max(axis=1).mean()) for other in read] for one in asked]
            return texts, np.array(nearest, dtype=np.float32)
    with ThreadPoolExecutor(_CALLS) as pool:  # an embedder over HTTP sends a request for each question
        rows = list(pool.map(embedder.embed_query, questions))
    return np.stack(rows) @ embedder.embed_documents(passages).T, None


def _scale(pairs: Mapping[str, tuple[Cosines, Cosines]], reference: Anchors) -> Scale | None:
    """Return the scale of a space. `pairs` is a dictionary: language code -> the cosines of unrelated texts, and of
    related texts. `reference` are the anchors of all-MiniLM-L6-v2 for the same kind of cosines. Return None if the
    cosines do not separate related from unrelated texts."""
    means = {code: Anchors(float(low.mean()), float(high.mean())) for code, (low, high) in pairs.items()}
    # The mean is for two texts of one language. Cosines between languages are lower, and have anchors of their own.
    languages = [code for code in pairs if code != FOREIGN]
    mean = Anchors(*(float(np.mean([means[code][n] for code in languages])) for n in range(2)))
    deviation = float(np.sqrt(np.mean([pairs[code][0].var() for code in languages])))
    gap = mean.related - mean.unrelated
    if not gap >= max(_LEAST_GAP, _LEAST_DEVIATIONS * deviation):  # also true if the gap is not a number
        return None
    least = _LEAST_OF_LANGUAGE * gap
    anchors = {code: Anchors(low, max(high, low + least)) for code, (low, high) in means.items()}
    return Scale({**anchors, _ALL: mean}, reference)
