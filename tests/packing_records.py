"""Records packed matrices and what the libraries that pack them make of them: a tool for developers.

    python -m venv VENV; VENV/bin/pip install torch transformers compressed-tensors
    VENV/bin/pip download --no-deps --no-binary :all: autoawq==0.2.9    # unpacked, for its own packing
    VENV/bin/python -m tests.packing_records AUTOAWQ

A record has the parts of a matrix by what their names end in, "=" with its values in float32, and in its
header the quantization_config. Made with torch 2.14.1, transformers 5.24.0, compressed-tensors 0.20.1.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "packings"
N_OUT, N_IN = 16, 128


def main(awq: Path) -> None:
    import torch

    torch.manual_seed(7)
    FOLDER.mkdir(exist_ok=True)
    weight = torch.randn(N_OUT, N_IN)
    _compressed_tensors(weight)
    _transformers(weight)
    _auto_awq(weight, awq)


def _save(name: str, config: dict[str, Any], parts: dict[str, Any], values: Any) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {end: tensor.detach().contiguous().clone() for end, tensor in parts.items()}
    tensors["="] = values.detach().to(torch.float32).contiguous().clone()
    save_file(tensors, FOLDER / f"{name}.safetensors", metadata={"config": json.dumps(config)})


# Name: the format, arguments of the weights, rows and columns of the scales.
SCHEMES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "float-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, (1,)),
    "float-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, (N_OUT, 1)),
    "float-block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 48]},
        (2, 3),
    ),
    "int-channel": ("int-quantized", {"num_bits": 8, "strategy": "channel"}, (N_OUT, 1)),
    "int-channel-zeros": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
        (N_OUT, 1),
    ),
    "naive-group": ("naive-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32}, (N_OUT, 4)),
    "pack4-group": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}, (N_OUT, 4)),
    "pack4-group-zeros": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
        (N_OUT, 2),
    ),
    "pack4-channel": ("pack-quantized", {"num_bits": 4, "strategy": "channel"}, (N_OUT, 1)),
    "pack8-channel": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}, (N_OUT, 1)),
    "pack8-channel-zeros": (
        "pack-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
        (N_OUT, 1),
    ),
    "pack3-group": ("pack-quantized", {"num_bits": 3, "strategy": "group", "group_size": 32}, (N_OUT, 4)),
    "pack2-group-zeros": (
        "pack-quantized",
        {"num_bits": 2, "strategy": "group", "group_size": 32, "symmetric": False},
        (N_OUT, 4),
    ),
    "pack5-tensor": ("pack-quantized", {"num_bits": 5, "strategy": "tensor"}, (1,)),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        (N_OUT, 8),
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
        (N_OUT, 4),
    ),
    "mxfp8": (
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32},
        (N_OUT, 4),
    ),
}


def _compressed_tensors(weight: Any) -> None:
    """Each format, compressed and decompressed by the library, in float32."""
    import torch
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    for name, (kind, arguments, shape) in SCHEMES.items():
        asked = {**arguments, "scale_dtype": "torch.uint8"} if kind.startswith("mx") else arguments
        asked = {**asked, "scale_dtype": "torch.float8_e4m3fn"} if kind.startswith("nv") else asked
        weights = QuantizationArgs(**asked)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        compressor = BaseCompressor.get_value_from_registry(kind)
        most = {"float": 448.0 if weights.num_bits == 8 else 6.0}.get(
            weights.type, 2.0 ** (weights.num_bits - 1)
        )
        state = {"weight": weight, "weight_scale": torch.rand(shape) * 3 / most + 1e-2}
        if kind.startswith("mx"):
            state["weight_scale"] = 2.0 ** torch.randint(-9, -1, shape)
        if kind.startswith("nv"):
            state["weight_global_scale"] = torch.tensor([313.0])
            state["weight_scale"] = (state["weight_scale"] * 313.0).to(torch.float8_e4m3fn).float()
        if not weights.symmetric:
            half = 1 << (weights.num_bits - 1)
            state["weight_zero_point"] = torch.randint(-half, half, shape).to(torch.int8)
        packed = compressor.compress(dict(state), scheme)
        parts = {end.removeprefix("weight"): tensor for end, tensor in packed.items()}
        if kind in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):  # the library's own is in bfloat16
            scale = packed["weight_scale"]
            scale = decompress_mx_scale(scale) if kind.startswith("mx") else scale
            numbers = unpack_fp4_from_uint8(packed["weight_packed"], N_OUT, N_IN, dtype=torch.float32)
            values = dequantize(
                numbers,
                scale.float(),
                args=weights,
                global_scale=packed.get("weight_global_scale"),
                dtype=torch.float32,
            )
        elif kind.startswith("mx"):
            scale = decompress_mx_scale(packed["weight_scale"]).float()
            values = dequantize(packed["weight"], scale, args=weights, dtype=torch.float32)
        else:
            values = compressor.decompress(dict(packed), scheme)["weight"]
        groups = {"group_0": {"targets": ["Linear"], "weights": arguments}}
        config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups, "ignore": []}
        _save(f"compressed-tensors-{name}", config, parts, values)


def _transformers(weight: Any) -> None:
    """FP8 and BitNet, by what transformers dequantises."""
    import torch
    from transformers.integrations.bitnet import pack_weights
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    codes = (weight * 30).to(torch.float8_e4m3fn)
    for name, scale, extra in (
        ("fp8-block", torch.rand(2, 3), {}),
        ("fp8-ue8m0", (2.0 ** torch.randint(-9, 3, (2, 3))).to(torch.float8_e8m0fnu), {"scale_fmt": "ue8m0"}),
    ):
        config = {
            "quant_method": "fp8",
            "weight_block_size": [8, 48],
            "activation_scheme": "dynamic",
            **extra,
        }
        values = _dequantize_fp8_weight(codes, scale.float(), [8, 48], torch.float32)
        _save(name, config, {"": codes, "_scale_inv": scale}, values)
    rows = torch.rand(N_OUT, 1)
    config = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    _save("fbgemm_fp8", config, {"": codes, "_scale": rows}, codes.float() * rows)
    ternary = torch.randint(-1, 2, weight.shape).float()
    scale = torch.tensor([1.7], dtype=torch.bfloat16)
    for kind, values in (("bitlinear", ternary / scale.float()), ("autobitlinear", ternary * scale.float())):
        config = {"quant_method": "bitnet", "linear_class": kind}
        _save(f"bitnet-{kind}", config, {"": pack_weights(ternary.clone()), "_scale": scale}, values)


def _auto_awq(weight: Any, folder: Path) -> None:
    """AWQ for GEMV, packed by AutoAWQ's own modules."""
    import torch

    stub = types.ModuleType("awq.utils.module")
    stub.try_import = lambda name: (None, "")  # type: ignore[attr-defined]
    sys.modules |= {
        "awq": types.ModuleType("awq"),
        "awq.utils": types.ModuleType("awq.utils"),
        stub.__name__: stub,
    }
    for file, kind, group in (("gemv", "WQLinear_GEMV", 32), ("gemv_fast", "WQLinear_GEMVFast", 64)):
        path = folder / "awq" / "modules" / "linear" / f"{file}.py"
        spec = importlib.util.spec_from_file_location(file, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        n_group = N_IN // group
        scales = (torch.rand(N_OUT, n_group) + 0.1).half()
        zeros = torch.randint(0, 16, (N_OUT, n_group)).float()
        q = torch.randint(0, 16, (N_OUT, N_IN)).float()
        wide, wide_zeros = scales.repeat_interleave(group, 1), zeros.repeat_interleave(group, 1)
        linear = torch.nn.Linear(N_IN, N_OUT, bias=False).half()
        values = wide.float() * q - (wide.float() * wide_zeros).half().float()
        if file == "gemv":
            values = wide.float() * (q - wide_zeros)
        # what rounds to q again, whatever is rounded on the way
        linear.weight.data = wide.float() * (q - wide_zeros)
        packed = getattr(module, kind).from_linear(linear, 4, group, scales=scales.float(), zeros=zeros)
        parts = {f".{end}": getattr(packed, end) for end in ("qweight", "qzeros", "scales")}
        parts[".scales"] = parts[".scales"].half()
        parts = {
            end: tensor.half() if tensor.dtype == torch.float32 else tensor for end, tensor in parts.items()
        }
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": file.upper()}
        _save(f"awq-{file}", config, parts, values)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
