"""What a family writes of a config, its architecture reads: else a number would be ignored."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.folder_records import RECORDS, about, write_folder

BY_TENSORS = {
    "attention.head_count", "attention.head_count_kv", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.kv_lora_rank", "attention.output_lora_rank",
    "attention.q_lora_rank", "attention.value_length", "attention.value_length_mla",
    "attention.value_length_swa", "expert_count", "expert_feed_forward_length", "expert_shared_count",
    "expert_shared_feed_forward_length", "feed_forward_length", "leading_dense_block_count",
}  # fmt: skip
"""Sizes that tensors' shapes and names have, too; loading compares them where both are read."""
OTHERWISE = {
    ("mellum", "rope.dimension_count_swa"): "the family refuses another number than that of the other layers",
    ("mimo_v2_flash", "rope.dimension_count_swa"): "likewise",
    ("qwen3_vl_moe", "router.normalise"): "the class always normalises, whatever the field says",
}


@pytest.mark.parametrize("name", RECORDS)
def test_an_architecture_reads_what_its_family_writes(name: str, tmp_path: Path) -> None:
    config, tensors, _ = about(name)
    path = write_folder(tmp_path / name, config, tensors)
    options = LoadOptions(backend="reference", kv="f32", quant="fp32", n_batch=8, threads=1)
    with closing(open_executor(path, options)) as executor:
        executor.compiled(1, 1)
        metadata = executor.file.metadata
        prefix = f"{metadata.text('general.architecture')}."
        unread = {key.removeprefix(prefix) for key in metadata.unread() if key.startswith(prefix)}
    kind = (
        config.get("text_config", config)["model_type"] if "text_config" in config else config["model_type"]
    )
    known = {key for of, key in OTHERWISE if kind.startswith(of) or name.startswith(of)}
    assert unread <= BY_TENSORS | known
