"""Names of months and weekdays in many languages, and the formats of dates in running text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

# Twelve months per row; "/" separates forms of one month, "*" matches any ending. Accents and case are ignored.
_MONTHS = (
    "january/jan february/feb march/mar april/apr may june/jun july/jul august/aug september/sep/sept "
    "october/oct november/nov december/dec",
    "tammikuu* helmikuu* maaliskuu* huhtikuu* toukokuu* kesäkuu* heinäkuu* elokuu* syyskuu* lokakuu* "
    "marraskuu* joulukuu*",
    "januari februari mars april maj juni juli augusti september oktober november december",
    "januar februar mars/marts april mai/maj juni juli august/aug september/sept oktober/okt november desember/des",
    "jänner feber märz/maerz april mai juni juli august september oktober november dezember/dez",
    "januari februari maart april mei juni juli augustus september oktober november december",
    "janvier/janv février/févr mars avril/avr mai juin juillet/juil août septembre octobre novembre décembre/déc",
    "enero febrero marzo abril/abr mayo junio julio agosto septiembre/setiembre octubre noviembre diciembre/dic",
    "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "gener febrer març abril maig juny juliol agost setembre octubre novembre desembre",
    "ianuarie februarie martie aprilie mai iunie iulie august septembrie octombrie noiembrie decembrie",
    "jaanuar* veebruar* märts* aprill* mai juuni* juuli* august* septemb* oktoob* novemb* detsemb*",
    "január* február* március* április* május* június* július* augusztus* szeptember* október* november* december*",
    "ocak şubat* mart nisan mayıs* haziran* temmuz* ağustos* eylül* ekim kasım* aralık*",
    "styczeń/styczni* luty/lutego/lutym marzec/marca/marcu kwiecień/kwietni* maj/maja/maju czerwiec/czerwca/czerwcu "
    "lipiec/lipca/lipcu sierpień/sierpni* wrzesień/wrześni* październik* listopad* grudzień/grudni*",
    "leden/ledna/lednu únor/února/únoru březen/března/březnu duben/dubna/dubnu květen/května/květnu "
    "červen/června/červnu červenec/července/červenci srpen/srpna/srpnu září říjen/října/říjnu listopad* "
    "prosinec/prosince/prosinci",
    "sausis/sausio/sausį vasaris/vasario/vasarį kovas/kovo/kovą balandis/balandžio/balandį gegužė/gegužės/gegužę "
    "birželis/birželio/birželį liepa/liepos/liepą rugpjūtis/rugpjūčio/rugpjūtį rugsėjis/rugsėjo/rugsėjį "
    "spalis/spalio/spalį lapkritis/lapkričio/lapkritį gruodis/gruodžio/gruodį",
    "januari februari maret april mei juni juli agustus september oktober november desember",
    "janúar febrúar mars apríl maí júní júlí ágúst* september október nóvember desember",
    "eanáir feabhra márta aibreán* bealtaine meitheamh iúil lúnasa meánfómhair deireadhfómhair samhain nollaig",
    "januar* februar* mart/marta/martu april* maj/maja/maju juni/juna/junu juli/jula/julu avgust* septemb* oktob* "
    "novemb* decemb*",
    "январ* феврал* март/марта/марте апрел* май/мая/мае июнь/июня/июне июль/июля/июле август* сентябр* октябр* "
    "ноябр* декабр*",
    "січень/січня/січні лютий/лютого/лютому березень/березня/березні квітень/квітня/квітні травень/травня/травні "
    "червень/червня/червні липень/липня/липні серпень/серпня/серпні вересень/вересня/вересні "
    "жовтень/жовтня/жовтні листопад* грудень/грудня/грудні",
    "януари февруари март април май юни юли август септември октомври ноември декември",
    "јануар* фебруар* март/марта/марту април* мај/маја/мају јун/јуна/јуну јул/јула/јулу август* септемб* октоб* "
    "новемб* децемб*",
    "ιανουαρι* φεβρουαρι* μαρτι* απριλι* μαιος/μαιου/μαιο ιουνι* ιουλι* αυγουστ* σεπτεμβρι* οκτωβρι* νοεμβρι* "
    "δεκεμβρι*",
    "հունվար* փետրվար* մարտ/մարտի/մարտին ապրիլ* մայիս* հունիս* հուլիս* օգոստոս* սեպտեմբեր* հոկտեմբեր* նոյեմբեր* "
    "դեկտեմբեր*",
    "يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر",
    "ژانویه فوریه مارس آوریل مه ژوئن ژوئیه اوت سپتامبر اکتبر نوامبر دسامبر",
    "जनवरी फरवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर/सितम्बर अक्टूबर/अक्तूबर नवंबर/नवम्बर दिसंबर/दिसम्बर",
    "जनवरी फेब्रुअरी मार्च अप्रिल मे जुन जुलाई अगस्ट सेप्टेम्बर अक्टोबर नोभेम्बर डिसेम्बर",
    "ஜனவரி பிப்ரவரி மார்ச் ஏப்ரல் மே ஜூன் ஜூலை ஆகஸ்ட் செப்டம்பர் அக்டோபர் நவம்பர் டிசம்பர்",
)
# Seven days per row, from Monday.
_WEEKDAYS = (
    "monday* tuesday* wednesday* thursday* friday* saturday* sunday*",
    "maanantai* tiistai* keskiviik* torstai*/torstaina perjantai* lauantai* sunnuntai*",
    "måndag* tisdag* onsdag* torsdag* fredag* lördag* söndag*",
    "mandag* tirsdag* onsdag* torsdag* fredag* lørdag* søndag*",
    "montag* dienstag* mittwoch* donnerstag* freitag* samstag*/sonnabend* sonntag*",
    "maandag* dinsdag* woensdag* donderdag* vrijdag* zaterdag* zondag*",
    "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "lunes martes miércoles jueves viernes sábado* domingo*",
    "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "понедельник* вторник* сред/среду/среда четверг* пятниц* суббот* воскресень*",
    "esmaspäev* teisipäev* kolmapäev* neljapäev* reede* laupäev* pühapäev*",
)
_LONGEST_ENDING = 8  # letters
_SHORTEST = 4  # letters before a "*"

# The format of a day, and the names of the months in it. Other languages use "2023-05-08".
_WRITTEN = {
    "en": ("{day} {month} {year}", "January February March April May June July August September October November "
           "December"),
    "fi": ("{day}. {month} {year}", "tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta "
           "elokuuta syyskuuta lokakuuta marraskuuta joulukuuta"),
    "sv": ("{day} {month} {year}", _MONTHS[2]),
    "no": ("{day}. {month} {year}", "januar februar mars april mai juni juli august september oktober november "
           "desember"),
    "da": ("{day}. {month} {year}", "januar februar marts april maj juni juli august september oktober november "
           "december"),
    "de": ("{day}. {month} {year}", "Januar Februar März April Mai Juni Juli August September Oktober November "
           "Dezember"),
    "ja": ("{year}年{number}月{day}日", ""),
    "zh": ("{year}年{number}月{day}日", ""),
}  # fmt: skip


class _Bare(dict[int, str | int]):
    """A cache of letters without accents, by code point."""

    def __missing__(self, point: int) -> str | int:
        # Hangul would be decomposed into sounds; Indic signs and "й" are letters of their own.
        if not (point < 0x900 or 0x1E00 <= point < 0x2000) or chr(point) in "йЙ":
            return point
        self[point] = letter = unicodedata.normalize("NFD", chr(point))[0]
        return letter


_BARE = _Bare()


def strip_accents(text: str) -> str:
    """Remove accents without changing the number of letters, so that offsets stay valid."""
    return text if text.isascii() else text.translate(_BARE)


def _table(rows: Iterable[str]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return two tables: whole words, and beginnings of words, each with their positions (from 1) in the rows."""
    whole: dict[str, set[int]] = {}
    beginnings: dict[str, set[int]] = {}
    for row in rows:
        for number, forms in enumerate(row.split(), 1):
            for form in strip_accents(forms.casefold()).split("/"):
                (beginnings if form.endswith("*") else whole).setdefault(form.rstrip("*"), set()).add(number)
    return whole, beginnings


_MONTH_TABLE = _table(_MONTHS)
_WEEKDAY_TABLE = _table(_WEEKDAYS)


def _numbers(word: str, table: tuple[dict[str, set[int]], dict[str, set[int]]]) -> frozenset[int]:
    whole, beginnings = table
    fold = strip_accents(word.casefold())
    numbers = set(whole.get(fold, ()))
    for size in range(max(_SHORTEST, len(fold) - _LONGEST_ENDING), len(fold) + 1):
        numbers |= beginnings.get(fold[:size], set())
    return frozenset(numbers)


@lru_cache(maxsize=65536)
def months(word: str) -> frozenset[int]:
    """Return the months, 1..12, that the word may name. There are several if the word has different meanings in
    different languages."""
    return _numbers(word, _MONTH_TABLE)


@lru_cache(maxsize=65536)
def weekdays(word: str) -> frozenset[int]:
    """Return the weekdays that the word may name; Monday is 1 (ISO 8601)."""
    return _numbers(word, _WEEKDAY_TABLE)


def format_day(moment: datetime, language: str) -> str:
    """Return the day in the format of `language`. If the format is unknown, return "2023-05-08"."""
    form, names = _WRITTEN.get(language, ("{year:04}-{number:02}-{day:02}", ""))
    month = names.split()[moment.month - 1] if names else ""
    return form.format(day=moment.day, month=month, year=moment.year, number=moment.month)


def format_range(first: datetime, last: datetime, language: str) -> str:
    """Return "8 May 2023 – 9 May 2023", or a single day if both days are equal."""
    days = dict.fromkeys((format_day(first, language), format_day(last, language)))
    return " – ".join(days)
