"""Times of sampling: chains over a large vocabulary, masks of JSON schemas, JSON output beside free text.

    python benchmarks/sampling.py chains [--vocab 151936] [--rounds 40]
    python benchmarks/sampling.py masks SCHEMAS.jsonl [--model smollm2] [--limit N]
    python benchmarks/sampling.py steps [--model smollm2] [--sequences 32] [--tokens 96] [--rounds 5]

`chains`: milliseconds a row of each chain, on rows as peaked as a language model's and on flat ones. `masks`:
the schemas with the documents of a file of `{"schema", "tests": [{"valid", "data"}]}` lines, as MaskBench of
guidance-ai/jsonschemabench has them: each token of each valid document takes a mask; microseconds for the
mask alone and for a mask applied to a row. `steps`: an engine's steps with all sequences writing JSON and
with all writing free text, in turns; the ratio of the medians of each round, and the processor time of all
but the products, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import graphml
from graphml.errors import GraphmlError
from graphml.loading import discovery
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.steps import runner, sampled_rows
from graphml.sampling import SamplingParams
from graphml.sampling.candidates.candidates import score_order
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.chain.sampler import make_sampler
from graphml.sampling.structured.packed_masks import masked_row
from graphml.sampling.structured.params_structure import matcher_of

CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_k, top_p, min_p (llama.cpp's defaults)": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "the same behind penalties": {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1},
    "temperature alone": {},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "typical": {"typical_p": 0.9},
    "epsilon": {"epsilon_cutoff": 1e-4},
    "eta": {"eta_cutoff": 1e-3},
    "xtc": {"xtc_probability": 1.0},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "dynamic_temperature": {"dynatemp_range": 0.2},
    "mirostat": {"mirostat": 1},
    "mirostat_v2": {"mirostat": 2},
    "adaptive_p": {"adaptive_target": 0.3},
    "a whole sort (xtc, rng=llama.cpp)": {"xtc_probability": 1.0, "rng": "llama.cpp"},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 8},
        "about": {"type": "string"},
    },
    "required": ["name", "age", "tags", "about"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    chains = commands.add_parser("chains")
    chains.add_argument("--vocab", type=int, default=151_936)
    chains.add_argument("--rounds", type=int, default=40)
    masks = commands.add_parser("masks")
    masks.add_argument("schemas", type=Path)
    masks.add_argument("--model", default="smollm2")
    masks.add_argument("--limit", type=int, default=1 << 30)
    steps = commands.add_parser("steps")
    steps.add_argument("--model", default="smollm2")
    steps.add_argument("--sequences", type=int, default=32)
    steps.add_argument("--tokens", type=int, default=96)
    steps.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    {"chains": time_chains, "masks": time_masks, "steps": time_steps}[given.command](given)


def time_chains(given: argparse.Namespace) -> None:
    lent = discovery.backend("cpu").row_order
    assert lent is not None
    score_order.lend(lent)  # as opening a model does
    numbers = np.random.default_rng(0)
    rows = {
        "peaked": [(numbers.standard_normal(given.vocab) * 3).astype(np.float32) for _ in range(4)],
        "flat": [(numbers.standard_normal(given.vocab) / 2).astype(np.float32) for _ in range(4)],
    }
    history = list(range(1000, 1200))
    print(f"| chain, {given.vocab:,} words | peaked, ms (least) | flat, ms (least) |\n|---|---:|---:|")
    for name, fields in CHAINS.items():
        sampler = make_sampler(SamplingParams(**{"temperature": 0.8, **fields}))
        cells = []
        for some in rows.values():
            own = PeekableRandom(0)
            found = [_seconds(partial(sampler.sample, row, history, own)) for row in some * given.rounds]
            cells.append(f"{1e3 * median(found):.2f} ({1e3 * min(found):.2f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def time_masks(given: argparse.Namespace) -> None:
    with graphml.load(given.model) as model:
        tokenizer, n_vocab = model.tokenizer, model.n_vocab
    compiled, first, masks, applied, forced, n_tokens, refused = [], [], [], [], 0, 0, 0
    row = np.zeros(n_vocab, np.float32)
    for line in given.schemas.read_text("utf-8").splitlines()[: given.limit]:
        case = json.loads(line)
        begin = time.perf_counter()
        try:
            start = matcher_of(SamplingParams(json_schema=json.dumps(case["schema"])), tokenizer)
        except GraphmlError:
            refused += 1
            continue
        compiled.append(time.perf_counter() - begin)
        for document in (one["data"] for one in case["tests"] if one["valid"]):
            matcher = start.copy()
            for i, token in enumerate(tokenizer.encode(json.dumps(document), add_special=False)):
                (masks if i else first).append(_seconds(matcher.bits))
                applied.append(_seconds(lambda m=matcher: masked_row(row, m.bits())))
                if not matcher.allows(token):
                    break  # properties in another order than the schema's
                matcher.accept(token)
                n_tokens += 1
                trial = matcher.copy()
                forced += len(trial.forced(64))
    print(f"{len(compiled)} schemas ({refused} refused), {len(masks)} masks behind the first")
    for name, found in (("compile", compiled), ("first mask", first), ("mask", masks), ("applied", applied)):
        shown = np.percentile(np.array(found) * 1e6, [50, 99, 99.9]).round(1)
        print(f"{name}, us: mean {np.mean(found) * 1e6:.1f}, p50 / p99 / p99.9 {' / '.join(map(str, shown))}")


def time_steps(given: argparse.Namespace) -> None:
    kinds = {
        "free": SamplingParams(temperature=0.8, top_k=40),
        "json": SamplingParams(temperature=0.8, top_k=40, json_schema=SCHEMA),
    }
    with (
        graphml.load(given.model, n_batch=max(64, given.sequences)) as model,
        model.engine(max_sequences=given.sequences, n_ctx=given.tokens + 64) as engine,
    ):
        ratios, busy = [], {"free": [], "json": []}
        spent = _counted()
        for turn in range(given.rounds + 1):  # the first is a warm-up
            found = {}
            for kind in ("free", "json") if turn % 2 else ("json", "free"):
                spent.clear()
                with engine.timeline(1 << 16) as steps:
                    handles = [
                        engine.submit("A person, described:", kinds[kind], given.tokens, seed=i)
                        for i in range(given.sequences)
                    ]
                    tokens = sum(len(handle.result().tokens) for handle in handles)
                full = [one for one in steps.steps if len(one.rows) == given.sequences]
                full = [one for one in full if all(rows.generates for rows in one.rows)]
                seconds = [one.end_s - one.begin_s for one in full]
                each = sum(seconds) / sum(rows.count for one in full for rows in one.rows)
                found[kind] = median(seconds), each, tokens
                if turn:
                    busy[kind].append(1e3 * sum(median(some) for some in spent.values()))
            if turn:
                ratios.append([found["json"][i] / found["free"][i] for i in range(2)])
                print("; ".join(f"{kind}: step {1e3 * s:.1f} ms, token {1e3 * each:.2f} ms, {n} tokens"
                                for kind, (s, each, n) in found.items()), flush=True)  # fmt: skip
    free, structured = median(busy["free"]), median(busy["json"])
    print(f"processor time of sampling, masks and handing out, ms a step: free {free:.2f}, "
          f"json {structured:.2f}, more: {structured - free:.2f}")  # fmt: skip
    for i, what in enumerate(("a step", "a token")):
        own = [one[i] for one in ratios]
        print(f"json / free, {what} of {given.sequences} sequences: median {median(own):.3f}, "
              f"least {min(own):.3f}")  # fmt: skip


def _counted() -> dict[str, list[float]]:
    """Processor seconds of each call of what samples, makes masks and hands tokens out, from now on."""
    spent: dict[str, list[float]] = {}
    for owner, name in ((runner, "sampled_rows"), (StepLoop, "_hand_out"), (sampled_rows, "_compute_masks")):
        setattr(owner, name, _timed(getattr(owner, name), name, spent))
    return spent


def _timed(call: Callable[..., Any], name: str, spent: dict[str, list[float]]) -> Callable[..., Any]:
    def timed(*given: Any) -> Any:
        begin = time.thread_time()
        found = call(*given)
        spent.setdefault(name, []).append(time.thread_time() - begin)
        return found

    return timed


def _seconds(call: Callable[[], Any]) -> float:
    """Processor time of this thread: other work on the machine does not count."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


if __name__ == "__main__":
    main()
