"""From a description to an imported file: recognised, named, written.

What changes with the length of the text is refused. Knows the order of the steps and the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import SAME
from graphml.authoring.importing.attention import attentions
from graphml.authoring.importing.dependence import Dependence, classed
from graphml.authoring.importing.description import TracedModule, TracedNode
from graphml.authoring.importing.document import constants, document
from graphml.authoring.importing.entries import entries
from graphml.authoring.importing.evaluation import is_ignored, op_name
from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.flattened_tokens import split_tokens
from graphml.authoring.importing.joined_parameters import joined_parameters
from graphml.authoring.importing.joined_writes import joined_writes
from graphml.authoring.importing.layers import Layered, layered
from graphml.authoring.importing.mapping import mapping
from graphml.authoring.importing.naming import ATTENTIONS, RECURRENT, Named, names
from graphml.authoring.importing.numbers import Fields, Pins
from graphml.authoring.importing.places import COMPUTED, ParameterPlace, StoredParameter, places, stored_as
from graphml.authoring.importing.region import Recognised, Region, run
from graphml.authoring.importing.rope_fields import other_rope_fields, rope_text
from graphml.authoring.importing.simpler_ops import simpler_ops
from graphml.authoring.importing.walk import Walk
from graphml.authoring.importing.writing import Writer
from graphml.errors import ArchitectureError
from graphml.ir.op_table import own_op
from graphml.ir.own_op import OwnOp
from graphml.loading.discovery import IMPORTED
from graphml.loading.huggingface.config import HfConfig
from graphml.loading.huggingface.rope import STILL, rope_keys, ropes_by_kind

FURTHEST = 14  # dominators that are tried for each node
LARGEST = 90  # nodes of a region
MOST_TOKENS = 1 << 40


def recognised(dependence: Dependence) -> dict[str, Recognised]:
    """What was recognised, by its last node."""
    recognised_by_last = {attention.last: attention for attention in attentions(dependence)}
    inside: set[str] = set()
    for node in reversed(dependence.needed):
        if (
            node.name in inside
            or node.name in recognised_by_last
            or node.shape is None
            or dependence.is_mixing(node.name)
            or _is_as_before(dependence, node)  # in another module, such as the model, by what follows
        ):
            continue
        for step, entry in enumerate(dependence.chain(node.name)):
            region = Region(dependence, entry, node.name)
            if (
                step >= FURTHEST
                or len(region.nodes) > LARGEST
                or any(inner.name in recognised_by_last for inner in region.nodes)
            ):
                break
            match = _matched(region)
            if match is not None:
                match, region = _whole(dependence, match, region)
                recognised_by_last[node.name] = match
                inside |= _read_inside(dependence, region)
                break
    return recognised_by_last


def _read_inside(dependence: Dependence, region: Region) -> set[str]:
    """The nodes of a region that lead to its last one alone: others may be recognised by themselves."""
    inside = {region.last}
    for node in reversed(region.nodes):
        if inside.issuperset(dependence.users.get(node.name, ("",))):
            inside.add(node.name)
    return inside


def _is_as_before(dependence: Dependence, node: TracedNode) -> bool:
    """Whether a node has the value of its operand."""
    if op_name(node) == "view" and "size" in node.args and node.shape == _shape(dependence, node.operands[0]):
        return True
    start, end, step = node.args.get("start") or 0, node.args.get("end"), node.args.get("step", 1)
    is_all = (start, step) == (0, 1) and (end is None or (isinstance(end, int) and end >= MOST_TOKENS))
    return op_name(node) in SAME or (op_name(node) == "slice" and is_all)


def _whole(dependence: Dependence, match: Recognised, region: Region) -> tuple[Recognised, Region]:
    """A layer norm, where an RMS norm was found in its second half."""
    if match.op == "rms_norm":
        for entry in islice(dependence.chain(region.entry), 2):
            larger = Region(dependence, entry, region.last)
            other = _matched(larger)
            if other is not None and other.op == "layer_norm":
                return other, larger
    return match, region


def _matched(region: Region) -> Recognised | None:
    for entry in entries():
        if entry.looks(region):
            try:
                match = entry.matches(region)
            except (ValueError, IndexError):  # its values are of shapes that the entry does not have
                continue
            if match is not None:
                return match
    return None


SHORT, LONG = 16, 1 << 14  # tokens for which values of positions are compared
LONGEST = 1 << 20  # tokens for which conditions are


def check_lengths(dependence: Dependence) -> None:
    """ArchitectureError for a value of positions that changes when the text gets longer."""
    nodes = _leading_to(dependence, dependence.description.result)
    for node in nodes:
        if op_name(node) == "where":
            condition = node.operands[0]
            if _is_single(dependence, condition) and _changes(dependence, condition, SHORT, LONGEST):
                raise ArchitectureError(
                    f"{node.told}: chooses by the length of the text, as ropes with other factors for long "
                    "texts do: a file has one choice"
                )
    on_tokens = [node for node in nodes if dependence.on_tokens(node.name)]
    for name in dict.fromkeys(operand for node in on_tokens for operand in node.operands):
        if _is_row_by_row(dependence, name) and _changes(dependence, name, SHORT, LONG):
            raise ArchitectureError(
                f"{dependence.description.nodes[name].told}: its values for the first tokens change with the "
                "length of the text"
            )


def check_all_used(dependence: Dependence, tensors: Sequence[ParameterPlace]) -> None:
    """ArchitectureError for a parameter that some op reads, but none that the logits need at this length."""
    used = {place.parameter for place in tensors}
    needed = {node.name for node in _leading_to(dependence, dependence.description.result)}
    for node in dependence.description.nodes.values():
        for operand in node.operands if node.name not in needed and not is_ignored(node) else ():
            leaf = dependence.description.inputs.get(operand)
            if leaf is not None and leaf.kind == "parameter" and leaf.name not in used:
                raise ArchitectureError(
                    f"{node.told}: {leaf.name} has no influence on the logits of "
                    f"{dependence.description.length} tokens, so what it does cannot be seen"
                )


def _leading_to(dependence: Dependence, result: str) -> list[TracedNode]:
    """The nodes that a value is computed from, in order."""
    leading = set(dependence.description.leading_to(result))
    return [node for name, node in dependence.description.nodes.items() if name in leading]


def _is_single(dependence: Dependence, name: str) -> bool:
    """Whether it is one number, of positions."""
    shape = _shape(dependence, name)
    return (
        shape is not None
        and dependence.is_positions(name)
        and all(size == 1 for size in shape)
        and not _is_of_pairs(dependence, name)
    )


def _is_row_by_row(dependence: Dependence, name: str) -> bool:
    """Whether it has values for each position."""
    shape = _shape(dependence, name)
    return (
        shape is not None
        and dependence.is_positions(name)
        and sum(isinstance(size, str) for size in shape) == 1
        and not _is_of_pairs(dependence, name)
    )


def _is_of_pairs(dependence: Dependence, name: str) -> bool:
    """Whether values of pairs of positions lead to it: too many for long texts."""
    leading = _leading_to(dependence, name)
    return any(sum(isinstance(size, str) for size in node.shape or ()) > 1 for node in leading)


def _shape(dependence: Dependence, name: str) -> tuple[int | str, ...] | None:
    node = dependence.description.nodes.get(name)
    return None if node is None else node.shape


def _changes(dependence: Dependence, name: str, short: int, long: int) -> bool:
    """Whether the values that a short text has are others in a long one."""
    try:
        few, many = (np.asarray(run(dependence, {}, name, count)) for count in (short, long))
    except ArchitectureError:
        return False  # a table that is shorter than the long text
    if few.ndim != many.ndim:
        return False
    common = many[tuple(slice(extent) for extent in few.shape)]
    return common.shape == few.shape and not np.allclose(few, common, rtol=1e-9, atol=1e-12)


DEFAULT_CONTEXT = 4096


def traced_keys(writer: Writer) -> dict[str, Any]:
    """GGUF's keys without the architecture's prefix."""
    layered, (heads, kv, width) = writer.found, writer.sizes
    everywhere = [*layered.before, *(expr for layer in layered.layers for expr in layer)]
    tables = [expr for expr in everywhere if expr.op == "position_rows" or "context" in expr.numbers]
    length = writer.description.length
    keys: dict[str, Any] = {
        "context_length": min(
            [expr.numbers.get("context", expr.weights["weight"].shape[0]) for expr in tables],
            default=max(DEFAULT_CONTEXT, length + 16),
        ),
        "vocab_size": layered.result.shape[-1],
        "embedding_length": layered.width,
        "block_count": len(layered.layers),
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": width,
        writer.eps_key: writer.eps,
    }
    for expr in writer.experts[:1]:
        router = expr.weights["router"]
        keys |= {"expert_count": router.shape[0], "expert_used_count": expr.numbers["used"]}
    keys |= {key: value for key, value in writer.fields.values.items() if value is not None}
    if writer.tables:
        first = _rope(writer, windowed=False)
        keys |= {"rope.dimension_count": first.numbers["n_rot"], "rope.freq_base": base(writer)}
        if first.numbers["magnitude"] != 1.0:
            keys["rope.scaling.attn_factor"] = first.numbers["magnitude"]
        if len(writer.tables) > 1:
            keys["rope.freq_base_swa"] = base(writer, windowed=True)
            keys["rope.dimension_count_swa"] = _rope(writer, windowed=True).numbers["n_rot"]
    return keys


def check_rope(writer: Writer) -> None:
    """ArchitectureError, with the rope's op and module, for settings in config.json that are not known."""
    if not writer.tables:
        return
    keys = {"attention.key_length": writer.sizes[2], "context_length": DEFAULT_CONTEXT}
    try:
        config = HfConfig(Path("config.json"), writer.description.config, {})
        if rope_text(writer)[0] == "ropes_by_kind":
            ropes_by_kind(config, keys, {}, widths=writer.rope_widths)
        else:
            rope_keys(config, keys, known=other_rope_fields(writer))
    except ArchitectureError as error:
        raise ArchitectureError(f"{_rope(writer, windowed=False).told}: {error}") from None


def _rope(writer: Writer, windowed: bool) -> Expression:
    """The rope of a layer with or without a window, if layers differ in that; else of any."""
    ropes = {
        bool(window): expr
        for layer, window in zip(writer.found.layers, writer.windows(), strict=True)
        for expr in layer
        if expr.op == "rope"
    }
    return ropes[windowed] if windowed in ropes else next(iter(ropes.values()))


def base(writer: Writer, windowed: bool = False) -> float:
    """The base of the rope: of the second pair's frequency if all follow from it, else 10000."""
    frequencies = np.abs(_rope(writer, windowed).numbers["frequencies"])
    if len(frequencies) > 1 and frequencies[1]:
        estimate = float(frequencies[1] ** -float(len(frequencies)))
        rounded = float(f"{estimate:.6g}")
        powers = rounded ** (-np.arange(len(frequencies)) / len(frequencies))
        if np.allclose(powers[frequencies > 0], frequencies[frequencies > 0], rtol=1e-5):
            return rounded
    return 10000.0


def rope_factors(writer: Writer) -> NDArray[np.float32] | None:
    """What divides the frequencies of the base, [n_rot / 2]; None if nothing does."""
    if not writer.tables:
        return None
    frequencies = np.array(_rope(writer, windowed=False).numbers["frequencies"])
    plain = base(writer) ** (-np.arange(len(frequencies)) / len(frequencies))
    if np.allclose(plain, frequencies, rtol=1e-5):
        return None
    with np.errstate(divide="ignore"):
        return np.where(frequencies == 0, STILL, plain / frequencies).astype(np.float32)


Array = NDArray[Any]
LEGEND = "T tokens, O output rows, D model width, N heads, K key-value heads, H head width, F hidden."


@dataclass(frozen=True, eq=False)
class Imported:
    """The text of the file, and how it was found. keys: of a GGUF file of the weights."""

    text: str
    architecture: str
    dependence: Dependence
    recognised: Mapping[str, Recognised]
    layers: Layered
    named: Named
    tensors: tuple[ParameterPlace, ...]
    keys: Mapping[str, Any]
    factors: Array | None
    made_by: Mapping[int, TracedNode]
    last: Expression  # which leaves the last of the traced layers
    neighbours: frozenset[str]  # nodes that read tokens before by shifts and convolutions

    @property
    def made_by_expression(self) -> list[Expression]:
        """The expressions of the first layer of each kind, and those outside the layers."""
        kinds = [expr for number in self.layers.firsts for expr in self.layers.layers[number]]
        everything = [*self.layers.before, *kinds, *self.layers.after]
        return [expr for expr in everything if id(expr) in self.made_by]

    @property
    def file_architecture(self) -> str:
        """What a file of the weights calls it: never the name of an architecture that is known."""
        plain = self.architecture == IMPORTED
        return IMPORTED if plain else f"{IMPORTED}-{self.architecture}"

    @property
    def tied(self) -> bool:
        """Whether logits are products with the embedding."""
        used = {place.name: place.parameter for place in self.tensors if place.change != COMPUTED}
        return used.get("output.weight", "") == used.get("token_embd.weight")


def _own_ops(recognised_ops: Mapping[str, Recognised]) -> str:
    """What the file needs besides: where its ops of one's own are declared."""
    lines = []
    for name in dict.fromkeys(match.op for match in recognised_ops.values()):
        op = own_op(name)
        if isinstance(op, OwnOp):
            file = PurePath(op.declared.source.file).name
            lines.append(f"\n\nIts op {name} is declared in {file}: GRAPHML_OPS has to name that file.")
    return "".join(lines)


@dataclass(frozen=True, eq=False)
class Understood:
    """A traced module, recognised. stored: how the checkpoint has its parameters; held: its tensors."""

    dependence: Dependence
    recognised: Mapping[str, Recognised]
    walk: Walk
    layers: Layered
    named: Named
    tensors: tuple[ParameterPlace, ...]
    stored: Mapping[str, list[StoredParameter]]
    held: tuple[str, ...]


def import_description(description: TracedModule, held: Mapping[str, Callable[[], Array]]) -> Imported:
    """The file of a traced module. held: the checkpoint's tensors by name; none for a plain module."""
    return written(understood(description, held))


def understood(description: TracedModule, held: Mapping[str, Callable[[], Array]]) -> Understood:
    """What a traced module is; ArchitectureError names what is not known."""
    description = split_tokens(simpler_ops(joined_writes(joined_parameters(description, held))))
    dependence = classed(description)
    check_lengths(dependence)
    recognised_nodes = recognised(dependence)
    walk = Walk(dependence, recognised_nodes)
    layers = layered(walk.result())
    if not any(expr.op in (*ATTENTIONS, *RECURRENT) for layer in layers.layers for expr in layer):
        raise ArchitectureError("no layer has attention, linear attention, a state space or a delta rule")
    if layers.repeats > 1 and description.config:
        raise ArchitectureError(
            f"{layers.layers[layers.n_blocks][0].told}: layers that are called {layers.repeats} times: of a "
            "checkpoint they would share names; a plain module can be imported (module:FILE.py:factory)"
        )
    named = names(layers, description)
    tensors = places(dependence, layers, named)
    stored: Mapping[str, list[StoredParameter]] = {}
    if description.config:
        check_all_used(dependence, tensors)
        parameters = [leaf.name for leaf in description.inputs.values() if leaf.kind == "parameter"]
        stored = stored_as(parameters, description.values, held)
    return Understood(
        dependence, recognised_nodes, walk, layers, named, tuple(tensors), stored, tuple(held)
    )  # fmt: skip


def written(model: Understood, pins: Pins = Pins()) -> Imported:  # noqa: B008 - a frozen value
    """The file of what was recognised."""
    dependence, layers, named, tensors = model.dependence, model.layers, model.named, model.tensors
    description = dependence.description
    config = {name: value for name, value in description.config.items() if name not in pins.withheld}
    writer = Writer(description, layers, named, Fields(config, pins=pins))
    functions = writer.functions()
    numbers = () if description.config else tuple(constants(functions))
    if numbers or (writer.fields.fields and not description.config):
        key = "constants" if numbers else ""
        read = f"_config.constants(keys, {numbers!r})"
        writer.fields.add("constants", "tuple[float, ...]", read, key, value=list(numbers))
    body = [writer.config_class(), functions]
    if description.config:
        check_rope(writer)
        body.insert(0, mapping(writer, tensors, model.stored, model.held))
    title = (
        f"{description.model_class}, imported by `graphml import`.\n\n{LEGEND}{_own_ops(model.recognised)}"
    )
    kind = str(description.config.get("model_type", IMPORTED)).replace("_", "-")
    text = document(title, writer.imports, [block for block in body if block])
    keys, factors = traced_keys(writer), rope_factors(writer)
    made_by, last = model.walk.made_by, layers.leaving(-1)
    return Imported(
        text, kind, dependence, model.recognised, layers, named, tensors, keys, factors,
        made_by, last, frozenset(model.walk.neighbours),
    )  # fmt: skip
