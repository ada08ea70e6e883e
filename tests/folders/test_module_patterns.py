"""Patterns of names match what `re` matches, and never for long."""

from __future__ import annotations

import re

import pytest

from graphml.loading.huggingface.module_patterns import Pattern

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
    r"(a|b|)(model)?.*_head?", r".{7}", r"(\w+\.?){3,4}", r"[]a-z_]+", r".*1{2,}.*|x", r"\w*{1}", "", ".*|",
    r"layers.1.*", r"(?:q|k)_proj\b", r"self_attn", r"\d?", r"(\d*)*",
    r"model$", r"x{0}lm_head", r"\Slm", "a-b",
    r"lm\_head", r"[\w.]*\.\d\.[a-z_.]*",
]  # fmt: skip


@pytest.mark.parametrize("text", PATTERNS)
def test_it_matches_what_re_matches(text: str) -> None:
    if text == r"\w*{1}":
        with pytest.raises(ValueError, match="is not understood"):
            Pattern(text)
        return
    pattern = Pattern(text)
    for name in NAMES:
        assert pattern.matches(name) == bool(re.fullmatch(text, name)), name
        assert pattern.ends(name) == bool(re.match(rf"(.*\.)?({text})$", name)), name


@pytest.mark.parametrize(
    "text",
    ["(?=a)", "(?P<x>a)", r"(a)\1", "(", ")", "a**", "a{2,1}", "[a", "*", "a{,}", "(?i)a", r"\p", "a++", "a}",
     "(" * 40 + ")" * 40, "a" * 5000],
)  # fmt: skip
def test_what_is_not_known_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not understood|at most 4096"):
        Pattern(text)


def test_patterns_that_would_backtrack_forever_end() -> None:
    name = "a" * 200
    assert not Pattern("(((a+)+)+)+b").matches(name)
    assert not Pattern("(.*)*(.*)*(.*)*b").matches(name)
    assert not Pattern("(((a{0,999}){0,999}){0,999}){0,999}b").matches(name)
    assert Pattern("(((a{9}){9}){9}){9}|a*").matches(name)
