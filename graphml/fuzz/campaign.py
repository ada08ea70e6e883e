"""Checks graph after graph, keeps a record that a later run goes on from, and makes what differs small.

The record is written before each graph, so that one which ends the process is known afterwards. A graph that
differs becomes a script that builds, runs and compares it. Knows numbers of graphs and what `checks` tells of
them; nothing of how.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from graphml.errors import UsageError
from graphml.fuzz.checks import CheckedBackend, WrongResult, check
from graphml.fuzz.graphs import DrawnGraph, random_graph
from graphml.fuzz.shrink import shrink
from graphml.inspect.compare import archive
from graphml.ir import text
from graphml.ir.ops.leaf import LEAVES
from graphml.system.replaced_file import replacing

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


@dataclass
class CampaignRecord:
    """What was tried. next: the number of the next graph. trying: of the one that is being checked, or -1.

    drawn: a digest of some graphs; numbers are other graphs where ops or what draws them have changed.
    """

    backends: list[str]
    first: int
    next: int
    drawn: str
    trying: int = -1
    n_nodes: int = 0
    found: list[dict[str, str | int]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None, backends: Sequence[str], first: int) -> CampaignRecord:
        """The record of a file, or a new one; a `UsageError` for the record of other backends or graphs."""
        drawn = _digest()
        if path is None or not path.exists():
            return cls(list(backends), first, first, drawn)
        try:
            record = cls(**json.loads(path.read_text()))
            same = record.backends == list(backends) and record.first == first
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path}: wanted the record of a `graphml fuzz`; got {error}") from None
        if not same:
            raise UsageError(
                f"{path} is the record of {','.join(record.backends)} from graph {record.first}; wanted "
                f"{','.join(backends)} from {first}: name another file"
            )
        if record.drawn != drawn:
            raise UsageError(
                f"{path} is the record of other graphs: ops have changed since, and what a number draws with "
                "them; name another file"
            )
        return record


def _digest() -> str:
    graphs = "".join(without_lines(random_graph(number)) for number in range(8))
    return hashlib.sha256(graphs.encode()).hexdigest()[:16]


def run(
    record: CampaignRecord,
    path: Path | None,
    until: int,
    sides: Sequence[CheckedBackend],
    scripts: Path,
    tell: Callable[[int, WrongResult, Path | None, DrawnGraph], None],
    progress: Callable[[str, int, int], None],
) -> None:
    """Check the graphs up to `until`, this one left out.

    tell: called with each difference, the script that shows it and the small graph. scripts: their folder.
    """
    if record.trying >= record.next:
        _add(record, record.trying, WrongResult(",".join(record.backends), "end", "the process ended"), None)
        tell(record.trying, WrongResult("", "end", "the process ended"), None, random_graph(record.trying))
        record.next = record.trying + 1
    for number in range(record.next, until):
        progress("graphs", number - record.first, until - record.first)
        record.trying = number
        _write(record, path)
        drawn = random_graph(number)
        difference = check(drawn, sides)
        if difference is not None:
            small = shrink(drawn, _shows(difference, sides))
            script = write_script(small, difference, scripts)
            _add(record, number, difference, script)
            tell(number, difference, script, small)
        record.n_nodes += len(drawn.graph.nodes)
        record.next, record.trying = number + 1, -1
    progress("graphs", until - record.first, until - record.first)
    _write(record, path)


def _shows(difference: WrongResult, sides: Sequence[CheckedBackend]) -> Callable[[DrawnGraph], bool]:
    """Whether a smaller graph shows the same kind of difference."""
    own = [side for side in sides if side.backend.name == difference.backend]

    def shows(drawn: DrawnGraph) -> bool:
        again = check(drawn, own)
        return again is not None and again.kind == difference.kind

    return shows


def _add(record: CampaignRecord, number: int, difference: WrongResult, script: Path | None) -> None:
    record.found.append({"number": number, **asdict(difference), "script": str(script or "")})


def _write(record: CampaignRecord, path: Path | None) -> None:
    if path is not None:
        with replacing(path, durable=False) as partial:
            partial.write_text(json.dumps(asdict(record)))
