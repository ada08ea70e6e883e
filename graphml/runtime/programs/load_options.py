"""Options of opening a model as one value: each with its type, default, help, range and flags.

`load`, `open_executor`, the flags of the commands, their help and the table in docs/command-line.md come from
these fields. Knows the options; opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graphml import settings
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.cache_types import CACHE_DTYPES, PLAIN, read_cache_types
from graphml.ir.cells import MAX_CELLS
from graphml.options.option_fields import (
    POSITIVE,
    Checked,
    OneOf,
    Real,
    Whole,
    check,
    option,
    options_of,
    with_setting,
)
from graphml.runtime.programs.adapter_options import (
    Layers,
    Scaled,
    checked_files,
    checked_layers,
    parse_files,
    parse_layers,
)
from graphml.runtime.programs.metadata_overrides import Value, checked_overrides, parse_overrides
from graphml.weights.page_policy import PagePolicy, chosen
from graphml.weights.requantise import QUANTS


def draft_name(name: str, value: object) -> str | os.PathLike[str] | None:
    """A model's name or path; UsageError for none."""
    if value is not None and (not isinstance(value, str | os.PathLike) or not str(value)):
        raise UsageError(f"{name}: wanted a model's file or name, or None; got {value!r}")
    return value


@dataclass(frozen=True)
class LoadOptions:
    """Options of opening a model; `LoadOptions()` is what is done where nothing is asked for.

    None and "" leave the choice to the option's environment variable, if it has one, else to graphml. What is
    wrong whatever the model is a UsageError when the value is made: it names the option, what was wanted and
    what came.
    """

    backend: str = option(
        "cpu",
        "Backend: cpu, reference or another installed one; several with commas, preferred first.",
        "--backend",
        metavar="NAME,...",
    )
    threads: int | None = with_setting(settings.threads, None, "--threads", "-t", range=Whole(1))
    kv: str | None = option(
        None,
        f"Data type of the KV cache: {OneOf(CACHE_DTYPES)}; two as KEYS/VALUES, like q8_0/q4_0; "
        f"others in some layers, like q8_0,0-2=f16; q4_0{PLAIN}: "
        "without a Walsh-Hadamard transform; by default f16, f32 of encoders with weights of F32 or F16.",
        "--kv",
        range=Checked(read_cache_types),
        metavar="TYPE",
        shown="f16; f32 of encoders",
    )
    swa_full: bool = option(
        False,
        "Layers with a sliding window keep all keys and values: any rewind is free, for more memory.",
        "--swa-full",
    )
    quant: str | None = option(
        None,
        "Convert weights on load: {words}; fp32 is exact; by default the types of the file.",
        "--quant",
        range=OneOf(tuple(QUANTS)),
    )
    pages: str | None = with_setting(settings.pages, None, "--pages")
    numa: str | None = with_setting(settings.numa, None, "--numa")
    pin: bool | None = with_setting(settings.pin, None, "--pin/--no-pin")
    n_batch: int = option(
        512, "Maximum number of prompt tokens in one step.", "--batch", "-b",
        range=Whole(1, MAX_CELLS, " tokens of one step"),
    )  # fmt: skip
    arch: str | os.PathLike[str] | None = option(
        None, "A Python file that defines the architecture; it is run.", "--arch",
        metavar="FILE.py", on_command_line=Path | None,
    )  # fmt: skip
    trust_arch: bool = option(
        False, "Run the definition of the architecture that the file carries, Python code.", "--trust-arch",
    )  # fmt: skip
    pre: str | None = option(None, "Name of the pre-tokenizer, in place of the file's.", "--pre")
    template: str | os.PathLike[str] | None = option(
        None, "A Jinja chat template in place of the model's own.", "--template",
        "--chat-template-file",
        metavar="FILE", on_command_line=Path | None,
    )  # fmt: skip
    fuse: str = with_setting(settings.fuse, "", "--fuse", metavar="SWITCHES")
    place: str = option(
        "",
        "Placement of nodes: cpu:layers.0-14,reference:softmax; by default the first backend that can.",
        "--place",
        metavar="RULES",
    )
    strict: bool = option(
        False,
        "Fail if the preferred backend does not support a node, in place of another backend.",
        "--strict",
    )
    tuned: bool | None = with_setting(settings.tuned, None, "--tuned/--no-tuned")
    deterministic: bool = option(
        False,
        "Same bits whatever the batch, the chunks and the number of threads; CPU backend, in stages too.",
        "--deterministic",
    )
    gpu_layers: int | None = option(
        None,
        "Number of layers, the last ones, on the first backend; the rest run on the next or the CPU.",
        "--gpu-layers",
        "-ngl",
        range=Whole(0),
        shown="all, or as many as fit",
    )
    lora: Scaled | None = option(
        None, "A LoRA adapter and its scale.", "--lora", "--lora-scaled",
        range=Checked(checked_files), metavar="FILE[:SCALE]", on_command_line=str, repeated=True,
        parse=parse_files,
    )  # fmt: skip
    control_vectors: Scaled | None = option(
        None, "A control vector, added to the outputs of layers, and its scale.", "--control-vector",
        "--control-vector-scaled", range=Checked(checked_files), metavar="FILE[:SCALE]", on_command_line=str,
        repeated=True, parse=parse_files,
    )  # fmt: skip
    control_layers: Layers | None = option(
        None, "The layers of control vectors; by default all but the first.", "--control-vector-layer-range",
        range=Checked(checked_layers), metavar="FIRST-LAST", on_command_line=str | None, parse=parse_layers,
    )  # fmt: skip
    draft_model: str | os.PathLike[str] | None = option(
        None, "Draft model for speculative decoding: a file, a short name, or user/repo:QUANT.",
        "--model-draft", "-md", metavar="MODEL", on_command_line=str | None, range=Checked(draft_name),
    )  # fmt: skip
    offline: bool | None = with_setting(settings.offline, None, "--offline")

    override_kv: Mapping[str, Value] | None = option(
        None,
        "A value in place of the file's, in its metadata; type int, float, bool or str.",
        "--override-kv",
        range=Checked(checked_overrides),
        metavar="KEY=TYPE:VALUE",
        on_command_line=str,
        repeated=True,
        parse=parse_overrides,
    )
    rope_scaling: str | None = option(
        None, "How rotary positions are scaled: {words}; by default as the file says.", "--rope-scaling",
        range=OneOf(("none", "linear", "yarn")), key=".rope.scaling.type",
    )  # fmt: skip
    rope_freq_base: float | None = option(
        None, "Base of the rotary frequencies, in place of the file's.", "--rope-freq-base",
        range=POSITIVE, key=".rope.freq_base",
    )  # fmt: skip
    rope_freq_scale: float | None = option(
        None, "Factor of the rotary frequencies: 0.25 is for a context 4 times as long.", "--rope-freq-scale",
        range=POSITIVE, key=".rope.scaling.factor",
    )  # fmt: skip
    yarn_ext_factor: float | None = option(
        None, "YaRN: how much is extrapolated; 0 interpolates all.", "--yarn-ext-factor",
        range=Real(0), key=".rope.scaling.yarn_ext_factor",
    )  # fmt: skip
    yarn_attn_factor: float | None = option(
        None, "YaRN: factor of the rotated queries and keys.", "--yarn-attn-factor",
        range=POSITIVE, key=".rope.scaling.attn_factor",
    )  # fmt: skip
    yarn_beta_slow: float | None = option(
        None, "YaRN: turns in the context up to which a pair is interpolated.", "--yarn-beta-slow",
        range=POSITIVE, key=".rope.scaling.yarn_beta_slow",
    )  # fmt: skip
    yarn_beta_fast: float | None = option(
        None, "YaRN: turns in the context from which on a pair is not interpolated.", "--yarn-beta-fast",
        range=POSITIVE, key=".rope.scaling.yarn_beta_fast",
    )  # fmt: skip
    yarn_orig_ctx: int | None = option(
        None, "YaRN: the context that the model was trained for.", "--yarn-orig-ctx",
        range=Whole(1), key=".rope.scaling.original_context_length",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

    @property
    def overrides(self) -> dict[str, tuple[str, Value]]:
        """Key of the metadata -> the option that overrides it, and the value."""
        overrides = {key: ("override_kv", value) for key, value in (self.override_kv or {}).items()}
        for name, stated in options_of(LoadOptions).items():
            value = getattr(self, name)
            if stated.key and value is not None:
                overrides[stated.key] = (name, 1.0 / value if name == "rope_freq_scale" else value)
        return overrides

    @property
    def compiling(self) -> CompileOptions:
        """What of it is about compilation."""
        return CompileOptions(self.fuse, place=self.place, strict=self.strict)

    @property
    def page_policy(self) -> PagePolicy:
        """Where weights are in memory, as the options say, or else the environment."""
        return chosen(self.pages, self.numa)
