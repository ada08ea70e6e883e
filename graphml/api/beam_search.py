"""Beam search of a model: arguments are checked, blocks and programs are there for it, ids become texts.

Knows how the parts fit together; the search is `graphml.runtime.sessions.beams`'.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphml.api.decodes import Decodes
from graphml.api.prompt_encoder import Prompt
from graphml.api.tokens import checked_ids
from graphml.errors import ContextFullError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.options.argument_checks import whole_number
from graphml.options.option_fields import Real, Whole
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.beams import NEVER, BeamSearch, BeamSettings, blocks_for
from graphml.runtime.steps.runner import Runner

MOST_BEAMS = 128


@dataclass(frozen=True)
class Beam:
    """A continuation: ids and text without the end token, "end" or "length", log-probability and score."""

    tokens: list[int]
    text: str
    stop_reason: str
    logprob: float
    score: float


def beam_search(
    model: Decodes,
    prompt: Prompt,
    beams: int,
    max_tokens: int,
    n_best: int,
    length_penalty: float,
    early_stopping: bool | str,
    stop_tokens: Iterable[int],
) -> list[Beam]:
    """See `Model.beam_search`."""
    executor, tokenizer = model.executor, model.tokenizer
    _check_model(executor)
    ids = checked_ids(model.prompt_ids(prompt), model.n_vocab)
    most = min(MOST_BEAMS, executor.n_batch // 2)
    width = whole_number(beams)
    if width is None or not 1 <= width <= most:
        raise UsageError(f"beams: wanted 1 to {most} (half of n_batch, at most {MOST_BEAMS}); got {beams!r}")
    count = Whole(1, width, " (beams)").read("n_best", n_best)
    if not isinstance(early_stopping, bool) and early_stopping != NEVER:
        raise UsageError(f"early_stopping: wanted True, False or {NEVER!r}; got {early_stopping!r}")
    ends = set(checked_ids(list(stop_tokens), model.n_vocab).tolist())
    settings = BeamSettings(
        width=width,
        max_tokens=Whole(1).read("max_tokens", max_tokens),
        length_penalty=Real(-100, 100).read("length_penalty", length_penalty),
        early=early_stopping,
        ends=frozenset(ends | (set() if tokenizer is None else set(tokenizer.end_tokens))),
    )
    if len(ids) + settings.max_tokens > model.n_ctx:
        raise ContextFullError(
            f"beam_search: wanted a prompt and max_tokens that fit in n_ctx = {model.n_ctx}; got "
            f"{len(ids)} ids and max_tokens = {settings.max_tokens}"
        )
    n_blocks = blocks_for(len(ids), settings)
    runner = Runner(executor, n_blocks, 2 * width, n_ctx=model.n_ctx)
    pool = BlockPool(n_blocks, BLOCK_SIZE, keep=False)
    found_beams = BeamSearch(runner, pool, settings, executor.file.path).run(ids)
    return [
        Beam(
            list(beam.ids),
            "" if tokenizer is None else tokenizer.decode(beam.ids, skip_special=True),
            "end" if beam.ended else "length",
            beam.logprob,
            beam.score,
        )
        for beam in found_beams[:count]
    ]


def _check_model(executor: Executor) -> None:
    name = executor.architecture.name
    executor.check_continues()
    if executor.encodes:
        raise UsageError(f"beam_search: {name} has an encoder; wanted a model that continues its prompt")
    if executor.cell_groups:
        raise UsageError(
            f"beam_search: in {name} some layers see a window, which forks do not copy; wanted a model "
            "opened with swa_full=True"
        )
