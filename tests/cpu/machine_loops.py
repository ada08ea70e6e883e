"""Reading assembly: the innermost loops of a function, and what stands in them.

A loop is what lies between a label and a jump back to it; LLVM lays loops out in one piece. Knows the syntax
of x86 (AT&T) and 64-bit ARM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.?\w+):")
_JUMP = re.compile(r"^\s+(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.?L\w+)\s*(?:[#/].*)?$")
# Whatever multiplies vectors: the loop with most of it is where a kernel spends its time.
_MULTIPLIES = re.compile(
    r"^\s+(?:\{vex\}\s+)?(?:vpdpbusd|vdpbf16ps|v?pmaddubsw|v?pmaddwd|vfn?m(?:add|sub)\w*|v?mulp[sd]|v?pmull[wd]"
    r"|[su]dot|usdot|[su]mmla|[su]mu?ll2?|[su]mlal2?|fmla|fmls|fmul)\s"
)
_STACK_STORES = (
    re.compile(r"^\s+v?mov\w*\s+(?!.*\(%rsp\)\s*,).*\(%rsp\)"),  # the last operand of AT&T is written
    re.compile(r"^\s+st[rp]\s+.*\[sp(?:,.*)?\]"),
)


@dataclass(frozen=True)
class Loop:
    """The lines of one innermost loop."""

    lines: tuple[str, ...]

    @property
    def multiplications(self) -> int:
        """How many of its instructions multiply vectors."""
        return sum(bool(_MULTIPLIES.match(line)) for line in self.lines)

    @property
    def stack_stores(self) -> tuple[str, ...]:
        """Registers that it puts on the stack."""
        return tuple(line for line in self.lines if any(store.match(line) for store in _STACK_STORES))

    def count(self, pattern: str) -> int:
        """How many of its instructions match `pattern`, a regular expression for what follows the blanks."""
        return sum(bool(re.match(rf"^\s+{pattern}", line)) for line in self.lines)


def innermost_loops(assembly: str) -> list[Loop]:
    """All loops that hold no other loop."""
    lines = assembly.splitlines()
    labels = {found[1]: at for at, line in enumerate(lines) if (found := _LABEL.match(line))}
    spans = set()
    for at, line in enumerate(lines):
        found = _JUMP.match(line)
        if found and labels.get(found[1], at) < at:
            spans.add((labels[found[1]], at))
    # Several jumps back to one label are one loop.
    longest = {start: max(end for begin, end in spans if begin == start) for start, _ in spans}
    inner = [
        (start, end) for start, end in longest.items() if not any(start < other < end for other in longest)
    ]
    return [Loop(tuple(lines[start : end + 1])) for start, end in sorted(inner)]


def hot_loops(assembly: str) -> list[Loop]:
    """The innermost loops with at least half as many multiplications as the one with most."""
    loops = innermost_loops(assembly)
    most = max(loop.multiplications for loop in loops)
    return [loop for loop in loops if 2 * loop.multiplications >= most > 0]
