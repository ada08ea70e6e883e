"""Which file types of a model fit into some memory, and with how long a context; from a header alone.

Caches have the type that they have by default beside such weights; intermediate results are those of the
model as it is. Knows sizes and mixtures; nothing of commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphml.api.quantize_plan import quantize_plan
from graphml.errors import UsageError
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import MemoryNeed, memory_need
from graphml.runtime.programs.open_executor import usual_cache_types
from graphml.weights.gguf_writing import TensorPlan
from graphml.workshop.quantized_file import can_change

TYPES = (
    "IQ2_XXS", "IQ2_M", "Q2_K", "IQ3_XXS", "Q3_K_M", "IQ4_XS", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0",
    "F16",
)  # fmt: skip
"""Those that people choose from."""


@dataclass(frozen=True)
class TypeFit:
    """A file type: bytes of the weights, and the longest context of one session, 0 where none fits.

    types: of tensors, by their names.
    """

    name: str
    weights: int
    n_ctx: int
    types: Mapping[str, str] = field(default_factory=dict)


def longest_context(need: MemoryNeed, weights: int, memory: int, most: int) -> int:
    """Tokens of context that fit beside weights of so many bytes; at most `most`."""
    fixed = weights + need.cache_windows + need.recurrent + need.arena_decode + need.arena_prefill
    left = memory - fixed
    if left < need.cache_per_token:
        return 0
    return most if not need.cache_per_token else min(most, left // need.cache_per_token)


def fitting_types(
    executor: Executor, need: MemoryNeed, memory: int, most: int, kv: str | None = None
) -> list[TypeFit]:
    """File types by size, of a model trained for `most` tokens; those that it cannot have are left out.

    need: of the model as it is. kv: how caches are kept beside all of them; None: as by default.
    """
    file, needs = executor.file, {executor.cache_dtype: need}
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    fits = []
    for kind in TYPES:
        try:
            plan = quantize_plan(file.metadata, shapes, kind, imatrix=True)
        except UsageError:
            continue
        types = {name: plan[name].lower() if can_change(tensor) else tensor.dtype
                 for name, tensor in file.tensors.items()}  # fmt: skip
        weights = sum(TensorPlan(name, dtype, shapes[name]).n_bytes for name, dtype in types.items())
        kept = kv or usual_cache_types(executor.architecture, types.values())
        if kept not in needs:
            needs[kept] = memory_need(executor.with_caches(kept), need.n_ctx)
        fits.append(TypeFit(kind, weights, longest_context(needs[kept], weights, memory, most), types))
    return sorted(fits, key=lambda fit: fit.weights)
