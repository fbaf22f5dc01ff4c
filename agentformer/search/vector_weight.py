"""The weight of the vectors in a hybrid search. It is the product of factors, which are returned with the hits. The
weight is higher in these cases:

- The embedder knows the language.
- The search by words has found little of the query.
- The query asks in plain words for source code.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate

from agentformer.index.words.query import WordHits
from agentformer.records.entries import Sample
from agentformer.search.fusion import FusionOptions
from agentformer.text.analysis import QueryTerms
from agentformer.text.code import code_parts, is_code
from agentformer.text.languages.detection import detect_language
from agentformer.types import Embedder, EmbeddingSpace, Factor

# These values were chosen on one half of each benchmark (bench/log/search.md). Nearby values give similar results.
_USUAL = 0.7  # weight of the vectors for an average query; the weight of the words is 1
_COVERED = 0.55  # share of the query in the best match by words; below this share, the words have missed much of it
_COVERED_LEAST = 1e-9  # a smaller share counts as none
_MISSED_POWER = 3  # exponent of the ratio of `_COVERED` to the share that the words cover
_MISSED_POWER_MESSAGES = 1  # for messages: the search by words also finds them by the words of their neighbors
_MOST = 4.0
_CODE_WEIGHT = 3.0  # weight of the vectors for a query that asks for source code
_CODE_SHARE = 0.5  # share of the best passages that are code

_SAMPLES = 3  # number of passages that are compared with the language of the query
_SAMPLED = 5  # number of entries of each list whose kind and length are read

_WORD = re.compile(r"[^\W\d_]{3,}")  # short words and numbers are left out: they say little about a language
# Tokens per word: an English model takes about 1.2 for English prose and 2.5 or more for Finnish.
KNOWN = 1.6
UNKNOWN = 2.0
_CACHED_WORDS = 50_000  # number of words that are cached with their number of tokens
_CACHED_LENGTH = 1_000  # code points of a text that is cached
_CACHED_TEXTS = 4_096  # beginnings of passages, and queries, with their numbers of tokens and words


_is_code = lru_cache(maxsize=_CACHED_TEXTS)(is_code)


def vector_weight(
    query: QueryTerms,
    words: WordHits,
    nearest: Sequence[int],
    read_samples: Callable[[Sequence[int]], Mapping[int, Sample]],
    coverage: LanguageCoverage,
    options: FusionOptions,
) -> tuple[Factor, ...]:
    """Return the factors of the weight of the vectors. `words` and `nearest` are the results of the two searches, best
    first: `nearest` contains numbers of entries. `read_samples` returns samples of entries, by their numbers."""
    samples = read_samples([*words.entries[:_SAMPLED], *nearest[:_SAMPLED]])

    def texts(nums: Sequence[int]) -> list[str]:
        return [samples[num].text for num in sorted(nums[:_SAMPLES]) if num in samples]

    by_words = texts(words.entries)
    by_vectors = cache(lambda: texts(nearest))
    language = coverage.of_search(query, by_words, by_vectors) if coverage.varies else 1.0
    factors = [Factor("setting", options.dense_weight), Factor("language", language)]
    if not all(factor.value for factor in factors):
        return tuple(factors)
    if not words.entries:
        return (Factor("alone", 1.0),)  # only the vectors decide
    if options.kind == "adaptive":
        messages = 2 * sum(sample.kind == "message" for sample in samples.values()) > len(samples)
        shown = weight_factors(words.covered, messages=messages)
        factors += shown
        if asks_for_code(query, [*by_words, *by_vectors()]):
            factors.append(code_factor(shown))
    return tuple(factors)


def weight_factors(covered: float, *, messages: bool = False) -> tuple[Factor, ...]:
    """Return those factors of the weight of the vectors that depend on the search by words. `covered` is the share of
    the query that the best match by words contains, 0..1; rare words count more than common words
    (`WordHits.covered`). `messages` is True if most of the best hits are messages."""
    power = _MISSED_POWER_MESSAGES if messages else _MISSED_POWER
    missed = max(1.0, _COVERED / covered) ** power if covered > _COVERED_LEAST else math.inf
    if _USUAL * missed > _MOST:
        return (Factor("most", _MOST),)
    return Factor("usual", _USUAL), Factor("missed", missed)


def asks_for_code(query: QueryTerms, passages: Sequence[str]) -> bool:
    """Return whether a query asks in plain words for source code. This is the case if at least half of the best
    passages are code, and if the query contains no identifier, such as `get_user_name`. Such a query shares few words
    with code, because the words of code are names."""
    if any(token.inner for token in query.tokens):
        return False
    code = sum(map(_is_code, passages))
    return bool(code) and code >= _CODE_SHARE * len(passages)


def code_factor(factors: Sequence[Factor]) -> Factor:
    """Return the factor that raises the weight of the vectors for a query that asks for source code. `factors` is the
    result of `weight_factors`. The product of all factors, the new one included, is `_CODE_WEIGHT`, or the former
    weight if this was higher."""
    return Factor("code", max(1.0, _CODE_WEIGHT / math.prod(factor.value for factor in factors)))


@dataclass(slots=True)
class _Counts:
    """A cache for one embedding space. `tokens` contains the number of tokens of each word. `texts` contains two counts
    for each text: the number of tokens of its words, and the number of its words."""

    space: EmbeddingSpace | None
    tokens: dict[str, int] = field(default_factory=dict)
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)


class LanguageCoverage:
    """Estimates how well an embedder knows the language of a text. The result is called coverage: 1 if the embedder
    knows the language, 0 if it does not. Thread-safe.

    If the model declares its languages, the declaration is used. For other models, the tokenizer is used. The tokenizer
    splits a word into one or two tokens if the model was trained with the language of the word, otherwise into more
    tokens (Rust et al. 2021, "How Good is Your Tokenizer?").
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._cached = _Counts(None)

    @property
    def varies(self) -> bool:
        """True if the coverage can differ between texts. False if the model knows all languages."""
        return self._embedder.space.languages != "*"

    def of(self, texts: Sequence[str]) -> float:
        """Return how well the embedder knows the language of these texts: 1 if well, 0 if not at all. The texts are
        treated as one long text."""
        declared = self._embedder.space.languages
        if declared == "*":
            return 1.0
        if declared:
            return self._declared(declared, detect_language(" \n".join(texts)))
        counts = self._counts(texts)
        tokens, words = sum(count for count, _ in counts), sum(count for _, count in counts)
        fertility = tokens / words if words else 1.0
        return min(1.0, max(0.0, (UNKNOWN - fertility) / (UNKNOWN - KNOWN)))

    def of_query(self, query: QueryTerms) -> float:
        """Return the coverage of the text of a query: 1 if the embedder knows its language, 0 if not at all."""
        declared = self._embedder.space.languages
        return self._declared(declared, query.language) if declared not in ("", "*") else self.of([query.text])

    def of_search(self, query: QueryTerms, by_words: Sequence[str], by_vectors: Callable[[], Sequence[str]]) -> float:
        """Return the coverage of a query, 0..1. The best passages help to determine the language, because a query is
        short. `by_words` contains passages that the search by words has found. The function `by_vectors` returns
        passages that the search by vectors has found. This function is called only if the passages in `by_words` have
        another language than the query and lower the coverage. In this case, the query may be a name, and a name occurs
        in texts of many languages.

        If no passages were found by words and the language of the query is unknown, the result is 1, because such a
        query is probably a name or a typing error. Passages of source code are ignored, because their names show no
        language. If all passages are code, their comments can only raise the coverage: a short query such as "pdb see
        stack" is easily taken for another language.
        """
        if not self._embedder.space.languages:
            self._counts([query.text, *by_words])  # in one call of the tokenizer
        alone = self.of_query(query)
        passages = [text for text in by_words if not _is_code(text)]
        if by_words and not passages:
            comments = [code_parts(text).comments for text in by_words]
            return max(alone, self.of([query.text, *comments])) if any(map(str.strip, comments)) else alone
        by_words = passages
        if not by_words:
            return alone if query.language else 1.0
        together = self.of([query.text, *by_words])
        if together >= alone or not query.language:
            return together
        if detect_language("\n".join(by_words)) in ("", query.language):
            return together
        nearest = [self.of([text]) for text in by_vectors()]
        return max(together, alone * sum(nearest) / len(nearest)) if nearest else together

    def _counts(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """Return two counts for each text: the number of tokens of its words, and the number of its words. The results
        are cached, because many searches find the same passages. New words of all texts are counted in one call."""
        space = self._embedder.space
        cached = self._cached
        if cached.space != space or len(cached.tokens) > _CACHED_WORDS or len(cached.texts) > _CACHED_TEXTS:
            cached = self._cached = _Counts(space)
        words = {text: _WORD.findall(text) for text in texts if text not in cached.texts}
        tokens = cached.tokens
        new = dict.fromkeys(word for own in words.values() for word in own if word not in tokens)
        if new:
            tokens.update(zip(new, _token_counts(self._embedder, [*new]), strict=True))
        counted = {text: (sum([tokens[word] for word in own]), len(own)) for text, own in words.items()}
        cached.texts.update((text, counts) for text, counts in counted.items() if len(text) <= _CACHED_LENGTH)
        return [counted[text] if text in counted else cached.texts[text] for text in texts]

    def _declared(self, declared: str, language: str) -> float:
        return float(not language or language in declared.split())


def _token_counts(embedder: Embedder, words: Sequence[str]) -> list[int]:
    """Return the number of tokens of each word. All words are passed to the tokenizer in one call."""
    ends = list(accumulate(len(word) + 1 for word in words))  # end position of each word, with the space after it
    counts = [0] * len(words)
    for span in embedder.token_spans(" ".join(words)):
        counts[min(bisect_left(ends, span.end), len(words) - 1)] += 1
    return counts
