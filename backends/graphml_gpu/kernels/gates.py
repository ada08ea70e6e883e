"""Activations of gated layers, for kernels that make a gate's two products themselves."""

from __future__ import annotations

from graphml_gpu.language import exp, f32, function, select, tanh

GATES = ("swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu")


@function
def erf(x: f32) -> f32:
    """The error function, to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1.0 / (1.0 + 0.3275911 * abs(x))
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    positive = 1.0 - tail * exp(-x * x)
    return select(x < 0.0, -positive, positive)


@function
def gated(gate: f32, up: f32, GLU: str) -> f32:
    """The activation that GLU names of the gate, times the other product."""
    if GLU == "swiglu":
        return gate / (1.0 + exp(-gate)) * up
    if GLU == "geglu":
        return 0.5 * gate * (1.0 + tanh(0.7978845608028654 * gate * (1.0 + 0.044715 * gate * gate))) * up
    if GLU == "geglu_erf":
        return 0.5 * gate * (1.0 + erf(gate * 0.7071067811865476)) * up
    if GLU == "geglu_quick":
        return gate / (1.0 + exp(-1.702 * gate)) * up
    assert GLU == "reglu"
    return max(gate, 0.0) * up
