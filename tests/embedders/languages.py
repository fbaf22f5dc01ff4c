"""300 short texts in twelve languages: five templates, each with five subjects."""

from __future__ import annotations

_LANGUAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "en": (
        ("The harbour master", "A neighbour", "My sister Aino", "The old teacher", "Nobody"),
        (
            "{} keeps the keys in the blue cupboard.",
            "{} arrived at 18:45, didn't they?",
            "{} paid £1,250.50 for the boat!",
            "“{}”, said the letter of 3 March 2024.",
            "{} wrote to info@example.org about the re-opening…",
        ),
    ),
    "fi": (
        ("Satamakapteeni", "Naapuri", "Sisareni Aino", "Vanha opettaja", "Ei kukaan"),
        (
            "{} säilyttää avaimia sinisessä kaapissa.",
            "{} saapui klo 18.45, eikö niin?",
            "{} maksoi veneestä 1 250,50 €!",
            "”{}”, sanottiin kirjeessä 3.3.2024.",
            "{} kysyi työkalulaatikon käyttöönottosuunnitelmasta.",
        ),
    ),
    "sv": (
        ("Hamnkaptenen", "En granne", "Min syster Aino", "Den gamla läraren", "Ingen"),
        (
            "{} förvarar nycklarna i det blå skåpet.",
            "{} kom klockan 18.45, eller hur?",
            "{} betalade 1 250,50 kr för båten!",
            "”{}”, stod det i brevet den 3 mars 2024.",
            "{} frågade om återöppningen av fyren.",
        ),
    ),
    "nb": (
        ("Havnesjefen", "En nabo", "Søsteren min Aino", "Den gamle læreren", "Ingen"),
        (
            "{} oppbevarer nøklene i det blå skapet.",
            "{} kom klokken 18.45, ikke sant?",
            "{} betalte 1 250,50 kr for båten!",
            "«{}», sto det i brevet fra 3. mars 2024.",
            "{} spurte om gjenåpningen av fyret.",
        ),
    ),
    "da": (
        ("Havnefogeden", "En nabo", "Min søster Aino", "Den gamle lærer", "Ingen"),
        (
            "{} opbevarer nøglerne i det blå skab.",
            "{} kom klokken 18.45, ikke sandt?",
            "{} betalte 1.250,50 kr. for båden!",
            "»{}«, stod der i brevet af 3. marts 2024.",
            "{} spurgte om genåbningen af fyrtårnet.",
        ),
    ),
    "de": (
        ("Der Hafenmeister", "Eine Nachbarin", "Meine Schwester Aino", "Der alte Lehrer", "Niemand"),
        (
            "{} verwahrt die Schlüssel im blauen Schrank.",
            "{} kam um 18:45 Uhr, nicht wahr?",
            "{} zahlte 1.250,50 € für das Boot!",
            "„{}“, hieß es im Brief vom 3. März 2024.",
            "{} fragte nach der Wiedereröffnung des Leuchtturms, größer als zuvor.",
        ),
    ),
    "fr": (
        ("Le capitaine du port", "Une voisine", "Ma sœur Aino", "Le vieux maître d’école", "Personne"),
        (
            "{} garde les clés dans l'armoire bleue.",
            "{} arrive à 18 h 45, n’est-ce pas ?",
            "{} a payé 1 250,50 € pour le bateau !",
            "« {} », disait la lettre du 3 mars 2024.",
            "{} a écrit au sujet de la réouverture du phare, près du château.",
        ),
    ),
    "es": (
        ("El capitán del puerto", "Una vecina", "Mi hermana Aino", "El viejo maestro", "Nadie"),
        (
            "{} guarda las llaves en el armario azul.",
            "¿{} llegó a las 18:45, verdad?",
            "¡{} pagó 1.250,50 € por el barco!",
            "«{}», decía la carta del 3 de marzo de 2024.",
            "{} preguntó por la reapertura del faro mañana.",
        ),
    ),
    "ru": (
        ("Капитан порта", "Соседка", "Моя сестра Айно", "Старый учитель", "Никто"),
        (
            "{} хранит ключи в синем шкафу.",
            "{}: прибытие в 18:45, не так ли?",
            "{} и лодка за 1 250,50 ₽!",
            "«{}», говорилось в письме от 3 марта 2024 г.",
            "{} спросил о повторном открытии маяка, ещё раз.",
        ),
    ),
    "ja": (
        ("港長", "近所の人", "妹のアイノ", "年老いた先生", "誰か"),
        (
            "{}は青い戸棚に鍵を保管しています。",
            "{}は18時45分に到着しましたか?",
            "{}は船に125,050円を支払いました!",
            "「{}」と2024年3月3日の手紙に書いてありました。",
            "{}は灯台の再開についてメールで尋ねました。",
        ),
    ),
    "zh": (
        ("港务长", "一位邻居", "我的妹妹爱诺", "老教师", "没有人"),
        (
            "{}把钥匙放在蓝色的柜子里。",
            "{}是不是18:45到的?",
            "{}花了1250.50元买船!",
            "2024年3月3日的信上写着:“{}”。",
            "{}询问了灯塔重新开放的事情。",
        ),
    ),
    "ar": (
        ("رئيس الميناء", "جارة", "أختي آينو", "المعلم العجوز", "لا أحد"),
        (
            "{} يحفظ المفاتيح في الخزانة الزرقاء.",
            "{} وصل الساعة ١٨:٤٥، أليس كذلك؟",
            "{} دفع ١٢٥٠٫٥٠ ثمنا للقارب!",
            "«{}»، هكذا جاء في رسالة ٣ مارس ٢٠٢٤.",
            "{} سأل عن إعادة افتتاح المنارة غدًا.",
        ),
    ),
}
TEXTS = [
    template.format(subject)
    for subjects, templates in _LANGUAGES.values()
    for subject in subjects
    for template in templates
]
