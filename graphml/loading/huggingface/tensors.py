"""The tensors of a checkpoint under our names, changed as its family says.

Knows names and shapes; the mathematics is the family's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphml.errors import ArchitectureError, WeightsError
from graphml.loading.huggingface.config import HfConfig
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.packed_matrix import ScaledMatrix, factors
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml.weights.filemap import Bytes

# First parts of names, which depend on the class, and on whether there is more than a language model.
PREFIXES = (
    "model.model.language_model.model.", "model.language_model.", "language_model.model.",
    "language_model.backbone.", "language_model.", "language.model.", "language.", "llm.model.", "llm.",
    "model.text_model.", "thinker.model.", "thinker.",
    "model.", "transformer.",
    "backbone.", "gpt_neox.", "bert.", "roberta.", "distilbert.transformer.", "distilbert.",
    "nomic_bert.",
)  # fmt: skip
# What transformers 5 writes for `layers` of some larger models, whose parts that see have such names.
_LAYERS = re.compile(r"^(blocks|encoder\.layers)(?=\.)")
# Parts that see or hear, by the first word of their names: text alone is evaluated.
HEAD = ". With fc.weight it is a head that drafts, as of DSpark: wanted as a GGUF file, for draft_model"
"""Of an error for a folder, what its tensors say that it is."""
SEEING = (
    "aligner", "audio_tower", "connector", "embed_audio", "embed_vision", "image_newline", "image_tower",
    "mm_projector", "multi_modal_projector", "projector", "qwen2_model", "resampler_model", "sam_model",
    "video_tower", "view_seperator", "vision", "vision_embed_tokens", "vision_encoder", "vision_model",
    "vision_projection", "vision_tower", "visual", "visual_embeddings_table", "vqmodel",
)  # fmt: skip
_SEEING = re.compile(rf"(thinker\.)?(model\.)?({'|'.join(SEEING)})(\..*)?")
# These, layers that predict further tokens, where they stand apart, and buffers, which are computed.
LEFT_OUT = re.compile(rf"{_SEEING.pattern}|(model\.)?mtp\..*|.*rotary_emb\.inv_freq")
LOG = logging.getLogger(__name__)
_NUMBER = re.compile(r"(?:(?<=\.)|(?<=\.shard_))\d{1,6}(?=\.|$)|^\d{1,6}(?=\.)")
_MOST_EXPERTS = 1 << 16
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


def our_tensors(
    config: HfConfig, family: Family, checkpoint: Mapping[str, Tensor], tied: bool, wrapped: bool = False
) -> dict[str, Tensor]:
    """Our name -> tensor; ArchitectureError for tensors that the family does not know.

    tied: logits are products with the embedding, unless the checkpoint has an output matrix of other numbers.
    wrapped: the language model is a part of a larger one, whose other parts are left out.
    """
    tensors: dict[str, Tensor] = {}
    sources: dict[str, Tensor] = {}
    places: dict[str, str | To] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    parts: dict[str, dict[int, Tensor]] = {}  # of the rows of a matrix
    unknown = []
    n_layer, ahead = config.size("block_count"), config.size("num_nextn_predict_layers", 0)
    for name, tensor in _of_text(config, family, checkpoint, wrapped).items():
        to, numbers, suffix = looked_up(family, name)
        if ahead and numbers and numbers[0] >= n_layer:  # layers that predict further tokens
            continue
        if to is None:
            unknown.append(name)
            continue
        for target in _read(to, config, numbers):
            place = target.name if isinstance(target, To) else target
            ours = our_name(config, target, numbers, suffix)
            by_rows = isinstance(target, To) and target.by_rows
            if by_rows or len(numbers) == place.count("{}") + 1:
                number = numbers[-1] if len(numbers) > 1 or not by_rows else 0
                (parts if by_rows else experts).setdefault(ours, {})[number] = tensor
                continue
            placed = _placed(config, target, ours, tensor, tied)
            twice = tensors.keys() & placed
            if twice:
                raise WeightsError(
                    f"{config.path.parent}: {name[:200]!r} is a second tensor that is {min(twice)}"
                )
            sources[ours] = tensor
            places[ours] = target
            tensors |= placed
    if unknown:
        raise ArchitectureError(
            f"{config.path.parent}: {family.architecture} has no place for {len(unknown)} tensors: "
            f"{', '.join(repr(name[:100]) for name in unknown[:4])}. What they would compute cannot be "
            f"left out{HEAD if 'fc.weight' in unknown else ''}"
        )
    _join_factors(config, tensors, sources, places)
    for ours, of in experts.items():
        tensors |= _stacked(config.path.parent, ours, of, _scale(ours) in tensors)
    tensors |= {ours: _joined(config.path.parent, ours, of) for ours, of in parts.items()}
    if tied:
        _tie(tensors, sources)
    _check_output(config, tensors, tied or not family.logits)
    if "cls.output.weight" not in tensors:  # a pooler, or a head for training
        tensors = {ours: tensor for ours, tensor in tensors.items() if not ours.startswith("cls.")}
    for ours, values in config.tensors.items():
        tensors[ours] = Tensor(ours, "f32", values.shape, values.reshape(-1).view(np.uint8), mapped=False)
    return tensors


def take_numbers(config: HfConfig, family: Family, tensors: dict[str, Tensor]) -> dict[str, list[float]]:
    """The keys of the family's numbers by layer; their tensors are taken out of `tensors`."""
    keys: dict[str, list[float]] = {}
    for place, key in family.numbers.items():
        keys[key] = []
        for layer in range(config.size("block_count")):
            name = place.format(layer)
            tensor = tensors.pop(name, None)
            if tensor is None or tensor.n_elements != 1:
                got = "nothing" if tensor is None else list(tensor.shape)
                raise WeightsError(f"{config.path.parent}: {name}: wanted a tensor of one number; got {got}")
            keys[key].append(config.checked_number(name, float(tensor.numpy().reshape(-1)[0])))
    return keys


def take_lists(config: HfConfig, family: Family, tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    """The keys of the family's lists of whole numbers; their tensors are taken out of `tensors`."""
    keys: dict[str, list[int]] = {}
    for place, key in family.lists.items():
        for layer in range(config.size("block_count")):
            tensor = tensors.pop(place.format(layer), None)
            if tensor is None:
                continue
            if tensor.dtype not in ("i32", "i64") or len(tensor.shape) != 1 or key in keys:
                got = f"got {tensor.dtype} {list(tensor.shape)}"
                raise WeightsError(f"{config.path.parent}: {key}: wanted one list of whole numbers; {got}")
            keys[key] = [int(number) for number in tensor.numpy()]
    return keys


def _of_text(
    config: HfConfig, family: Family, checkpoint: Mapping[str, Tensor], wrapped: bool
) -> dict[str, Tensor]:
    """The tensors but those of parts that see or hear, which a warning names, and others of no use."""
    outside = _outside(family, checkpoint) if wrapped else _SEEING.fullmatch
    kept: dict[str, Tensor] = {}
    parts: dict[str, int] = {}  # first words of names that are left out -> how many tensors
    for name, tensor in checkpoint.items():
        if outside(name):
            part = ".".join(name.split(".")[: 2 if name.startswith("model.") else 1])
            parts[part] = parts.get(part, 0) + 1
        elif not LEFT_OUT.fullmatch(name):
            kept[name] = tensor
    if parts:
        LOG.warning(
            "%s: text alone is evaluated: %d tensors of other parts are left out: %s",
            config.path.parent, sum(parts.values()), ", ".join(sorted(parts)[:16]),
        )  # fmt: skip
    return kept


def _outside(family: Family, names: Iterable[str]) -> Callable[[str], object]:
    """Whether a tensor of a larger model is outside its language model, which is where the embedding is.

    Where that has no part of its own, its tensors begin as the family's do, or with `model.`.
    """
    words = {name.partition(".")[0] for name in family.names}

    def places(name: str) -> list[str]:
        entry, _, suffix = looked_up(family, name)
        return [(target.name if isinstance(target, To) else target) + suffix for target in entry or ()]

    embedding = next((name for name in names if EMBEDDING in places(name)), None)
    if embedding is None:
        return _SEEING.fullmatch
    root = next((prefix for prefix in PREFIXES if embedding.startswith(prefix)), "")
    root = root if root == "model." else root.removesuffix("model.")

    def is_outside(name: str) -> bool:
        if _SEEING.fullmatch(name):
            return True
        if not root:
            return name.partition(".")[0] not in words
        return not name.startswith(root) and not any(place.startswith("output.") for place in places(name))

    return is_outside


def _tie(tensors: dict[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    """One matrix for embedding and logits as `PreTrainedModel.tie_weights` does: the one that is there.

    Two of other numbers stay, whatever config.json says: a trained head beside an untouched config. sources:
    the tensors of the checkpoint. Where there is a bias of the logits, the embedding has both names.
    """
    embedding, output = sources.get(EMBEDDING), sources.get(OUTPUT)
    if embedding is None and output is not None:
        tensors[EMBEDDING] = renamed(EMBEDDING, tensors[OUTPUT])
    if embedding is None or output is None or _same(embedding, output):
        tensors.pop(OUTPUT, None)
        if "output.bias" in tensors and EMBEDDING in tensors:
            tensors[OUTPUT] = renamed(OUTPUT, tensors[EMBEDDING])


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have the same numbers; of other dtypes they count as others."""
    return (left.dtype, left.shape) == (right.dtype, right.shape) and np.array_equal(left.data, right.data)


Entry = tuple[str | To, ...]


def looked_up(family: Family, name: str) -> tuple[Entry | None, list[int], str]:
    """What becomes of a tensor (None: it is not known), the numbers in its name, and our suffix."""
    short = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
    known = _looked_up(family, short)
    return known if known[0] is not None else _looked_up(family, _LAYERS.sub("layers", short))


def _looked_up(family: Family, short: str) -> tuple[Entry | None, list[int], str]:
    numbers = [int(digits) for digits in _NUMBER.findall(short)]
    pattern = _NUMBER.sub("{}", short)
    if pattern in family.names:
        return _entry(family.names[pattern]), numbers, ""
    for suffix in (".weight", ".bias"):
        stem = pattern.removesuffix(suffix)
        if stem != pattern and stem in family.names:
            return _entry(family.names[stem]), numbers, suffix
    first = _NUMBER.sub("{}", short, count=1)  # a further number may be a part of the name
    for suffix in (".weight", ".bias") if len(numbers) > 1 else ():
        if first.removesuffix(suffix) in family.names:
            return _entry(family.names[first.removesuffix(suffix)]), numbers[:1], suffix
    return None, numbers, ""


def our_name(config: HfConfig, target: str | To, numbers: Sequence[int], suffix: str) -> str:
    """Our name of a tensor, by what `looked_up` returns of its own."""
    if isinstance(target, To):
        return target.place(config, numbers) + suffix
    return target.format(*numbers) + suffix


def _read(entry: Entry, config: HfConfig, numbers: Sequence[int]) -> Iterator[str | To]:
    """The targets without those that are of pictures."""
    yield from (to for to in entry if not isinstance(to, To) or to.is_read(config, numbers))


def _entry(target: str | To | tuple[To, ...] | None) -> Entry:
    return target if isinstance(target, tuple) else () if target is None else (target,)


def _placed(config: HfConfig, to: str | To, ours: str, tensor: Tensor, tied: bool) -> dict[str, Tensor]:
    """A tensor under our name, and the factor of its blocks where it has one.

    Embeddings and vectors are floats: nothing multiplies their rows.
    """
    changed = _changed(config, to, ours, tensor)
    if not isinstance(tensor, ScaledMatrix) or changed.dtype != tensor.dtype:
        return {ours: changed}
    is_embedding = "_embd" in ours or (tied and ours == OUTPUT)
    if is_embedding or not ours.endswith(".weight") or changed.shape[0] == 1:
        return {ours: _changed(config, to, ours, tensor.as_floats())}
    return {ours: changed, _scale(ours): factors(_scale(ours), [tensor])}


def _join_factors(
    config: HfConfig,
    tensors: dict[str, Tensor],
    sources: Mapping[str, Tensor],
    places: Mapping[str, str | To],
) -> None:
    """Floats in place of blocks with a factor, in feed-forwards with a bias: it would multiply that, too."""
    for ours, matrix in sources.items():
        has_bias = ".ffn_" in ours and ours.removesuffix(".weight") + ".bias" in tensors
        if has_bias and isinstance(matrix, ScaledMatrix) and _scale(ours) in tensors:
            tensors[ours] = _changed(config, places[ours], ours, matrix.as_floats())
            del tensors[_scale(ours)]


def _changed(config: HfConfig, to: str | To, ours: str, tensor: Tensor) -> Tensor:
    if isinstance(to, To):
        tensor = to.change(config, ours, tensor)
    return renamed(ours, tensor)


def renamed(ours: str, tensor: Tensor) -> Tensor:
    """The same tensor by our name."""
    if isinstance(tensor, DeferredTensor):
        return DeferredTensor.of(ours, tensor.dtype, tensor.shape, lambda: tensor.data)
    return Tensor(ours, tensor.dtype, tensor.shape, tensor.data, tensor.mapped)


def _scale(ours: str) -> str:
    """Our name of the factor of a matrix."""
    return ours.removesuffix(".weight") + ".scale"


def _stacked(path: Path, ours: str, of: Mapping[int, Tensor], as_floats: bool) -> dict[str, Tensor]:
    """The matrices of all experts, or of other things that are numbered, as one tensor [experts, out, in].

    With the factors of their blocks where they have some; as_floats: there is another tensor of that name.
    """
    if sorted(of) != list(range(len(of))) or len(of) > _MOST_EXPERTS:
        raise WeightsError(f"{path}: {ours}: wanted experts 0 to {len(of) - 1}; got {sorted(of)[:20]}")
    parts: Sequence[Tensor] = [of[index] for index in range(len(of))]
    if as_floats:
        parts = [part.as_floats() if isinstance(part, ScaledMatrix) else part for part in parts]
    first = parts[0]
    for part in parts:
        if part.shape != first.shape:
            raise WeightsError(
                f"{path}: tensor {part.name!r}: wanted {list(first.shape)}, as of the first expert; got "
                f"{list(part.shape)}"
            )
    alike = all(part.dtype == first.dtype for part in parts)  # scales decide the dtype of packed ones

    def compute() -> Bytes:
        if alike:
            return np.concatenate([part.data for part in parts])
        values = np.concatenate([part.numpy().astype(np.float32).reshape(-1) for part in parts])
        return values.view(np.uint8)

    dtype = first.dtype if alike else "f32"
    stacked = DeferredTensor.of(ours, dtype, (len(parts), *first.shape), compute)
    scaled = [part for part in parts if isinstance(part, ScaledMatrix)]
    if not alike or len(scaled) < len(parts):
        return {ours: stacked}
    return {ours: stacked, _scale(ours): factors(_scale(ours), scaled)}


def _joined(path: Path, ours: str, of: Mapping[int, Tensor]) -> Tensor:
    """A matrix of the rows of several, one behind the other."""
    if sorted(of) != list(range(len(of))):
        raise WeightsError(f"{path}: {ours}: wanted parts 0 to {len(of) - 1}; got {sorted(of)[:20]}")
    parts = [of[index] for index in range(len(of))]
    first = parts[0]
    for part in parts:
        if part.dtype != first.dtype or len(part.shape) != 2 or part.shape[1:] != first.shape[1:]:
            raise WeightsError(
                f"{path}: tensor {part.name!r}: wanted {first.dtype} rows as of the first part, "
                f"{list(first.shape)}; got {part.dtype} {list(part.shape)}"
            )
    if len(parts) == 1:
        return renamed(ours, first)
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return DeferredTensor.of(ours, first.dtype, shape, lambda: np.concatenate([part.data for part in parts]))


def _check_output(config: HfConfig, tensors: Mapping[str, Tensor], tied: bool) -> None:
    """Without a matrix of their own, logits would silently be products with the embedding."""
    if not tied and EMBEDDING in tensors and OUTPUT not in tensors:
        raise WeightsError(
            f"{config.path}: tie_word_embeddings is false, and the checkpoint has no output matrix: it is "
            "not of a model with a language-modelling head, or a shard is missing"
        )
