"""Write equations of Office (OMML) and of MathML as text, such as "E = 0.5mv^2" or "(a + b)/c"."""

from __future__ import annotations

import re
from collections.abc import Callable

from lxml import etree

M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_DEPTH = 40  # nested expressions; deeper ones are written without signs
_SIMPLE = re.compile(r"[\w.,′'∞]*|\([^()]*\)|\[[^\[\]]*\]")
_ANNOTATIONS = ("application/x-tex", "StarMath 5.0")
_SIGNS = {"nary": "∫", "acc": "\u0302", "groupChr": "", "bar": "\u0305"}

Part = Callable[[str], str]


def equation_text(element: etree._Element, depth: int = 0) -> str:
    """Return an expression as text. `element` is an element of OMML or of MathML, or contains one."""
    if not isinstance(element.tag, str):
        return ""
    name = etree.QName(element).localname
    if depth > _DEPTH:
        return "".join(element.itertext())
    children = [child for child in element if isinstance(child.tag, str) and not _is_property(child)]
    if element.tag.startswith(M):
        if name == "t":
            return element.text or ""
        return _omml(name, element, lambda part: _joined(element.find(f"{M}{part}"), depth), depth)
    if name == "semantics":
        return next((equation_text(child, depth + 1) for child in children), "")
    if not children:
        return " ".join((element.text or "").split())
    return _mathml(name, element, [equation_text(child, depth + 1) for child in children])


def annotation(element: etree._Element) -> str:
    """Return the source text that a formula of MathML contains or names, or ""."""
    for each in element.iter("{*}annotation"):
        if each.get("encoding") in _ANNOTATIONS:
            return " ".join((each.text or "").split())
    return " ".join((element.get("alttext") or "").split())


def _is_property(element: etree._Element) -> bool:
    return etree.QName(element).localname.endswith("Pr") or "annotation" in etree.QName(element).localname


def _joined(element: etree._Element | None, depth: int) -> str:
    if element is None:
        return ""
    children = (child for child in element if isinstance(child.tag, str) and not _is_property(child))
    return "".join(equation_text(child, depth + 1) for child in children)


def _omml(name: str, element: etree._Element, part: Part, depth: int) -> str:
    """Return an element of OMML as text. `part("num")` returns its child with the name "num" as text."""
    sign = element.find(f"{M}{name}Pr/{M}chr")
    shown = sign.get(f"{M}val", "") if sign is not None else _SIGNS.get(name, "")
    match name:
        case "f":
            return _fraction(part("num"), part("den"))
        case "sSup" | "sSub" | "sSubSup" | "sPre":
            return _with_scripts(part("e"), part("sub"), part("sup"))
        case "rad":
            return _root(part("e"), part("deg"))
        case "nary":
            return f"{_with_scripts(shown, part('sub'), part('sup'))} {part('e')}"
        case "limLow":
            return _with_scripts(part("e"), part("lim"), "")
        case "limUpp":
            return _with_scripts(part("e"), "", part("lim"))
        case "func":
            return f"{part('fName')} {part('e')}"
        case "acc" | "bar":
            inner = part("e")
            return inner + (shown if len(inner) == 1 else "")
        case "d":
            return _delimited(element, depth)
        case "m" | "eqArr":
            rows = [equation_text(row, depth + 1) for row in element if row.tag in (f"{M}mr", f"{M}e")]
            return f"[{'; '.join(rows)}]" if name == "m" else "; ".join(rows)
        case "mr":
            return ", ".join(_joined(cell, depth) for cell in element if cell.tag == f"{M}e")
    return _joined(element, depth)


def _delimited(element: etree._Element, depth: int) -> str:
    signs = {"begChr": "(", "sepChr": "|", "endChr": ")"}
    for name in signs:
        found = element.find(f"{M}dPr/{M}{name}")
        signs[name] = found.get(f"{M}val", "") if found is not None else signs[name]
    inner = signs["sepChr"].join(_joined(each, depth) for each in element if each.tag == f"{M}e")
    return f"{signs['begChr']}{inner}{signs['endChr']}"


def _mathml(name: str, element: etree._Element, parts: list[str]) -> str:
    one, two, three = (*parts, "", "", "")[:3]
    match name:
        case "mfrac":
            return _fraction(one, two)
        case "msup" | "mover":
            return _with_scripts(one, "", two)
        case "msub" | "munder":
            return _with_scripts(one, two, "")
        case "msubsup" | "munderover":
            return _with_scripts(one, two, three)
        case "msqrt":
            return _root("".join(parts), "")
        case "mroot":
            return _root(one, two)
        case "mfenced":
            return f"{element.get('open', '(')}{', '.join(parts)}{element.get('close', ')')}"
        case "mtable":
            return f"[{'; '.join(parts)}]"
        case "mtr":
            return ", ".join(parts)
    return "".join(parts)


def _fraction(above: str, below: str) -> str:
    return f"{_grouped(above)}/{_grouped(below)}"


def _with_scripts(base: str, below: str, above: str) -> str:
    return _grouped(base) + (f"_{_grouped(below)}" if below else "") + (f"^{_grouped(above)}" if above else "")


def _root(inner: str, degree: str) -> str:
    return f"{degree if len(degree) < 2 else _grouped(degree)}√{_grouped(inner)}"


def _grouped(text: str) -> str:
    return text if len(text) < 2 or _SIMPLE.fullmatch(text) else f"({text})"
