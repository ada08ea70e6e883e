"""The sampling settings of a folder's generation_config.json, as the keys `general.sampling.*` of GGUF.

What the file does not state is left out, transformers' own defaults too. Knows the file's fields and what
transformers makes of them; checks no range.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from graphml.loading.huggingface.json_files import read_json
from graphml.weights.metadata import StoredValue, stored

FILE: Final = "generation_config.json"
KEYS: Final = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p",
    "epsilon_cutoff": "epsilon_cutoff", "eta_cutoff": "eta_cutoff", "repetition_penalty": "penalty_repeat",
}  # fmt: skip
"""Field of the file -> the key's last part."""
OFF: Final = {
    "num_beams": 1, "num_beam_groups": 1, "penalty_alpha": 0, "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1, "guidance_scale": 1, "bad_words_ids": [], "suppress_tokens": [],
    "begin_suppress_tokens": [], "sequence_bias": {}, "do_sample": True,
}  # fmt: skip
"""Fields that decide about tokens and have no setting here -> the value that changes nothing."""


def sampling_metadata(path: Path) -> dict[str, StoredValue]:
    """The keys of a folder; empty without the file. WeightsError for a file that is no JSON object."""
    fields = read_json(path / FILE) if (path / FILE).is_file() else {}
    said = {name: value for name, value in fields.items() if value is not None}
    values: dict[str, Any] = {key: said[name] for name, key in KEYS.items() if name in said}
    if said.get("do_sample") is False:  # transformers takes the most likely token, whatever else is said
        said.pop("do_sample")
        values["temp"] = 0.0
    if "penalty_repeat" in values and values["penalty_repeat"] != 1:
        values["penalty_last_n"] = -1  # transformers penalises the whole text, prompt included
    values |= {name: said[name] for name, off in OFF.items() if name in said and said[name] != off}
    return {f"general.sampling.{key}": _stored(value) for key, value in values.items()}


def _stored(value: Any) -> StoredValue:
    """A JSON value; a text of one that metadata cannot hold, which is no setting's."""
    return stored(value if isinstance(value, bool | int | float | str) else f"{value!r:.80}")
