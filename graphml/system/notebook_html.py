"""Tables and pages for notebooks, as HTML: tables of bounded size in which every text is escaped.

Knows texts; nothing of what they mean. Names and texts come from files and models, so they may be anything.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

MOST_ROWS: Final = 60
MOST_CHARACTERS: Final = 400
"""Of a cell."""


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of at most `MOST_ROWS` rows; a line below it says that there are more."""
    every = iter(rows)
    shown = [_row("td", row) for row in islice(every, MOST_ROWS)]
    more = sum(1 for _ in every)
    end = f"<p>{more} more rows</p>" if more else ""
    # Otherwise it is broken to the width of a narrow table.
    title = f'<caption style="text-align:left;white-space:nowrap">{_escaped(caption)}</caption>'
    return f"<table>{title}<thead>{_row('th', head)}</thead><tbody>{''.join(shown)}</tbody></table>{end}"


def html_page(title: str, body: str) -> str:
    """A complete page with such a body, for a file. body: HTML, as `html_table` returns it."""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{_escaped(title)}</title>\n'
        f"<body>{body}</body></html>\n"
    )


def html_frame(page: str, title: str, height: int = 640) -> str:
    """A complete HTML page in a frame of its own: as wide as the cell, `height` pixels high.

    Its scripts run apart from the notebook: they reach neither its page nor its server.
    """
    style = f"width:100%;height:{height}px;border:1px solid #8888"
    facts = {"title": title, "sandbox": "allow-scripts", "style": style, "srcdoc": page}
    attributes = " ".join(f'{name}="{html.escape(text)}"' for name, text in facts.items())
    return f"<iframe {attributes}></iframe>"


def _row(tag: str, cells: Sequence[object]) -> str:
    # A left-aligned cell keeps the spaces and line ends of its text.
    style = ' style="text-align:left;white-space:pre-wrap"'
    return "<tr>" + "".join(f"<{tag}{style}>{_escaped(cell)}</{tag}>" for cell in cells) + "</tr>"


def _escaped(cell: object) -> str:
    text = str(cell)
    return html.escape(text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…")
