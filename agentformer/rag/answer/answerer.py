"""Answers with citations. If a language model is configured, the model writes the answer. Otherwise, the answer quotes
sentences of the passages."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cached_property

from agentformer.embedders.recent import RecentVectors
from agentformer.errors import EmbedderError, LanguageModelError, PromptTooLong
from agentformer.index.embedding.active import current_embedder
from agentformer.rag.answer import citations, model_output, prompts, support
from agentformer.rag.answer.candidates import other_period
from agentformer.rag.answer.confidence import (
    BASELINES,
    Baselines,
    QuoteFeatures,
    confidence_features,
    covered_share,
    normalized_cosine,
)
from agentformer.rag.answer.model_output import AnswerStream, LinkFilter, visible_text, why_cut
from agentformer.rag.answer.nothing_found import nothing_found
from agentformer.rag.answer.passages import Passage, read_passages
from agentformer.rag.answer.quotes import (
    RankedSentence,
    choose_quotes,
    knows_language,
    rank_sentences,
)
from agentformer.text.analysis import QueryTerms, analyze_query
from agentformer.text.prompt_quoting import MarkerRestorer
from agentformer.text.questions import classify
from agentformer.types import (
    Answer,
    AnswerEvent,
    AnswerFault,
    AnswerPiece,
    ChatMessage,
    Embedder,
    Hit,
    LanguageModel,
)

_MAX_QUOTES = 3
# The model is not asked if no hit shares a term with the question and no sentence reaches this cosine. `abstain` does
# not apply to the answer of a model, because a model translates, answers "what is this about?", and says what it cannot
# answer. Of German questions over English passages, extractive answers decline one in three; a model answers all.
_FAR = 0.25
_WITHOUT_MEANING = "hashing"  # an embedder that compares spelling and not meaning
_NO_CITATIONS = "the model cited no passage; compare the answer with the hits"
_PLACED = "the model cited no passage, so citations were added to sentences whose words agree with a passage"
_DECLINED = "the model wrote NO_ANSWER, but this text also occurs in a passage, so the answer quotes the best sentences"


@dataclasses.dataclass(frozen=True)
class _Request:
    """A question and the search hits for the question. `given` are the hits that a model receives, and
    `given_passages` are their passages. The text of the question and of each hit is analyzed only once, and its
    sentences are ranked only once."""

    question: str
    terms: QueryTerms
    hits: Sequence[Hit]
    passages: Sequence[Passage]
    given: Sequence[Hit]
    given_passages: Sequence[Passage]
    embedder: Embedder | None
    vectors: RecentVectors

    @cached_property
    def baseline(self) -> float | None:
        """The mean cosine that the embedder gives to unrelated texts. None if the embedder found none of the hits,
        compares only spelling, does not separate similar texts from unrelated ones, or is unavailable."""
        if self.embedder is None or not any(hit.dense_rank for hit in self.hits):
            return None
        embedder = current_embedder(self.embedder)
        try:
            measured = None if embedder.space.provider == _WITHOUT_MEANING else BASELINES.of(embedder)
        except EmbedderError:
            return None
        return None if normalized_cosine(1.0, measured) is None else measured

    @cached_property
    def ranked(self) -> list[RankedSentence]:
        """The sentences of the hits, best first. Vectors of sentences are compared only if the embedder knows the
        language of the hits. Vectors of tokens are also compared if it does not, but the question has the language of a
        hit."""
        if self.embedder:
            embedder = current_embedder(self.embedder)
            with suppress(EmbedderError):  # a server may count a sentence's tokens in another way
                return rank_sentences(self.terms, self.passages, embedder, self.vectors, self._baselines(embedder))
        return rank_sentences(self.terms, self.passages)

    def _baselines(self, embedder: Embedder) -> Baselines:
        known = self.baseline is not None and knows_language(self.hits)
        same = known or self.terms.language in {passage.language for passage in self.passages}
        return Baselines(self.baseline if known else None, BASELINES.of_tokens(embedder) if same else None)

    @cached_property
    def quotes(self) -> list[RankedSentence]:
        """The sentences that an extractive answer quotes."""
        return choose_quotes(self.ranked, _MAX_QUOTES)

    @cached_property
    def grounds(self) -> QuoteFeatures | None:
        """The values from which the confidence is computed. None if there are no hits."""
        if not self.hits:
            return None
        hits = confidence_features(self.terms, self.passages, baseline=self.baseline).confidence
        if not self.quotes:
            return QuoteFeatures(hits, 0.0, 0.0, 1)
        first = self.quotes[0]
        passage = next(each for each in self.passages if each.hit is first.hit)
        return QuoteFeatures(
            hits,
            first.score,
            covered_share(self.terms, passage, first.quote),
            len(self.quotes),
            first.cosine,
            bool(support.unknown_in_question(self.question, self.passages)),
            other_period(classify(self.question, passage.language), first.quote, passage.language),
            first.features.telling if first.features else 0.0,
        )

    @property
    def confidence(self) -> float | None:
        """The probability (0..1) that the first quote answers the question. None if there are no hits."""
        return self.grounds.confidence if self.grounds else None

    def given_texts(self, count: int) -> list[str]:
        """Return the texts that the model received, without the escapes of the prompt: the question, and the document
        name and the content of the first `count` given hits. A web address in the answer of the model is kept only if
        one of these texts contains the address."""
        entries = [hit.entry for hit in self.given[:count]]
        return [self.question, *(f"{e.source.name if e.source else ''}\n{e.content}" for e in entries)]

    def shares_terms(self) -> bool:
        """Return True if at least one hit contains a term of the question. Also return True if the question has no
        terms, such as "Who is it?"."""
        for passage in self.passages:
            terms = self.terms.terms([passage.language]).stems
            if not terms or not passage.stems.isdisjoint(terms):
                return True
        return False


@dataclasses.dataclass(frozen=True)
class Answerer:
    """Answers questions from search hits. If `model` is None, every answer is extractive: the answer quotes sentences
    of the hits. If the confidence of an extractive answer (the probability that its first quote answers the question)
    is below `abstain` (0..1), the answer only says that nothing was found. If `abstain` is 0, only a question without
    hits gets such an answer.

    `check` is for the text of the model. `report` compares each sentence with the passages that it cites.
    `Answer.unsupported` then lists the sentences that state something else. `retry` also asks the model once more,
    except in a stream, because its pieces are shown at once. `off` compares nothing."""

    model: LanguageModel | None
    embedder: Embedder | None
    _: dataclasses.KW_ONLY
    temperature: float = 0.3
    max_tokens: int = 512
    abstain: float = 0.15
    check: str = "retry"
    vectors: RecentVectors = dataclasses.field(default_factory=RecentVectors, compare=False, repr=False)

    def answer(
        self,
        question: str,
        hits: Sequence[Hit],
        *,
        given: Sequence[Hit] = (),
        max_tokens: int | None = None,
        extractive: bool = False,
    ) -> Answer:
        """Return an answer with citations. If the hits contain no answer, the `mode` of the answer is `none`. If the
        model fails, the answer quotes the best sentences and has a warning with the reason. If `extractive` is true,
        the model is not called. `given` are the passages that the model receives, with the numbers 1, 2 and so on; if
        it is empty, the model receives the hits."""
        request = self._request(question, hits, given)
        if extractive:
            return self._extractive(request)
        model = self._usable_model(request)
        if model is None:
            return self._without_model(request)
        limit = max_tokens or self.max_tokens
        reason: LanguageModelError | None = None
        for count in _passage_counts(len(request.given)):
            prompt = prompts.messages(question, request.given[:count])
            try:
                reply = model.complete(prompt, temperature=self.temperature, max_tokens=limit)
            except PromptTooLong as error:
                reason = error
            except LanguageModelError as error:
                reason = error
                break
            else:
                answer = self._checked(request, count, visible_text(reply.text), cut=why_cut(reply, limit))
                return self._asked_again(request, count, [*prompt, ChatMessage("assistant", reply.text)], answer, limit)
        return self._after_failure(request, reason)

    def judged(self, question: str, hits: Sequence[Hit]) -> tuple[list[RankedSentence], QuoteFeatures | None]:
        """Return the sentences of the hits, best first, and the values from which the confidence is computed (None
        without hits)."""
        request = self._request(question, hits)
        return request.ranked, request.grounds

    def _request(self, question: str, hits: Sequence[Hit], given: Sequence[Hit] = ()) -> _Request:
        terms = analyze_query(question)
        passages = read_passages(hits, terms.language)
        given_passages = read_passages(given, terms.language) if given else passages
        return _Request(question, terms, hits, passages, given or hits, given_passages, self.embedder, self.vectors)

    def _asked_again(
        self, request: _Request, count: int, prompt: Sequence[ChatMessage], answer: Answer, limit: int
    ) -> Answer:
        """Ask the model once more if its answer states what the passages do not contain. Return the second answer if it
        makes fewer such statements. Otherwise, or if the model then fails or declines, return the first answer."""
        if not answer.unsupported or self.check != "retry" or self.model is None:
            return answer
        prompt = [*prompt, ChatMessage("user", support.finding(answer.unsupported))]
        try:
            reply = self.model.complete(prompt, temperature=self.temperature, max_tokens=limit)
        except LanguageModelError:
            return answer
        second = self._checked(request, count, visible_text(reply.text), cut=why_cut(reply, limit))
        is_better = second.mode == "llm" and _claims(second) < _claims(answer)
        return second if is_better and (second.complete or not answer.complete) else answer

    def stream(
        self, question: str, hits: Sequence[Hit], *, given: Sequence[Hit] = (), max_tokens: int | None = None
    ) -> Generator[AnswerEvent, None, None]:
        """Yield the pieces of the answer while the model writes the answer, and at the end the complete `Answer`. If
        the model fails after the first piece, yield an `AnswerFault`, and then an `Answer` whose `complete` is false.
        If the model returns no text, the answer quotes sentences of the hits. Closing this generator also closes the
        stream of the model. `given` are the passages that the model receives, as in `answer`."""
        request = self._request(question, hits, given)
        model = self._usable_model(request)
        if model is None:
            yield from _at_once(self._without_model(request))
            return
        limit = max_tokens or self.max_tokens
        count, arrived, reason = len(request.given), AnswerStream(), None
        for count in _passage_counts(len(request.given)):
            arrived, reason = AnswerStream(), None
            try:
                pieces = model.stream(
                    prompts.messages(question, request.given[:count]), temperature=self.temperature, max_tokens=limit
                )
                with closing(_shown(arrived, pieces, request.given_texts(count))) as shown:
                    yield from shown
            except LanguageModelError as error:
                reason = error
            if not isinstance(reason, PromptTooLong) or arrived.shown:
                break
        yield from self._end_of_stream(request, count, arrived, reason, limit)

    def _end_of_stream(
        self, request: _Request, count: int, arrived: AnswerStream, reason: LanguageModelError | None, limit: int
    ) -> Iterator[AnswerEvent]:
        if reason and not arrived.shown:
            yield from _at_once(self._after_failure(request, reason))
            return
        if rest := arrived.rest():
            yield AnswerPiece(rest)
        if reason:
            yield AnswerFault(str(reason))
        cut = why_cut(arrived.reply, limit)
        if reason:
            cut = f"the model failed before the end of the answer: {reason}"
        answer = self._checked(request, count, arrived.text, cut=cut)
        if reason:
            answer = dataclasses.replace(answer, complete=False)
        yield from _at_once(answer, shown=arrived.shown)

    def _usable_model(self, request: _Request) -> LanguageModel | None:
        if self.model is None or not request.hits or (self.abstain and self._is_hopeless(request)):
            return None
        return self.model

    def _is_hopeless(self, request: _Request) -> bool:
        """Return True if no term of the question occurs in a hit and no sentence has a similar meaning. Return False if
        there is no embedder, because then the meaning cannot be compared."""
        if request.shares_terms():  # fast, and true for most questions
            return False
        cosines = [sentence.cosine for sentence in request.ranked if sentence.cosine is not None]
        return bool(cosines) and max(cosines) < _FAR

    def _checked(self, request: _Request, count: int, text: str, *, cut: str) -> Answer:
        """Check the text that the model wrote, and return the answer. The model received the first `count` given hits.
        `cut` is the reason why the text is incomplete, or "" if the text is complete."""
        warnings = [cut] if cut else []
        if count < len(request.given):
            warnings.append(
                f"the passages were too long for the model: it received only {count} of {len(request.given)} passages"
            )
        given = request.given_texts(count)
        checked = model_output.remove_unknown_links(MarkerRestorer(given).restore(text), given)
        warnings += model_output.link_warnings(checked.unknown_hosts)
        text = model_output.without_refusal(checked.text)
        cited = citations.cite(citations.without_unfinished(text) if cut else text, request.given_passages[:count])
        if not cited.citations and (model_output.refuses(checked.text) or prompts.NO_ANSWER in checked.text):
            if prompts.contains_no_answer(
                request.given[:count]
            ):  # in this case, the token may be a quotation from the passage
                return self._extractive(request, (*warnings, _DECLINED))
            return self._nothing(request, warnings)
        if not cited.text:
            return self._extractive(
                request, (*warnings, "the language model returned no text, so the answer quotes the best sentences")
            )
        warnings += cited.warnings()
        return self._supported(request, cited, request.given_passages[:count], warnings, complete=not cut)

    def _supported(
        self,
        request: _Request,
        cited: citations.CitedText,
        passages: Sequence[Passage],
        warnings: list[str],
        *,
        complete: bool,
    ) -> Answer:
        """Return the answer with the checked text. If the model cited no passage, add the citations. Then compare the
        text with the passages."""
        if not cited.citations:
            placed = citations.cite(support.with_citations(cited.text, passages), passages)
            warnings.append(_PLACED if placed.citations else _NO_CITATIONS)
            cited = placed if placed.citations else cited
        off = self.check == "off"
        unsupported = () if off else support.unsupported_sentences(cited.text, passages, request.question)
        return Answer(
            cited.text,
            "llm",
            cited.citations,
            tuple(request.hits),
            (*warnings, *support.warnings(unsupported)),
            complete=complete,
            confidence=request.confidence,
            unsupported=unsupported,
        )

    def _without_model(self, request: _Request) -> Answer:
        if not request.hits or self.model is not None:
            return self._nothing(request)
        return self._extractive(request)

    def _after_failure(self, request: _Request, reason: LanguageModelError | None) -> Answer:
        return self._extractive(
            request, (f"the language model failed, so the answer quotes the best sentences: {reason}",)
        )

    def _nothing(self, request: _Request, warnings: Sequence[str] = ()) -> Answer:
        text = nothing_found(request.terms, next((p.language for p in request.passages if p.language), ""))
        return Answer(text, "none", hits=tuple(request.hits), warnings=tuple(warnings), confidence=request.confidence)

    def _extractive(self, request: _Request, warnings: tuple[str, ...] = ()) -> Answer:
        """Return an answer that quotes the best sentences of the hits word for word. If the confidence is too low,
        return an answer that says that nothing was found."""
        confidence = request.confidence
        if confidence is None or confidence < self.abstain or not request.quotes:
            return self._nothing(request, warnings)
        quotes = tuple(citations.citation(n, sentence) for n, sentence in enumerate(request.quotes, 1))
        text = "\n".join(f"{citations.in_marks(c.quote)} [{c.number}]" for c in quotes)
        return Answer(text, "extractive", quotes, tuple(request.hits), warnings, confidence=confidence)


def _shown(arrived: AnswerStream, pieces: Iterable[str], given: Iterable[str]) -> Generator[AnswerEvent, None, None]:
    links = LinkFilter(given)
    with closing(arrived.read(pieces)) as shown:
        for piece in shown:
            if text := links.feed(piece):
                yield AnswerPiece(text)
    if rest := links.rest():
        yield AnswerPiece(rest)


def _at_once(answer: Answer, *, shown: bool = False) -> Iterator[AnswerEvent]:
    """Yield the complete answer as the last event. If `shown` is false, no piece of the answer was sent before, so
    first yield the whole text as one piece."""
    if not shown:
        yield AnswerPiece(answer.text)
    yield answer


def _passage_counts(count: int) -> Iterator[int]:
    """Yield the numbers of passages to try, largest first: `count`, then half of `count`, and so on. A model with a
    small context may accept only a few passages."""
    while count:
        yield count
        count //= 2


def _claims(answer: Answer) -> int:
    return sum(len(sentence.claims) for sentence in answer.unsupported)
