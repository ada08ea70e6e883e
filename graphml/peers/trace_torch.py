"""A process that traces a PyTorch module by torch.export: the other end is `authoring.importing.command`.

Knows nothing of graphml, so that it runs with any Python that has torch (and transformers for folders). It
writes a folder: `description.json` (nodes, ops, arguments, shapes, module paths, source lines), `values.npz`
(buffers, constants, parameters that the checkpoint has under no such name) and logits of random ids.

Refused before are encoders, quantised modules, and more inputs than the ids. `torch.export` notes as guards
what its trace took for granted of the length. Where a guard does not hold, the module's own logits show
whether that matters.
"""

from __future__ import annotations

import inspect
import json
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from changed_configs import write_trials
from module_file import made_module
from peer_talk import RefusedError, serve
from recurrent_functions import as_ops

LONGEST_TEXT = 4096  # tokens of the longest text whose logits are recorded
LENGTHS = 4  # that are recorded beside the usual ones


def other_lengths(exported: Any, module: Any, traced: int, most: int) -> dict[int, str]:
    """Lengths near the traced one, each with the first guard that does not hold for it, as text."""
    lengths_by: dict[int, str] = {}
    symbol, guards = _guards(exported)
    known: set[str] = set()
    for guard in guards:
        if str(guard.expr) in known or {str(free) for free in guard.expr.free_symbols} != {symbol}:
            continue
        known.add(str(guard.expr))
        below = range(traced - 1, 1, -1)
        above = [*range(traced + 1, traced + 65), *(1 << i for i in range(7, 13)), min(most, LONGEST_TEXT)]
        for lengths in (below, [length for length in above if traced < length <= most]):
            first = next((length for length in lengths if not _holds(guard.expr, length)), None)
            if first is not None:
                lengths_by.setdefault(first, _told(module, guard, symbol))
    return dict(list(lengths_by.items())[:LENGTHS])


def _guards(exported: Any) -> tuple[str, list[Any]]:
    """The symbol of the length, and what was taken for granted; nothing if the length is a number."""
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        sizes = [size for size in getattr(value, "shape", ()) if not isinstance(size, int)]
        if node.op == "placeholder" and sizes:
            return str(sizes[0]), list(value.fake_mode.shape_env.guards)
    return "", []


def _holds(expression: Any, length: int) -> bool:
    (symbol,) = expression.free_symbols
    return bool(expression.subs({symbol: length}))


def _told(module: Any, guard: Any, symbol: str) -> str:
    """The line of the model that asked, with the first module that has it; else the guard."""
    frame = guard.sloc.framework_loc
    if not hasattr(frame, "filename") or _of_torch(frame.filename):
        return str(guard.expr).replace(symbol, "T")
    paths = (name for name, submodule in module.named_modules() if _has_line(type(submodule), frame))
    path = next(paths, "").removeprefix("wrapped").lstrip(".")
    line = (frame.line or "").strip()
    return f"`{line}` in {path or 'the model itself'} ({frame.filename}:{frame.lineno})"


def _has_line(kind: type, frame: Any) -> bool:
    """Whether the source of a class has a line."""
    try:
        if inspect.getsourcefile(kind) != frame.filename:
            return False
        lines, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return False
    return int(frame.lineno) in range(first, first + len(lines))


LONGEST_SAID = 300  # characters of what torch said


def failure(error: BaseException, module: Any) -> str:
    """The last line of the model's own code, the module that ran it, and the error.

    That module is the first argument (`self`) of the innermost frame in which it is one of `module`.
    """
    said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:LONGEST_SAID]}"
    frames = _own_frames(error)
    if not frames:
        return said
    paths = {
        id(submodule): name.removeprefix("wrapped").lstrip(".") for name, submodule in module.named_modules()
    }
    owners = [id(frame.f_locals.get(first)) for frame, _ in frames for first in frame.f_code.co_varnames[:1]]
    path = next((paths[owner] for owner in reversed(owners) if owner in paths), "")
    frame, number = frames[-1]
    line = traceback.FrameSummary(frame.f_code.co_filename, number, "").line or ""
    at = f"{frame.f_code.co_filename}:{number}"
    return f"`{line.strip()}` in {path or 'the model itself'} ({at}): {said}"


def _own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames of the model's code, outermost first; torch may raise an error of its own because of another."""
    here, standard = Path(__file__).parent, Path(traceback.__file__).parent
    cause: BaseException | None = error
    while cause is not None:
        walked = traceback.walk_tb(cause.__traceback__)
        frames = [
            (frame, number)
            for frame, number in walked
            if not _of_torch(frame.f_code.co_filename)
            and Path(frame.f_code.co_filename).parent not in (here, standard)
        ]
        if frames:
            return frames
        cause = cause.__cause__ or cause.__context__
    return []


QUANTISED = ("torch.ao.nn", "torch.nn.quantized", "bitsandbytes", "auto_gptq", "awq")
KIND = "ArchitectureError"


def check_config(folder: str) -> dict[str, Any]:
    """The fields of config.json, unless they say that the checkpoint is none that can be imported."""
    fields: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    if fields.get("quantization_config") is not None:
        problem = "its modules are quantised (quantization_config): import the checkpoint in full precision"
        raise RefusedError(f"{folder}: {problem}", KIND)
    if fields.get("is_encoder_decoder"):
        raise RefusedError(f"{folder}: an encoder with a decoder cannot be imported", KIND)
    pickles = sorted(pickle_file.name for pickle_file in Path(folder).glob("*.bin"))
    if pickles and not any(Path(folder).glob("*.safetensors")):
        problem = f"wanted model.safetensors; {pickles[0]} is a pickle, and reading it may run code"
        raise RefusedError(f"{folder}: {problem}: `model.save_pretrained(folder)` writes safetensors", KIND)
    return fields


def check_module(module: Any, source: str) -> None:
    """Refuse what is no module, has quantised parts, or needs more than the ids."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise RefusedError(f"{source}: wanted a torch.nn.Module; got {type(module).__name__}", KIND)
    for path, submodule in module.named_modules():
        home = type(submodule).__module__
        if home.startswith(QUANTISED):
            problem = f"{path or 'the model itself'} is quantised ({home}.{type(submodule).__name__})"
            raise RefusedError(f"{source}: {problem}: import the model in full precision", KIND)
    wanted = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(wanted) != 1:
        signature = f"{type(module).__name__}.forward({', '.join(wanted)})"
        raise RefusedError(f"{source}: wanted one input, ids [1, T]; got {signature}", KIND)


FORMAT = "graphml-trace-1"
WINDOWS = ("sliding_window", "sliding_window_size", "attention_chunk_size", "local_attn_window",
           "window_size", "attention_window")  # fmt: skip
LONGEST_SAMPLE = 4096  # tokens of the longer of the two texts whose logits are recorded
# And of a third one, of which the first that can be is taken.
FAR_SAMPLES = (1500, 1024, 700, 512, 300, 256, 128)
MOST_PAIRS = 1 << 30  # of tokens of a text, of all heads and layers
SMALL = 1 << 26  # parameters of a module that has a third one
SHORT = 24


def load(source: str, trusted: bool, attention: str) -> tuple[Any, dict[str, Any]]:
    """The module from ids [1, T] to logits [1, T, V], and the fields of its config.json; none for a file."""
    import torch

    kind, _, rest = source.partition(":")
    if kind == "module":
        module = made_module(rest)
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
            if config and "sizes" in request:
                write_trials(torch, module.wrapped, request, config, list(_names_in_checkpoint(source)), out)
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


def _maps(config: dict[str, Any]) -> int:
    """How many maps of attention config.json tells of, of all layers; 1 if it does not."""
    sizes = (("num_hidden_layers", "n_layer", "n_layers"), ("num_attention_heads", "n_head", "n_heads"))
    of_text = config.get("text_config")
    fields: dict[str, Any] = of_text if isinstance(of_text, dict) else config
    counts = [next((fields[name] for name in names if type(fields.get(name)) is int), 1) for names in sizes]
    return max(counts[0] * counts[1], 1)


def _export(torch: Any, module: Any, config: dict[str, Any], dynamic: str) -> tuple[Any, int, dict[int, str]]:
    """The exported module, the traced length, and lengths for which its Python may do something else."""
    length = min(_sample_length(config), max(_most(config) - 1, 8))
    last = max(_most(config), length + 1)
    size = torch.export.Dim("T", min=2, max=last) if dynamic == "bounded" else torch.export.Dim.AUTO
    with torch.no_grad():
        ids = torch.arange(length)[None] % 7
        with as_ops(module, ids):
            exported = torch.export.export(module, (ids,), dynamic_shapes=({1: size},), strict=False)
        others = other_lengths(exported, module, length, _most(config)) if dynamic == "auto" else {}
        return exported.run_decompositions({}), length, others


def _samples(
    torch: Any, module: Any, config: dict[str, Any], length: int, others: dict[int, str], vocabulary: int
) -> dict[str, Any]:
    """Random ids of some lengths and the module's logits: also of a text far longer than the traced one."""
    longest = min(LONGEST_SAMPLE, int((MOST_PAIRS / _maps(config)) ** 0.5))
    sizes = {SHORT, min(max(length + 3, 32), longest, _most(config))}
    small = sum(each.numel() for each in module.parameters()) <= SMALL
    far = [
        size
        for size in FAR_SAMPLES
        if small and size <= min(longest, _most(config)) and size * vocabulary <= 1 << 25
    ]
    samples: dict[str, Any] = {}
    for size in [*sorted(sizes | set(others)), *far]:
        generator = torch.Generator().manual_seed(size)
        ids = torch.randint(0, vocabulary, (1, size), generator=generator)
        try:
            with torch.no_grad():
                logits = module(ids)[0].float().numpy()
        except Exception:
            if size in sizes:
                raise
            continue  # a text that the module does not take either
        samples |= {f"sample.{size}.ids": ids[0].numpy(), f"sample.{size}.logits": logits}
        if size in far:
            break  # the longest one that the module takes
    return samples


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
    values |= _samples(torch, module, config, length, others, int(vocabulary))
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
    places = [line.removeprefix('File "').partition('", line ') for line in lines]
    own = [
        f"{file}:{rest.partition(',')[0]}"
        for file, _, rest in places
        if not _of_torch(file) and Path(file).parent != Path(__file__).parent
    ]
    return own[-1] if own else ""


def _of_torch(file: str) -> bool:
    """Whether a source is of the package torch; a folder of that name may be above the model's code."""
    import torch

    return Path(file).is_relative_to(Path(torch.__file__).parent)


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
