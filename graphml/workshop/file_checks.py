"""What is wrong or odd in a model's file: numbers, vocabulary, template, rope, and what nobody reads.

What cannot be opened at all has raised before. Knows an open model and its file; nothing of commands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import graphml_quant
import numpy as np

from graphml.api.model import Model
from graphml.backend import Progress, no_progress
from graphml.errors import GraphmlError
from graphml.text.chat_template import template_names
from graphml.text.tokenizer.pieces import LETTER_BYTES
from graphml.text.tokenizer.pre_tokenizers import PRE_TOKENIZERS, split
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import PLAIN_DTYPES, Tensor

WRONG, ODD = "wrong", "odd"
PIECE = 1 << 20
"""Elements that are decoded at a time."""
FAR = 100.0
"""Times by which a matrix may be larger or smaller than its like in other layers."""
LARGEST = 1e5
CUT = 0.02
"""The share of a vocabulary's tokens that its own pre-tokenizer may cut: learned ones are never cut."""
SAMPLE = 4000
CHAT = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]", "<|user|>", "<|turn>")
QUESTION = "What is graphml's name?"


@dataclass(frozen=True)
class FileFinding:
    """severity: wrong, or odd. where: a tensor, a key or a part of the file. what: in a sentence."""

    severity: str
    where: str
    what: str


def file_findings(model: Model, progress: Progress = no_progress) -> Iterator[FileFinding]:
    """What is found in the file of an open model, as it comes. progress: "checking", in bytes of tensors."""
    file = model.executor.file
    yield from _keys(model)
    yield from _vocabulary(model)
    yield from _template(model)
    yield from tensor_findings(file, progress)


def tensor_findings(file: ModelFile, progress: Progress = no_progress) -> Iterator[FileFinding]:
    """Numbers that are none, matrices of zeros, and sizes far from those of other layers."""
    sizes: dict[str, dict[str, float]] = {}
    done = 0
    for tensor in file.tensors.values():
        progress("checking", done, file.n_weight_bytes)
        done += tensor.n_bytes
        if tensor.dtype in PLAIN_DTYPES or not tensor.n_elements:
            continue
        n_bad, largest, square = _summary(tensor)
        if n_bad:
            yield FileFinding(
                WRONG, tensor.name, f"{n_bad:,} of {tensor.n_elements:,} numbers are not finite"
            )
            continue
        is_matrix = sum(size > 1 for size in tensor.shape) > 1
        if largest == 0 and is_matrix:
            yield FileFinding(ODD, tensor.name, "all numbers are 0")
        if largest > LARGEST:
            yield FileFinding(ODD, tensor.name, f"the largest number is {largest:.3g}")
        if is_matrix and square:
            kind = re.sub(r"\.\d+\.", ".*.", tensor.name)
            sizes.setdefault(kind, {})[tensor.name] = (square / tensor.n_elements) ** 0.5
    for of_kind in sizes.values():
        usual = median(of_kind.values())
        for name, size in of_kind.items():
            if len(of_kind) > 2 and not usual / FAR < size < usual * FAR:
                yield FileFinding(
                    ODD, name, f"its root mean square is {size:.3g}; in other layers {usual:.3g}"
                )


def _summary(tensor: Tensor) -> tuple[int, float, float]:
    """How many numbers are not finite, the largest magnitude of the others, and the sum of their squares."""
    format = graphml_quant.by_name(tensor.dtype)
    step = max(1, PIECE // format.block_elements) * format.block_bytes
    n_bad, largest, square = 0, 0.0, 0.0
    for begin in range(0, tensor.n_bytes, step):
        piece = tensor.data[begin : begin + step]
        n_elements = piece.size // format.block_bytes * format.block_elements
        values = graphml_quant.dequantize(format, piece, (n_elements,))
        finite = np.isfinite(values)
        if not finite.all():
            n_bad += int(n_elements - finite.sum())
            values = values[finite]
        if values.size:
            largest = max(largest, float(np.abs(values).max()))
            square += float(np.einsum("i,i->", values, values, dtype=np.float64))
    return n_bad, largest, square


def _keys(model: Model) -> Iterator[FileFinding]:
    executor = model.executor
    metadata = executor.file.metadata
    arch = metadata.text("general.architecture")
    executor.build(1, 1)  # a graph knows what it uses
    for name in executor.unused_tensors:
        yield FileFinding(ODD, name, "the architecture does not use this tensor")
    scaling = metadata.get(f"{arch}.rope.scaling.type", "none")
    tables = [name for name in executor.file.tensors if "rope_freqs" in name or "rope_factors" in name]
    if scaling in ("linear", "yarn") and tables:
        yield FileFinding(
            ODD, f"{arch}.rope.scaling.type",
            f"says {scaling}, and {tables[0]} scales rope, too: positions are scaled twice",
        )  # fmt: skip
    for key in (f"{arch}.rope.scale_linear", f"{arch}.rope.scaling.factor"):
        factor = metadata.get(key, 1.0)
        if isinstance(factor, (int, float)) and not 0 < factor < 1e4:
            yield FileFinding(WRONG, key, f"wanted a factor above 0; it is {factor}")


def _vocabulary(model: Model) -> Iterator[FileFinding]:
    metadata, tokenizer = model.executor.file.metadata, model.tokenizer
    if tokenizer is None:
        yield FileFinding(
            ODD, "tokenizer.ggml.model", "the file has no vocabulary: it takes and gives ids alone"
        )
        return
    texts = metadata.get("tokenizer.ggml.tokens", [])
    doubles = [text for text, count in Counter(texts).items() if count > 1]
    if doubles:
        what = f"{len(doubles)} texts are there twice, as {doubles[0]!r:.60}"
        yield FileFinding(ODD, "tokenizer.ggml.tokens", what)
    for key in metadata:
        if re.fullmatch(r"tokenizer\.ggml\.\w+_token_id", key):
            value = metadata[key]
            if isinstance(value, int) and not 0 <= value < len(texts):
                yield FileFinding(WRONG, key, f"is {value}; the vocabulary has {len(texts)} tokens")
    embedding = model.executor.file.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape[0] < len(texts):
        what = f"has {embedding.shape[0]} rows; the vocabulary has {len(texts)} tokens"
        yield FileFinding(WRONG, "token_embd.weight", what)
    if metadata.get("tokenizer.ggml.model") == "gpt2":
        yield from _pre_tokenizer(metadata.get("tokenizer.ggml.pre"), texts)


def _pre_tokenizer(name: object, texts: list[str]) -> Iterator[FileFinding]:
    """A pre-tokenizer under which the vocabulary's own tokens cannot have been learned."""
    key = "tokenizer.ggml.pre"
    if not isinstance(name, str):
        yield FileFinding(ODD, key, "is missing: texts are cut as by default, as few models were trained")
        return
    if name not in PRE_TOKENIZERS:
        return
    share = _cut_share(name, texts)
    if share <= CUT:
        return
    others = sorted((_cut_share(other, texts), other) for other in PRE_TOKENIZERS)
    best = [other for of_other, other in others if of_other <= others[0][0] + 1e-3]
    better = f"; {', '.join(best[:3])} cut {others[0][0]:.1%}" if others[0][0] < share / 2 else ""
    what = f"{name!r} cuts {share:.1%} of the vocabulary's own tokens, which it cannot have made{better}"
    yield FileFinding(ODD, key, what)


def _cut_share(name: str, texts: list[str]) -> float:
    """The share of tokens that a pre-tokenizer cuts, of words in letters."""
    rules = PRE_TOKENIZERS[name]
    if not rules.byte_level:
        return 1.0
    cut = seen = 0
    for text in texts[:: max(1, len(texts) // SAMPLE)]:
        is_special = text.startswith("<") and text.endswith(">")
        if len(text) < 2 or is_special or not set(text) <= LETTER_BYTES.keys():
            continue
        try:
            word = bytes(LETTER_BYTES[letter] for letter in text).decode()
        except UnicodeDecodeError:
            continue
        seen += 1
        cut += len(list(split(word, rules.steps))) > 1
    return cut / seen if seen else 0.0


def _template(model: Model) -> Iterator[FileFinding]:
    metadata = model.executor.file.metadata
    texts = set(metadata.get("tokenizer.ggml.tokens", []))
    key = "tokenizer.chat_template"
    if not template_names(metadata):
        marks = [mark for mark in CHAT if mark in texts]
        if marks and model.executor.generates:
            yield FileFinding(
                ODD, key, f"is missing, though the vocabulary has {marks[0]}: it was trained to chat"
            )
        return
    for name, template in model.templates.items():
        where = key if name == "default" else f"{key}.{name}"
        try:
            text = template.render([{"role": "user", "content": QUESTION}])
        except GraphmlError as error:
            yield FileFinding(WRONG, where, f"fails for one question: {error}")
            continue
        if QUESTION not in text:
            yield FileFinding(WRONG, where, "leaves the user's text out")
        again = template.render([{"role": "user", "content": QUESTION}], add_generation_prompt=False)
        if text == again and name == "default":
            yield FileFinding(
                ODD, where, "gives no beginning of an answer: add_generation_prompt changes nothing"
            )
