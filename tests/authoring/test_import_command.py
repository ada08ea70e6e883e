"""The command `graphml import` with its process: with torch if a Python has it, else how it fails without."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.cli.main import app

PLAIN = Path(__file__).parents[1] / "data" / "imports" / "plain.py"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
with_torch = pytest.mark.skipif(
    sys.executable == PYTHON and importlib.util.find_spec("torch") is None,
    reason="torch is not installed: pip install '.[authoring]', or name a Python in TORCH_PYTHON",
)


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["import", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@with_torch
def test_a_plain_module_becomes_a_file_that_runs(tmp_path: Path) -> None:
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    page = tmp_path / "mine.html"
    given = ("-o", arch, "--weights", weights, "--report", page, "--python", PYTHON)
    code, told, error = run(f"module:{PLAIN}:e", *given)
    assert code == 0, error
    assert "every part agrees" in told
    assert "def build(g: Builder" in page.read_text()
    with graphml.load(weights, "reference", kv="f32", arch=arch) as model:
        assert model.session().eval([1, 2, 3]).shape == (97,)


@with_torch
def test_a_file_is_held_to_the_module_that_it_came_from(tmp_path: Path) -> None:
    """`verify --against module:`, the other module of a file that imports what lies beside it among them."""
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    (tmp_path / "whole.py").write_text("import parts\n\n\ndef make():\n    return parts.a()\n")
    shutil.copyfile(PLAIN, tmp_path / "parts.py")
    source = f"module:{tmp_path / 'whole.py'}:make"
    code, _, error = run(source, "-o", arch, "--weights", weights, "--python", PYTHON)
    assert code == 0, error

    def verified(against: str) -> Result:
        given = ["verify", weights, "--arch", arch, "--against", against, "--python", PYTHON]
        return CliRunner().invoke(app, list(map(str, given)))

    done = verified(source)
    assert done.exit_code == 0, done.output
    parts = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert parts == ["embedding", "layer 0", "layer 1", "output"]
    arch.write_text(arch.read_text().replace("g.sqr(g.relu(", "g.silu(g.relu("))
    edited = verified(source)
    assert edited.exit_code == 1
    assert "first wrong: layer 0" in edited.stdout
    assert verified(f"module:{PLAIN}:nothing").exit_code == 1
    assert "has no attribute 'nothing'" in verified(f"module:{PLAIN}:nothing").output


@with_torch
def test_python_that_depends_on_the_length_is_refused_by_its_line(tmp_path: Path) -> None:
    """By the logits of a length for which it decides otherwise than for the traced one."""
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    code, told, error = run(f"module:{PLAIN}:h", "-o", arch, "--weights", weights, "--python", PYTHON)
    assert (code, told, error.count("\n")) == (2, "", 2)
    assert re.match(
        r"module:.*: compares texts of up to \d+ tokens; \S+ \wiB for their values at a time\n", error
    )
    line = r"`return super\(\).forward\(x\) if x.shape\[1\] > 16 else x` in blocks\.0 \(.*plain\.py:\d+\)"
    assert re.search(line + ".*depends on the length of the text: 16 tokens", error), error
    assert not list(tmp_path.iterdir())


@with_torch
def test_a_module_in_half_precision_is_imported_in_float32(tmp_path: Path) -> None:
    given = ("-o", tmp_path / "mine.py", "--weights", tmp_path / "mine.gguf", "--python", PYTHON)
    code, _, error = run(f"module:{PLAIN}:in_bfloat16", *given)
    assert code == 0, error


@with_torch
def test_a_model_that_cannot_be_traced_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def make():\n    return 3 / 0\n")
    arch = tmp_path / "mine.py"
    code, _, error = run(
        f"module:{tmp_path / 'model.py'}:make",
        "-o",
        arch,
        "--weights",
        tmp_path / "w.gguf",
        "--python",
        PYTHON,
    )
    assert code == 2
    assert "division by zero" in error
    assert error.count("\n") == 1
    assert not arch.exists()


HOSTILE = """
import torch
from torch import nn


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.table, self.blocks = nn.Embedding(50, 16), nn.ModuleList([block])
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        return self.head(self.blocks[0](self.table(ids)))


class Two(Model):
    def forward(self, ids, mask):
        return super().forward(ids) * mask


def branch():
    return Model(Branch())


def two():
    return Two(nn.Identity())


def quantised():
    return Model(torch.ao.nn.quantized.dynamic.Linear(16, 16))


def encoder():
    return Model(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, dropout=0.0))


class Flat(Model):
    def forward(self, ids):
        return super().forward(ids)[0]


def flat():
    return Flat(nn.Identity())


def number():
    return 3
"""
WHY = {
    "branch": r"`return x \* 2 if x.sum\(\) > 0 else x` in blocks\.0 \(.*model\.py:8\): GuardOnDataDependent",
    "two": r"wanted one input, ids \[1, T\]; got Two\.forward\(ids, mask\)",
    "quantised": r"blocks\.0 is quantised",
    "encoder": r"attention\.default in blocks\.0\.self_attn .*wanted each token to see itself",
    "flat": r"model\.py:flat: wanted logits \[1, T, vocabulary\]; got \['s\d+', '50'\]",
    "number": r"wanted a torch\.nn\.Module; got int",
}


@with_torch
@pytest.mark.parametrize("factory", WHY)
def test_a_module_that_is_no_decoder_is_one_line(factory: str, tmp_path: Path) -> None:
    folder = tmp_path / "torch"  # whose lines are not those of the package
    folder.mkdir()
    (folder / "model.py").write_text(HOSTILE)
    given = ("-o", folder / "mine.py", "--weights", folder / "w.gguf", "--python", PYTHON)
    code, told, error = run(f"module:{folder / 'model.py'}:{factory}", *given)
    assert (code, told) == (2, "")
    assert error.count("\n") == 1
    assert re.search(WHY[factory], error), error
    assert [one.name for one in folder.iterdir() if one.name != "__pycache__"] == ["model.py"]


CONFIGS = {
    "an encoder with a decoder": {"model_type": "t5", "is_encoder_decoder": True},
    "its modules are quantised": {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}},
    "--trust-remote-code if you trust it": {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"},
    },
}


@with_torch
@pytest.mark.parametrize("why", CONFIGS)
def test_a_folder_that_is_no_plain_decoder_is_one_line(why: str, tmp_path: Path) -> None:
    folder, ran = tmp_path / "checkpoint", tmp_path / "ran"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[why]))
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w')\n")
    code, told, error = run(f"hf:{folder}", "-o", tmp_path / "mine.py", "--python", PYTHON)
    assert (code, told) == (2, "")
    assert error.count("\n") == 1
    assert why in error
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint"]


@with_torch
def test_a_folder_of_pickles_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    code, told, error = run(f"hf:{folder}", "-o", tmp_path / "mine.py", "--python", PYTHON)
    assert (code, told, error.count("\n")) == (2, "", 1)
    assert "wanted model.safetensors; pytorch_model.bin is a pickle" in error
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.skipif(shutil.which("false") is None, reason="the system has no program `false`")
def test_a_process_that_fails_leaves_nothing(tmp_path: Path) -> None:
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    code, told, error = run(f"module:{PLAIN}:e", "-o", arch, "--weights", weights, "--python", "false")
    assert (code, told) == (2, "")
    assert error.startswith("graphml: import: its process ended with 1")
    assert not arch.exists()
    assert not weights.exists()


@with_torch
def test_what_begins_far_behind_the_traced_text_is_refused(tmp_path: Path) -> None:
    """Scores of distances from 1000 on are halved, which is no mask, and no number of a text of 24 tokens."""
    shutil.copyfile(PLAIN, tmp_path / "plain.py")
    changed = (tmp_path / "plain.py").read_text().replace(
        "s = s - s.max(-1, keepdim=True).values",
        "far = torch.arange(T)[:, None] - torch.arange(T) >= 1000\n"
        "        s = torch.cat([torch.where(far, 0.5 * s[..., :-1], s[..., :-1]), s[..., -1:]], -1)",
    )  # fmt: skip
    (tmp_path / "far.py").write_text(changed)
    given = ("-o", tmp_path / "mine.py", "--weights", tmp_path / "mine.gguf", "--python", PYTHON)
    code, _, error = run(f"module:{tmp_path / 'far.py'}:j", *given)
    assert code == 2
    assert re.search(r"1500 tokens: NMSE|attention", error), error
    assert not (tmp_path / "mine.gguf").exists()
