"""Finds what entries recognise: from the logits back, each node with the parts of the graph before it.

Knows entries and regions; nothing of what they are.
"""

from __future__ import annotations

from itertools import islice

from graphml.authoring.importing.attention import attentions
from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.entries import entries
from graphml.authoring.importing.region import Recognised, Region

FURTHEST = 14  # dominators that are tried for each node
LARGEST = 90  # nodes of a region


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
                inside |= {each.name for each in region.nodes}
                break
    return recognised_by_last


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
