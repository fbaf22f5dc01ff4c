"""Growth curves as SVG with logarithmic axes, without a library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from bench.speed.figures import grown
from bench.speed.timing import Values

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 40, 48
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito: distinguishable without red and green
_DASHES = ("none", "6 3", "2 3", "8 3 2 3")
_LINES = {
    "any search": ("hybrid", "p50"),
    "scope of 1%": ("scope", "p50"),
    "stored and found": ("add", "p50"),
    "removed and gone": ("delete", "p50"),
}

Points = Sequence[tuple[float, float]]


def draw(results: Values, folder: Path) -> list[Path]:
    """Write one file for latency and one for memory and disk. A figure measured at one size only is left out."""
    sizes = [int(size) for size in results.get("growth", {})]
    drawings = {
        "growth-latency.svg": ("Milliseconds (median) by entries", _curves(results, sizes, _LINES)),
        "growth-memory.svg": (
            "Megabytes by entries",
            _curves(results, sizes, {"resident": ("resident", "rss_mb"), "on disk": ("disk_mb",)}),
        ),
    }
    made = []
    for name, (title, curves) in drawings.items():
        if any(len(points) > 1 for points in curves.values()):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(chart(title, curves), encoding="utf-8")
            made.append(folder / name)
    return made


def chart(title: str, curves: Mapping[str, Points]) -> str:
    """Return an SVG of curves over powers of ten. Every number must be above 0."""
    xs, ys = ([point[axis] for points in curves.values() for point in points] for axis in (0, 1))
    x_range, y_range = _decades(xs), _decades(ys)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = _share(point[0], x_range) * (_WIDTH - _LEFT - _RIGHT)
        return _LEFT + across, _HEIGHT - _BOTTOM - _share(point[1], y_range) * (_HEIGHT - _TOP - _BOTTOM)

    body = [*_grid(x_range, y_range), _text(_LEFT, _TOP - 16, title, size=15)]
    ends = _apart([place(points[-1])[1] if points else 0.0 for points in curves.values()])
    for number, ((name, points), end) in enumerate(zip(curves.items(), ends, strict=True)):
        colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        placed = [place(point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        )
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed]
        told = f"{name}: {points[-1][1]:,.4g}" if points else f"{name}: none"
        body.append(_text(_WIDTH - _RIGHT + 12, end + 4, told, colour=colour))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" role="img">'
    )
    background = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", background, *body, "</svg>", ""])


def _curves(results: Values, sizes: Sequence[int], lines: Mapping[str, tuple[str, ...]]) -> dict[str, Points]:
    found = {name: [(float(size), grown(results, size, *path)) for size in sizes] for name, path in lines.items()}
    return {name: [(size, value) for size, value in points if value] for name, points in found.items()}


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """Return the exponents of the powers of ten around all values."""
    there = list(values)
    least = math.floor(math.log10(min(there)) + 1e-9)
    return least, max(least + 1, math.ceil(math.log10(max(there)) - 1e-9))


def _share(value: float, decades: tuple[int, int]) -> float:
    """Return the place of a value between the ends of an axis, 0..1."""
    return (math.log10(value) - decades[0]) / (decades[1] - decades[0])


def _apart(heights: Sequence[float], least: float = 16.0) -> list[float]:
    """Return the same heights, moved down where two labels would overlap."""
    moved = list(heights)
    last = -math.inf
    for number in sorted(range(len(heights)), key=lambda n: heights[n]):
        moved[number] = last = max(heights[number], last + least)
    return moved


def _grid(x_range: tuple[int, int], y_range: tuple[int, int]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    body = []
    for exponent in range(x_range[0], x_range[1] + 1):
        x = _LEFT + _share(10.0**exponent, x_range) * (right - _LEFT)
        body += [_rule(x, _TOP, x, bottom), _text(x, bottom + 20, f"{10**exponent:,}", anchor="middle")]
    for exponent in range(y_range[0], y_range[1] + 1):
        y = bottom - _share(10.0**exponent, y_range) * (bottom - _TOP)
        body += [_rule(_LEFT, y, right, y), _text(_LEFT - 8, y + 4, f"{10.0**exponent:,g}", anchor="end")]
    return [*body, _text((_LEFT + right) / 2, _HEIGHT - 8, "entries", anchor="middle")]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#cccccc"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#222222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
    )
