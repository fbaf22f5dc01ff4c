"""Kinds of sentences: greetings and thanks have no content, and dates and decisions weigh more than questions."""

from __future__ import annotations

import re

from agentformer.text.dates.calendar import months, weekdays
from agentformer.text.languages import FUNCTION_WORDS, word_list


def _word_set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_WORD = re.compile(r"[^\W\d_]+")
_UNSPACED_WORD = 4  # letters of a word, in scripts without spaces
_FEW_WORDS = 4  # fewer words rarely have content by themselves
_SAMPLE = 400  # code points
_QUESTION = re.compile(r"[?？؟;]\W*$")
_GREETINGS = frozenset().union(*word_list("greetings").values())
# Words that answer a question; the next word may be a fact ("No, penicillin.").
_ANSWERS = _word_set(
    "yes yeah no kyllä joo juu ei ja nej nei nein oui non sí sì sim não sie nie tak igen nem jah да нет так ano evet "
    "hayır da nu nee"
)
# Words that only comment on the previous message.
_PLEASANTRIES = _word_set(
    "ok k oki alright sure cool great nice good awesome amazing fine wonderful perfect lovely exactly indeed "
    "lol haha hahaha hmm sounds thx cheers welcome congrats goodbye "
    "selvä hienoa kiva mahtavaa upeaa loistavaa hyvää huomenta moikka heippa ookoo okei eipä kestä "
    "bra jättebra toppen okej fint härligt hejdå godmorgon god varsågod greit flott fedt klart "
    "super gut toll prima klasse guten wiedersehen bien parfait merveilleux bonsoir bueno vale "
    "perfecto genial bom ótimo bene perfetto хорошо отлично ладно здравствуйте "
    "こんにちは こんばんは おはよう おはようございます ありがとう ありがとうございます ありがとうございました "
    "了解 了解です 了解しました わかりました 分かりました はい いいえ なるほど すみません よろしくお願いします "
    "お疲れ様です お疲れさまです 承知しました 谢谢 你好 好的 谢谢你 您好 謝謝 再见 감사합니다 안녕하세요 네"
)
_EMPTY = (_GREETINGS | _PLEASANTRIES) - _ANSWERS
# Beginnings of words for something decided, planned or done, in the best supported languages.
_DECISIONS = re.compile(
    r"\b(?:decid|decision|agree|agreed|chose|chosen|plan(?:s|ned|ning)?\b|will\b|deadline|promis|book(?:ed|ing)\b|"
    r"bought|start(?:ed|ing)\b|finish|moved\b|married|born\b|"
    r"päät[iöt]|sovi(?:t|m)|suunnit|lupa[as]|ost[ie]|varas[it]|aloit|muut(?:i|t)|"
    r"beslut|bestäm|bestem|överens|planera|planlæ|planleg|lova(?:de|r)|lovet|köpt|kjøpt|købt|boka|börja|"
    r"beschl(?:oss|uss)|entsch(?:ied|eid)|vereinbar|geplant|gekauft|décid|decidi|決め|決ま|予定|約束)",
    re.IGNORECASE,
)
_DATED, _DECIDED = 1.35, 1.2  # small factors: the graph has the main influence
_QUESTIONED, _GREETED, _CURT = 0.5, 0.4, 0.6


def has_content(sentence: str, language: str) -> bool:
    """Return False for greetings, thanks, "ok" and questions without details.

    A sentence with a digit, a day or a decision always has content. A question has content only if it has several
    content words.
    """
    sample = sentence[:_SAMPLE]
    words = [word.casefold() for word in _WORD.findall(sample)]
    is_question = bool(_QUESTION.search(sentence[-8:]))
    if _is_dated(sample, words) or (not is_question and _DECISIONS.search(sample)):
        return True
    ignored = FUNCTION_WORDS.get(language, frozenset())
    content_words = sum(
        _word_count(word) for word in words if not (word in _EMPTY or word in _ANSWERS or word in ignored)
    )
    return content_words > (_FEW_WORDS if is_question else not _EMPTY.isdisjoint(words))


def kind_weight(sentence: str) -> float:
    """Return the number, close to 1, by which the weight of a sentence of this kind is multiplied."""
    sample = sentence[:_SAMPLE]
    words = [word.casefold() for word in _WORD.findall(sample)]
    weight = 1.0
    if _is_dated(sample, words):
        weight *= _DATED
    if _DECISIONS.search(sample):
        weight *= _DECIDED
    if _QUESTION.search(sentence[-8:]):
        weight *= _QUESTIONED
    if words and words[0] in _GREETINGS and len(words) <= 2 * _FEW_WORDS:
        weight *= _GREETED
    if len(words) < _FEW_WORDS and not _is_unspaced(sample):
        weight *= _CURT
    return weight


def _word_count(word: str) -> int:
    """Estimate the number of words. In a script without spaces, a run counts as several words. A single letter counts
    as none."""
    return 1 + len(word) // _UNSPACED_WORD if _is_unspaced(word) else int(len(word) > 1)


def _is_dated(sample: str, words: list[str]) -> bool:
    """True if the sample has a digit, a weekday or a month."""
    return any(c.isdigit() for c in sample) or any(weekdays(word) or (len(word) > 4 and months(word)) for word in words)


def _is_unspaced(text: str) -> bool:
    return any(c >= "\u0e00" for c in text)
