"""NVIDIA's ModelOpt: FP8, MXFP8 and NVFP4, for all matrices or, as MIXED_PRECISION, each its own.

FP8 has weight_scale by tensor, row or block, MXFP8 exponents by 32 inputs. NVFP4 has FP4 in pairs,
weight_scale in E4M3 by 16 inputs and weight_scale_2 for all. Experts in one tensor, such as gate_up_proj,
have gate_up_proj_weight_scale, one for all or for each. Scales of activations are not here: see decision 117.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from graphml.loading.huggingface.packings._floats import by_blocks, fp8, nvfp4, scale_steps, shared_by
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import FP8, StoredParts
from graphml.weights import Tensor

SCALE, SECOND = "_scale", "_scale_2"
OF_EXPERTS = f"_weight{SCALE}", f"_weight{SECOND}"
FP8_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")
ALGORITHMS = (*FP8_ALGORITHMS, "MXFP8", "NVFP4", "W4A16_NVFP4")
MIXED = "MIXED_PRECISION"
BLOCK, MX_GROUP = 128, 32


def read(fields: PackingFields) -> Layout:
    """The layout of a config; of the file hf_quant_config.json, its `quantization`."""
    algorithm = _algorithm(fields, "quant_algo", fields.get("quant_algo"), (*ALGORITHMS, MIXED))
    of_modules = {}
    for module, entry in fields.table("quantized_layers").items():
        place = f"quantized_layers.{str(module)[:100]}"
        if not isinstance(entry, dict):
            raise fields.error(f"{place}: wanted an object; got {str(entry)[:60]!r}")
        of_modules[str(module)] = _algorithm(fields, place, entry.get("quant_algo"), ALGORITHMS)
    if algorithm == MIXED and not of_modules:
        raise fields.error(f"quantized_layers: wanted the modules of {MIXED}; got none")
    unpack = partial(_unpack, None if algorithm == MIXED else algorithm, of_modules)
    return Layout(("", SCALE, SECOND, *OF_EXPERTS), unpack, dtypes=frozenset((*FP8, "U8")))


def _algorithm(fields: PackingFields, name: str, stated: object, known: tuple[str, ...]) -> str | None:
    """An algorithm that is read; None for matrices that are not quantised."""
    if stated is None:
        return None
    if stated not in known:
        raise fields.error(f"{name}: wanted one of {', '.join(known)}; got {str(stated)[:60]!r}")
    return str(stated)


def _unpack(algorithm: str | None, of_modules: Mapping[str, str | None], parts: StoredParts) -> Tensor:
    module = parts.name.removesuffix(".weight")
    while module and module not in of_modules:
        module = module.rpartition(".")[0]
    stated = of_modules.get(module, algorithm)
    if stated is None:
        raise parts.error("is packed, but quantization_config has no quant_algo for it")
    if any(end in parts for end in OF_EXPERTS):
        return _experts(stated, parts)
    if stated.endswith("NVFP4"):
        return nvfp4(parts, "", SCALE, SECOND, inverse=False)
    weight = parts.part("", FP8, (None, None), (None, None, None))
    if stated == "MXFP8":
        steps = (*(1 for _ in weight.shape[1:]), MX_GROUP)
        scales = parts.scales(SCALE, by_blocks(weight.shape, steps), dtypes=("U8", "F8_E8M0"))
        return fp8(parts, weight, scales, steps)
    scales = parts.scales(SCALE)
    if scales.ndim == 4:  # as ModelOpt keeps those of blocks: [out / 128, 1, in / 128, 1]
        scales = scales.squeeze((1, 3)) if scales.shape[1] == scales.shape[3] == 1 else scales
    allowed = shared_by(weight.shape, (BLOCK, BLOCK))
    return fp8(parts, weight, *scale_steps(parts, SCALE, scales, weight.shape, allowed))


def _experts(algorithm: str, parts: StoredParts) -> Tensor:
    """The matrices of all experts in one tensor, [experts, in, out] or [experts, out, in]."""
    if algorithm not in FP8_ALGORITHMS:
        known = " or ".join(FP8_ALGORITHMS)
        raise parts.error(f"of experts in one tensor graphml reads {known}; got {algorithm}")
    weight, end = parts.part("", FP8, (None, None, None)), OF_EXPERTS[0]
    of_each = (1, *weight.shape[1:])
    return fp8(
        parts, weight, *scale_steps(parts, end, parts.scales(end), weight.shape, (weight.shape, of_each))
    )


PACKING = Packing(("modelopt",), read)
