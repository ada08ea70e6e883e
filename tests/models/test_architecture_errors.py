"""What is said of a file that contradicts itself: the key or tensor, what was wanted and what came."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.errors import GraphmlError
from graphml.loading import discovery
from graphml.loading.architecture import Keys, SampleModel
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.model_graphs import ModelGraphs
from graphml.runtime.programs.open_executor import open_executor, read_architecture
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.metadata import stored
from tests.looped import looped
from tests.sample_models import write_model

CASES: list[tuple[str, Mapping[str, Any], Mapping[str, tuple[int, ...] | None], str]] = [
    ("gpt2", {}, {"blk.1.attn_qkv.weight": (190, 64), "blk.1.attn_qkv.bias": (190,)},
     r"blk\.1\.attn_qkv\.weight: wanted 192 rows; got f32\[190, 64\]"),
    ("gpt2", {}, {"position_embd.weight": (100, 64)},
     r"position_embd\.weight: wanted 128 rows, as context_length says; got 100"),
    ("bloom", {}, {"token_embd_norm.weight": None}, r"tensor token_embd_norm\.weight is wanted and not in"),
    ("jais", {"attention.layer_norm_epsilon": "tiny"}, {}, r"jais\.attention\.layer_norm_epsilon.*wanted a"),
    ("dots1", {"expert_gating_func": 3}, {}, r"dots1\.expert_gating_func: wanted 1 .* or 4 for .*; got 3"),
    ("dots1", {"expert_group_count": 4, "expert_group_used_count": 1}, {},
     r"\[top_k_groups\] wanted 4 equal groups of at least 2 elements"),
    ("gpt-oss", {"attention.sliding_window_pattern": [1, 0, 1]}, {}, r"window_pattern.*wanted 2 .*3 x"),
    ("openelm", {"attention.head_count": [4]}, {}, r"openelm\.attention\.head_count.*wanted 2 .*1 x"),
    ("deepseek2", {}, {"blk.0.attn_k_b.weight": None}, r"tensor blk\.0\.attn_k_b\.weight is wanted and not"),
    ("graniteswitch", {"adapters.count": 0}, {}, r"adapters\.count: wanted 1 to 256; got 0"),
    ("graniteswitch", {"adapters.token_ids_activate": [80]}, {},
     r"adapters\.token_ids_activate: wanted ids from 0 to 79; got \[80\]"),
    ("graniteswitch", {"adapters.lora_rank": 5}, {},
     r"wanted \[2, 5, inputs\] and \[2, 64, 5\] as lora_a and .*\.attn_q\.lora_a f32\[2, 3, 64"),
    ("graniteswitch", {"adapters.count": 2, "adapters.token_ids_activate": [7, 7],
                       "adapters.token_ids_substitute": [1, 2]}, {},
     r"adapters\.token_ids_activate: wanted another id for each adapter; got \[7, 7\]"),
    ("graniteswitch", {"adapters.token_ids_substitute": [80]}, {},
     r"adapters\.token_ids_substitute: wanted ids from 0 to 79; got \[80\]"),
    ("graniteswitch", {"adapters.router_gain": 0.0}, {}, r"router_gain: wanted a number above 0; got 0\.0"),
    ("step35", {"attention.sliding_window_pattern": 4}, {}, r"window_pattern: wanted a truth value for each"),
    ("step35", {}, {"blk.1.attn_gate.weight": (4, 64)},
     r"blk\.1\.attn_gate\.weight: wanted 2 rows; got f32\[4, 64\]"),
    ("deepseek32", {"attention.indexer.top_k": 0}, {}, r"32\.attention\.indexer\.top_k: wanted at least 1"),
    ("deepseek32", {"attention.indexer.head_count": 4}, {}, r"index.*wanted 4 "),
    ("glm-dsa", {"attention.indexer.types": [0, 1]}, {}, r"indexer\.types: wanted an index in the first"),
    ("deepseek4", {"attention.output_group_count": 3}, {}, r"group_count: wanted .* 4 heads; got 3"),
    ("deepseek4", {}, {"blk.0.ffn_gate_tid2eid.weight": (79, 2)}, r"tid2eid.*wanted 2 .* each of 80"),
    ("deepseek4", {}, {"blk.1.attn_compressor_ape.weight": (5, 32)}, r"ape\.weight: wanted 4 rows; got"),
    ("deepseek4", {}, {"output_hc_scale.weight": (2,)}, r"hc_scale\.weight: wanted 1 elements; got f32"),
    ("deepseek4", {}, {"output_hc_base.weight": (3,)}, r"hc_base\.weight: wanted 2 elements; got f32"),
    ("deepseek4", {"attention.key_length": 20}, {}, r"attn_q_b\.weight: wanted 80 rows; got f32\[64, 40"),
    ("deepseek4", {"nextn_predict_layers": 1}, {}, r"nextn_predict_layers: wanted blk\.2\.nextn\.eh_proj"),
    ("hy_v4", {"attention.indexer.head_count": 0}, {}, r"hy_v4\.attention\.indexer\.head_count: wanted at"),
    ("wavtokenizer-dec", {"embedding_length": 22}, {}, r"output\.weight: wanted 22 rows; got f32\[20, 32"),
    ("wavtokenizer-dec", {"posnet.block_count": 7}, {}, r"posnet\.block_count: wanted at most 6"),
    ("wavtokenizer-dec", {}, {"conv1d.weight": (32, 24, 6)}, r"conv1d\.weight: wanted .32, 24, 7.; got"),
    ("wavtokenizer-dec", {"features_length": 20}, {}, r"features_length is 20; token_embd.* rows of 24"),
    ("rwkv6qwen2", {"token_shift_count": 2}, {}, r"qwen2\.token_shift_count: wanted 1; got 2"),
    ("rwkv6qwen2", {"attention.head_count_kv": 3}, {}, r"head_count_kv: wanted 0 or .*; got 3"),
    ("arwkv7", {}, {"blk.0.time_mix_ln.bias": None}, r"tensor blk\.0\.time_mix_ln\.bias.* is wanted and not"),
]  # fmt: skip

WHOLE = ("ssm_", "tid2eid")
"""In names of tensors that converters leave in full precision: of state spaces, and numbers of experts."""


@pytest.mark.parametrize(("name", "keys", "tensors", "text"), CASES)
def test_an_error_names_what_is_wrong(
    name: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...] | None],
    text: str,
    tmp_path: Path,
) -> None:
    architecture = discovery.architecture(name)
    assert architecture.sample is not None
    model = architecture.sample(name)[0]
    shapes = {tensor: shape for tensor, shape in {**model.tensors, **tensors}.items() if shape is not None}
    metadata = {**model.metadata, **{f"{name}.{key}": value for key, value in keys.items()}}
    path = write_model(tmp_path / "model.gguf", name, replace(model, metadata=metadata, tensors=shapes))
    with pytest.raises(GraphmlError, match=text):
        open_executor(path, LoadOptions("reference")).build(1, 1)


@pytest.mark.parametrize("value", [None, [0.5, 0.5, 0.5], "steep"])
def test_numbers_of_an_activation_that_are_not_one_a_layer_are_refused(value: Any) -> None:
    """Apertus's, whose keys do not begin with the architecture."""
    sample = discovery.architecture("apertus").sample
    assert sample is not None
    model = sample("apertus")[0]
    metadata = {**model.metadata, "xielu.beta": value}
    if value is None:
        del metadata["xielu.beta"]
    with pytest.raises(GraphmlError, match=r"m\.gguf: key '?xielu\.beta.*wanted (a number for each of )?2 "):
        build("apertus", metadata, model.tensors)


def build(
    name: str, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], dtype: str = "f32"
) -> list[str]:
    """Read and build a model that there is no file of; gives the tensors that go unused."""
    file = made(name, metadata, tensors, dtype)
    graphs = ModelGraphs(file, *read_architecture(file), "f32")
    graphs.build(1, 1)
    return graphs.unused_tensors


def made(
    name: str, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], dtype: str = "f32"
) -> ModelFile:
    keys = {key: stored(value) for key, value in {**metadata, "general.architecture": name}.items()}
    empty = np.zeros(0, np.uint8)
    held = {
        tensor: Tensor(tensor, "f32" if any(part in tensor for part in WHOLE) else dtype, shape, empty)
        for tensor, shape in tensors.items()
    }
    return ModelFile(Path("m.gguf"), Metadata(Path("m.gguf"), keys), held, [])


def first(name: str) -> SampleModel:
    architecture = discovery.architecture(name)
    assert architecture.sample is not None
    return architecture.sample(name)[0]


def others_than_of_block_1(tensors: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """A tensor of each kind that neither block 1 nor the whole model has, of the last layer that has it."""
    kinds = {re.sub(r"blk\.\d+", "", name): name for name in tensors if name.startswith("blk.")}
    elsewhere = {kind: name for kind, name in kinds.items() if f"blk.1{kind}" not in tensors}
    return {name: tensors[name] for name in elsewhere.values()}


every_architecture = looped("name", discovery.architecture_names())


def refusal(name: str, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> str | None:
    """The error that building gives, None if it gives none; another than graphml's comes through."""
    try:
        build(name, metadata, tensors)
    except GraphmlError as error:
        return str(error)
    return None


@every_architecture
def test_tensors_may_have_half_precision(name: str) -> None:
    sample = discovery.architecture(name).sample
    assert sample is not None
    for model in sample(name):
        build(name, model.metadata, model.tensors, "bf16")


@every_architecture
def test_a_missing_tensor_or_another_shape_names_the_tensor(name: str) -> None:
    """Where two tensors do not fit each other, either may be the wrong one.

    Those of block 1 and of no block, most of all, `test_broken_files.py` tries.
    """
    model = first(name)
    assert build(name, model.metadata, model.tensors) == []
    stems = {tensor.rpartition(".")[0] for tensor in model.tensors}
    for tensor, shape in others_than_of_block_1(model.tensors).items():
        without = {other: size for other, size in model.tensors.items() if other != tensor}
        told = refusal(name, model.metadata, without)
        assert told is None or ("wanted" in told and tensor.rpartition(".")[0] in told), told
        for changed in [(*shape[:-1], shape[-1] + 2), (shape[0] + 2, *shape[1:])][: len(shape)]:
            told = refusal(name, model.metadata, {**model.tensors, tensor: changed})
            assert told, f"{tensor} {shape} -> {changed}: no error"
            assert any(stem in told for stem in stems), f"{tensor} {changed}: {told}"


@every_architecture
def test_a_value_that_cannot_be_names_its_key(name: str) -> None:
    """Keys that the graph does not need are told as unread (`graphml plan`)."""
    model = first(name)
    for key, value in model.metadata.items():
        numbers = () if isinstance(value, str) else (10**9,) if isinstance(value, int) else (-1, 0, 10**9)
        for wrong in numbers:  # -1 and 0 in place of whole numbers: `test_broken_files.py`
            refusal(name, {**model.metadata, key: wrong}, model.tensors)  # nothing but an error of graphml
        wrong_kind = 0 if isinstance(value, str) else "nonsense"
        for wrong in {wrong_kind, "nonsense"}:
            changed = {**model.metadata, key: wrong}
            told = refusal(name, changed, model.tensors)
            metadata = Metadata(Path("m.gguf"), {one: stored(held) for one, held in changed.items()})
            if told is None:
                discovery.architecture(name).read(Keys(metadata, name))
            assert key in (metadata.unread() if told is None else told), f"{key} = {wrong!r}: {told}"


def test_a_strangers_config_that_fails_is_an_error_with_its_line(tmp_path: Path) -> None:
    arch = tmp_path / "mine.py"
    arch.write_text(
        "class Config:\n    @classmethod\n    def read(cls, keys):\n        return {}['width']\n\n\n"
        "def build(g, config, weights): ...\n"
    )
    path = write_model(tmp_path / "model.gguf", "llama", first("llama"))
    with pytest.raises(GraphmlError, match=r"architecture 'llama': KeyError: 'width' \(at .*mine\.py:4\)"):
        open_executor(path, LoadOptions("reference", arch=arch))


@pytest.mark.parametrize(("gating", "op"), [(1, "softmax"), (2, "sigmoid"), (4, "softplus")])
@pytest.mark.parametrize("name", ["smallthinker", "dots1", "deepseek4"])
def test_the_gating_function_is_that_of_the_file(name: str, gating: int, op: str) -> None:
    model = first(name)
    metadata = {**model.metadata, f"{name}.expert_gating_func": gating}
    file = made(name, metadata, model.tensors)
    graph = ModelGraphs(file, *read_architecture(file), "f32").build(1, 1)
    routed = [node for node in graph.nodes if node.name.endswith("router")]
    assert routed
    for router in routed:
        readers = [node for node in graph.nodes if router in node.inputs]
        assert [reader.op.name for reader in readers] == [op]
