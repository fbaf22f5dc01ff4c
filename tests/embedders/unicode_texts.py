"""Texts in all scripts: strings of the tests, and random texts."""

from __future__ import annotations

import ast
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

THAI = (
    "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอนหรือวรรณยุกต์เช่นเดียวกับภาษาจีน "
    "กรุงเทพมหานครเป็นเมืองหลวงและเมืองที่ใหญ่ที่สุด อาหารไทยมีชื่อเสียงไปทั่วโลก"
)
WRITTEN = (
    *(
        "",
        " ",
        "   ",
        "\x00",
        "\x01",
        "\n",
        " \t\n ",
        "a",
        " a",
        "a ",
        "a  b",
        "a   b ",
        "a\n\n\nb",
        "\u3000x\u3000\u3000y",
    ),
    *(
        "a\x00b",
        "a\x01b",
        "\x01a",
        "a\u200bb",
        "a\u200db",
        "\ufeffa",
        "a\u00adb",
        "\ufffd",
        "\ud83d",
        "x\udc00y",
        "\ud83d\ude00",
    ),
    *(
        "👨\u200d👩\u200d👧",
        "👍🏽",
        "🇫🇮🇸🇪",
        "ａｂｃ１２３！",
        "ｶﾞｷﾞ",
        "㌔",
        "½ x",
        "ﬁn",
        "ﷺx",
        "…",
        "～",
        "a～b",
        "a▁b",
        "▁",
        "▁▁a",
    ),
    *(
        "e\u0301x",
        "xe\u0301x",
        "a\u0308b",
        "\u0301",
        "\u0301a",
        "1\u0301",
        "日\u0301本",
        "か\u3099",
        "İstanbul",
        "ΣΑΣ",
        "ẞß",
        "ǅ",
    ),
    *(
        "한국어",
        "\u1112\u1161\u11ab국",
        "\u1100\u1161",
        "각",
        "日本語のテキスト。",
        "中文維基百科",
        "हिन्दी में",
        "বাংলা",
        "தமிழ்",
        "မြန်မာ",
        THAI,
    ),
    *(
        "[CLS] hi[MASK]there [SEP]",
        "[UNK][PAD]",
        "[cls]",
        "[MASK",
        "<s>hi</s>",
        "<unk> <mask> <pad>",
        "don't",
        "≠a",
        "a\u037eb",
    ),
    *(
        "a" * 100,
        "a" * 101,
        "b" * 5000,
        "ab" * 300,
        "#" * 300,
        "日本" * 300,
        "\U000f0000\U000f0001x",
        "𝒜𝓑",
        "a\U0002b820\U0002b91f\U0002b920b",
        "𠀀𪜀",
        "\u2028a\u2029b",
    ),
    *(
        "العربية",
        "עברית",
        "ქართული",
        "հայերեն",
        "ελληνικά",
        "Русский ёлка Йод",
        "tiếng Việt",
        "Ünïcödé",
        "Åström",
        "N\u00b0 5 µm",
    ),
)
_RANGES = (
    *((0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x2FF), (0x370, 0x52F)),
    *((0x531, 0x5F4), (0x600, 0x6FF), (0x700, 0x7B1), (0x901, 0x970), (0x981, 0xDF4), (0xE01, 0xE5B), (0xE81, 0xFD1)),
    *((0x1000, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x17F9), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x27BF)),
    *((0x2E80, 0x2FD5), (0x3000, 0x30FF), (0x3105, 0x33FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFA6A)),
    *((0xFB00, 0xFDFB), (0xFE20, 0xFFEE), (0x1D400, 0x1D7FF), (0x20000, 0x2A6D6), (0x0, 0x9F), (0xE000, 0xE0FE)),
)
_MARKS = "".join(map(chr, range(0x300, 0x315)))
_EMOJI = ("👩\u200d💻", "👍🏽", "🇫🇮", "❤️", "🏳️\u200d🌈", "😀", "\ud83d", "\udfff")
# Their properties have changed since the tables of the package `tokenizers`, and since Unicode 3.2.
_CHANGED = {0x166D, 0x180E, 0x1734}


def random_texts(number: int, seed: int) -> Iterator[str]:
    """Texts of one to four scripts, with spaces, line ends, marks, emoji and surrogates between the letters. All code
    points are of Unicode 3.2 or in `_EMOJI`, so that every version of Unicode knows them."""
    chance = random.Random(seed)
    for _ in range(number):
        scripts = chance.sample(_RANGES, chance.randint(1, 4))
        parts: list[str] = []
        for _ in range(chance.choice((1, 3, 10, 40, 150))):
            kind = chance.random()
            if kind < 0.1:
                parts.append(chance.choice((" ", " ", "  ", "\n", "\t", "\u00a0")))
            elif kind < 0.15:
                parts.append(chance.choice("aeiounAEO") + chance.choice(_MARKS))
            elif kind < 0.17:
                parts.append(chance.choice(_EMOJI))
            elif kind < 0.3:
                parts.append(chance.choice(("the", "ing", "talo", "日本", "한국", "при", "ที่", "है")))
            else:
                parts.append(_character(chance, scripts))
        yield "".join(_without_second_marks(parts))


def _character(chance: random.Random, scripts: list[tuple[int, int]]) -> str:
    while True:
        code = chance.randint(*chance.choice(scripts))
        known = unicodedata.ucd_3_2_0.category(chr(code)) != "Cn" or 0xE000 <= code < 0xE0FF
        if known and code not in _CHANGED:
            return chr(code)


def _without_second_marks(parts: list[str]) -> Iterator[str]:
    """Leave out a mark behind another mark, because NFKC, which the reference uses, would sort the marks."""
    marked = False
    for part in parts:
        plain = unicodedata.normalize("NFKD", part)
        if not (marked and unicodedata.combining(plain[0])):
            yield part
            marked = unicodedata.combining(plain[-1]) > 0


def strings_of_tests() -> list[str]:
    """The strings in the tests of this folder and of tests/text, which are in many languages."""
    found: set[str] = set()
    for folder in (Path(__file__).parent, Path(__file__).parents[1] / "text"):
        for file in sorted(folder.glob("test_*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return sorted(found)
