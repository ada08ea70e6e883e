"""The tokens that follow a step's output rows: sampled from the top k or by the device where that is enough.

Knows a program's outputs and samplers; nothing of plans, blocks or who waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from graphml.compiler.top_k_outputs import OF_ROW, SAMPLING_SETTINGS, TOP_K
from graphml.errors import UsageError, WeightsError
from graphml.ir.op import Array
from graphml.runtime.evaluation import top_k_of
from graphml.runtime.sequence import Sequence
from graphml.sampling import DeviceSettings, NextLogits, device_settings, flaw_of
from graphml.sampling.top_k_sampling import samples_without_row

Sampled: TypeAlias = int | Exception
"""A token, or why there is none: an error of this row alone."""


def write_settings(feed: Mapping[str, Array], of: Mapping[int, Sequence]) -> None:
    """Tell the device how it samples output rows, each of its sequence, if the graph has that input."""
    if SAMPLING_SETTINGS in feed:
        for row, sequence in of.items():
            feed[SAMPLING_SETTINGS][row] = _settings(sequence) or 0.0


def sampled_rows(outputs: Mapping[str, Array], of: Mapping[int, Sequence], n_vocab: int) -> list[Sampled]:
    """The token that follows each sequence, by its output row; whole rows are read where they are needed.

    The outputs must be those of `write_settings`, and must stay valid until this returns.
    """
    found: list[Sampled] = []
    for row, sequence in of.items():
        try:
            found.append(_sampled(outputs, row, sequence, n_vocab))
        except Exception as error:  # a sampler's: this request's own
            found.append(error)
    return found


def _settings(sequence: Sequence) -> DeviceSettings | None:
    return device_settings(sequence.request.params, sequence.numbers.peek(0), TOP_K)


def _sampled(outputs: Mapping[str, Array], row: int, sequence: Sequence, n_vocab: int) -> int:
    params = sequence.request.params
    if OF_ROW in outputs and samples_without_row(params, TOP_K):
        top = top_k_of(outputs, row, n_vocab, _settings(sequence), lambda: outputs["logits"][row])
        known = NextLogits(top)
    else:
        known = NextLogits(outputs["logits"][row])
    try:
        token = known.sample(params, sequence.ids, sequence.numbers)
    except UsageError:
        flaw = None if known.row is None else flaw_of(known.row)
        if flaw is None:
            raise
        raise WeightsError(
            f"the model's logits are no numbers: {flaw}; `graphml compare` shows where they begin"
        ) from None
    assert token is not None  # the whole row can be had
    return token
