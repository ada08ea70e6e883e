"""A kernel is specialised once for all devices with the same answers to what it asks."""

from __future__ import annotations

import dataclasses

from graphml_gpu.language import Features, Write, f32, global_id, has_f16, kernel, subgroup_size_max, u32

PLAIN = Features(subgroups=True, subgroup_min=8, subgroup_max=32)
OTHER = dataclasses.replace(PLAIN, subgroup_max=64)


@kernel
def asks_for_halves(out: Write[f32]) -> None:
    out[global_id(0)] = 1.0 if has_f16() else 2.0


@kernel
def asks_for_sizes(out: Write[u32]) -> None:
    out[global_id(0)] = u32(subgroup_size_max())


def test_what_is_not_asked_makes_no_other_tree() -> None:
    made = [asks_for_halves.specialise(features) for features in (PLAIN, OTHER)]
    assert made[0].tree is made[1].tree
    assert [one.features for one in made] == [PLAIN, OTHER]
    assert asks_for_halves.specialise(OTHER) is made[1]


def test_what_is_asked_does() -> None:
    halves = dataclasses.replace(PLAIN, f16=True)
    assert "2.0" in asks_for_halves.specialise(PLAIN).wgsl()
    assert "1.0" in asks_for_halves.specialise(halves).wgsl()
    texts = [asks_for_sizes.specialise(features).wgsl() for features in (PLAIN, OTHER)]
    assert ["32u" in text for text in texts] == [True, False]
    assert ["64u" in text for text in texts] == [False, True]
