"""Chameleon: the language model of `ChameleonForConditionalGeneration`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, calculated
from graphml.weights import Tensor
from graphml_models.chameleon import PICTURES
from graphml_models.huggingface._names import LLAMA, PAIRED, llama_keys

PICTURE = "IMGIMG"  # what names of ids of pieces of pictures begin with


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; ids of pieces of pictures must be those that the architecture leaves out."""
    metadata = llama_keys(config)
    named = config.get("vocabulary_map")
    if not isinstance(named, dict):
        raise config.error(f"vocabulary_map: wanted an object of names and ids; got {str(named)[:40]!r}")
    ids = {number for name, number in named.items() if name.startswith(PICTURE)}
    (first, end), n_vocab = PICTURES, int(str(metadata["vocab_size"]))
    wanted = set(range(first, end)) if n_vocab > end else set[int]()
    if ids != wanted:
        raise config.error(
            f"vocabulary_map: wanted {len(wanted)} ids of pictures, from {first} on, of {n_vocab} ids; got "
            f"{len(ids)}, of both {len(ids ^ wanted)} in one alone"
        )
    return {**metadata, "swin_norm": config.flag("swin_norm")}


def paired_norm(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The norm of each head [N, H] for a rope of neighbours, where transformers rotates halves."""
    if len(tensor.shape) != 2 or tensor.shape[1] % 2:
        raise config.error(f"{name}: wanted a row of pairs for each head; got {list(tensor.shape)}")
    count, width = tensor.shape
    return calculated(
        tensor, name, lambda values: values.reshape(count, 2, -1).swapaxes(1, 2).reshape(count, width)
    )


FAMILY = Family(
    model_types=("chameleon",),
    architecture="chameleon",
    keys=keys,
    names={
        **LLAMA, **PAIRED,
        "layers.{}.self_attn.q_norm": To("blk.{}.attn_q_norm", paired_norm),
        "layers.{}.self_attn.k_norm": To("blk.{}.attn_k_norm", paired_norm),
    },
    ignored=("vq_config",),
)  # fmt: skip
