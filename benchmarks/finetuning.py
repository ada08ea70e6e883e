"""Training a LoRA adapter by graphml beside PEFT: the same weights, factors, examples and steps, in turns.

    python benchmarks/finetuning.py MODEL.gguf [--data F.jsonl] [--steps N] [--batch N] [--rank N] [--plot F]

Needs torch, transformers, peft and gguf. PEFT has the model as transformers reads it from the GGUF file, in
float32, graphml's first factors, AdamW and the same learning rates; texts of a batch are padded, as its users
do. Without --data the examples are paragraphs of this clone's docs; every fifth one is kept apart. Printed
are the losses, seconds of each step with the median of their ratios, and the largest memory of each side.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What both sides do."""

    model: Path
    data: Path
    apart: Path
    steps: int
    batch: int
    rank: int
    learning_rate: float


def paragraphs() -> list[dict[str, str]]:
    """Those of the docs that are sentences, in the order of the files."""
    texts = [part for path in sorted((ROOT / "docs").glob("*.md")) for part in path.read_text().split("\n\n")]
    plain = (" ".join(text.split()) for text in texts if text[:1].isalpha())
    return [{"text": text} for text in plain if len(text) > 200]


def _settings(work: Work) -> Any:
    from graphml.finetuning.settings import FinetuneSettings

    return FinetuneSettings(
        rank=work.rank, epochs=10**6, n_steps=work.steps, n_batch=work.batch, n_ctx=512,
        learning_rate=work.learning_rate,
    )  # fmt: skip


def graphml_side(work: Work) -> Iterator[Any]:
    """First the loss of what is kept apart, then each step's loss and seconds, then the loss again."""
    import graphml
    from graphml.finetuning.examples import read_examples
    from graphml.finetuning.factors import first_pairs, targets
    from graphml.finetuning.training import Training

    settings = _settings(work)
    with graphml.load(work.model) as model:
        texts, apart = (read_examples(path, model, settings.n_ctx).texts for path in (work.data, work.apart))
        pairs = first_pairs(targets(model, list(MODULES)), work.rank, settings.seed)
        training = Training(model, texts, pairs, settings)
        yield training.loss(apart)
        for step in training.steps():
            yield step.loss, step.seconds
        yield training.loss(apart)


def peft_side(work: Work) -> Iterator[Any]:
    """The same by PEFT."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    import graphml
    from graphml.finetuning.examples import read_examples
    from graphml.finetuning.factors import first_pairs, targets

    settings = _settings(work)
    with graphml.load(work.model) as model:
        texts, apart = (read_examples(path, model, settings.n_ctx).texts for path in (work.data, work.apart))
        pairs = first_pairs(targets(model, list(MODULES)), work.rank, settings.seed)
    base = AutoModelForCausalLM.from_pretrained(
        str(work.model.parent), gguf_file=work.model.name, dtype=torch.float32
    )
    config = LoraConfig(r=work.rank, lora_alpha=work.rank, target_modules="all-linear")
    module = get_peft_model(base, config)
    parameters = dict(module.named_parameters())
    for name, (a, _) in pairs.items():
        _, layer, short, _ = name.split(".")
        with torch.no_grad():
            key = f"base_model.model.model.layers.{layer}.{MODULES[short]}.lora_A.default.weight"
            parameters[key].copy_(torch.from_numpy(a))
    trained = [x for x in module.parameters() if x.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=0.0)

    def loss(batch: Any) -> Any:
        length = max(len(text.ids) for text in batch)
        ids, mask = torch.zeros(len(batch), length, dtype=torch.long), torch.zeros(len(batch), length)
        labels = torch.full((len(batch), length), -100)
        for i, text in enumerate(batch):
            n = len(text.ids)
            ids[i, :n], mask[i, :n] = torch.from_numpy(text.ids).long(), 1
            labels[i, text.learned] = torch.from_numpy(text.ids[text.learned]).long()
        return module(input_ids=ids, attention_mask=mask.long(), labels=labels).loss

    def whole(texts: Any) -> float:
        with torch.no_grad():
            parts = [texts[i : i + work.batch] for i in range(0, len(texts), work.batch)]
            counts = [sum(len(text.learned) for text in part) for part in parts]
            return sum(float(loss(p)) * n for p, n in zip(parts, counts, strict=True)) / sum(counts)

    module.eval()  # which has no dropout to leave out
    yield whole(apart)
    a_pass = -(-len(texts) // work.batch)
    for number in range(work.steps):
        epoch, at = divmod(number, a_pass)
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(texts))
        batch = [texts[i] for i in order[at * work.batch : (at + 1) * work.batch]]
        begin = time.perf_counter()
        for group in optimiser.param_groups:
            group["lr"] = settings.rate(number, work.steps)
        optimiser.zero_grad()
        value = loss(batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, settings.clip)
        optimiser.step()
        yield float(value.detach()), time.perf_counter() - begin
    yield whole(apart)


SIDES: dict[str, Callable[[Work], Iterator[Any]]] = {"graphml": graphml_side, "peft": peft_side}


def _serve(name: str, work: Work, pipe: Any) -> None:
    """A side in a process of its own: goes on when it is asked to."""
    for result in SIDES[name](work):
        pipe.send(result)
        pipe.recv()
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


def measure(work: Work) -> dict[str, list[Any]]:
    """The results of both sides, which take turns."""
    start = multiprocessing.get_context("spawn")
    pipes, results = {}, {name: list[Any]() for name in SIDES}
    for name in SIDES:
        pipes[name], other = start.Pipe()
        start.Process(target=_serve, args=(name, work, other), daemon=True).start()
        results[name].append(pipes[name].recv())
        print(f"{name}: kept apart {results[name][0]:.4f}", file=sys.stderr, flush=True)
    for number in range(work.steps + 2):
        for name in sorted(SIDES, reverse=bool(number % 2)):
            pipes[name].send(None)
            results[name].append(pipes[name].recv())
        print(number + 1, *(results[name][-1] for name in SIDES), file=sys.stderr, flush=True)
    return results


def draw(path: Path, results: dict[str, list[Any]]) -> None:
    """The losses of both sides over their steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    for (name, side), style in zip(results.items(), ("-", "--"), strict=True):
        losses = [loss for loss, _ in side[1:-2]]
        axes.plot(range(1, len(losses) + 1), losses, style, label=f"{name}: learned texts")
        axes.plot([0, len(losses)], [side[0], side[-2]], "o", label=f"{name}: texts kept apart")
    axes.set(xlabel="step", ylabel="loss, nats a token")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.data.open()] if options.data else paragraphs()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("learned.jsonl", "apart.jsonl")]
        kept_apart = [row for i, row in enumerate(rows) if i % 5 == 4][:32]
        for path, part in zip(
            files, ([r for i, r in enumerate(rows) if i % 5 != 4], kept_apart), strict=True
        ):
            path.write_text("\n".join(map(json.dumps, part)), encoding="utf-8")
        work = Work(options.model, *files, options.steps, options.batch, options.rank, options.learning_rate)
        results = measure(work)
    for name, side in results.items():
        seconds = [second for _, second in side[1:-2]]
        print(
            f"{name}: {side[0]:.4f} to {side[-2]:.4f} on {len(kept_apart)} texts kept apart; last step "
            f"{side[-3][0]:.4f}; {statistics.median(seconds):.2f} s a step; {side[-1]} MiB"
        )
    ratios = [p[1] / g[1] for g, p in zip(results["graphml"][1:-2], results["peft"][1:-2], strict=True)]
    ends = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"graphml is {statistics.median(ratios):.2f} x as fast ({ends}, {len(ratios)} steps)")
    if options.plot:
        draw(options.plot, results)


if __name__ == "__main__":
    main()
