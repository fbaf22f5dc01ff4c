"""Voikko: the words inside a Finnish compound and the base forms of inflected ones (extra `fi`, licensed GPL).

The extra brings libvoikko's Python interface; the library itself and a Finnish dictionary come from the system, on
Debian as the packages libvoikko1 and voikko-fi. Pieces of stems stay in the index beside what Voikko tells, since it
knows no names and no mistyped words.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from agentformer.errors import MissingExtra
from agentformer.text.analyzers import Splitter

_LONGEST = 64  # code points of a word that is looked at
_READINGS = 8  # of one word: "alusta" has five
_SHORTEST = 3  # code points of a part that tells something
_KEPT = 65_536  # words whose parts are remembered
_PART = re.compile(r"\+[^+()]*\(([^()+]+)\)")  # "+lain(laki)+vasta(vasta)+isu(+inen)": endings begin with a plus
_SYSTEM = "the system's library libvoikko and a Finnish dictionary, in Debian the packages libvoikko1 and voikko-fi"


class Voikko(Splitter):
    name = "voikko"
    extra = "fi"
    lacking = "Finnish compounds are found by pieces alone"

    def _load(self) -> None:
        import libvoikko

        try:
            self._voikko: Any = libvoikko.Voikko("fi")
        except (OSError, libvoikko.VoikkoException) as error:
            raise MissingExtra(self.extra, self.name, ImportError(f"{error}; it needs {_SYSTEM}")) from error
        self._known = lru_cache(maxsize=_KEPT)(self._looked_up)

    def _words(self, written: str) -> tuple[str, ...]:
        return self._known(written) if 0 < len(written) <= _LONGEST and "\0" not in written else ()

    def _looked_up(self, written: str) -> tuple[str, ...]:
        with self._lock:  # its handle is for one thread at a time
            readings = self._voikko.analyze(written)
        found: dict[str, None] = {}
        for reading in readings[:_READINGS]:
            parts = _PART.findall(reading.get("WORDBASES", ""))
            for form in (reading.get("BASEFORM", ""), *(parts if len(parts) > 1 else ())):
                word = form.replace("=", "").casefold()
                if len(word) >= _SHORTEST and word.isalpha():
                    found[word] = None
        return tuple(found)
