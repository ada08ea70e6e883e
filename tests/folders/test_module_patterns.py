"""Patterns of names match what `re` matches, and never for long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphml.errors import WeightsError
from graphml.loading.huggingface import module_patterns
from graphml.loading.huggingface.module_patterns import NamePatterns

PATH = Path("adapter_config.json")
NAMES = [
    f"{start}.{layer}.{module}"
    for start in ("model.layers", "transformer.h", "layers")
    for layer in (0, 1, 10, 21)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "attn.c_attn", "q_proj_")
] + ["lm_head", "model.embed_tokens", "q_proj"]
PATTERNS = [
    "q_proj", r".*\.q_proj", r"model\.layers\.(?:0|1)\..*", r"model\.layers\.\d+\.self_attn\.(q|k)_proj",
    r".*?(?:self_attn|mlp).*?(?:q_proj|down_proj).*?", r"^.*[02]\..+$", r"layers\.[^1]+\.mlp\..*",
    r"\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:q_proj|down_proj))", r".*\.\d{2}\..*",
    r"(.*\.)*q_proj",
    r"(a|b|)(model)?.*_head?", r".{7}", r"(\w+\.?){3,4}", r"[]a-z_]+", r".*1{2,}.*|x", "", ".*|",
    r"layers.1.*", r"(?:q|k)_proj\b", r"self_attn", r"\d?", r"(\d*)*",
    r"model$", r"x{0}lm_head", r"\Slm", "a-b",
    r"lm\_head", r"[\w.]*\.\d\.[a-z_.]*",
]  # fmt: skip


@pytest.mark.parametrize("text", PATTERNS)
def test_it_matches_what_re_matches(text: str) -> None:
    pattern = NamePatterns(PATH).pattern(text)
    for name in NAMES:
        assert pattern.matches(name) == bool(re.fullmatch(text, name)), name
        assert pattern.ends(name) == bool(re.match(rf"(.*\.)?({text})$", name)), name


@pytest.mark.parametrize("text", ["(", ")", "a**", "a{2,1}", "[a", "*", "(" * 40 + ")" * 39, "a" * 5000])
def test_what_is_no_expression_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r": |at most 4096"):
        NamePatterns(PATH).pattern(text)


def test_patterns_that_would_backtrack_forever_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One match, and many together."""
    monkeypatch.setattr(module_patterns, "SECONDS", 0.05)
    for text in (r"(a|aa|aaa)+\1b?c|(a|aa)+d", "a*"):
        pattern = NamePatterns(PATH).pattern(text)
        with pytest.raises(WeightsError, match=r"adapter_config.json: wanted patterns"):
            any(pattern.matches("a" * 200 + "b") for _ in range(10**6))
