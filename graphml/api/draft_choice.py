"""Who drafts for a request or a generation: as its sampling parameters and the model say.

Knows parameters and kinds of drafters; nothing of steps.
"""

from __future__ import annotations

from graphml.api.draft_model import DraftModel
from graphml.errors import UsageError
from graphml.runtime.blocks.drafting import Drafter, Drafts, NgramDrafter
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.prediction_head import check_head, prediction_head
from graphml.runtime.steps.draft_steps import check_drafts, takes_drafts
from graphml.sampling import SamplingParams


def draft_kind(params: SamplingParams, executor: Executor, draft: DraftModel | None) -> str:
    """none, ngram, draft or mtp: what drafts with these parameters. UsageError where that cannot be.

    draft: the draft model, if there is one; a UsageError without it where it is asked for by name.
    """
    kind = params.spec_type
    if kind == "auto":
        kind = "draft" if draft is not None and takes_drafts(executor) else "none"
    if kind == "none":
        return kind
    if params.spec_draft_n_min > params.spec_draft_n_max:
        raise UsageError(
            f"spec_draft_n_min: wanted at most spec_draft_n_max = {params.spec_draft_n_max}; "
            f"got {params.spec_draft_n_min}"
        )
    check_drafts(executor)
    if kind == "draft" and draft is None:
        raise UsageError(
            "spec_type: draft wants a model opened with draft_model (--model-draft); it has none"
        )
    if kind == "mtp":
        check_head(executor)
    return kind


def drafts_for(
    params: SamplingParams, executor: Executor, draft: DraftModel | None, n_ctx: int
) -> Drafts | None:
    """The drafts of a new sequence; None for none. Arguments and errors as of `draft_kind`.

    n_ctx: most tokens of it.
    """
    kind = draft_kind(params, executor, draft)
    if kind == "none":
        return None
    drafter: Drafter
    if kind == "mtp":
        head = prediction_head(executor)
        head.prepare()
        drafter = head.drafter(n_ctx, executor.n_vocab)
    else:
        drafter = NgramDrafter() if kind == "ngram" or draft is None else draft.drafter()
    return Drafts(drafter, params.spec_draft_n_max, params.spec_draft_n_min)


def check_no_drafts(params: SamplingParams, where: str) -> None:
    """UsageError where drafts are asked for by name and there are none."""
    if params.spec_type not in ("auto", "none"):
        raise UsageError(
            f"spec_type: {where} takes no drafts, engines and single sessions do; wanted none, got "
            f"{params.spec_type}"
        )
