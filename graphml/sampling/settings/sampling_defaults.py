"""Sampling settings that a model's author put into its file, and the settings that take a field's place.

Knows the keys `general.sampling.*` of GGUF, which a folder's generation_config.json is read as, and the
fields of `SamplingParams`; nothing of models, command lines or servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from graphml.errors import UsageError, WeightsError
from graphml.options.argument_checks import whole_number
from graphml.options.option_fields import options_of
from graphml.sampling.settings.params import LLAMA_SERVER, SamplingParams
from graphml.weights import Metadata

LOG = logging.getLogger(__name__)
PREFIX: Final = "general.sampling."
FIELDS: Final = {
    "sequence": "samplers", "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "xtc_probability": "xtc_probability", "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "repeat_last_n", "penalty_repeat": "repeat_penalty", "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau", "mirostat_eta": "mirostat_eta", "typical_p": "typical_p",
    "epsilon_cutoff": "epsilon_cutoff", "eta_cutoff": "eta_cutoff",
}  # fmt: skip
"""The key's last part -> field of `SamplingParams`; the last three are of folders alone."""
OF_FOLDERS: Final = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""The key's last part -> the field of generation_config.json, where that has another name."""
SHOWN, LONGEST = 8, 300  # warnings of a file, characters of one


@dataclass(frozen=True, repr=False, eq=False)
class SamplingDefaults(Mapping[str, Any]):
    """The fields of `SamplingParams` that a file states: `SamplingParams(**model.sampling_defaults)`.

    sources: field -> the key or file that states it. unused: a line for each setting that is not known or is
    out of range.
    """

    stated: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.stated[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stated)

    def __len__(self) -> int:
        return len(self.stated)

    def __repr__(self) -> str:
        stated = ", ".join(f"{name}={self[name]!r} ({self.sources[name]})" for name in self)
        unused = f"; not used: {'; '.join(self.unused[:SHOWN])}" if self.unused else ""
        return f"SamplingDefaults({stated}{unused})"


def sampling_defaults(metadata: Metadata) -> SamplingDefaults:
    """What the metadata of a file states; what is wrong is logged and left out."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    unused: list[str] = []
    folder = metadata.path.is_dir()
    for key in [key for key in metadata if key.startswith(PREFIX)]:
        source = "generation_config.json" if folder else key
        try:
            name, value = _read(metadata, key)
        except (UsageError, WeightsError) as error:
            name = key if key.isprintable() else repr(key)
            if folder:
                field_name = OF_FOLDERS.get(key.removeprefix(PREFIX), key.removeprefix(PREFIX))
                name = f"{source} {field_name!r}"
            unused.append(f"{name}: {str(error).partition(': ')[2]}"[:LONGEST])
            continue
        values[name], sources[name] = value, source
    for line in unused[:SHOWN]:
        LOG.warning("%s: %s; the setting is not used", metadata.path.name, line)
    return SamplingDefaults(values, sources, tuple(unused))


def _read(metadata: Metadata, key: str) -> tuple[str, Any]:
    """The field and its value; UsageError for a key that is not known and a value that is out of range."""
    name = FIELDS.get(key.removeprefix(PREFIX))
    if name is None:
        raise UsageError(f"{key}: a setting that is not known")
    if metadata.is_array(key):
        raise UsageError(f"{key}: wanted one value, got an array")
    value = metadata[key]
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            value = float(str(np.float32(value)))  # 0.6 is 0.60000002 as float32
        if isinstance(getattr(SamplingParams(), name), int) and value.is_integer():
            value = int(value)
    if name == "top_k" and (count := whole_number(value)) is not None:
        value = max(0, count)  # as llama.cpp reads it: not above 0 is off
    return name, getattr(SamplingParams(**{name: value}), name)


@dataclass(frozen=True)
class ChosenSampling:
    """Settings, and where those come from that are not `SamplingParams()`'s: a flag, a key, llama-server."""

    params: SamplingParams
    sources: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Field -> its value and where that comes from."""
        shown = {}
        for name, source in self.sources.items():
            value, write = getattr(self.params, name), options_of(SamplingParams)[name].write
            shown[name] = {"value": value if write is None else write(value), "from": source}
        return shown


def chosen_sampling(
    params: SamplingParams,
    asked: Mapping[str, str],
    stated: SamplingDefaults,
    usual: Mapping[str, Any] = LLAMA_SERVER,
) -> ChosenSampling:
    """The settings where those not asked for are the file's, else llama-server's (`usual`).

    asked: field whose value in `params` counts -> the flag, or what else asks for it.
    """
    sources = {**dict.fromkeys(usual, "llama-server"), **stated.sources, **asked}
    changes = {name: value for name, value in {**usual, **stated}.items() if name not in asked}
    return ChosenSampling(replace(params, **changes), sources)
