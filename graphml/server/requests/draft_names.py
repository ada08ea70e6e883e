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
HEADS = ("mtp", "eagle3", "dflash", "dspark")
KINDS = {
    "none": "none", "auto": "auto", "draft": "draft", "ngram": "ngram", "draft-simple": "draft",
    **{f"{begin}{name}": name for name in HEADS for begin in ("", "draft-")},
    **dict.fromkeys(NGRAMS, "ngram"),
}  # fmt: skip
"""llama-server's names, and graphml's own, as `SamplingParams.spec_type`; all n-grams are one kind."""
SHOWN = {
    "none": "none", "auto": "none", "ngram": "ngram-simple", "draft": "draft-simple",
    "eagle3": "draft-eagle3", "mtp": "draft-mtp", "dflash": "draft-dflash", "dspark": "draft-dspark",
}  # fmt: skip
ORDER = ("draft", "eagle3", "dspark", "dflash", "mtp", "ngram", "none")
MOST = 64
"""The range of `SamplingParams.spec_draft_n_max`; llama-server has no limit."""


def spec_type_of(names: str) -> str:
    """`--spec-type` as `SamplingParams.spec_type`: of several, with commas between, the first of `ORDER`.

    UsageError for an unknown name.
    """
    listed = [name.strip() for name in names.split(",")]
    for name in listed:
        if name not in KINDS:
            raise UsageError(f"--spec-type: wanted {', '.join(KINDS)}; got {name!r:.40}")
    kinds = {KINDS[name] for name in listed}
    return next((kind for kind in ORDER if kind in kinds), "auto")


def draft_flags(values: dict[str, Any]) -> dict[str, Any]:
    """What a command line says of drafts, as fields of `SamplingParams`. At most 0 tokens: no drafts."""
    fields: dict[str, Any] = {
        name: values[name] for name in ("spec_draft_n_max", "spec_draft_n_min") if name in values
    }
    if fields.get("spec_draft_n_max", 0) > MOST:
        fields["spec_draft_n_max"] = MOST
    if "spec_type" in values:
        fields["spec_type"] = spec_type_of(values["spec_type"])
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
