"""How much each matrix of a model matters: measured, and predicted by gradients and by short perturbations.

    python benchmarks/sensitivity.py MODEL --text F.txt [--types q4_0,3] [--tokens N] [--samples N] [--json F]

Needs torch. The truth: each matrix alone is rounded to a type, and the KL divergence of the model's
distributions from those before is taken on a text that nothing else reads. A type is a format that has an
encoder, or a number of bits: blocks of 32 are then rounded to multiples of a scale. Beside it, on another
text:

- gradients of the log-likelihood of tokens that the model itself samples: products with a matrix's rounding
  error are squared as a whole, row by row, or element by element (the diagonal of the Fisher matrix);
- gradients of the text's own tokens, element by element, and at first order;
- the KL of a short text with the matrix rounded;
- the squared rounding error beside the matrix's own squares.

Printed are rank correlations with the truth and seconds; and what half of the model's weights, chosen by each
measure for its KL a weight, costs when all of them are rounded together.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
import torch
from torch import Tensor

import graphml

LENGTH = 256
"""Tokens of a text."""


def rounded(values: Tensor, kind: str) -> Tensor:
    """A matrix as a type has it."""
    if not kind.isdigit():
        coded = graphml_quant.by_name(kind)
        array = values.numpy()
        stored = graphml_quant.quantize(coded, array)
        return torch.from_numpy(graphml_quant.dequantize(coded, stored, array.shape))
    blocks, most = values.reshape(-1, 32), 2 ** (int(kind) - 1) - 0.5
    scale = blocks.abs().amax(1, keepdim=True) / most
    levels = ((blocks / scale.clamp(min=1e-30) - 0.5).round() + 0.5).clamp(-most, most)
    return (levels * scale).reshape(values.shape)


class Measured:
    """A model as a module, two texts apart from each other, and what rounding does to it."""

    def __init__(self, model: graphml.Model, text: str, n_tokens: int) -> None:
        self.module = graphml.to_torch(model)
        ids = model.encode(text)
        n_texts = -(-n_tokens // LENGTH)
        if len(ids) < 2 * n_texts * LENGTH:
            raise SystemExit(f"the text has {len(ids)} tokens, wanted {2 * n_texts * LENGTH}")
        both = torch.tensor(ids[-2 * n_texts * LENGTH :]).reshape(2, n_texts, LENGTH)
        self.seen, self.apart = both[0], both[1]
        self.weights = {
            name: weight for name, weight in self.module.named_parameters()
            if weight.ndim == 2 and weight.shape[1] % 32 == 0
        }  # fmt: skip
        self.kept = {name: weight.detach().clone() for name, weight in self.weights.items()}

    def logs(self, ids: Tensor) -> Tensor:
        """Logarithms of the probabilities behind each id."""
        with torch.no_grad():
            return torch.log_softmax(self.module(ids).flatten(0, -2), -1)

    def kl(self, ids: Tensor, base: Tensor, changed: Mapping[str, Tensor]) -> Tensor:
        """The divergence at each position with some matrices changed by their errors."""
        with torch.no_grad():
            for name, error in changed.items():
                self.weights[name].add_(error)
            logs = self.logs(ids)
            for name in changed:
                self.weights[name].copy_(self.kept[name])
        return (base.exp() * (base - logs)).sum(-1)

    def by_gradients(
        self, errors: Mapping[str, Mapping[str, Tensor]], samples: int
    ) -> dict[tuple[str, str], dict[str, float]]:
        """(type, measure) -> what it predicts of each matrix. samples: 0 for the text's own tokens."""
        found: dict[tuple[str, str], dict[str, float]] = {}
        generator = torch.Generator().manual_seed(0)

        def add(kind: str, measure: str, name: str, value: Tensor) -> None:
            of_all = found.setdefault((kind, measure), {})
            of_all[name] = of_all.get(name, 0.0) + float(value)

        rounds = samples or 1
        count = self.seen.numel() * rounds
        for _ in range(rounds):
            self.module.zero_grad()
            logs = torch.log_softmax(self.module(self.seen), -1)
            if samples:
                flat = logs.detach().exp().flatten(0, -2)
                labels = torch.multinomial(flat, 1, generator=generator).reshape(self.seen.shape)
            else:
                logs, labels = logs[:, :-1], self.seen[:, 1:]
            logs.gather(-1, labels[..., None]).sum().backward()
            for kind, of_kind in errors.items():
                for name, error in of_kind.items():
                    gradient = self.weights[name].grad
                    if gradient is None:
                        raise SystemExit(f"{name}: no gradient")
                    products = gradient * error
                    if not samples:
                        add(kind, "own tokens, elements", name, products.square().sum() / (2 * count))
                        add(kind, "own tokens, first order", name, products.sum().abs() / count)
                        continue
                    add(kind, "sampled, whole", name, products.sum().square() / (2 * count))
                    add(kind, "sampled, rows", name, products.sum(1).square().sum() / (2 * count))
                    add(kind, "sampled, elements", name, products.square().sum() / (2 * count))
        return found


def ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values)).astype(float)


def correlation(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Spearman's."""
    names = sorted(a)
    return float(np.corrcoef(ranks([a[n] for n in names]), ranks([b[n] for n in names]))[0, 1])


def half(of: Mapping[str, float], sizes: Mapping[str, int]) -> list[str]:
    """Matrices of half of the weights, those with the least KL a weight first."""
    chosen, left = [], sum(sizes.values()) / 2
    for name in sorted(of, key=lambda name: of[name] / sizes[name]):
        if sizes[name] <= left:
            chosen.append(name)
            left -= sizes[name]
    return chosen


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    return call(), time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--types", default="q4_0,3")
    parser.add_argument("--tokens", type=int, default=512, help="of each of the two texts")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--short", default="32,128", help="tokens of the short texts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    with graphml.load(options.model) as model:
        measured = Measured(model, options.text.read_text()[-20 * options.tokens :], options.tokens)
    kinds, shorts = options.types.split(","), [int(n) for n in options.short.split(",")]
    sizes = {name: weight.numel() for name, weight in measured.kept.items()}
    errors = {
        kind: {name: rounded(weight, kind) - weight for name, weight in measured.kept.items()}
        for kind in kinds
    }
    seconds: dict[str, float] = {}
    predicted: dict[tuple[str, str], dict[str, float]] = {}
    sampled, seconds["sampled"] = timed(lambda: measured.by_gradients(errors, options.samples))
    own, seconds["own tokens"] = timed(lambda: measured.by_gradients(errors, 0))
    predicted |= sampled | own
    measured.module.zero_grad(set_to_none=True)
    print(f"gradients {seconds}", file=sys.stderr, flush=True)

    def kls(ids: Tensor, kind: str) -> dict[str, float]:
        base = measured.logs(ids)
        return {name: float(measured.kl(ids, base, {name: error}).double().mean())
                for name, error in errors[kind].items()}  # fmt: skip

    truth = {}
    for kind in kinds:
        predicted[kind, "rounding error"] = {
            name: float(error.square().sum() / measured.kept[name].square().sum())
            for name, error in errors[kind].items()
        }
        for n in shorts:
            key = f"KL of {n} tokens"
            predicted[kind, key], seconds[f"{key}, {kind}"] = timed(
                lambda n=n, kind=kind: kls(measured.seen[:1, :n], kind)  # type: ignore[misc]
            )
        truth[kind], seconds[f"truth, {kind}"] = timed(lambda kind=kind: kls(measured.apart, kind))  # type: ignore[misc]
        print(f"{kind}: {seconds}", file=sys.stderr, flush=True)
    base = measured.logs(measured.apart)
    rows = []
    for (kind, measure), of in (predicted | {(kind, "truth"): truth[kind] for kind in kinds}).items():
        chosen = half(of, sizes)
        together = measured.kl(measured.apart, base, {name: errors[kind][name] for name in chosen})
        rows.append({
            "type": kind, "measure": measure, "rank correlation": correlation(of, truth[kind]),
            "sum of matrices": sum(of.values()), "half together": float(together.mean()),
        })  # fmt: skip
    for kind in kinds:
        together = measured.kl(measured.apart, base, errors[kind])
        rows.append({"type": kind, "measure": "all together", "half together": float(together.mean())})
    for row in sorted(rows, key=lambda row: (row["type"], -row.get("rank correlation", -1))):
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else f"{v:24}" for v in row.values()))
    print(json.dumps({key: round(value, 1) for key, value in seconds.items()}))
    if options.json:
        every = {f"{kind}: {measure}": of for (kind, measure), of in predicted.items()}
        every |= {f"{kind}: truth": truth[kind] for kind in kinds}
        options.json.write_text(json.dumps({"rows": rows, "seconds": seconds, "matrices": every}))


if __name__ == "__main__":
    main()
