"""What kind of sentence it is: does it say anything, and facts weigh more in a summary than greetings and questions."""

from __future__ import annotations

import re

from agentformer.text.dates.calendar import months, weekdays
from agentformer.text.languages import FUNCTION_WORDS, word_list


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_WORD = re.compile(r"[^\W\d_]+")
_RUN = 4  # letters of a word, in scripts that put no spaces between them
_SHORT = 4  # words; less hardly says anything by itself
_LOOKED_AT = 400  # code points
_QUESTION = re.compile(r"[?？؟;]\W*$")
_GREETINGS = frozenset().union(*word_list("greetings").values())
# Words that answer a question, so that the word beside them may be a fact ("No, penicillin.").
_ANSWERS = _words(
    "yes yeah no kyllä joo juu ei ja nej nei nein oui non sí sì sim não sie nie tak igen nem jah да нет так ano evet "
    "hayır da nu nee"
)
# Words that only say how one likes what was said.
_PLEASANTRIES = _words(
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
# Beginnings of words that tell of something decided, planned or done, in the languages served best.
_DECISIONS = re.compile(
    r"\b(?:decid|decision|agree|agreed|chose|chosen|plan(?:s|ned|ning)?\b|will\b|deadline|promis|book(?:ed|ing)\b|"
    r"bought|start(?:ed|ing)\b|finish|moved\b|married|born\b|"
    r"päät[iöt]|sovi(?:t|m)|suunnit|lupa[as]|ost[ie]|varas[it]|aloit|muut(?:i|t)|"
    r"beslut|bestäm|bestem|överens|planera|planlæ|planleg|lova(?:de|r)|lovet|köpt|kjøpt|købt|boka|börja|"
    r"beschl(?:oss|uss)|entsch(?:ied|eid)|vereinbar|geplant|gekauft|décid|decidi|決め|決ま|予定|約束)",
    re.IGNORECASE,
)
_DATED, _DECIDED = 1.35, 1.2  # a little more: the graph still has the main say
_ASKED, _GREETED, _CURT = 0.5, 0.4, 0.6


def says_something(sentence: str, language: str) -> bool:
    """False for greetings, thanks, "ok" and questions that give nothing away.

    What holds a digit, a day or a decision always does. Of a question, more than a few words must carry meaning.
    """
    sample = sentence[:_LOOKED_AT]
    words = [word.casefold() for word in _WORD.findall(sample)]
    asked = bool(_QUESTION.search(sentence[-8:]))
    if _is_dated(sample, words) or (not asked and _DECISIONS.search(sample)):
        return True
    ignored = FUNCTION_WORDS.get(language, frozenset())
    carrying = sum(_size(word) for word in words if not (word in _EMPTY or word in _ANSWERS or word in ignored))
    return carrying > (_SHORT if asked else not _EMPTY.isdisjoint(words))


def _size(word: str) -> int:
    """How many words it is: a run of a script without spaces is several, and what an apostrophe leaves is none."""
    return 1 + len(word) // _RUN if _unspaced(word) else int(len(word) > 1)


def weight(sentence: str) -> float:
    """What the kind of sentence multiplies its worth by, around 1."""
    sample = sentence[:_LOOKED_AT]
    words = [word.casefold() for word in _WORD.findall(sample)]
    found = 1.0
    if _is_dated(sample, words):
        found *= _DATED
    if _DECISIONS.search(sample):
        found *= _DECIDED
    if _QUESTION.search(sentence[-8:]):
        found *= _ASKED
    if words and words[0] in _GREETINGS:
        found *= _GREETED if len(words) <= 2 * _SHORT else 1.0
    if len(words) < _SHORT and not _unspaced(sample):
        found *= _CURT
    return found


def _is_dated(sample: str, words: list[str]) -> bool:
    """Does it have a digit, a weekday or a month?"""
    return any(c.isdigit() for c in sample) or any(weekdays(word) or (len(word) > 4 and months(word)) for word in words)


def _unspaced(text: str) -> bool:
    return any(c >= "\u0e00" for c in text)
