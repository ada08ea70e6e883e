"""LongRoPE: factors by the length of each text in folders, by the context asked for in GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.ir.long_texts import LongerThan, is_long, long_inputs, long_values
from tests.folder_records import TOKENS, about
from tests.folders.test_folders_of_transformers import LIMIT, folder
from tests.golden import nmse

IDS = TOKENS.tolist()
ORIGINAL = 16  # tokens that the record's model was first trained for


def opened(
    path: Path, long: bool = True, short: bool = True, original: int = ORIGINAL, **options: Any
) -> graphml.Model:
    """The record's model; without one kind of factors: the other kind in its place."""
    scaling = dict(about("phi3")[0]["rope_parameters"])
    scaling["long_factor"] = scaling["long_factor" if long else "short_factor"]
    scaling["short_factor"] = scaling["short_factor" if short else "long_factor"]
    scaling["original_max_position_embeddings"] = original
    fields = {"rope_parameters": scaling, "original_max_position_embeddings": original}
    path = folder(path / f"{long}{short}", "phi3", sliding_window=None, **fields)
    return graphml.load(path, backend="cpu", kv="f32", quant="fp32", **options)


def logits(model: graphml.Model, parts: list[list[int]], n_ctx: int = 64) -> Any:
    with model.session(n_ctx=n_ctx) as session:
        return np.concatenate([np.atleast_2d(session.eval(part, all_logits=True)) for part in parts])


@pytest.mark.parametrize("count", [ORIGINAL - 1, ORIGINAL, ORIGINAL + 1])
def test_a_text_within_the_original_length_has_the_short_factors(count: int, tmp_path: Path) -> None:
    with (
        opened(tmp_path) as both,
        opened(tmp_path, long=False) as short,
        opened(tmp_path, short=False) as long,
    ):
        got, of_short, of_long = (logits(model, [IDS[:count]]) for model in (both, short, long))
    wanted, other = (of_long, of_short) if count > ORIGINAL else (of_short, of_long)
    assert nmse(got, wanted) <= LIMIT
    assert nmse(got, other) > 1e-4


def test_a_prompt_that_is_cut_into_steps_is_one_text(tmp_path: Path) -> None:
    with opened(tmp_path, n_batch=7) as cut, opened(tmp_path, short=False) as long:
        assert nmse(logits(cut, [IDS]), logits(long, [IDS])) <= LIMIT


def test_a_rewound_session_has_a_short_text_again(tmp_path: Path) -> None:
    with opened(tmp_path) as model, model.session(n_ctx=64) as session:
        session.eval(IDS)
        session.rewind(0)
        again = session.eval(IDS[:6], all_logits=True)
        step = session.eval(IDS[6:7])
        assert nmse(np.asarray(again), logits(model, [IDS[:6]])) <= LIMIT
        assert nmse(np.asarray(step), logits(model, [IDS[:7]])[-1]) <= LIMIT


def test_a_session_with_a_long_text_copies_nothing_of_a_short_one(tmp_path: Path) -> None:
    long = (IDS * 3)[:60]
    with opened(tmp_path, original=40) as model:
        with model.session(n_ctx=64) as first, model.session(n_ctx=64) as second:
            first.eval(long[:36])  # more than a block
            last = np.asarray(second.eval(long))
        assert nmse(last, logits(model, [long], n_ctx=62)[-1]) <= LIMIT


def test_texts_of_both_lengths_share_steps_but_no_blocks(tmp_path: Path) -> None:
    long = (IDS * 3)[: ORIGINAL * 3]
    texts = [long[:ORIGINAL], long, long]

    def answered(engine: graphml.Engine, chosen: list[list[int]]) -> list[float]:
        handles = [engine.submit(ids, max_tokens=1, logprobs=1) for ids in chosen]
        return [handle.result().logprobs[0].logprob for handle in handles]

    with opened(tmp_path) as model:
        wanted = []
        for ids in texts:
            rows = logits(model, [ids])[-1].astype(np.float64)
            wanted.append(float(rows.max() - np.log(np.exp(rows).sum())))
        with model.engine(n_ctx=64, prefix_cache=False) as engine:
            together = answered(engine, texts)
        with model.engine(n_ctx=64) as engine:  # the block of the short one is how the long one begins
            in_turn = [answered(engine, [ids])[0] for ids in texts]
    assert together == pytest.approx(wanted, abs=1e-4)
    assert in_turn == pytest.approx(wanted, abs=1e-4)


def test_what_is_long_is_read_from_the_names_of_inputs() -> None:
    inputs = long_inputs(["tokens", "longer.text.16", "longer.context.32"])
    assert list(inputs.values()) == [LongerThan("text", 16), LongerThan("context", 32)]
    values = long_values(inputs, np.array([16, 17]), 33)
    assert values["longer.text.16"].reshape(-1).tolist() == [0, 1]
    assert values["longer.context.32"].reshape(-1).tolist() == [1, 1]
    assert [is_long(inputs, count) for count in (16, 17)] == [False, True]
    assert not is_long(long_inputs(["longer.context.4"]), 99)
