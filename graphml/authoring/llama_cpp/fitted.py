"""Tensors as llama.cpp's architectures name, join and split them, and which keys and tensors these read.

The lists are in `read_by_llama_cpp.txt`, which `tests/llama_cpp_keys.py` writes from llama.cpp's sources.
Knows names and rows; nothing of values of keys.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.loading.huggingface.family import permuted
from graphml.loading.huggingface.tensors import renamed
from graphml.weights import Metadata, Tensor
from graphml.weights.deferred import PassingTensor

RECORD = Path(__file__).with_name("read_by_llama_cpp.txt")
COMMON = "*"
_LAYER = re.compile(r"^((?:enc\.)?blk\.)\d+\.")
_FACTORS = (".scale", ".input_scale")


@functools.cache
def _record() -> Mapping[str, tuple[frozenset[str], frozenset[str]]]:
    rows = {}
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        keys, _, tensors = rest.partition("|")
        rows[name] = frozenset(keys.split()), frozenset(tensors.split())
    return rows


def architecture_names() -> list[str]:
    """Of llama.cpp."""
    return [name for name in _record() if name != COMMON]


def reads(arch: str) -> tuple[frozenset[str], frozenset[str]]:
    """The keys that an architecture reads, without its name, and its tensors with # for the layer."""
    (keys, tensors), (of_all, factors) = _record()[arch], _record()[COMMON]
    return keys | of_all, tensors | {name for name in factors if name.endswith(_FACTORS)}


def fitted_tensors(path: Path, arch: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that llama.cpp reads, joined or split where it has them so.

    UsageError for one that it does not read.
    """
    _, known = reads(arch)
    done: dict[str, Tensor] = {}
    has_experts = any(".ffn_gate_inp." in name for name in tensors)
    for name, tensor in tensors.items():
        pattern = _LAYER.sub(r"\1#.", name)
        part = pattern.rpartition("#.")[2]
        if _is_gated(part, name, tensor, tensors, known):
            gate, up = _halves(name, tensor)
            done |= {gate.name: gate, up.name: up}
        elif part.startswith("ffn_") and "_shexp." in part and not has_experts and arch == "granitehybrid":
            plain = name.replace("_shexp.", ".")  # in a model without experts it is the feed-forward
            done[plain] = renamed(plain, tensor)
        elif part == "ssm_a" and arch == "kimi-linear":
            column = (tensor.n_elements, 1)
            done[name] = PassingTensor.of(name, tensor.dtype, column, functools.partial(_data, tensor))
        elif pattern in known:
            done[name] = tensor
        elif part == "ffn_norm.weight" and "blk.#.ffn_norm" in known:
            short = name.removesuffix(".weight")
            done[short] = renamed(short, tensor)
        elif part.startswith("attn_q.") and pattern.replace("attn_q.", "attn_qkv.") in known:
            whole = name.replace("attn_q.", "attn_qkv.")
            done[whole] = _joined(whole, [tensors[name.replace("attn_q.", f"attn_{x}.")] for x in "qkv"])
        elif part.startswith(("attn_k.", "attn_v.")) and re.sub("attn_[kv]", "attn_qkv", pattern) in known:
            continue
        else:
            raise UsageError(f"{path}: convert: {name}: llama.cpp's {arch} has no such tensor")
    return done


def _data(tensor: Tensor) -> NDArray[np.uint8]:
    return tensor.data


def _permuted(tensor: Tensor, name: str, order: Callable[[int], NDArray[np.intp]]) -> NDArray[np.uint8]:
    return permuted(tensor, name, order).data


def _is_gated(
    part: str, name: str, tensor: Tensor, tensors: Mapping[str, Tensor], known: frozenset[str]
) -> bool:
    """Whether gates and what they let through are one tensor, which llama.cpp has apart."""
    if part == "ffn_gate_up_exps.weight":
        return f"blk.#.{part}" not in known and "blk.#.ffn_gate_exps.weight" in known
    if part not in ("ffn_up.weight", "ffn_up_shexp.weight"):
        return False
    gate, down = (name.replace("ffn_up", of) for of in ("ffn_gate", "ffn_down"))
    is_wide = down in tensors and tensor.shape[-2] == 2 * tensors[down].shape[-1]
    return is_wide and gate not in tensors and f"blk.#.{part.replace('ffn_up', 'ffn_gate')}" in known


def _halves(name: str, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second half of the rows, of each expert."""
    *experts, rows, columns = tensor.shape
    shape = (*experts, rows // 2, columns)
    stem = name.replace("ffn_gate_up", "ffn_up")

    def half(index: int) -> Callable[[], NDArray[np.uint8]]:
        return lambda: np.ascontiguousarray(
            tensor.data.reshape(int(np.prod(experts, dtype=np.int64)), 2, -1)[:, index]
        ).reshape(-1)

    names = stem.replace("ffn_up", "ffn_gate"), stem
    first, second = (PassingTensor.of(names[index], tensor.dtype, shape, half(index)) for index in range(2))
    return first, second


def _joined(name: str, parts: Sequence[Tensor]) -> Tensor:
    """The rows of several, one behind the other."""
    if len({part.dtype for part in parts}) > 1:
        raise UsageError(f"convert: {name}: wanted parts of one type; got {[part.dtype for part in parts]}")
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return PassingTensor.of(
        name, parts[0].dtype, shape, lambda: np.concatenate([part.data for part in parts])
    )


def neighbours(metadata: Metadata, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows of q and k in pairs of neighbours, which llama rotates, where Mistral's are in halves."""
    counts = {
        "attn_q": metadata.integer("mistral.attention.head_count"),
        "attn_k": metadata.integer("mistral.attention.head_count_kv"),
    }

    def order(count: int) -> Callable[[int], NDArray[np.intp]]:
        return lambda rows: np.arange(rows).reshape(count, 2, -1).swapaxes(1, 2).reshape(-1)

    changed = {}
    for name, tensor in tensors.items():
        part = name.split(".")[2] if name.startswith("blk.") else ""
        changed[name] = tensor
        if part in counts:
            turned = functools.partial(_permuted, tensor, name, order(counts[part]))
            changed[name] = PassingTensor.of(name, tensor.dtype, tensor.shape, turned)
    return changed
