"""The quality of the text of a page: good pages in many languages, garbled pages, and the limits of each sign."""

from __future__ import annotations

import base64
import random
import string
from collections import Counter

import pytest

from agentformer.text import quality
from agentformer.text.quality import Quality, assess

ENGLISH = (
    "The lighthouse keeper counted the ships that passed before midnight and wrote their names in a long book, "
    "which nobody but the harbour master ever opened. When the fog came down over the islands he rang the bell. "
) * 2
HONEST = {
    "en": ENGLISH,
    "fi": "Majakanvartija laski laivat, jotka kulkivat ohi ennen keskiyötä, ja kirjoitti niiden nimet pitkään kirjaan. "
    "Kun sumu laskeutui saarten ylle, hän soitti kelloa joka toinen minuutti, eikä kukaan kuullut. " * 2,
    "sv": "Fyrvaktaren räknade fartygen som gick förbi före midnatt och skrev deras namn i en lång bok. "
    "När dimman sänkte sig över öarna ringde han i klockan varannan minut, men ingen hörde. " * 2,
    "ar": "كان حارس المنارة يعد السفن التي تمر قبل منتصف الليل ويكتب أسماءها في كتاب طويل. " * 3,
    "ja": "灯台守は真夜中までに通る船をかぞえ、その名前を長い帳面に書きつけました。霧の夜には鐘を鳴らします。" * 3,
    "zh": "灯塔看守人数着午夜前经过的船只，并把它们的名字写在一本长长的书里。雾降临时他敲钟。" * 3,
    "ru": "Смотритель маяка считал корабли, проходившие до полуночи, и писал их имена в длинную книгу. " * 3,
    "numbers": "\n".join(f"{n:6d} {n * 17 % 1000:8.2f} {n * 31 % 997:6d} 12.3.2021" for n in range(60)),
    "code": "def readPages(fileName, maxCount=10):\n    for pageNumber in range(maxCount):\n"
    "        yield parsePage(fileName, pageNumber, lineEnd='\\n')\n" * 6,
    "compounds": "Lentokonesuihkuturbiinimoottoriapumekaanikko kävi. Aliupseerioppilas kertoi siitä muille, ja "
    "he kirjoittivat muistiin, mitä kauan sitten tapahtui, kun vanha kone oli jo poissa käytöstä. " * 2,
}


def test_honest_pages_are_good() -> None:
    for language in HONEST:
        assert assess(HONEST[language]).verdict == "good"


def test_random_substitutions_of_a_page_are_garbled() -> None:
    generator = random.Random(7)
    verdicts = []
    for _ in range(50):
        letters = list(string.ascii_lowercase)
        generator.shuffle(letters)
        text = ENGLISH.lower().translate(str.maketrans(string.ascii_lowercase, "".join(letters)))
        verdicts.append(assess(text).verdict)
    assert verdicts.count("garbled") >= 40


def test_rubbish_is_garbled() -> None:
    for text in [
        "".join(chr(ord(c) % 25 + 1) if c.isalpha() else c for c in ENGLISH),
        "\ufffd" * 40 + "\n" + "\ufffd" * 30,
        "/g18/g152/g135/g148/g3/g145/g136\n" * 20,
        "(cid:12)(cid:44)(cid:7) (cid:90)\n" * 20,
        "".join(chr(0xE100 + ord(c)) if c.isalpha() else c for c in ENGLISH),
        HONEST["ru"].encode("cp1251").decode("latin-1"),
        HONEST["sv"].encode().decode("cp1252", "ignore").replace(" ", "Ã¤ "),
    ]:
        result = assess(text)

        assert result.verdict == "garbled"
        assert result.reason


def test_lost_spaces_make_the_other_reading_better() -> None:
    glued = assess(ENGLISH.replace(" ", ""))

    assert glued.verdict == "doubtful"
    assert glued.score < assess(ENGLISH).score


def test_a_few_private_bullets_are_no_harm() -> None:
    assert assess(ENGLISH + "\uf0b7 one\n\uf0b7 two").verdict == "good"


def test_blank_is_empty() -> None:
    for text in ["", " \n\t ", "\u00a0"]:
        assert assess(text).verdict == "empty"


def test_short_text_is_never_condemned_by_statistics() -> None:
    for text in ["Qwrtz", "XK-4711 / ZZ", "HLR", "§ 4.2"]:
        assert assess(text).verdict == "good"


def test_a_font_that_admits_to_have_no_mapping_is_trusted_less() -> None:
    short = "zxqv kwjpf bgqz xkcd vzqw pfmb jqzx kvwb"

    assert assess(short).verdict == "good"
    assert assess(short, unmapped=0.9).verdict == "garbled"


PAGES_WITHOUT_PROSE = {
    "a bank statement": "\n".join(
        f"0{n % 9 + 1}/{n % 28 + 1}/2026 1{n % 3}/0{n % 9 + 1}/2026 {n * 7.31:.2f}" for n in range(40)
    ),
    "invoice numbers": "\n".join(f"INV/2026/{n:04} {n * 3.7:.2f} EUR" for n in range(1, 99, 13)),
    "inches": "\n".join(f'{n}/8" x {n + 3}/16" /{n}' for n in range(1, 60)),
    "paths": "\n".join(f"GET /v{n % 3 + 1}/{n * 7}" for n in range(1, 40)),
    "serial numbers": "\n".join(
        "".join(random.Random(n).choices("ABCDEFGHJKNQRSTUVWXYZ23456789", k=16)) for n in range(30)
    ),
    "product keys": "\n".join(
        "-".join("".join(random.Random(n * 5 + k).choices(string.ascii_uppercase, k=5)) for k in range(5))
        for n in range(30)
    ),
    "base64": base64.encodebytes(random.Random(1).randbytes(900)).decode(),
    "hexadecimal": random.Random(1).randbytes(900).hex(" ", 4),
    "DNA": "\n".join(
        " ".join("".join(random.Random(n * 9 + k).choices("ACGT", k=10)) for k in range(6)) for n in range(30)
    ),
    "a price list of codes": "\n".join(f"BRKT-{n:03}-XQZW  WSHR/{n}M  {n}.50" for n in range(60)),
    "boxes to tick": "\n".join(f"\u25a1 Ja \u25a1 Nein \u25a1{n}" for n in range(40)),
    "icons": "\n".join(f"\uf0e0 mail {n} \uf095 call" for n in range(40)),
    "macros": "\n".join(
        f"\\DeclareTextSymbol{{\\cyr{c}zhdsc}}{{T2A}}{{{n}}}" for n, c in enumerate(string.ascii_lowercase)
    ),
}


@pytest.mark.parametrize("kind", PAGES_WITHOUT_PROSE)
def test_a_page_without_prose_is_usable(kind: str) -> None:
    quality = assess(PAGES_WITHOUT_PROSE[kind])

    assert quality.is_usable, quality


def test_a_page_in_eight_scripts_is_good() -> None:
    signs = (
        "The pharmacy is open until nine. Аптека открыта до девяти. Το φαρμακείο είναι ανοιχτό. الصيدلية مفتوحة. "
        "בית המרקחת פתוח עד תשע. ร้านขายยาเปิดถึงเก้าโมง फार्मेसी नौ बजे तक खुली है। "
        "薬局は九時まで開いています。 약국은 아홉 시까지 엽니다."
    )

    assert assess(signs).verdict == "good"


def test_words_with_letters_of_two_scripts_are_garbled() -> None:
    mixed = (
        "والzهd فAmy يعجب ويrhb الAWlsن كلهA محmtل إلاCادتAh تlكRعtه لzlوا الEwيrبه مrsحTy تعTymyl والأعAmل الtعTymyl"
    )

    assert assess(mixed) == Quality(
        pytest.approx(0.0, abs=0.3), len(mixed.replace(" ", "")), "garbled", "letters of unrelated scripts mixed"
    )
    assert (
        assess("συλλαβισ\u00b5ός Δt 5 \u00b5m 3\u00aa " + ENGLISH).verdict == "good"
    )  # signs, not letters of a script


def test_a_short_sound_text_has_no_penalty() -> None:
    assert assess("Abc 1") == Quality(1.0, 4, "good")
    assert assess(" ") == Quality(0.0, 0, "empty")


def test_characters_without_meaning_are_counted() -> None:
    meaningless = {char: quality._meaningless(char) for char in "\x1f ~\x7f\ufffd\ue000é"}
    assert meaningless == {
        "\x1f": True,
        " ": False,
        "~": False,
        "\x7f": True,
        "\ufffd": True,
        "\ue000": False,
        "é": False,
    }
    for letters, penalty in ((12, 2.0), (13, 0.0)):  # names of glyphs count if they are half of the page
        text = "/g12/g3/g45 " + "a" * (letters - 1)
        assert quality._unreadable(text, Counter(text), letters + 10) == pytest.approx(penalty, abs=0.2)


def test_a_wrong_encoding_needs_some_letters_to_be_recognized() -> None:
    for text, letters, penalty in (
        ("Ã¤Ã¤ abcd", 7, 0.0),
        ("Ã¤Ã¤ abcd", 8, 3.0),
        ("ÀÁÂÃ abcd", 8, 1.35),
        ("aB" * 20, 39, 0.0),
        ("aB" * 20, 40, 0.0),  # a key, or a name in code
        ("aBé" * 20, 60, 1.4),
        ("a¡a " * 10, 40, 4.9),
    ):
        assert quality._mojibake(text, letters, 0.0) == pytest.approx(penalty)


def test_half_of_the_letters_may_be_in_words_of_two_scripts() -> None:
    for text, penalty in (
        ("word слово " * 9, 0.0),
        ("wordслово " * 4, 0.0),  # too few letters
        ("wordслово " * 5, 1.1875),
        (f"{'wordслово ' * 5}{'simple words ' * 5}", 0.5),
        ("Python使用 ใช้Python " * 9, 0.0),  # scripts without spaces between words
    ):
        assert quality._script_soup(text) == pytest.approx(penalty, abs=0.01), text


def test_the_letters_of_a_short_text_are_compared_only_if_the_font_has_no_mapping() -> None:
    thirty = "zxqvk wjpfb gqzxk cdvzq wpfmj bqzxw"
    for text, unmapped, garbled in (
        (thirty, 0.9, True),
        (thirty[:-1], 0.9, False),
        (thirty, 0.5, False),
        (f"{thirty} {'1' * 30}", 0.9, True),
        (f"{thirty} {'1' * 31}", 0.9, False),  # mostly figures
        (f"{thirty} слово" + "а" * 30, 0.9, False),  # Latin names in another script
    ):
        assert (quality._cipher(text, Counter(text), unmapped) > 1) is garbled, text
    assert quality._letter_likeness(Counter("äöå"))[1] == 3
    assert quality._letter_likeness(Counter()) == (1.0, 0)


def test_vowels_alternate_with_consonants_unless_letters_are_replaced() -> None:
    words = set(ENGLISH.lower().replace(",", "").replace(".", "").split())
    own, best = quality._alternation(words)
    swapped = str.maketrans("aeiouytnshrl", "tnshrlaeiouy")
    replaced, possible = quality._alternation({word.translate(swapped) for word in words})

    assert (own, best) == pytest.approx((0.73, 0.78), abs=0.01)
    assert (replaced, possible) == pytest.approx((0.52, 0.78), abs=0.01)


def test_runs_of_more_than_24_letters_are_a_sign_of_lost_spaces() -> None:
    for text, penalty in (
        ("a" * 40, 0.48),
        ("a" * 39, 0.0),  # too few letters
        (f"{'a' * 24} {'b' * 24}", 0.0),
        (f"{'a' * 25} {'b' * 25}", 0.48),
        (f"{'a' * 25} {'b' * 15} {'c' * 10}", 0.18),
    ):
        assert quality._lost_spaces(text) == pytest.approx(penalty)


def test_turned_ligatures_are_counted() -> None:
    turned = [quality._turned_ligatures("\u0627\u0623\u0644 " * count) for count in (0, 1, 2, 30)]
    assert turned == pytest.approx([0.0, 0.09, 0.1, 0.3])
