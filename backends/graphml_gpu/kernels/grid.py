"""Where an invocation stands in a grid made by `dispatch.along`, which folds long ones."""

from __future__ import annotations

from graphml_gpu.language import function, group_id, group_size, local_index, num_groups, u32


@function
def group_number() -> u32:
    """The workgroup's number; a folded grid has a few more than were asked for."""
    return group_id(0) + group_id(1) * num_groups(0)


@function
def element_number() -> u32:
    """The invocation's number in the whole grid."""
    return group_number() * group_size() + local_index()
