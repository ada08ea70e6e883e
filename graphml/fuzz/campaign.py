"""Checks graph after graph, keeps a record that a later run goes on from, and makes what differs small.

The record is written before each graph, so that one which ends the process is known afterwards. A graph that
differs becomes a script that builds, runs and compares it. Knows numbers of graphs and what `checks` tells of
them; nothing of how.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from graphml.errors import GraphmlError, UsageError
from graphml.fuzz.checks import CheckedBackend, WrongResult, check
from graphml.fuzz.checks import run as run_reference
from graphml.fuzz.graphs import DrawnGraph, random_graph
from graphml.inspect.compare import archive
from graphml.ir import text
from graphml.ir.builder import complete, infer_type
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES, input_leaf
from graphml.ir.shape import Symbol
from graphml.ir.verify import verify
from graphml.system.read_files import guarded, plain_json
from graphml.system.replaced_file import replacing

TRIALS = 400


def shrink(drawn: DrawnGraph, shows: Callable[[DrawnGraph], bool]) -> DrawnGraph:
    """The smallest graph found that shows it still, in at most `TRIALS` trials."""
    left = TRIALS
    smaller = True
    while smaller and left > 0:
        smaller = False
        for trial in _smaller(drawn):
            left -= 1
            try:
                smaller = len(verify(trial.graph).nodes) > 0 and shows(trial)
            except GraphmlError:
                smaller = False
            if smaller or left <= 0:
                drawn = trial if smaller else drawn
                break
    return drawn


def _smaller(drawn: DrawnGraph) -> Iterator[DrawnGraph]:
    """Graphs with less in them, those with much less first."""
    graph = drawn.graph
    if len(graph.outputs) > 1:
        for name, node in graph.outputs.items():
            yield _with(drawn, make_graph(graph.nodes, {name: node}))
    for node in reversed(graph.nodes):  # a write that nothing reads
        read = node in graph.outputs.values() or any(node in other.inputs for other in graph.nodes)
        if node.op.writes is not None and not read:
            yield _with(
                drawn, Graph(tuple(other for other in graph.nodes if other is not node), graph.outputs)
            )
    computed = [node for node in graph.nodes if node.op not in LEAVES]
    values = _values(drawn)
    for node in computed[len(computed) // 2 :: -1] + computed:
        if node.name in values and node not in graph.outputs.values():
            yield _cut_above(drawn, node, values[node.name])
    for node in reversed(computed):
        for source in node.inputs:
            if source.type == node.type and source.op.name != "state":
                yield _with(drawn, _replaced(graph, node, source))
    used = {node.name for node in graph.nodes}
    if set(drawn.leaves) - used:
        yield replace(drawn, leaves={name: a for name, a in drawn.leaves.items() if name in used})


def _with(drawn: DrawnGraph, graph: Graph) -> DrawnGraph:
    return replace(drawn, graph=graph)


def _values(drawn: DrawnGraph) -> dict[str, Array]:
    """Name -> value of the computed nodes that an input can stand for: rows of numbers."""
    nodes = {
        node.name: node
        for node in drawn.graph.nodes
        if node.op not in LEAVES and node.dtype is F32 and not node.op.is_write and not node.type.parts
        and node.shape and isinstance(node.shape[0], Symbol)
    }  # fmt: skip
    return run_reference(Graph(drawn.graph.nodes, nodes), drawn.arrays())


def _cut_above(drawn: DrawnGraph, node: Node, value: Array) -> DrawnGraph:
    """The value as an input, so that what it was computed from is not needed."""
    leaf = Node(input_leaf, (), node.type, node.name, source=node.source)
    graph = _replaced(drawn.graph, node, leaf)
    return replace(drawn, graph=graph, leaves={**drawn.leaves, node.name: value})


def _replaced(graph: Graph, node: Node, other: Node) -> Graph:
    """The graph with another value in a node's place."""
    new: dict[Node, Node] = {node: other}
    order: dict[Node, None] = {}
    for each in graph.nodes:
        if each is node:
            order[other] = None
            continue
        inputs = tuple(new.get(source, source) for source in each.inputs)
        replaced = each.on(inputs)
        if replaced is not each and each.op not in LEAVES:
            kind = infer_type(each.op, [source.type for source in inputs], complete(each.op, each.attributes))
            replaced = replace(replaced, type=kind)
        new[each] = replaced
        order[replaced] = None
    return make_graph(order, {name: new.get(output, output) for name, output in graph.outputs.items()})


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
        if path is None or not path.exists():
            return cls(list(backends), first, first, _digest())
        what = "wanted the record of a `graphml fuzz`"
        fields_of = plain_json(path, UsageError, what=what)
        with guarded(path, UsageError, what):
            record = cls(**fields_of)
            for field_name, value in vars(cls(list(backends), first, first, "")).items():
                if type(getattr(record, field_name)) is not type(value):
                    raise TypeError(f"{field_name}: wanted a {type(value).__name__}")
            same = record.backends == list(backends) and record.first == first
            named = ",".join(record.backends)
        if not same:
            raise UsageError(
                f"{path} is the record of {named} from graph {record.first}; wanted "
                f"{','.join(backends)} from {first}: name another file"
            )
        if record.drawn != _digest():
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
