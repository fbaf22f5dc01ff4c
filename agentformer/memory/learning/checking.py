"""Checks of proposed facts against their messages, and the entries of those that pass. Only code decides here: what
a language model says of a fact counts for nothing unless the words of the message prove it."""

from __future__ import annotations

import re
from itertools import islice

from agentformer.http.redaction import redact
from agentformer.memory.learning import FACT, Proposal
from agentformer.records import fields
from agentformer.text.analysis import text_terms
from agentformer.text.facts.numbers_and_dates import facts_of
from agentformer.text.facts.personal_facts import is_stated, is_unbound
from agentformer.text.facts.sentence_forms import words_in
from agentformer.text.facts.unsupported_claims import Stated, unsupported_claims
from agentformer.text.languages.detection import detect_language, function_stems
from agentformer.types import MemoryEntry, Span, new_id

_MAX_TEXT = 400  # code points of a fact
_MAX_CONTENT = 8_000  # code points of a message in which a quote is searched
_MAX_PLACES = 5  # places of a quote in its message that are read
_LEAST = 2  # words of a fact, in a script with spaces
_UNSPACED = ("ja", "zh", "ko", "th")
_ALIKE = 4  # letters that two forms of a word have in common
_SPEAKER = frozenset({"user", "speaker"})  # a model may write these words for "I"
_SECRET_WORDS = re.compile(
    r"\b(?:passwords?|passphrase|passcode|api[ _-]?keys?|pin(?: code)?|card number|cvv|iban"
    r"|salasana\w*|tunnusluku\w*|lösenord\w*|passord\w*|adgangskode\w*|passwor[dt]\w*|kennwort\w*)\b|パスワード|暗証番号",
    re.IGNORECASE,
)


def is_secret(text: str) -> bool:
    """Return whether a text contains a key, or is about a password; such a text is not learnt."""
    return bool(_SECRET_WORDS.search(text)) or "[key]" in redact(text, ())


def problem(proposal: Proposal) -> str:
    """Return the reason for which a proposed fact is dropped, or "" if its message proves it. The reasons are `quote`
    (the words are not in the message), `statement` (they state nothing), `secret`, `subject` (the fact begins with a
    pronoun), `negation` (only one of both is negated), `claims` (a number, name or date of the fact is not in the
    quote) and `words` (another word is not, as in a fact in another language)."""
    message, quote, text = proposal.message, proposal.quote, proposal.text
    content = message.content[:_MAX_CONTENT]
    sizes = len(text.strip()), len(quote.strip())
    if not min(sizes) or max(sizes) > _MAX_TEXT or quote not in content or not text.isprintable():
        return "quote"
    language = detect_language(quote, detect_language(content))
    found = islice(re.finditer(re.escape(quote), content), _MAX_PLACES)
    is_word = len(words_in(text)) < _LEAST and detect_language(text, language) not in _UNSPACED
    if is_word or not any(is_stated(content, Span(*match.span()), language) for match in found):
        return "statement"
    if is_secret(quote) or is_secret(text):
        return "secret"
    if is_unbound(text, language):
        return "subject"
    if text == quote:
        return ""
    if facts_of(text, language).negated != facts_of(quote, language).negated:
        return "negation"
    if unsupported_claims(text, Stated.of([quote, message.speaker], language, whole=True), language):
        return "claims"
    return "words" if _has_unproven_word(text, quote, message.speaker, language) else ""


def _has_unproven_word(text: str, quote: str, speaker: str, language: str) -> bool:
    """Return whether the fact has a content word of which no form is in the quote or in the name of the speaker."""
    said = {_plain(stem) for stem in text_terms(f"{quote}\n{speaker}", language).stems}
    beginnings = {stem[:_ALIKE] for stem in said if len(stem) >= _ALIKE}
    own = {*text_terms(text, language).stems} - function_stems(language)
    words = {_plain(stem) for stem in own} - said - _SPEAKER
    return any(len(word) > 1 and word[:_ALIKE] not in beginnings for word in words)


def _plain(stem: str) -> str:
    return stem.rpartition("~")[2]


def entry_of(proposal: Proposal, run: str) -> MemoryEntry:
    """Return a new entry with the fact. It has the owner, the speaker and the times of its message, which is its
    parent. `raw` is the quote, which stays when a person edits the text, and `pair_id` is the run."""
    message = proposal.message
    mark = message.metadata.get(fields.STORED_BY_KEY)
    return MemoryEntry(
        id=new_id(),
        content=proposal.text.strip(),
        raw=proposal.quote,
        kind=FACT,
        namespace=message.namespace,
        agent_id=message.agent_id,
        user_id=message.user_id,
        project=message.project,
        speaker=message.speaker,
        context=f"{message.speaker}:" if message.speaker else "",
        parent_id=message.id,
        pair_id=run,
        metadata={} if mark is None else {fields.STORED_BY_KEY: mark},
        occurred_at=message.occurred_at,
        valid_from=message.valid_from,
        valid_to=message.valid_to,
        expires_at=message.expires_at,
    )
