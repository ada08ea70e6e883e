"""Small models of a checkpoint's class with one field of config.json changed at a time: an import's trials.

Each is a folder with config.json, model.safetensors and `logits.npz`: random ids and the class's logits. What
the class does not compute is left out. Knows torch and fields; nothing of graphml.
"""

from __future__ import annotations

import copy
import json
import math
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 60.0  # of all trials; fields that are left then count as not tried
SMALL = 1 << 21  # parameters of a model that is tried as it is
TOKENS, WINDOW = 40, 9  # of a trial's text; a window in it that is left
MOST = 2  # values of a field
WINDOWS = ("window", "window_size", "attention_chunk_size")
Fields = dict[str, Any]
Names = Mapping[str, list[str]]


def smaller(fields: Fields, names: Names, parameters: int) -> Fields:
    """A small model with the same ratios; of a small one the same, with windows that a short text leaves."""
    small = copy.deepcopy(fields)

    def read(key: str) -> int:
        return next((small[name] for name in names.get(key, ()) if type(small.get(name)) is int), 0)

    def put(key: str, value: int) -> None:
        for name in names.get(key, ()):
            if type(small.get(name)) is int:
                small[name] = value

    for name, value in small.items():
        if type(value) is int and value > TOKENS // 2 and name.endswith(WINDOWS):
            small[name] = WINDOW
    if parameters <= SMALL:
        return small
    heads, kv, layers = read("attention.head_count"), read("attention.head_count_kv"), read("block_count")
    groups = min(kv or heads, 2 if kv and kv < heads else 4)
    count = groups * min(heads // kv, 4) if kv and kv < heads else groups
    width, head = read("embedding_length"), read("attention.key_length")
    put("embedding_length", 16 * count + (16 if head and head * heads != width else 0))
    put("attention.key_length", 16)
    put("attention.head_count", count)
    put("attention.head_count_kv", groups)
    for key, most in (
        ("vocab_size", 256), ("feed_forward_length", 96),
        ("rope.dimension_count", 8), ("expert_count", 8 * max(1, read("expert_group_count"))),
        ("expert_used_count", 2), ("expert_feed_forward_length", 32),
        ("expert_shared_feed_forward_length", 48), ("block_count", 8),
    ):  # fmt: skip
        put(key, min(read(key), most))
    for name, value in small.items():
        if name.endswith("token_id") and type(value) is int and value >= read("vocab_size"):
            small[name] = 0
        if isinstance(value, list) and len(value) == layers:
            small[name] = value[: read("block_count")]
    return small


def others(value: Any) -> list[Any]:
    """Other values of a field, those that show most first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value // 2, value + 1, 1]
    if isinstance(value, float):
        small, large = 0 < abs(value) < 0.01, abs(value) > 1000
        return [0.05, 0.2] if small else [300.0, 50.0] if large else [value * 1.7, value * 0.6, 0.5]
    if isinstance(value, list):
        return [each for each in _lists(value) if each != value]
    return [3, 0.5] if value is None else []


def _lists(value: list[Any]) -> Iterator[list[Any]]:
    """Lists of the same length: reversed, moved on by one, with another first element."""
    yield value[::-1]
    yield value[1:] + value[:1]
    for first in value[:1]:
        if type(first) in (bool, int):
            yield [int(not first), *value[1:]]
        elif isinstance(first, float):
            yield [first * 1.7 + 0.1, *value[1:]]
        elif first == "full_attention":
            yield ["sliding_attention", *value[1:]]
        elif first == "sliding_attention":
            yield ["full_attention", *value[1:]]


def wider(fields: Fields, names: Names) -> tuple[list[str], Fields]:
    """The fields that are sizes of a layer, and a model in which all are doubled."""
    keys = ("embedding_length", "attention.head_count", "attention.head_count_kv", "feed_forward_length")
    sizes = [name for key in keys for name in names.get(key, ()) if type(fields.get(name)) is int]
    return sizes, {**copy.deepcopy(fields), **{name: 2 * fields[name] for name in sizes}}


def changes(
    fields: Fields, names: Names, more: Fields, skipped: set[str]
) -> Iterator[tuple[str, list[Fields]]]:
    """Each field by its path, with the fields of models in which it has other values.

    more: what the class assumes of fields that are not there. skipped: of no influence on any class.
    """
    deep = [name for name in names.get("block_count", ()) if type(fields.get(name)) is int]
    for name, value in {**fields, **more}.items():
        if name in skipped or name.startswith("_"):
            continue
        if name in deep:
            yield name, [_deeper(fields, deep, count) for count in (2 * value, value - 1) if count > 0]
        elif isinstance(value, dict):
            for path, inner in _within(value, name):
                yield path, [{**copy.deepcopy(fields), name: other} for other in inner]
        else:
            yield name, [{**copy.deepcopy(fields), name: other} for other in others(value)]


def _within(value: Fields, path: str) -> Iterator[tuple[str, list[Fields]]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            for deeper, changed in _within(inner, f"{path}.{name}"):
                yield deeper, [{**value, name: other} for other in changed]
        else:
            yield f"{path}.{name}", [{**value, name: other} for other in others(inner)]


def _deeper(fields: Fields, deep: list[str], count: int) -> Fields:
    """With so many layers; lists with an element for each go on as they began."""
    before, changed = fields[deep[0]], copy.deepcopy(fields)
    changed |= dict.fromkeys(deep, count)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == before:
            changed[name] = [value[i % before] for i in range(count)]
    return changed


def write_trials(
    torch: Any, model: Any, request: dict[str, Any], fields: Fields, held: list[str], out: Path
) -> None:
    """Write the folders of the trials, and `trials.json`, a list of them, with those that were not tried.

    model: of transformers. held: the names of the checkpoint's tensors. The first trial is what the others
    are changes of.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    begin = time.monotonic()
    names, skipped = request["sizes"], set(request["skipped"])
    base = smaller(fields, names, sum(each.numel() for each in model.parameters()))
    base = _with_windows_that_count(torch, model, base, fields)
    trials: list[dict[str, Any]] = []
    _try(torch, model, base, "", held, out, trials)
    if not trials:
        base = fields
    known = {*fields, *_of_every_class(model)}
    more = {key: value for key, value in model.config.to_dict().items() if key not in known}
    listed = list(changes(base, names, more, skipped))
    sizes, larger = wider(base, names)
    if trials and sizes:
        _try(torch, model, larger, sizes[0], held, out, trials, sizes[1:])
    for path, changed in listed if trials else ():
        computed = 0
        for other in changed:
            if computed < MOST and time.monotonic() - begin < SECONDS:
                computed += _try(torch, model, other, path, held, out, trials)
    document = {"trials": trials, "paths": [path for path, _ in listed], "seconds": time.monotonic() - begin}
    (out / "trials.json").write_text(json.dumps(document), encoding="utf-8")


def _of_every_class(model: Any) -> set[str]:
    """Fields that all configs have, most of which no class reads."""
    plain = next(kind for kind in reversed(type(model.config).__mro__) if kind.__name__.startswith("Pre"))
    return set(plain().to_dict())


def _run(torch: Any, like: Any, fields: Fields) -> tuple[Any, Any, Any] | None:
    """A model of the class, ids and logits; None if it computes nothing finite of these fields."""
    import numpy

    try:
        config = type(like.config).from_dict(_with_floats(fields))
        config.use_cache = False
        with torch.device("meta"):  # which holds no numbers
            shapes = type(like)._from_config(copy.deepcopy(config))
        if sum(each.numel() for each in shapes.parameters()) > 4 * SMALL:
            return None
        model = type(like)._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        _draw(torch, model)
        ends = ("positions", "position_embeddings")
        limits = [value for name, value in fields.items() if name.endswith(ends)]
        count = min([TOKENS, *(limit for limit in limits if type(limit) is int and limit > 0)])
        vocabulary = model.get_input_embeddings().weight.shape[0]
        ids = torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0].float().numpy()
    except Exception:  # whatever the class says of such fields
        return None
    if not numpy.isfinite(logits).all() or not 0 < numpy.abs(logits).max() < 1e6:
        return None
    return model, ids[0].numpy(), logits


def _with_floats(value: Any) -> Any:
    """A copy with infinite numbers as numbers: transformers writes `{"__float__": "Infinity"}`."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {name: _with_floats(inner) for name, inner in value.items()}
    return [_with_floats(inner) for inner in value] if isinstance(value, list) else value


def _try(
    torch: Any,
    like: Any,
    fields: Fields,
    path: str,
    held: list[str],
    out: Path,
    trials: list[dict[str, Any]],
    also: Sequence[str] = (),
) -> bool:
    """Write a trial; False if the class computes nothing of these fields.

    also: other fields that are changed with that of `path`.
    """
    import numpy

    computed = _run(torch, like, fields)
    if computed is None:
        return False
    model, ids, logits = computed
    folder = out / f"trial-{len(trials)}"
    folder.mkdir(parents=True, exist_ok=True)
    _save(model, folder, held)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    numpy.savez(folder / "logits.npz", ids=ids, logits=logits)
    trials.append({"path": path, "value": _value(fields, path), "also": list(also), "folder": folder.name})
    return True


def _with_windows_that_count(torch: Any, like: Any, small: Fields, fields: Fields) -> Fields:
    """The small model; with the windows of the large one if it computes the same with them."""
    windows = {name: value for name, value in fields.items() if small[name] == WINDOW != value}
    if windows:
        runs = [_run(torch, like, each) for each in (small, {**small, **windows})]
        if None not in runs and (runs[0][2] == runs[1][2]).all():  # type: ignore[index]
            return {**small, **windows}
    return small


def _value(fields: Fields, path: str) -> Any:
    value: Any = fields
    for name in path.split(".") if path else ():
        value = value[name]
    return value if path else None


def _draw(torch: Any, model: Any) -> None:
    """Random numbers for all tensors of the state, by their names: no norm is 1 and no bias 0."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen or not tensor.is_floating_point() or not tensor.dim():
            continue
        seen.add(id(tensor))
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if not is_parameter and tensor.dim() > 1:
            continue  # a table that the class computes
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        numbers = torch.randn(tensor.shape, generator=generator)
        with torch.no_grad():
            if tensor.dim() > 1:
                numbers = numbers * 1.5 / math.sqrt(tensor.shape[-1])
            else:
                numbers = (1.0 if float(tensor.mean()) > 0.5 else 0.0) + 0.3 * numbers
            tensor.copy_(numbers)


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", name)


def _save(model: Any, folder: Path, held: list[str]) -> None:
    """The tensors under the names that the checkpoint has: as they are written, or as modules have them."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    model.save_pretrained(folder)
    known = set(map(_pattern, held))
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        written = set(file.keys())
    state = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    if len(known & set(map(_pattern, state))) > len(known & set(map(_pattern, written))):
        save_file({name: tensor for name, tensor in state.items() if _pattern(name) in known}, path)
