"""Speculation by llama-server's names: its kinds of drafts, and its fields of requests.

Knows names and sampling parameters; nothing of models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.server.responses.api_errors import wrong_field

if TYPE_CHECKING:  # the command line reads names where the libraries of requests are missing
    from graphml.server.requests.request_fields import Sampling

NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
KINDS = {
    "none": "none", "auto": "auto", "draft": "draft", "ngram": "ngram", "draft-simple": "draft",
    "mtp": "mtp", "draft-mtp": "mtp", "eagle3": "eagle3", "draft-eagle3": "eagle3",
    **dict.fromkeys(NGRAMS, "ngram"),
}  # fmt: skip
"""llama-server's names, and graphml's own, as `SamplingParams.spec_type`; all n-grams are one kind."""
OTHER_HEADS = ("draft-dflash", "draft-dspark")
"""Kinds of llama-server that need tensors which graphml does not read."""
SHOWN = {"none": "none", "auto": "none", "ngram": "ngram-simple", "draft": "draft-simple",
         "eagle3": "draft-eagle3", "mtp": "draft-mtp"}  # fmt: skip
MOST = 64
"""The range of `SamplingParams.spec_draft_n_max`; llama-server has no limit."""


def spec_type_of(names: str) -> tuple[str, list[str]]:
    """`--spec-type` as `SamplingParams.spec_type`, and those of the names that have no meaning here.

    Of several, with commas between, a draft model counts before EAGLE-3, that before multi-token prediction,
    that before n-grams.
    UsageError for an unknown name.
    """
    listed = [name.strip() for name in names.split(",")]
    for name in listed:
        if name not in KINDS and name not in OTHER_HEADS:
            raise UsageError(f"--spec-type: wanted {', '.join(KINDS)}; got {name!r:.40}")
    kinds = {KINDS[name] for name in listed if name in KINDS}
    spec_type = next((kind for kind in ("draft", "eagle3", "mtp", "ngram", "none") if kind in kinds), "auto")
    return spec_type, [name for name in listed if name in OTHER_HEADS]


def draft_flags(values: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    """What a command line says of drafts, as fields of `SamplingParams`; `ignored` gets unknown kinds.

    At most 0 tokens: no drafts.
    """
    fields: dict[str, Any] = {
        name: values[name] for name in ("spec_draft_n_max", "spec_draft_n_min") if name in values
    }
    if fields.get("spec_draft_n_max", 0) > MOST:
        fields["spec_draft_n_max"] = MOST
    if "spec_type" in values:
        fields["spec_type"], others = spec_type_of(values["spec_type"])
        ignored += [f"--spec-type {other}" for other in others]
    if fields.get("spec_draft_n_max") == 0:
        fields |= {"spec_type": "none", "spec_draft_n_max": SamplingParams().spec_draft_n_max}
    return fields


def draft_fields(sampling: Sampling, base: SamplingParams) -> dict[str, Any]:
    """What a request says of drafts, as changes of `SamplingParams`. At most 0 tokens: no drafts."""
    changes: dict[str, Any] = {}
    if sampling.spec_type is not None:
        kind = KINDS.get(sampling.spec_type)
        if kind is None:
            raise wrong_field(
                "speculative.type", f"wanted {', '.join(KINDS)}; got {sampling.spec_type!r:.40}"
            )
        changes["spec_type"] = base.spec_type if kind == "auto" else kind
    most = base.spec_draft_n_max if sampling.spec_n_max is None else min(sampling.spec_n_max, MOST)
    if most == 0:
        return {"spec_type": "none"}
    least = base.spec_draft_n_min if sampling.spec_n_min is None else sampling.spec_n_min
    if sampling.spec_n_max is not None or sampling.spec_n_min is not None:
        changes |= {"spec_draft_n_max": most, "spec_draft_n_min": min(least, most)}
    return changes
