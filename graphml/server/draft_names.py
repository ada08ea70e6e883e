"""Speculation by llama-server's names: its kinds of drafts, and its fields of requests.

Knows names and sampling parameters; nothing of models.
"""

from __future__ import annotations

from typing import Any

from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.server.api_errors import wrong_field
from graphml.server.request_fields import Sampling

NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
KINDS = {
    "none": "none", "auto": "auto", "draft": "draft", "ngram": "ngram", "draft-simple": "draft",
    "mtp": "mtp", "draft-mtp": "mtp",
    **dict.fromkeys(NGRAMS, "ngram"),
}  # fmt: skip
"""llama-server's names, and graphml's own, as `SamplingParams.spec_type`; all n-grams are one kind."""
OTHER_HEADS = ("draft-eagle3", "draft-dflash", "draft-dspark")
"""Kinds of llama-server that need tensors which graphml does not read."""
SHOWN = {"none": "none", "auto": "none", "ngram": "ngram-simple", "draft": "draft-simple",
         "mtp": "draft-mtp"}  # fmt: skip
MOST = 64
"""The range of `SamplingParams.spec_draft_n_max`; llama-server has no limit."""


def spec_type_of(names: str) -> tuple[str, list[str]]:
    """`--spec-type` as `SamplingParams.spec_type`, and those of the names that have no meaning here.

    Of several, with commas between, a draft model counts before multi-token prediction, that before n-grams.
    UsageError for an unknown name.
    """
    given = [one.strip() for one in names.split(",")]
    for one in given:
        if one not in KINDS and one not in OTHER_HEADS:
            raise UsageError(f"--spec-type: wanted {', '.join(KINDS)}; got {one!r:.40}")
    kinds = {KINDS[one] for one in given if one in KINDS}
    found = next((one for one in ("draft", "mtp", "ngram", "none") if one in kinds), "auto")
    return found, [one for one in given if one in OTHER_HEADS]


def draft_flags(values: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    """What a command line says of drafts, as fields of `SamplingParams`; `ignored` gets unknown kinds.

    At most 0 tokens: no drafts.
    """
    found: dict[str, Any] = {
        name: values[name] for name in ("spec_draft_n_max", "spec_draft_n_min") if name in values
    }
    if found.get("spec_draft_n_max", 0) > MOST:
        found["spec_draft_n_max"] = MOST
    if "spec_type" in values:
        found["spec_type"], others = spec_type_of(values["spec_type"])
        ignored += [f"--spec-type {one}" for one in others]
    if found.get("spec_draft_n_max") == 0:
        found |= {"spec_type": "none", "spec_draft_n_max": SamplingParams().spec_draft_n_max}
    return found


def draft_fields(given: Sampling, base: SamplingParams) -> dict[str, Any]:
    """What a request says of drafts, as changes of `SamplingParams`. At most 0 tokens: no drafts."""
    found: dict[str, Any] = {}
    if given.spec_type is not None:
        kind = KINDS.get(given.spec_type)
        if kind is None:
            raise wrong_field("speculative.type", f"wanted {', '.join(KINDS)}; got {given.spec_type!r:.40}")
        found["spec_type"] = base.spec_type if kind == "auto" else kind
    most = base.spec_draft_n_max if given.spec_n_max is None else min(given.spec_n_max, MOST)
    if most == 0:
        return {"spec_type": "none"}
    least = base.spec_draft_n_min if given.spec_n_min is None else given.spec_n_min
    if given.spec_n_max is not None or given.spec_n_min is not None:
        found |= {"spec_draft_n_max": most, "spec_draft_n_min": min(least, most)}
    return found
