"""Write measurements into a document, between two markers."""

from __future__ import annotations

BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"


def between(document: str, text: str) -> str:
    """Return the document with the text between the markers replaced. Raises `ValueError` unless both occur once and
    in order."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise ValueError(f"the document must hold {BEGIN} and, after it, {END}, once each")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
