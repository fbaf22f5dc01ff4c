"""Write the numbers of lists and clauses: decimal, letters and Roman."""

from __future__ import annotations

_ROMAN = (
    *((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL")),
    *((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")),
)
_LETTERS = 26


def numeral(number: int, kind: str) -> str:
    """Return a number as text. `kind` is "a" or "A" (letters), "i" or "I" (Roman), "01" (two digits), or "1". Letters
    and Roman numbers are decimal where they would be long."""
    if kind in ("a", "A") and 0 < number <= 30 * _LETTERS:
        text = chr(ord("a") + (number - 1) % _LETTERS) * ((number - 1) // _LETTERS + 1)
    elif kind in ("i", "I") and 0 < number < 4000:
        text = ""
        for value, letters in _ROMAN:
            count, number = divmod(number, value)
            text += letters * count
        text = text.lower()
    else:
        return f"{number:02}" if kind == "01" else str(number)
    return text.upper() if kind.isupper() else text


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscript(text: str) -> str:
    """Return a raised number in superscript digits, so that it does not join the number before it: "10⁵" and not "105".
    Return another text unchanged."""
    return text.translate(_SUPERSCRIPTS) if text.strip().isdecimal() and text.isascii() else text
