"""What speculation gains and costs: the same generations with n-gram drafts and without, in turns.

    python benchmarks/drafts.py [MODEL] [--threads N] [--tokens N] [--rounds N] [--draft-model MODEL]

copy: the model repeats a text of its prompt. free: it continues a sentence, at temperature 0.8.
Two sessions take turns of 8 tokens each, one of them with drafts. sequences: 16 sequences in an engine
of 16, whole runs in turns. Printed are tokens per second with drafts over those without: the median and the
extremes of the rounds' ratios, and the same by processor time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import graphml
from graphml.sampling import SamplingParams

TURN = 8
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)
TEXT = (
    "The history of the lighthouse begins in the autumn of 1821, when a storm drove three fishing boats "
    "onto the rocks below the cliff. The council of the town met the next morning and decided that a "
    "tower should be built before the following winter. Stone was brought from the quarry on the northern "
    "side of the island, and forty men worked from dawn until dusk to raise the walls. The first keeper, "
    "a quiet man named Thomas Hale, lit the lamp on the second day of November and kept a careful record "
    "of every ship that passed. His notebooks, which are now held in the museum, describe the weather, "
    "the colour of the sea and the birds that rested on the railing. In the spring his daughter Anna "
    "joined him, and together they planted a small garden of cabbages, onions and beans behind the wall. "
    "Visitors came by boat on Sundays and brought newspapers, flour and lamp oil. When the old keeper "
    "died, Anna asked the council for permission to continue his work, and after a long debate it was "
    "granted. She served for thirty-one years and never once let the light go out. During the great flood "
    "she rang the bell for two nights so that the people of the lower streets could find their way to the "
    "church. A bronze plate near the door remembers her courage. Today the lamp is electric and nobody "
    "lives in the tower, but the garden is still kept by the children of the school, who sell the beans "
    "at the summer market and give the money to the crew of the lifeboat. On the longest evening of June "
    "they light the old oil lamp once more, and the band of the fire brigade plays on the pier until "
    "midnight. Last year a film was made about the two keepers; its music was written by a teacher from "
    "the mainland who had spent his holidays on the island as a boy. The notebooks were printed, too, "
    "with drawings of the birds, and the council has asked for a second edition in the coming autumn."
)
THINGS = (
    "lamp", "chair", "table", "window", "door", "carpet", "mirror", "clock", "vase", "curtain", "bucket",
    "ladder", "hammer", "basket",
)  # fmt: skip
FREE = "Once upon a time in a small village by the sea, there lived an old clockmaker who"


def copied(model: graphml.Model) -> list[int]:
    """A prompt that asks for a copy of a text of about 400 tokens."""
    begin = f"<|im_start|>user\nRepeat this text, word by word:\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    return model.encode(begin, parse_special=True)


def turns(
    model: graphml.Model, prompt: list[int], n_tokens: int, params: SamplingParams, kind: str
) -> list[tuple[float, ...]]:
    """(seconds, processor seconds, ...) of each turn of so many tokens, without drafts and with."""
    sessions = [model.session(seed=1, prefix_cache=False) for _ in range(2)]
    tokens = [
        session.generate(prompt, replace(params, spec_type=one), n_tokens)
        for session, one in zip(sessions, ("none", kind), strict=True)
    ]
    for one in tokens:
        next(one)
    found, given = [], ([], [])  # type: ignore[var-annotated]
    while True:
        turn: list[float] = []
        for one, ids in zip(tokens, given, strict=True):
            turn += timed(one, ids)
        if len(given[0]) % TURN or not turn[0]:
            break
        found.append(tuple(turn))
    assert given[0] == given[1], "another text with drafts"
    stats = sessions[1].stats
    print(f"  {len(given[0])} tokens, {stats.n_drafted} drafted, {stats.n_accepted} of them right")
    for session in sessions:
        session.close()
    return found


def timed(tokens: Iterator[graphml.Token], ids: list[int]) -> list[float]:
    """Seconds and processor seconds of a turn."""
    start, used = time.perf_counter(), time.process_time()
    for _, token in zip(range(TURN), tokens, strict=False):
        ids.append(token.id)
    return [time.perf_counter() - start, time.process_time() - used]


def of_engines(
    model: graphml.Model, prompts: list[list[int]], n_tokens: int, rounds: int, kind: str
) -> list[tuple[float, ...]]:
    """The same of an engine's requests, all at once, in whole runs."""
    found = []
    endless = replace(SAMPLED, logit_bias=dict.fromkeys(_ends(model), -float("inf")))
    with model.engine(max_sequences=len(prompts)) as engine:
        for i in range(rounds + 1):
            turn: list[float] = []
            for one in ("none", kind):
                params = replace(endless, spec_type=one)
                start, used = time.perf_counter(), time.process_time()
                handles = [engine.submit(prompt, params, n_tokens) for prompt in prompts]
                n_gen = sum(handle.result().n_gen for handle in handles)
                assert n_gen == n_tokens * len(prompts)
                turn += [time.perf_counter() - start, time.process_time() - used]
            if i:  # the first compiles
                found.append(tuple(turn))
    return found


def _ends(model: graphml.Model) -> list[int]:
    return sorted(model.tokenizer.end_tokens) if model.tokenizer is not None else []


def told(name: str, found: list[tuple[float, ...]]) -> None:
    """Print the ratios of some turns."""
    for what, at in (("time", 0), ("processor time", 1)):
        ratios = sorted(turn[at] / turn[at + 2] for turn in found)
        whole = sum(turn[at] for turn in found) / sum(turn[at + 2] for turn in found)
        print(
            f"{name}, {what}: {whole:.2f} x in all; {len(ratios)} turns: median "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--draft-model")
    parser.add_argument("--only", choices=("copy", "free", "sequences"))
    given = parser.parse_args()
    kind = "ngram" if given.draft_model is None else "draft"
    with graphml.load(given.model, threads=given.threads, draft_model=given.draft_model) as model:
        if given.only in (None, "copy"):
            told("copy", turns(model, copied(model), given.tokens, SamplingParams(), kind))
        if given.only in (None, "free"):
            told("free", turns(model, model.encode(FREE), given.tokens, SAMPLED, kind))
        if given.only in (None, "sequences"):
            prompts = [model.encode(f"{FREE} {thing}") for thing in (*THINGS, "sold", "made")]
            told("16 sequences", of_engines(model, prompts, 48, given.rounds, kind))


if __name__ == "__main__":
    main()
