"""Ratios as a picture: a row for each, a dot at the median, a line from the lowest round to the highest, a mark at the
target. It is logarithmic, so that twice as fast and half as fast are equally far from even.
"""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.measure import METRICS, Finding

_LEFT, _WIDTH, _RIGHT, _TOP, _ROW = 400, 500, 220, 50, 22
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 1, 2, 3, 5, 10, 20, 50, 100)
_COLOURS = {"reached": "#2a7d3f", "short": "#b3261e", "": "#5f6368"}
_INK, _GRID = "#202124", "#dadce0"
_TITLE = "ours / theirs: the median, the lowest and the highest round; | is the target"


def ratios_svg(findings: Sequence[tuple[str, Finding]]) -> str:
    """Return the picture. ``findings`` has the case's name with each; those without a comparison are left out."""
    ratios = [(case, found) for case, found in findings if found.target.against is not None and min(found.values) > 0]
    ends = [value for _, found in ratios for value in (*found.values, *_bounds(found))]
    low, high = min([0.5, *ends]) / 1.1, max([2.0, *ends]) * 1.1
    bottom = _TOP + _ROW * len(ratios)

    def x(ratio: float) -> float:
        return _LEFT + _WIDTH * math.log(ratio / low) / math.log(high / low)

    parts = [_text(_LEFT, 18, _TITLE)]
    for tick in _TICKS:
        if low < tick < high:
            parts.append(_line(x(tick), _TOP - 8, x(tick), bottom, _INK if tick == 1 else _GRID, 1))
            parts.append(_text(x(tick), _TOP - 14, f"{tick:g}", anchor="middle"))
    for row, (case, found) in enumerate(ratios):
        y = _TOP + _ROW * (row + 0.5)
        colour = _COLOURS[found.verdict]
        parts.append(_text(_LEFT - 10, y + 4, _label(case, found), anchor="end"))
        parts.append(_line(x(min(found.values)), y, x(max(found.values)), y, colour, 3))
        parts.append(f'<circle cx="{x(found.median):.1f}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(_text(_LEFT + _WIDTH + 12, y + 4, f"{found.text} {found.target.bound}", colour))
        parts += [_line(x(bound), y - 9, x(bound), y + 9, _INK, 2) for bound in _bounds(found)]
    size = f'width="{_LEFT + _WIDTH + _RIGHT}" height="{bottom + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def _label(case: str, found: Finding) -> str:
    of = "" if found.target.of == "ours" else f"{found.target.of}, "
    return f"{case}: {of}{METRICS[found.target.metric].title} to {found.target.against}"


def _bounds(found: Finding) -> list[float]:
    return [bound for bound in (found.target.at_least, found.target.at_most) if bound is not None]


def _text(x: float, y: float, text: str, colour: str = _INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'
