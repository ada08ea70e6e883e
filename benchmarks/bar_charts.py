"""Bar charts as SVG text, for a page: one bar a line, whiskers at the quartiles, and marks such as a roof.

Widths are in per cent, so that text keeps its size on a narrow screen. Knows numbers and words; no rows.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

LINE = 40  # pixels of a bar and its text
BAR = 14
FARTHEST = 3.0  # times the longest bar: a mark beyond is omitted, or the bars would be too short


@dataclass(frozen=True)
class Bar:
    """A value with its quartiles. text: its label; series: number of its colour. None: no figure.

    mark: another value on the same scale, 0 for none.
    """

    name: str
    text: str
    series: int
    value: float | None
    low: float = 0.0
    high: float = 0.0
    mark: float = 0.0


def chart(bars: Sequence[Bar], about: str) -> str:
    """One SVG element; its scale begins at 0. about: its text alternative."""
    longest = max([bar.high for bar in bars if bar.value is not None], default=0.0) or 1.0
    marks = [bar.mark for bar in bars if bar.value is not None and bar.mark <= FARTHEST * longest]
    scale = 100 / (1.02 * max([longest, *marks]))
    words = "; ".join([about, *(f"{bar.name}: {bar.text}" for bar in bars)])
    pieces = [
        f'<svg role="img" width="100%" height="{LINE * len(bars) + 4}" aria-label="{html.escape(words)}">'
    ]
    for number, bar in enumerate(bars):
        pieces += _bar(bar, LINE * number, scale)
    return "\n".join([*pieces, "</svg>"])


def _bar(bar: Bar, top: int, scale: float) -> list[str]:
    """The text above, the bar below."""
    name, text, at, middle = html.escape(bar.name), html.escape(bar.text), top + 20, top + 20 + BAR // 2
    found = [
        f'<text x="0" y="{top + 14}">{name}</text>',
        f'<text class="figure" x="100%" y="{top + 14}">{text}</text>',
        f'<rect class="track" x="0" y="{at}" width="100%" height="{BAR}"/>',
    ]
    if bar.value is None:
        return found
    found.append(
        f'<rect class="side{bar.series % 4}" x="0" y="{at}" width="{scale * bar.value:.2f}%" height="{BAR}"/>'
    )
    if bar.high > bar.low:
        low, high = f"{scale * bar.low:.2f}%", f"{scale * bar.high:.2f}%"
        found.append(f'<line class="whisker" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>')
        found += [
            f'<line class="whisker" x1="{x}" x2="{x}" y1="{middle - 4}" y2="{middle + 4}"/>'
            for x in (low, high)
        ]
    if bar.mark and scale * bar.mark <= 100:
        x = f"{scale * bar.mark:.2f}%"
        found.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{at - 3}" y2="{at + BAR + 3}"/>')
    return found
