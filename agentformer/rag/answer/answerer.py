"""Answers that stand on citations: by a language model where there is one, else by quotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

from agentformer.errors import EmbedderError, LanguageModelError, PromptTooLong
from agentformer.index.embedding.active import current_embedder
from agentformer.rag.answer.citations import citation, cite, without_unfinished
from agentformer.rag.answer.confidence import BASELINES, confidence_features, normalized_cosine
from agentformer.rag.answer.links import LinkFilter, link_warnings, remove_unknown_links
from agentformer.rag.answer.prompts import NO_ANSWER, declines, messages, nothing_found
from agentformer.rag.answer.sentences import Evidence, rank_evidence
from agentformer.rag.answer.stream import AnswerStream, refuses, visible_text, without_refusal
from agentformer.text.analysis import query_terms, text_terms
from agentformer.text.languages import detect_language, language_code
from agentformer.text.prompt_quoting import MarkerRestorer
from agentformer.types import (
    Answer,
    AnswerEvent,
    AnswerFault,
    AnswerPiece,
    Embedder,
    Hit,
    LanguageModel,
    Reply,
)

_MOST_QUOTES = 3
_CLOSE = 0.75  # of the best sentence's score: a further sentence is quoted only if it is nearly as good
# A model is not asked where no hit shares a term with the question and no sentence is this near. `abstain` is not for
# it: it translates (quotation is declined for a third of German questions over English passages, a model for none) and
# answers "what is this about?"; whatever else it cannot answer, it says.
_FAR = 0.25
_WITHOUT_MEANING = "hashing"  # the embedder that compares words and their letters
_DECLINED = "the model declined by a word that a passage holds, so the answer is quoted"


class Answerer:
    """Answers from hits. `model` is None where none is configured; then every answer is extractive, and one with less
    confidence than `abstain`, 0..1, is not given. At 0 nothing is declined but where nothing was found."""

    def __init__(
        self,
        model: LanguageModel | None,
        embedder: Embedder | None,
        *,
        temperature: float = 0.3,
        max_tokens: int = 512,
        abstain: float = 0.1,
    ) -> None:
        self._model = model
        self._abstain = abstain
        self._embedder = embedder
        self._temperature = temperature
        self._max_tokens = max_tokens

    def answer(
        self, question: str, hits: Sequence[Hit], *, max_tokens: int | None = None, extractive: bool = False
    ) -> Answer:
        """An answer with its citations; mode `none` when the hits hold none. No `LanguageModelError` is raised:
        the best sentences are quoted then, with a warning that says why. With `extractive` no model is asked."""
        if extractive:
            return self._extractive(question, hits)
        model = self._to_ask(question, hits)
        if model is None:
            return self._unasked(question, hits)
        limit = max_tokens or self._max_tokens
        reason: LanguageModelError | None = None
        for given in _fewer_and_fewer(hits):
            try:
                reply = model.complete(messages(question, given), temperature=self._temperature, max_tokens=limit)
            except PromptTooLong as error:
                reason = error
                continue
            except LanguageModelError as error:
                reason = error
                break
            return self._judged(question, hits, given, visible_text(reply.text), cut=_cut(reply, limit))
        return self._instead(question, hits, reason)

    def stream(
        self, question: str, hits: Sequence[Hit], *, max_tokens: int | None = None
    ) -> Generator[AnswerEvent, None, None]:
        """The answer as it is generated: its pieces, and last the one `Answer`, whose text and citations count.

        A model that breaks off has an `AnswerFault` before the `Answer`, which is not `complete`; one that says
        nothing at all is replaced by quotation, as by `answer`. Closing the generator ends the model's stream.
        """
        model = self._to_ask(question, hits)
        if model is None:
            yield from _at_once(self._unasked(question, hits))
            return
        limit = max_tokens or self._max_tokens
        reason: LanguageModelError | None = None
        for given in _fewer_and_fewer(hits):
            speech, reason = AnswerStream(), None
            try:
                said = model.stream(messages(question, given), temperature=self._temperature, max_tokens=limit)
                with closing(_pieces(speech, said, _raw(question, given))) as pieces:
                    yield from pieces
            except LanguageModelError as error:
                reason = error
            if not (isinstance(reason, PromptTooLong) and not speech.shown):
                break
        if reason and not speech.shown:
            yield from _at_once(self._instead(question, hits, reason))
            return
        if rest := speech.rest():
            yield AnswerPiece(rest)
        if reason:
            yield AnswerFault(str(reason))
        cut = f"the model broke off: {reason}" if reason else _cut(speech.reply, limit)
        answer = self._judged(question, hits, given, speech.text, cut=cut)
        if reason:
            answer = dataclasses.replace(answer, complete=False)
        yield from _at_once(answer, shown=speech.shown)

    def _to_ask(self, question: str, hits: Sequence[Hit]) -> LanguageModel | None:
        """The model, if there is one and the hits may hold an answer."""
        if self._model is None or not hits or (self._abstain and self._hopeless(question, hits)):
            return None
        return self._model

    def _hopeless(self, question: str, hits: Sequence[Hit]) -> bool:
        """Do the hits share nothing with the question? What no embedder judged is for the model to judge."""
        if _share_terms(question, hits):  # cheap, and mostly so
            return False
        near = [evidence.nearness for evidence in self._ranked(question, hits) if evidence.nearness is not None]
        if not near:
            return False
        judged = normalized_cosine(max(near), self._baseline(hits))
        return (max(near) if judged is None else judged) < _FAR

    def _unasked(self, question: str, hits: Sequence[Hit]) -> Answer:
        if not hits or self._model is not None:
            return self._nothing(question, hits)
        return self._extractive(question, hits)

    def _nothing(self, question: str, hits: Sequence[Hit], warnings: Sequence[str] = ()) -> Answer:
        sure = self._confidence(question, hits)
        return Answer(nothing_found(question), "none", hits=tuple(hits), warnings=tuple(warnings), confidence=sure)

    def _instead(self, question: str, hits: Sequence[Hit], reason: LanguageModelError | None) -> Answer:
        return self._extractive(question, hits, (f"no language model answered, so the answer is quoted: {reason}",))

    def _judged(self, question: str, hits: Sequence[Hit], given: Sequence[Hit], text: str, *, cut: str) -> Answer:
        """A model's text with citations that exist; those that point nowhere are taken out and reported. `cut` says
        why it ends before its end, if it does."""
        warnings = [cut] if cut else []
        if len(given) < len(hits):
            warnings.append(f"the passages did not fit the model: it was given {len(given)} of {len(hits)}")
        raw = _raw(question, given)
        checked = remove_unknown_links(MarkerRestorer(raw).restore(text), raw)
        warnings += link_warnings(checked.unknown_hosts)
        text = checked.text
        cited = cite(without_unfinished(without_refusal(text)) if cut else without_refusal(text), given)
        if not cited.citations and (refuses(text) or NO_ANSWER in text):
            if declines(given):  # then it may be a passage that declines, and not the model
                return self._extractive(question, hits, (*warnings, _DECLINED))
            return self._nothing(question, hits, warnings)
        if not cited.text:
            warnings.append("the language model said nothing, so the answer is quoted")
            return self._extractive(question, hits, tuple(warnings))
        if cited.strays:
            strays = ", ".join(map(str, cited.strays))
            warnings.append(f"the model cited passages that it was not given: {strays}")
        if cited.borrowed:
            numbers = ", ".join(map(str, cited.borrowed))
            warnings.append(f"the model copied references of a passage as if they were its own: {numbers}")
        if not cited.citations:
            warnings.append("the model cited nothing; check its answer against the hits")
        return Answer(
            cited.text,
            "llm",
            cited.citations,
            tuple(hits),
            tuple(warnings),
            complete=not cut,
            confidence=self._confidence(question, hits),
        )

    def _extractive(self, question: str, hits: Sequence[Hit], warnings: tuple[str, ...] = ()) -> Answer:
        """The best sentences, word for word."""
        sure = self._confidence(question, hits)
        ranked = self._ranked(question, hits) if sure is not None and sure >= self._abstain else []
        if not ranked:
            return self._nothing(question, hits, warnings)
        chosen = [e for e in ranked[:_MOST_QUOTES] if e.score >= _CLOSE * ranked[0].score]
        citations = tuple(citation(n, evidence) for n, evidence in enumerate(chosen, 1))
        text = "\n".join(f"“{' '.join(c.quote.split())}” [{c.number}]" for c in citations)
        return Answer(text, "extractive", citations, tuple(hits), warnings, confidence=sure)

    def _confidence(self, question: str, hits: Sequence[Hit]) -> float | None:
        """What the hits promise; None where there are none."""
        return confidence_features(question, hits, baseline=self._baseline(hits)).confidence if hits else None

    def _baseline(self, hits: Sequence[Hit]) -> float | None:
        """What cosines are compared with; None where no embedder found these hits that does more than repeat what the
        words say, or where it cannot be asked."""
        if self._embedder is None or not any(hit.dense_rank for hit in hits):
            return None
        embedder = current_embedder(self._embedder)
        try:
            return None if embedder.space.provider == _WITHOUT_MEANING else BASELINES.of(embedder)
        except EmbedderError:
            return None

    def _ranked(self, question: str, hits: Sequence[Hit]) -> list[Evidence]:
        """The hits' sentences, judged by the embedder too if it took part in finding these hits: otherwise it does
        not know their language."""
        judged = any(hit.dense_rank for hit in hits)
        try:
            return rank_evidence(
                question, hits, current_embedder(self._embedder) if self._embedder and judged else None
            )
        except EmbedderError:  # a server may count a sentence's tokens otherwise than we do, and refuse it
            return rank_evidence(question, hits)


def _pieces(speech: AnswerStream, said: Iterable[str], raw: Iterable[str]) -> Generator[AnswerEvent, None, None]:
    plain = LinkFilter(raw)
    with closing(speech.listen(said)) as shown:
        for piece in shown:
            if text := plain.feed(piece):
                yield AnswerPiece(text)
    if rest := plain.rest():
        yield AnswerPiece(rest)


def _raw(question: str, given: Sequence[Hit]) -> list[str]:
    """What the model was told, as it was before it was quoted: an answer may take its addresses and signs from it."""
    names = (hit.entry.source.name if hit.entry.source else "" for hit in given)
    return [question, *(f"{name}\n{hit.entry.content}" for name, hit in zip(names, given, strict=True))]


def _at_once(answer: Answer, *, shown: bool = False) -> Generator[AnswerEvent, None, None]:
    """The answer, and before it its text as one piece where nothing was shown yet."""
    if not shown:
        yield AnswerPiece(answer.text)
    yield answer


def _fewer_and_fewer(hits: Sequence[Hit]) -> Iterator[Sequence[Hit]]:
    """All hits, then the better half of them, down to the best alone: for models that they are too long for."""
    count = len(hits)
    while count:
        yield hits[:count]
        count //= 2


def _share_terms(question: str, hits: Sequence[Hit]) -> bool:
    """Does any hit hold a term of the question? One that has no terms ("Who is it?") shares all of them."""
    for hit in hits:
        prior = hit.entry.metadata.get("language")
        language = detect_language(hit.entry.content, language_code(prior))
        asked = set(query_terms(question, [language]).stems)
        if not asked or asked & set(text_terms(hit.entry.content, language).stems):
            return True
    return False


def _cut(reply: Reply | None, limit: int) -> str:
    """Why a reply ends before its end; "" where it does not, or is not known to."""
    if reply is None or reply.finish not in ("length", "filtered"):
        return ""
    if reply.finish == "filtered":
        return "the server's content filter cut the answer"
    return f"the answer was cut at {limit} tokens; raise answer_tokens, or max_tokens of the question, for more"
