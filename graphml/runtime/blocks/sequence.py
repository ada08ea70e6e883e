"""A sequence of an engine: its ids, how many of them are computed, and the blocks that hold those.

Knows ids and block numbers; nothing of arrays, logits or text.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import Prefix
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.captured_rows import CapturedRows
from graphml.runtime.blocks.drafting import Drafts
from graphml.runtime.blocks.overflow import n_dropped
from graphml.runtime.blocks.request import Request
from graphml.sampling import PeekableRandom
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.sampling.denoiser import Denoiser
from graphml.sampling.structured.forced_tokens import forced_tokens
from graphml.sampling.structured.matcher import Matcher
from graphml.sampling.structured.reasoning_matcher import ReasoningMatcher

Company: TypeAlias = tuple[CompileOptions, int] | None


class Guidance(Protocol):
    """See `graphml.runtime.steps.guidance`."""

    leader: Sequence
    negative: Sequence

    def holds_row_of(self, sequence: Sequence) -> bool:
        """Whether a row of this sequence waits for one of the other."""

    def combined(self, sequence: Sequence, row: Array) -> Array | None:
        """The row to sample from."""

    def append(self, token: int) -> None:
        """The token of both was chosen."""


class Status(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One continuation of a request: `ids` are prompt and generated ones, the first `n_computed` in blocks.

    index: which of a request's continuations. order: when it came, among all. blocks: in the order of its
    tokens; source_blocks: of its source text. prefix: what the committed blocks hold, `n_committed` of them.
    n_cached: tokens that it found computed when it was admitted first, and n_source_cached of its source.
    slot: its row of per-sequence state while it runs, else -1. numbers: its random generator, by `seed`, and
    what its samplers keep. matcher: of what its text must follow; it catches up before a token is sampled.
    n_dropped: ids that a full context has made it forget; draft: ids that the next step tries behind the
    others, from `drafts`; was_drafted: whether the token that is handed out was one of these; n_again: of the
    ids that are computed, the last ones that its recurrent states have to read again, since a draft behind
    them was wrong; moved: whether cells of its blocks were moved since they were computed, so that nobody
    else can use them; copies: whether its next step begins with copies to its blocks, which hold nothing
    until then. prompt_scores: what is known of the prompt's log-probabilities, where they are wanted, of all
    sequences of a request; scores: of tokens that were sampled and not handed out yet. pooled: the rows of a
    text, float32 [rows, d], once they are computed. denoiser: of a diffusion model's answer: what its next
    step computes; `ids` are then the prompt and what is settled behind it. captured: gets its rows of
    captured values. guidance: what it shares with the sequence of a (negative) prompt. waits_for: why it was
    not admitted when that was last considered; see `Scheduler`.
    """

    request: Request
    order: int
    index: int = 0
    seed: int = 0
    ids: list[int] = field(init=False)
    n_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    source_blocks: list[int] = field(default_factory=list)
    prefix: Prefix = field(init=False)
    n_committed: int = 0
    n_cached: int = -1
    n_source_cached: int = 0
    slot: int = -1
    status: Status = Status.WAITING
    waits_for: str = ""
    n_preempted: int = 0
    n_dropped: int = 0
    moved: bool = False
    copies: bool = False
    matcher: Matcher | None = None
    prompt_scores: list[TokenLogprobs | None] | None = None
    scores: list[TokenLogprobs] = field(default_factory=list)
    drafts: Drafts | None = None
    draft: list[int] = field(default_factory=list)
    was_drafted: bool = False
    n_again: int = 0
    pooled: Array | None = None
    denoiser: Denoiser | None = None
    captured: CapturedRows | None = None
    guidance: Guidance | None = None
    numbers: PeekableRandom = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.request.ids.tolist()
        self.numbers = PeekableRandom(self.seed, self.request.vocabulary)
        self.prefix = Prefix.empty(self.request.extra)

    @property
    def waits(self) -> bool:
        """Whether it is to run, and does not."""
        return self.status in (Status.WAITING, Status.PREEMPTED)

    @property
    def company(self) -> Company:
        """Sequences share a step where this is equal; None for all whose requests have no options."""
        request = self.request
        return None if request.options is None else (request.options, self.order if request.patches else -1)

    @property
    def n_behind(self) -> int:
        """Tokens that are held, open ones of an answer too, and not computed."""
        return self.n_text - self.n_computed

    @property
    def n_generated(self) -> int:
        """Ids behind the prompt, forgotten ones included."""
        return len(self.ids) + self.n_dropped - self.request.n_prompt

    def forced(self, n_ctx: int) -> list[int]:
        """The tokens that its structure leaves no choice about, as many as have room; not appended."""
        most = self.request.max_tokens
        left = n_ctx if most is None else most - self.n_generated
        room = min(left, n_ctx - 1 - len(self.ids))
        return forced_tokens(self.matcher, self.request.params, self.ids, self.n_generated, room)

    def end_reasoning(self) -> bool:
        """Have its reasoning end with the next token; whether it is in one that can be ended."""
        if not isinstance(self.matcher, ReasoningMatcher):
            return False
        self.matcher.catch_up(self.ids, self.n_generated)
        return self.matcher.end_reasoning()

    def common_with(self, other: Sequence) -> int:
        """How many first ids of the prompts are the same, and mean the same."""
        if self.request.extra != other.request.extra or self.n_dropped or other.n_dropped:
            return 0
        size = min(self.request.n_prompt, other.request.n_prompt)
        if not size:
            return 0
        same = self.request.ids[:size] == other.request.ids[:size]
        first = int(same.argmin())  # the first that differs, else 0
        return size if same[first] else first

    @property
    def n_text(self) -> int:
        """How many tokens are known, computed or not, without a draft; with the open ones of an answer."""
        return len(self.ids) if self.denoiser is None else len(self.denoiser.ids)

    def table(self, n_tokens: int) -> Array:
        """The blocks of its first tokens, at least so many, int32 [n]."""
        return np.array(self.blocks, np.int32)

    def ids_at(self, start: int, count: int) -> Array:
        """The ids from a position on, int32 [count], the draft's behind; zeros for those not known yet."""
        known = self.ids[start : start + count]
        known += self.draft[: count - len(known)]
        return np.array(known + [0] * (count - len(known)), np.int32)

    def id_at(self, position: int) -> int:
        """The same of one position."""
        if position < len(self.ids):
            return self.ids[position]
        behind = position - len(self.ids)
        return self.draft[behind] if behind < len(self.draft) else 0

    def blocks_needed(self, count: int, block_size: int) -> int:
        """How many more blocks hold `count` more computed tokens."""
        return max(0, -(-(self.n_computed + count) // block_size) - len(self.blocks))

    def blocks_to_start(self, pool: BlockPool, most: int | None = None) -> int:
        """How many free blocks all its ids take, those free ones included that hold some of them already.

        most: ids that it may find in blocks.
        """
        blocks, _ = pool.match(self._shareable()[:most], self.prefix)
        return -(-len(self.ids) // pool.block_size) - sum(pool.is_held(block) for block in blocks)

    def _shareable(self) -> Array:
        """All ids but the last, which is always computed: its logits are wanted."""
        return np.array(self.ids[: len(self.ids) - 1], np.int32)

    def adopt_prefix(self, pool: BlockPool, most: int | None = None) -> int:
        """Hold the blocks that hold its first ids already, `most` of them; how many ids those are."""
        blocks, prefixes = pool.match(self._shareable()[:most], self.prefix)
        pool.share(blocks)
        for window in pool.windows:
            window.hold(blocks)
        self.blocks = blocks
        self.n_committed = len(blocks)
        if prefixes:
            self.prefix = prefixes[-1]
        self.n_computed = len(blocks) * pool.block_size
        return self.n_computed

    def advance(self, count: int, pool: BlockPool) -> None:
        """`count` more ids are computed; blocks that are full now may be shared."""
        for window in pool.windows:
            window.advance(self.blocks, self.n_computed, self.n_computed + count)
        self.n_computed += count
        self.copies = False
        if self.moved:
            return
        size = pool.block_size
        while (self.n_committed + 1) * size <= self.n_computed:
            first = self.n_committed * size
            ids = np.array(self.ids[first : first + size], np.int32)
            self.prefix = pool.commit(self.blocks[self.n_committed], self.prefix, ids)
            self.n_committed += 1

    def forget(self, keep: int, drop: int) -> None:
        """Drop some ids; what of them is computed is the caller's matter."""
        del self.ids[keep : keep + drop]
        self.numbers.kept.forget(keep, drop)
        self.n_dropped += drop

    def to_forget(self, n_ctx: int) -> tuple[int, int]:
        """Which ids a full context forgets: (keep, drop)."""
        request = self.request
        kept = request.full.kept(request.n_prompt, request.begins, n_ctx)
        return kept, n_dropped(len(self.ids), kept, 1, n_ctx)

    def give_back(self, pool: BlockPool) -> None:
        """Hold no blocks; nothing is computed any more."""
        for window in pool.windows:
            window.release(self.blocks, self.n_computed)
        first = self.n_committed * pool.block_size
        if first < self.n_computed and not (self.moved or self.copies):
            pool.keep_begun(
                self.blocks[self.n_committed], self.prefix, self.ids_at(first, self.n_computed - first)
            )
        pool.release(self.blocks)
        self.blocks, self.moved, self.copies = [], False, False
        self.prefix, self.n_committed, self.n_computed = Prefix.empty(self.request.extra), 0, 0
        self.n_again = 0
