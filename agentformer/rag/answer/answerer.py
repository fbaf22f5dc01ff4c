"""Answers with citations. If a language model is configured, it writes the answer. Otherwise, the answer quotes
sentences of the hits."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

from agentformer.embedders.recent import RecentVectors
from agentformer.errors import LanguageModelError, PromptTooLong
from agentformer.http.redaction import told
from agentformer.rag.answer import citations, model_output, prompts, support
from agentformer.rag.answer.confidence import QuoteFeatures
from agentformer.rag.answer.evidence import Evidence
from agentformer.rag.answer.model_output import AnswerStream, LinkFilter, visible_text, why_cut
from agentformer.rag.answer.passages import Passage
from agentformer.rag.answer.quotes import RankedSentence
from agentformer.rag.answer.sources import Found
from agentformer.text.languages.detection import detect_language
from agentformer.text.prompt_quoting import MarkerRestorer
from agentformer.types import Answer, AnswerEvent, AnswerFault, AnswerPiece, ChatMessage, Embedder, LanguageModel
from agentformer.types.documents import MODEL_FAILED

# The model is not asked if no hit shares a term with the question and no sentence reaches this cosine. `abstain` does
# not apply to the answer of a model, because a model translates, answers "what is this about?", and says what it cannot
# answer. Of German questions over English passages, extractive answers decline one in three; a model answers all.
_FAR = 0.25
_NO_CITATIONS = "the model cited no passage; compare the answer with the hits"
_PLACED = "the model cited no passage, so citations were added to sentences whose words agree with a passage"
_EMPTY = "the language model returned no text, so the answer quotes the best sentences"
_DECLINED = "the model wrote NO_ANSWER, but this text also occurs in a passage, so the answer quotes the best sentences"


@dataclasses.dataclass(frozen=True)
class Answerer:
    """Answers questions from search hits. If `model` is None, every answer is extractive: the answer quotes sentences
    of the hits. If the confidence of an extractive answer (the probability that its first quote answers the question)
    is below `abstain` (0..1), the answer only says that nothing was found. If `abstain` is 0, only a question without
    hits gets such an answer.

    `check` decides how the text of the model is checked. With `report`, each sentence is compared with the passages
    that it cites, and `Answer.unsupported` lists the sentences that state something that these passages do not contain.
    With `retry`, the model is also asked once more if there are such sentences. A stream is not repeated, because its
    pieces are shown at once. With `off`, nothing is compared."""

    model: LanguageModel | None
    embedder: Embedder | None
    _: dataclasses.KW_ONLY
    temperature: float = 0.3
    max_tokens: int = 512
    abstain: float = 0.15
    check: str = "retry"
    vectors: RecentVectors = dataclasses.field(default_factory=RecentVectors, compare=False, repr=False)

    def answer(self, found: Found, *, max_tokens: int | None = None, extractive: bool = False) -> Answer:
        """Return an answer with citations to the question of `found`, from the result of its search. If `extractive` is
        true, the model is not called. If no hit contains an answer, the `mode` of the answer is `none`, and its text
        names the sources that were searched. If the model fails, the answer quotes the best sentences and has a warning
        with the reason."""
        evidence = self._evidence(found)
        if extractive:
            return self._extractive(evidence)
        model = self._usable_model(evidence)
        if model is None:
            return self._without_model(evidence)
        limit = max_tokens or self.max_tokens
        reason: LanguageModelError | None = None
        for count in _passage_counts(len(evidence.given)):
            prompt = prompts.messages(evidence.question, evidence.given[:count])
            try:
                reply = model.complete(prompt, temperature=self.temperature, max_tokens=limit)
            except PromptTooLong as error:
                reason = error
            except LanguageModelError as error:
                reason = error
                break
            else:
                answer = self._checked(evidence, count, visible_text(reply.text), cut=why_cut(reply, limit))
                return self._asked_again(
                    evidence, count, [*prompt, ChatMessage("assistant", reply.text)], answer, limit
                )
        return self._after_failure(evidence, reason)

    def judged(self, found: Found) -> tuple[list[RankedSentence], QuoteFeatures | None]:
        """Return the two values from which an extractive answer is made: the sentences that may be quoted, best first,
        and the values for the confidence (None if there are no hits). Benchmarks call this method."""
        evidence = self._evidence(found)
        return evidence.ranked, evidence.grounds

    def _evidence(self, found: Found) -> Evidence:
        return Evidence(found, self.embedder, self.vectors)

    def _asked_again(
        self, evidence: Evidence, count: int, prompt: Sequence[ChatMessage], answer: Answer, limit: int
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
        second = self._checked(evidence, count, visible_text(reply.text), cut=why_cut(reply, limit))
        is_better = second.mode == "llm" and _claims(second) < _claims(answer)
        return second if is_better and (second.complete or not answer.complete) else answer

    def stream(self, found: Found, *, max_tokens: int | None = None) -> Generator[AnswerEvent, None, None]:
        """Yield the pieces of the answer while the model writes the answer, and at the end the complete `Answer`. If
        the model fails after the first piece, yield an `AnswerFault`, and then an `Answer` whose `complete` is false.
        If the model returns no text, the answer quotes sentences of the hits. Closing this generator also closes the
        stream of the model."""
        evidence = self._evidence(found)
        model = self._usable_model(evidence)
        if model is None:
            yield from _at_once(self._without_model(evidence))
            return
        limit = max_tokens or self.max_tokens
        count, arrived, reason = len(evidence.given), AnswerStream(), None
        for count in _passage_counts(len(evidence.given)):
            arrived, reason = AnswerStream(), None
            try:
                pieces = model.stream(
                    prompts.messages(evidence.question, evidence.given[:count]),
                    temperature=self.temperature,
                    max_tokens=limit,
                )
                with closing(_shown(arrived, pieces, evidence.given_texts(count))) as shown:
                    yield from shown
            except LanguageModelError as error:
                reason = error
            if not isinstance(reason, PromptTooLong) or arrived.shown:
                break
        yield from self._end_of_stream(evidence, count, arrived, reason, limit)

    def _end_of_stream(
        self, evidence: Evidence, count: int, arrived: AnswerStream, failure: LanguageModelError | None, limit: int
    ) -> Iterator[AnswerEvent]:
        """Yield the events after the last piece. If the model failed before any text was shown, quotes are the answer;
        if it failed later, the text until then is the answer. The model has read the first `count` passages."""
        if failure and not arrived.shown:
            yield from _at_once(self._after_failure(evidence, failure))
            return
        if rest := arrived.rest():
            yield AnswerPiece(rest)
        cut = why_cut(arrived.reply, limit)
        if failure:
            yield AnswerFault(str(failure))
            cut = f"the model failed before the end of the answer: {failure}"
        answer = self._checked(evidence, count, arrived.text, cut=cut)
        if failure:
            answer = dataclasses.replace(answer, complete=False)
        yield from _at_once(answer, shown=arrived.shown)

    def _usable_model(self, evidence: Evidence) -> LanguageModel | None:
        if self.model is None or not evidence.hits or (self.abstain and self._is_hopeless(evidence)):
            return None
        return self.model

    def _is_hopeless(self, evidence: Evidence) -> bool:
        """Return whether the hits are about something else, so that the model is not asked: no term of the question
        occurs in a hit, and no sentence has a similar meaning. Return False if there is no embedder, because the
        meaning cannot be compared without it."""
        if evidence.shares_terms():  # fast, and true for most questions
            return False
        cosines = [sentence.cosine for sentence in evidence.ranked if sentence.cosine is not None]
        return bool(cosines) and max(cosines) < _FAR

    def _checked(self, evidence: Evidence, count: int, text: str, *, cut: str) -> Answer:
        """Check the text that the model wrote, and return the answer. The model received the first `count` given hits.
        `cut` is the reason why the text is incomplete, or "" if the text is complete."""
        warnings = [cut] if cut else []
        if count < len(evidence.given):
            warnings.append(
                f"the passages were too long for the model: it received only {count} of {len(evidence.given)} passages"
            )
        given = evidence.given_texts(count)
        checked = model_output.remove_unknown_links(MarkerRestorer(given).restore(text), given)
        warnings += model_output.link_warnings(checked.unknown_hosts)
        text = model_output.without_refusal(checked.text)
        cited = citations.cite(citations.without_unfinished(text) if cut else text, evidence.given_passages[:count])
        if not cited.citations and (model_output.refuses(checked.text) or prompts.NO_ANSWER in checked.text):
            if prompts.contains_no_answer(evidence.given[:count]):  # the token may be a quotation from the passage
                return self._extractive(evidence, (*warnings, _DECLINED))
            return self._nothing(evidence, warnings)
        if not cited.text:
            return self._extractive(evidence, (*warnings, _EMPTY))
        warnings += cited.warnings()
        return self._supported(evidence, cited, evidence.given_passages[:count], warnings, complete=not cut)

    def _supported(
        self,
        evidence: Evidence,
        cited: citations.CitedText,
        passages: Sequence[Passage],
        warnings: list[str],
        *,
        complete: bool,
    ) -> Answer:
        """Return the answer for a text whose citations were checked (`cited`). If the model cited no passage, add a
        citation to each sentence that a passage supports. Unless `check` is `off`, compare the text with the
        passages."""
        if not cited.citations:
            placed = citations.cite(support.with_citations(cited.text, passages), passages)
            warnings.append(_PLACED if placed.citations else _NO_CITATIONS)
            cited = placed if placed.citations else cited
        off = self.check == "off"
        unsupported = () if off else support.unsupported_sentences(cited.text, passages, evidence.question)
        return Answer(
            cited.text,
            "llm",
            cited.citations,
            tuple(evidence.hits),
            (*warnings, *support.warnings(unsupported)),
            complete=complete,
            confidence=evidence.confidence,
            unsupported=unsupported,
        )

    def _without_model(self, evidence: Evidence) -> Answer:
        if not evidence.hits or self.model is not None:
            return self._nothing(evidence)
        return self._extractive(evidence)

    def _after_failure(self, evidence: Evidence, reason: LanguageModelError | None) -> Answer:
        warning = f"{MODEL_FAILED} the answer quotes the best sentences: {told(reason)}"
        return self._extractive(evidence, (warning,))

    def _nothing(self, evidence: Evidence, warnings: Sequence[str] = ()) -> Answer:
        language = detect_language("\n".join(passage.content for passage in evidence.passages))
        language = language or next((passage.language for passage in evidence.passages if passage.language), "")
        text = prompts.nothing_found(evidence.terms, language, evidence.found.searched)
        return Answer(text, "none", hits=tuple(evidence.hits), warnings=tuple(warnings), confidence=evidence.confidence)

    def _extractive(self, evidence: Evidence, warnings: tuple[str, ...] = ()) -> Answer:
        """Return an answer that quotes the best sentences of the hits word for word. If the confidence is too low,
        return an answer that says that nothing was found."""
        confidence = evidence.confidence
        if confidence is None or confidence < self.abstain or not evidence.quotes:
            return self._nothing(evidence, warnings)
        quotes = tuple(citations.citation(n, sentence) for n, sentence in enumerate(evidence.quotes, 1))
        text = "\n".join(f"{citations.quoted(sentence)} [{n}]" for n, sentence in enumerate(evidence.quotes, 1))
        return Answer(text, "extractive", quotes, evidence.shown, warnings, confidence=confidence)


def _shown(arrived: AnswerStream, pieces: Iterable[str], given: Iterable[str]) -> Generator[AnswerEvent, None, None]:
    links = LinkFilter(given)
    with closing(arrived.read(pieces)) as shown:
        for piece in shown:
            if text := links.feed(piece):
                yield AnswerPiece(text)
    if rest := links.rest():
        yield AnswerPiece(rest)


def _at_once(answer: Answer, *, shown: bool = False) -> Iterator[AnswerEvent]:
    """Yield the events of an answer that is already complete: its whole text as one piece, and then the answer. If
    `shown` is True, the caller has already yielded pieces, and only the answer is yielded."""
    if not shown:
        yield AnswerPiece(answer.text)
    yield answer


def _passage_counts(count: int) -> Iterator[int]:
    """Yield the numbers of passages to try for a model with a small context: `count`, half of it, and so on."""
    while count:
        yield count
        count //= 2


def _claims(answer: Answer) -> int:
    return sum(len(sentence.claims) for sentence in answer.unsupported)
