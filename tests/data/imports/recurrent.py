"""Plain modules with a state space whose function loops over tokens, for the tests of `graphml import`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, STATE = 61, 24, 4


def mamba_selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, **named: Any
) -> Tensor:
    """As transformers has it: x and dt [B, channels, T], A [channels, S], B and C [B, S, T]."""
    step = nn.functional.softplus(dt + named["delta_bias"][:, None]) * named.get("times", 1.0)
    state = torch.zeros(*hidden_states.shape[:2], A.shape[1])
    rows = []
    for t in range(hidden_states.shape[2]):
        step_t = step[:, :, t, None]
        state = torch.exp(step_t * A) * state + step_t * hidden_states[:, :, t, None] * B[:, None, :, t]
        rows.append((state * C[:, None, :, t]).sum(-1) + D * hidden_states[:, :, t])
    return torch.stack(rows, 2) * nn.functional.silu(named["z"])


class Layer(nn.Module):
    """A Mamba layer without a convolution. named: further arguments of its scan."""

    def __init__(self, **named: Any) -> None:
        super().__init__()
        self.named = named
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.parts = nn.Linear(WIDTH, WIDTH + 2 * STATE, bias=False)
        self.log_a = nn.Parameter(torch.rand(WIDTH, STATE))
        self.d, self.bias = (nn.Parameter(torch.rand(WIDTH)) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = self.inner(self.norm(x)).chunk(2, -1)
        dt, b, c = self.parts(h).split([WIDTH, STATE, STATE], -1)
        y = mamba_selective_scan(
            h.transpose(1, 2), dt.transpose(1, 2), -self.log_a.exp(), b.transpose(1, 2),
            c.transpose(1, 2), self.d,
            z=gate.transpose(1, 2), delta_bias=self.bias, delta_softplus=True, **self.named,
        )  # fmt: skip
        return x + self.out(y.transpose(1, 2))


class Model(nn.Module):
    """Two such layers."""

    def __init__(self, **named: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(**named) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def scanned() -> Model:
    """Its function is what its name says."""
    return Model()


def slowed() -> Model:
    """Its function takes half steps, by an argument of its own."""
    return Model(times=0.5)
