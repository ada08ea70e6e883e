"""Who drafts for a request or a generation, as its sampling parameters and the model say; draft models.

A draft model is a smaller model whose greedy continuation is the draft of another one, after Leviathan et al.
2023 (arXiv:2211.17192), with drafts that are points. Ids of another vocabulary are translated through text.
Knows parameters, ids, logits and tokenizers; nothing of the steps in which drafts are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.blocks.drafting import Drafter, Drafts, NgramDrafter, Proposal, greedy_draft
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.draft_file import drafts_by_file
from graphml.runtime.sessions.prediction_head import check_head, prediction_head
from graphml.runtime.steps.draft_steps import check_drafts, takes_drafts
from graphml.sampling import SamplingParams
from graphml.text.tokenizer import Tokenizer

OF_FILES = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dflash with a tensor markov_w1"}
"""Kinds of drafts by a file of its own -> what that is of."""


def draft_kind(params: SamplingParams, executor: Executor, draft: DraftModel | None) -> str:
    """What drafts with these parameters: none, ngram, draft, mtp or one of `OF_FILES`.

    draft: the draft model, if there is one. UsageError where what is asked for by name cannot be.
    """
    kind, by_file = params.spec_type, drafts_by_file(executor)
    if kind == "auto":
        own = by_file or ("none" if draft is None else "draft")
        kind = own if takes_drafts(executor) else "none"
    if kind == "none":
        return kind
    if params.spec_draft_n_min > params.spec_draft_n_max:
        raise UsageError(
            f"spec_draft_n_min: wanted at most spec_draft_n_max = {params.spec_draft_n_max}; "
            f"got {params.spec_draft_n_min}"
        )
    check_drafts(executor)
    if kind == "draft" and draft is None:
        has = f"one for spec_type {by_file}" if by_file else "none"
        raise UsageError(
            f"spec_type: draft wants a model opened with draft_model (--model-draft); it has {has}"
        )
    if kind in OF_FILES and by_file != kind:
        has = "another" if by_file or draft is not None else "none"
        raise UsageError(
            f"spec_type: {kind} wants a model opened with a draft_model (--model-draft) of the architecture "
            f"{OF_FILES[kind]}; it has {has}"
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
    if kind == "mtp" or kind in OF_FILES:
        head = prediction_head(executor) if kind == "mtp" else executor.head
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


class DraftSession(Protocol):
    """What a drafter needs of a `Session` of the draft model."""

    n_ctx: int

    @property
    def tokens(self) -> list[int]:
        """The ids that it holds."""

    def eval(self, ids: list[int]) -> Array:
        """Append ids; the logits after the last."""

    def rewind(self, n_past: int) -> None:
        """Forget all but the first."""

    def close(self) -> None:
        """Give the memory back."""


class DraftModel:
    """Makes drafters, each with a session of the draft model by `begin`.

    n_vocab: of the model that is drafted for. translate: the tokenizers of that model and of the draft model,
    where their tokens differ; None: an id is the same token in both.
    """

    def __init__(
        self,
        begin: Callable[[], DraftSession],
        close: Callable[[], None],
        n_vocab: int,
        translate: tuple[Tokenizer, Tokenizer] | None = None,
    ) -> None:
        self._begin, self.close, self._n_vocab, self.translate = begin, close, n_vocab, translate

    def drafter(self) -> Drafter:
        """One for a new sequence; its session begins with the first proposal."""
        if self.translate is None:
            return _SameTokens(self._begin, self._n_vocab)
        return _OtherTokens(_SameTokens(self._begin, None), *self.translate)


class _SameTokens:
    """Drafts ids by a session that follows the sequence. n_vocab: larger ids are no tokens."""

    costs_time = True

    def __init__(self, begin: Callable[[], DraftSession], n_vocab: int | None) -> None:
        self._begin, self._n_vocab = begin, n_vocab
        self._session: DraftSession | None = None

    def propose(self, ids: Sequence[int], count: int) -> Proposal:
        """See `Drafter`; nothing where the draft model's context is too short."""
        if self._session is None:
            self._session = self._begin()
        session, wanted = self._session, list(ids)
        if len(wanted) + count > session.n_ctx:
            return Proposal([])
        held = session.tokens
        same = next((i for i, (a, b) in enumerate(zip(held, wanted, strict=False)) if a != b), None)
        same = min(len(held), len(wanted)) if same is None else same
        same = min(same, len(wanted) - 1)  # the logits behind the last id are wanted
        if same < len(held):
            session.rewind(same)
        logits = session.eval(wanted[same:])
        return Proposal(greedy_draft(logits, count, lambda token: session.eval([token]), self._n_vocab))

    def close(self) -> None:
        """See `Drafter`."""
        if self._session is not None:
            self._session.close()
            self._session = None


class _OtherTokens:
    """Drafts by a model of another vocabulary: its text, in the tokens of the model that is drafted for."""

    costs_time = True

    def __init__(self, drafter: _SameTokens, target: Tokenizer, own: Tokenizer) -> None:
        self._drafter, self._target, self._own = drafter, target, own

    def propose(self, ids: Sequence[int], count: int) -> Proposal:
        """See `Drafter`."""
        text = self._target.decode(list(ids))
        draft = self._drafter.propose(self._own.encode(text, parse_special=True), count).ids
        whole = self._own.decode(self._own.encode(text, parse_special=True) + draft)
        if not whole.startswith(text) or "\ufffd" in whole:
            return Proposal([])  # the text is not the same there, or a character is cut
        before = self._target.encode(text, parse_special=True)
        after = self._target.encode(whole, parse_special=True)
        if before != after[: len(before)] or list(ids)[-1:] != before[-1:]:
            return Proposal([])  # with more text its last token would be another one
        return Proposal(after[len(before) :][:count])

    def close(self) -> None:
        """See `Drafter`."""
        self._drafter.close()
