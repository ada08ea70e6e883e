"""Granite 3 with experts and a shared one: `GraniteMoeSharedForCausalLM`."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import granitemoe
from graphml_models.huggingface.granitemoehybrid import SHARED

FAMILY = replace(
    granitemoe.FAMILY,
    model_types=("granitemoeshared",),
    names={**granitemoe.FAMILY.names, **SHARED},
    ignored=("shared_intermediate_size",),
)
