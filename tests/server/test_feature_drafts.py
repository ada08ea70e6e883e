"""A model with a file that drafts by its rows, in `graphml run` and a server: the same texts, and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.runtime.blocks.drafting import StepTimes
from graphml.server.options.server_options import ServerOptions
from tests import assistant_files, golden, tiny_model
from tests.assistant_files import write_assistant
from tests.server.running_server import running
from tests.tiny_model import WIDTH

MATRICES = {
    "fc": (3 * WIDTH, WIDTH),
    **{f"blk.0.attn_{part}": (2 * WIDTH, WIDTH) for part in "qkv"},
    **{f"blk.0.ffn_{part}": (WIDTH, 64) for part in ("gate", "up")},
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_down": (64, WIDTH),
    **dict.fromkeys(("output_norm", *(f"blk.0.{one}_norm" for one in ("attn", "ffn"))), (WIDTH,)),
    "blk.0.attn_norm_2": (WIDTH,),
}


BLOCK = {
    "fc": (2 * WIDTH, WIDTH),
    "enc.output_norm": (WIDTH,),
    **{name: sizes for name, sizes in MATRICES.items() if "attn_norm_2" not in name and name != "fc"},
    **{f"blk.0.attn_{part}": (WIDTH, WIDTH) for part in "qkv"},
    **{f"blk.0.attn_{part}_norm": (WIDTH // 4,) for part in "qk"},
}


def write_draft(path: Path, tokens: list[str], architecture: str = "eagle3") -> Path:
    """A drafter of the tiny model, whose embeddings and output matrix it uses."""
    numbers = {
        "context_length": 160, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": 64,
        "attention.head_count": 4, "target_hidden_size": WIDTH,
    }  # fmt: skip
    matrices, layers = (MATRICES, [1, 1, 1]) if architecture == "eagle3" else (BLOCK, [1, 1])
    keys: dict[str, tuple[str, Any]] = {f"{architecture}.{key}": ("UINT32", n) for key, n in numbers.items()}
    keys[f"{architecture}.attention.layer_norm_rms_epsilon"] = ("FLOAT32", 1e-5)
    keys[f"{architecture}.target_layers"] = ("ARRAY INT32", layers)
    keys["tokenizer.ggml.model"] = ("STRING", "gpt2")
    keys["tokenizer.ggml.mask_token_id"] = ("UINT32", tiny_model.END)
    keys["tokenizer.ggml.tokens"] = ("ARRAY STRING", tokens)
    tensors = {
        f"{name}.weight": golden.weights(f"{name}.weight", sizes, 2) for name, sizes in matrices.items()
    }
    return golden.write_gguf(path, architecture, keys, tensors)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of drafts do not depend on what else the machine does, and unlikely ids are drafted, too."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 0.0)


class Files(NamedTuple):
    """A model, a file that drafts for it, and the `spec_type` by which it does."""

    model: Path
    draft: Path
    spec_type: str


@pytest.fixture(scope="module", params=["eagle3", "dflash", "mtp"])
def paths(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, tokens = tmp_path_factory.mktemp("feature-drafts"), tiny_model.vocabulary()
    model, draft = folder / "model.gguf", folder / "draft.gguf"
    if request.param != "mtp":
        return Files(tiny_model.write(model), write_draft(draft, tokens, request.param), request.param)
    return Files(assistant_files.write_model(model, tokens), write_assistant(draft, tokens), "mtp")


def test_a_server_drafts_by_the_file(paths: Files) -> None:
    model_path, draft, spec_type = paths
    name = f"draft-{spec_type}"
    answers = []
    with (
        graphml.load(model_path, "cpu", threads=1, n_batch=64, draft_model=draft) as model,
        running(ServerOptions(parallel=2, n_ctx=128), model) as server,
    ):
        for kind in ("none", name, None):
            asked: dict[str, Any] = {"prompt": "hello world", "n_predict": 30, "temperature": 0}
            if kind is not None:
                asked["speculative.type"] = kind
            answers.append(server.post("/completion", asked).json())
    assert len({answer["content"] for answer in answers}) == 1
    shown = [answer["generation_settings"]["speculative.types"] for answer in answers]
    assert shown == ["none", name, name]
    assert [answer["timings"].get("draft_n", 0) > 0 for answer in answers] == [False, True, True]


def test_run_drafts_by_the_file(paths: Files) -> None:
    model_path, draft, spec_type = paths
    texts = []
    for more in ([], ["--spec-type", spec_type, "--model-draft", str(draft)], ["-md", str(draft)]):
        line = ["run", str(model_path), "-p", "hello", "-n", "12", "--temp", "0", "--threads", "1", *more]
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, result.output
        texts.append(result.stdout)
    assert texts[0]
    assert len(set(texts)) == 1


def test_a_drafter_of_other_tokens_is_refused(paths: Files, tmp_path: Path) -> None:
    tokens = tiny_model.vocabulary()
    tokens[40] = "other"
    write = write_assistant if paths.spec_type == "mtp" else write_draft
    with pytest.raises(UsageError, match="token 40 is 'other'; "):
        graphml.load(paths.model, "cpu", draft_model=write(tmp_path / "draft.gguf", tokens))
