"""A process that traces a PyTorch module by torch.export: the other end is `authoring.importing.tracing`.

Knows nothing of graphml, so that it runs with any Python that has torch (and transformers for folders). It
writes a folder: `description.json` (nodes, ops, arguments, shapes, module paths, source lines), `values.npz`
(buffers, constants, parameters that the checkpoint has under no such name) and logits of random ids.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from peer_talk import RefusedError, serve
from trace_checks import check_config, check_module
from trace_failures import failure
from trace_lengths import other_lengths

FORMAT = "graphml-trace-1"
WINDOWS = (
    "sliding_window",
    "sliding_window_size",
    "attention_chunk_size",
    "local_attn_window",
    "window_size",
    "attention_window",
)
LONGEST_SAMPLE = 4096  # tokens of the longer of the two texts whose logits are recorded
SHORT = 24


def load(source: str, trusted: bool, attention: str) -> tuple[Any, dict[str, Any]]:
    """The module from ids [1, T] to logits [1, T, V], and the fields of its config.json; none for a file."""
    import torch

    kind, _, rest = source.partition(":")
    if kind == "module":
        module = _from_file(rest)
        check_module(module, rest)
        return module.float(), {}
    fields = check_config(rest)
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            rest, dtype=torch.float32, attn_implementation=attention, trust_remote_code=trusted
        )
    except (OSError, ValueError, KeyError, NotImplementedError, ImportError, RuntimeError) as error:
        problem = str(error).strip().splitlines()[0][:300]
        if "trust_remote_code" in str(error):
            problem = "its code is in the folder and would be run: --trust-remote-code if you trust it"
        raise RefusedError(f"{rest}: transformers cannot load it: {problem}", "ArchitectureError") from None
    # Each token's own matrices are gathered and multiplied: no op of this way hides a choice in its data.
    for submodule in model.modules():
        if hasattr(getattr(submodule, "config", None), "_experts_implementation"):
            submodule.config._experts_implementation = "batched_mm"
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return _Logits(model), fields


def _from_file(text: str) -> Any:
    """The module that a factory without arguments returns: `FILE.py:factory`."""
    path, _, factory = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("graphml_imported", path)
    if not path or spec is None or spec.loader is None:
        raise RefusedError(f"wanted module:FILE.py:factory; got module:{text}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        return getattr(module, factory)()
    except Exception as error:
        raise RefusedError(
            f"{path}: {factory}: {type(error).__name__}: {error}", "ArchitectureError"
        ) from None


def _Logits(model: Any) -> Any:  # noqa: N802 - a class that needs torch to be defined
    import torch

    class Logits(torch.nn.Module):  # type: ignore[misc]
        """Ids to logits, without a cache."""

        def __init__(self) -> None:
            super().__init__()
            self.wrapped = model

        def forward(self, ids: Any) -> Any:
            return self.wrapped(input_ids=ids, use_cache=False).logits

    return Logits()


def trace(request: dict[str, Any]) -> dict[str, Any]:
    """Trace `source`, write the folder `out`; returns the versions of the packages."""
    try:
        import torch
    except ImportError as error:
        problem = "torch is wanted: pip install torch transformers, or name a Python that has them: --python"
        raise RefusedError(f"{problem} ({error})") from None
    source, out = request["source"], Path(request["out"])
    failures = []
    for attention in ("sdpa", "eager"):
        try:
            module, config = load(source, request["trusted"], attention)
        except RefusedError as error:
            failures.append(str(error))
            if (
                attention == "sdpa"
                and source.startswith("hf:")
                and "attn" in str(error).replace("attention", "attn")
            ):
                continue
            raise
        module = module.eval()
        for dynamic in ("bounded", "auto"):
            try:
                exported, length, others = _export(torch, module, config, dynamic)
            except Exception as error:  # whatever the model's code raises while it is traced
                failures.append(failure(error, module))
                continue
            _write(torch, module, exported, length, others, config, source, out)
            return {"by": f"torch {torch.__version__}"}
        if source.startswith("module:"):
            break
    raise RefusedError(f"torch.export cannot trace it: {failures[-1]}", "ArchitectureError")


def _sample_length(config: dict[str, Any]) -> int:
    """More tokens than any window or chunk: code for shorter texts may leave the window out."""
    text_config = config.get("text_config")
    inner: dict[str, Any] = text_config if isinstance(text_config, dict) else config
    sizes = [inner.get(name) for name in WINDOWS]
    return max([29, *(size + 5 for size in sizes if type(size) is int and size < _most(config))])


def _most(config: dict[str, Any]) -> int:
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len")
    limits = [config[name] for name in names if type(config.get(name)) is int]
    return limits[0] if limits else 1 << 14


def _export(torch: Any, module: Any, config: dict[str, Any], dynamic: str) -> tuple[Any, int, dict[int, str]]:
    """The exported module, the traced length, and lengths for which its Python may do something else."""
    length = min(_sample_length(config), max(_most(config) - 1, 8))
    last = max(_most(config), length + 1)
    size = torch.export.Dim("T", min=2, max=last) if dynamic == "bounded" else torch.export.Dim.AUTO
    with torch.no_grad():
        ids = torch.arange(length)[None] % 7
        exported = torch.export.export(module, (ids,), dynamic_shapes=({1: size},), strict=False)
        others = other_lengths(exported, module, length, _most(config)) if dynamic == "auto" else {}
        return exported.run_decompositions({}), length, others


def _write(
    torch: Any,
    module: Any,
    exported: Any,
    length: int,
    others: dict[int, str],
    config: dict[str, Any],
    source: str,
    out: Path,
) -> None:
    import numpy

    signature = exported.graph_signature
    state = dict(exported.state_dict) | dict(exported.constants)
    held, weights = _names_in_checkpoint(source), _buffers_as_weights(exported)
    values: dict[str, Any] = {}
    nodes: list[dict[str, Any]] = []
    inputs: dict[str, dict[str, Any]] = {}
    for spec in signature.input_specs:
        kind, name = spec.kind.name.lower(), getattr(spec.arg, "name", "")
        if kind == "user_input":
            inputs[name] = {"kind": "ids"}
            continue
        tensor = state[spec.target]
        own = spec.target.removeprefix("wrapped.")
        if name in weights and spec.persistent:  # others, such as scales, are no part of checkpoints
            kind = "parameter"
        inputs[name] = {
            "kind": "constant" if kind != "parameter" else kind,
            "name": own,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        if kind != "parameter" or not held.get(own):
            values[own] = tensor.detach().float().numpy() if tensor.is_floating_point() else tensor.numpy()
    for node in exported.graph.nodes:
        if node.op == "call_function":
            nodes.append(_node(node))
    user = [part for part in signature.input_specs if part.kind.name == "USER_INPUT"]
    if len(user) != 1:
        raise RefusedError(f"wanted one input, ids [1, T]; got {len(user)}", "ArchitectureError")
    outputs = [i for i, part in enumerate(signature.output_specs) if part.kind.name == "USER_OUTPUT"]
    logits = exported.graph.find_nodes(op="output")[0].args[0][outputs[0]]
    result, shape = logits.name, list(logits.meta["val"].shape)
    vocabulary = shape[-1]
    if len(shape) != 3 or shape[0] != 1 or (isinstance(shape[1], int) and shape[1] != length):
        problem = f"wanted logits [1, T, vocabulary]; got {[str(part) for part in shape]}"
        raise RefusedError(f"{source}: {problem}", "ArchitectureError")
    sizes = {SHORT, min(max(length + 3, 32), LONGEST_SAMPLE, _most(config))}
    for size in sorted(sizes | set(others)):
        generator = torch.Generator().manual_seed(size)
        ids = torch.randint(0, int(vocabulary), (1, size), generator=generator)
        try:
            with torch.no_grad():
                logits = module(ids)[0].float().numpy()
        except Exception:
            if size in sizes:
                raise
            continue  # a text that the module does not take either
        values |= {f"sample.{size}.ids": ids[0].numpy(), f"sample.{size}.logits": logits}
    description = {
        "format": FORMAT,
        "by": f"torch {torch.__version__}",
        "source": source,
        "config": config,
        "result": result,
        "class": type(getattr(module, "wrapped", module)).__name__,
        "length": length,
        "other_lengths": {str(size): guard for size, guard in others.items()},
        "inputs": inputs,
        "nodes": nodes,
    }
    (out / "description.json").write_text(json.dumps(description), encoding="utf-8")
    with (out / "values.npz").open("wb") as file:
        numpy.savez(file, **values)


def _buffers_as_weights(exported: Any) -> set[str]:
    """Buffers that meet values of the ids, as biases of routers do; tables for positions do not."""
    kinds = {getattr(spec.arg, "name", ""): spec.kind.name for spec in exported.graph_signature.input_specs}
    on_ids = {name for name, kind in kinds.items() if kind == "USER_INPUT"}
    leads: dict[str, set[str]] = {name: {name} for name, kind in kinds.items() if kind == "BUFFER"}
    names: set[str] = set()
    for node in exported.graph.nodes:
        if node.op != "call_function" or "sym_size" in str(node.target):
            continue
        before = [input_node.name for input_node in node.all_input_nodes]
        buffers = set().union(*(leads.get(name, set()) for name in before))
        if on_ids & set(before):
            on_ids.add(node.name)
            names |= buffers
        elif all(isinstance(size, int) for size in getattr(node.meta.get("val"), "shape", ("",))):
            leads[node.name] = buffers
    return names


def _names_in_checkpoint(source: str) -> dict[str, bool]:
    """Names of tensors that the folder's files have."""
    names: dict[str, bool] = {}
    if source.startswith("hf:"):
        for path in sorted(Path(source[3:]).glob("*.safetensors")):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                names |= dict.fromkeys(json.loads(file.read(size)), True)
    return names


def _node(node: Any) -> dict[str, Any]:
    """An op as plain data: arguments by their names in the op's schema."""
    target = node.target
    schema = getattr(target, "_schema", None)
    arguments = {}
    if schema is None:
        arguments = {str(i): _argument(argument) for i, argument in enumerate(node.args)}
        name = f"python.{getattr(target, '__name__', str(target))}"
    else:
        name = str(target)
        for argument, declared in zip(node.args, schema.arguments):  # noqa: B905 - the rest have defaults
            arguments[declared.name] = _argument(argument)
        for declared in schema.arguments[len(node.args) :]:
            has_default = declared.has_default_value() and declared.default_value is not None
            if declared.name in node.kwargs:
                arguments[declared.name] = _argument(node.kwargs[declared.name])
            elif has_default:
                arguments[declared.name] = _argument(declared.default_value)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("wrapped.").removeprefix("wrapped") if stack else ""
    return {
        "name": node.name,
        "op": name,
        "args": arguments,
        "path": path,
        "kind": str(stack[-1][1]).rsplit(".", 1)[-1].strip("<>'") if stack else "",
        "line": _line(node.meta.get("stack_trace")),
        **_type(node.meta.get("val")),
    }


def _type(value: Any) -> dict[str, Any]:
    if isinstance(value, (tuple, list)):
        return {"shapes": [_type(element) for element in value]}
    if hasattr(value, "shape"):
        shape = [size if isinstance(size, int) else str(size) for size in value.shape]
        return {"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")}
    return {"shape": None, "dtype": type(value).__name__}


def _line(stack: str | None) -> str:
    """`file.py:123` of the innermost line of the model's code."""
    lines = [line.strip() for line in (stack or "").splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if "/torch/" not in line]
    if not own:
        return ""
    file, _, rest = own[-1].removeprefix('File "').partition('", line ')
    return f"{file}:{rest.partition(',')[0]}"


def _argument(value: Any) -> Any:
    import torch

    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        return [_argument(element) for element in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"number": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"text": str(value).removeprefix("torch.")}


if __name__ == "__main__":
    serve(trace)
