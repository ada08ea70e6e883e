"""Writes a graph as a script that builds it with the builder's calls, runs it, and prints what differs."""

from __future__ import annotations

import re
from pathlib import Path

from graphml.fuzz.checks import WrongResult
from graphml.fuzz.graphs import DrawnGraph
from graphml.inspect.compare import archive
from graphml.ir import text
from graphml.ir.ops.leaf import LEAVES

_SCRIPT = '''"""{title}

Found by `graphml fuzz --first {number} --graphs 1 --backend {backend}`. The arrays are beside this file.
"""

from pathlib import Path

from graphml.fuzz.checks import CheckedBackend, check
from graphml.fuzz.feed import Feed
from graphml.fuzz.graphs import DrawnGraph
from graphml.inspect.compare import archive
from graphml.ir import text
from graphml.loading import discovery
from graphml.loading.own_ops import known_ops

# {summary}
GRAPH = """\\
{graph}"""

_, arrays = archive.read(Path(__file__).with_suffix(".npz"), "arrays")
feed = Feed({sequences!r}, {tokens!r}, {blocks!r}, {block_size})
drawn = DrawnGraph({number}, text.parse(GRAPH, known_ops()), arrays, feed, in_steps={in_steps})
backend = discovery.backend("{backend}")
difference = check(drawn, [CheckedBackend(backend, [backend.open(2)])])
print(difference or "no difference")
raise SystemExit(1 if difference else 0)
'''


def without_lines(drawn: DrawnGraph) -> str:
    """The graph's text without the source lines of its nodes."""
    return re.sub(r' at "[^"]*":\d+$', "", text.write(drawn.graph), flags=re.MULTILINE)


def write_script(drawn: DrawnGraph, difference: WrongResult, folder: Path) -> Path:
    """`fuzz_NUMBER.py` and its arrays; the graph is in its text form, a line a node."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz_{drawn.number}.py"
    nodes = [node for node in drawn.graph.nodes if node.op not in LEAVES]
    graph = without_lines(drawn)
    feed = drawn.feed
    path.write_text(
        _SCRIPT.format(
            title=_plain(f"{difference.backend}, {difference.way}: {difference.what}"),
            number=drawn.number, backend=difference.backend, graph=graph.replace("\\", "\\\\"),
            summary=", ".join(node.op.name for node in nodes), sequences=feed.sequences, tokens=feed.tokens,
            blocks=feed.blocks, block_size=feed.block_size, in_steps=drawn.in_steps,
        )
    )  # fmt: skip
    archive.write(path.with_suffix(".npz"), None, dict(drawn.leaves))
    return path


def _plain(path: str) -> str:
    """For a docstring."""
    return path.replace("\\", "/").replace('"', "'")
