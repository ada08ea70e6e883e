"""The pages of the documentation taken apart: fenced blocks, the comments above them, tables, headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_COMMENT = re.compile(r"<!-- (.*) -->")
_FENCE = re.compile(r"```(\w*)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of its first line, its text and the comments right above."""

    language: str
    line: int
    text: str
    comments: tuple[str, ...]

    def said(self, what: str) -> str | None:
        """What a comment `<!-- what: ... -->` says; an empty text for a plain `<!-- what -->`."""
        for comment in self.comments:
            name, _, value = comment.partition(": ")
            if name == what:
                return value
        return None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    comments: list[str] = []
    inside: list[str] | None = None
    language, first = "", 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if inside is not None:
            if line == "```":
                found.append(Block(language, first, "\n".join(inside) + "\n", tuple(comments)))
                inside, comments = None, []
            else:
                inside.append(line)
        elif fence := _FENCE.fullmatch(line):
            inside, language, first = [], fence[1], number + 1
        elif comment := _COMMENT.fullmatch(line):
            comments.append(comment[1])
        elif line:
            comments = []
    assert inside is None, f"{name_of(page)}: the block at line {first} does not end"
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def table(page: str, first_header: str) -> list[dict[str, str]]:
    """The rows of the page's table whose first column is so headed; backticks are taken off the cells."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    split = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and split[i][0] == first_header]
    assert len(starts) == 1, f"{page}: {len(starts)} tables begin with a column {first_header!r}"
    header, rows = split[starts[0]], []
    for i in range(starts[0] + 2, len(lines)):
        if not lines[i].startswith("|"):
            break
        assert len(split[i]) == len(header), f"{page}:{i + 1}: {len(split[i])} cells, not {len(header)}"
        rows.append(dict(zip(header, split[i], strict=True)))
    return rows


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
