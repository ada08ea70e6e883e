"""What samples many rows is compiled with an engine's programs: no step waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graphml_cpu import row_tops

import graphml
from graphml import SamplingParams
from tests import tiny_model


def test_no_step_of_an_engine_compiles_the_top_k_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf", n_ctx=64)
    made, compile_kernels = list[Any](), row_tops.compile_kernels
    with graphml.load(path, backend="cpu", threads=2) as model:
        monkeypatch.setattr(
            row_tops, "compile_kernels", lambda refs: made.append(refs) or compile_kernels(refs)
        )
        with model.engine(max_sequences=2, n_ctx=64) as engine:
            assert len(made) == 1
            made.clear()
            params = SamplingParams(temperature=0)
            running = [engine.submit([5 + i, 6, 7], params, max_tokens=4) for i in range(2)]
            assert all(len(one.result().tokens) == 4 for one in running)
    assert not made
