"""Every architecture and tokenizer of the recorded llama.cpp, but those that are named here."""

from __future__ import annotations

from tests import llama_cpp_names

LACKING: set[str] = set()
"""What is not made yet."""


def test_graphml_has_what_llama_cpp_has() -> None:
    release, names = llama_cpp_names.recorded()
    assert release.count(".") == 2
    assert [len(of) for of in names.values()] == [151, 11, 91]  # else the sources are written otherwise
    assert set(llama_cpp_names.lacking(names)) == LACKING


def test_a_name_that_is_unknown_is_lacking() -> None:
    names = {"architecture": ["llama", "ernie4_5-moe", "new-one"], "tokenizer": ["rwkv9"], "pre": ["next"]}
    assert llama_cpp_names.lacking(names) == ["architecture new-one", "tokenizer rwkv9", "pre next"]
