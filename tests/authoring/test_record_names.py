"""Names of modules of transformers as names of tensors: by the gguf package, or by a family of folders."""

from __future__ import annotations

from collections.abc import Mapping

import gguf
import numpy as np
import pytest

from graphml.authoring.verify.record import from_transformers
from graphml.loading import discovery
from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, plus_one, rows, transposed

ARRAY = np.zeros((2, 3), np.float32)


def keys(config: HfConfig) -> Mapping[str, Value]:
    return {}


FAMILY = Family(
    model_types=("mine",), architecture="mine", keys=keys,
    names={
        "blocks.{}.mix.out": To("blk.{}.attn_output", transposed),
        "blocks.{}.mix.all": (To("blk.{}.attn_q", rows(lambda c: (1, 2, 0, 1))),
                              To("blk.{}.attn_v", rows(lambda c: (1, 2, 1, 2)))),
        "blocks.{}.up": "blk.{}.ffn_up", "blocks.{}.query": "blk.{}.attn_q",
        "blocks.{}.down": To("blk.{}.ffn_down", plus_one), "blocks.{}.experts.{}.up": "blk.{}.ffn_up_exps",
        "blocks.{}.table": None,
    },
)  # fmt: skip


def named(*names: str, architecture: str = "mine", family: Family | None = FAMILY) -> set[str]:
    return set(from_transformers(dict.fromkeys(names, ARRAY), architecture, family))


def test_a_model_type_that_gguf_does_not_know_keeps_its_products() -> None:
    assert "mine" not in gguf.MODEL_ARCH_NAMES.values()
    for prefix in ("", "model.", "transformer."):
        modules = {f"{prefix}blocks.3.{part}.{side}" for part in ("mix.out", "up") for side in ("in", "out")}
        assert named("stream.0", *modules) == {
            "stream.0", "blk.3.attn_output.in", "blk.3.attn_output.out", "blk.3.ffn_up.in",
            "blk.3.ffn_up.out",
        }  # fmt: skip
    assert named("stream.0", "blocks.3.up.in", family=None) == {"stream.0"}


def test_a_product_with_changed_or_reordered_rows_is_not_the_modules() -> None:
    assert named("blocks.0.mix.all.in", "blocks.0.mix.all.out") == {"blk.0.attn_q.in", "blk.0.attn_v.in"}
    assert named("blocks.0.down.in", "blocks.0.down.out") == {"blk.0.ffn_down.in"}
    assert named("blocks.0.query.in", "blocks.0.query.out") == {"blk.0.attn_q.in"}
    assert named("blocks.0.experts.2.up.out", "blocks.0.table.out", "blocks.0.other.out") == set()


def test_the_gguf_packages_names_come_first() -> None:
    assert named("model.layers.0.self_attn.o_proj.out", architecture="llama") == {"blk.0.attn_output.out"}


@pytest.mark.parametrize("kind", ["smollm3", "hy_v4", "laguna", "olmo3"])
def test_families_of_folders_name_the_feed_forwards_of_their_classes(kind: str) -> None:
    family = discovery.families()[kind]
    stems = named(*(f"model.layers.1.mlp.{part}_proj.out" for part in ("gate", "up", "down")),
                  architecture="nothing that gguf knows", family=family)  # fmt: skip
    assert stems == {f"blk.1.ffn_{part}.out" for part in ("gate", "up", "down")}
