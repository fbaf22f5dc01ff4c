"""The sentence that says that nothing was found, in the language of the question."""

from __future__ import annotations

from agentformer.text.analysis import QueryTerms
from agentformer.text.languages import detect_language, likelier_of_alike
from agentformer.text.questions import classify

# In all languages with a stemmer, and in some widely spoken ones without a stemmer.
NOTHING_FOUND = {
    "en": "I found nothing in the documents that answers this.",
    "ar": "لم أجد في المستندات إجابة عن هذا السؤال.",
    "bg": "Не намерих отговор на това в документите.",
    "ca": "No he trobat resposta a això en els documents.",
    "cs": "V dokumentech na to není odpověď.",
    "da": "Jeg fandt ikke noget svar på dette i dokumenterne.",
    "de": "Ich habe in den Dokumenten keine Antwort darauf gefunden.",
    "el": "Δεν βρήκα απάντηση σε αυτό στα έγγραφα.",
    "es": "No he encontrado respuesta a esto en los documentos.",
    "et": "Ma ei leidnud dokumentidest sellele vastust.",
    "fa": "پاسخی برای این پرسش در اسناد پیدا نکردم.",
    "fi": "En löytänyt asiakirjoista vastausta tähän.",
    "fr": "Je n’ai pas trouvé de réponse à cela dans les documents.",
    "ga": "Níor aimsigh mé freagra air seo sna doiciméid.",
    "he": "לא מצאתי במסמכים תשובה לשאלה הזאת.",
    "hi": "मुझे दस्तावेज़ों में इसका उत्तर नहीं मिला।",
    "hu": "Nem találtam erre választ a dokumentumokban.",
    "hy": "Փաստաթղթերում սրա պատասխանը չգտա։",
    "id": "Saya tidak menemukan jawabannya dalam dokumen.",
    "is": "Ég fann ekkert svar við þessu í skjölunum.",
    "it": "Non ho trovato una risposta nei documenti.",
    "ja": "文書の中に答えは見つかりませんでした。",
    "ko": "문서에서 이에 대한 답을 찾지 못했습니다.",
    "lt": "Dokumentuose atsakymo į tai neradau.",
    "ne": "कागजातहरूमा यसको उत्तर भेटिएन।",
    "nl": "Ik heb in de documenten geen antwoord hierop gevonden.",
    "no": "Jeg fant ikke noe svar på dette i dokumentene.",
    "pl": "W dokumentach nie ma odpowiedzi na to pytanie.",
    "pt": "Não encontrei resposta para isto nos documentos.",
    "ro": "Nu am găsit în documente un răspuns la aceasta.",
    "ru": "В документах не нашлось ответа на этот вопрос.",
    "sr": "У документима нема одговора на ово.",
    "sv": "Jag hittade inget svar på detta i dokumenten.",
    "ta": "ஆவணங்களில் இதற்கான பதில் கிடைக்கவில்லை.",
    "th": "ไม่พบคำตอบสำหรับเรื่องนี้ในเอกสาร",
    "tr": "Belgelerde bunun yanıtını bulamadım.",
    "uk": "У документах не знайшлося відповіді на це.",
    "zh": "在文档中没有找到答案。",
}
_TELLING = 3  # words needed to detect a language: a few words often belong to several ("Door code?" has a Dutch word)


def nothing_found(query: QueryTerms, language: str = "") -> str:
    """Return the sentence "I found nothing in the documents that answers this." in the language of the question. If
    this language is uncertain, `language`, the language of the passages, is assumed. If there is no translation, return
    the English sentence."""
    own = query.language
    if len(query.text.split()) < _TELLING and not classify(query.text).asking:
        own = detect_language(query.text, language)
    alike = likelier_of_alike(query.text)
    alike = language if {alike, language} == {"da", "no"} else alike
    return NOTHING_FOUND.get(own or alike or language, NOTHING_FOUND["en"])
