"""Adapters from PEFT's folders to GGUF files and back: the same numbers, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

import graphml
from graphml.cli.main import app
from graphml.errors import GraphmlError
from graphml.loading.adapter_files import read_adapter, read_factors
from graphml.loading.open_file import open_path
from graphml.workshop import adapter_formats
from tests.adapter_files import write_adapter
from tests.authoring.test_import_command import PYTHON, with_torch
from tests.folder_records import TOKENS, about, write_folder
from tests.golden import Floats, nmse
from tests.peft_records import ADAPTERS, about_peft, write_peft

WITH_BIASES = ("llama-biases", "llama-targeted", "gpt2-biases", "gpt_neox")
OTHERS = ("hrm_text", "sarvam_moe")
PLAIN = [name for name in ADAPTERS if name not in (*WITH_BIASES, *OTHERS)]
LIMIT = 1e-8


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["adapter", *map(str, arguments)])


def inputs(path: Path, name: str, **changed: Any) -> tuple[Path, Path]:
    """The folder of the model of a record, and that of its adapter."""
    config, tensors, _ = about(ADAPTERS[name][0])
    fields, shapes, _ = about_peft(name)
    return write_folder(path / "model", config, tensors), write_peft(
        path / "adapter", {**fields, **changed}, shapes
    )


def logits(model: Path, adapter: Path) -> Floats:
    with graphml.load(model, backend="reference", kv="f32", quant="fp32", lora=[(adapter, 1.0)]) as opened:
        return np.asarray(opened.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))


def weights(adapter: Path) -> dict[str, Any]:
    return load_file(adapter / "adapter_model.safetensors")


@pytest.mark.parametrize("name", PLAIN)
def test_there_and_back_every_number_stays(name: str, tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, name)
    done = convert(model, adapter, "-o", tmp_path / "there.gguf")
    assert done.exit_code == 0, done.output
    assert nmse(logits(model, tmp_path / "there.gguf"), about_peft(name)[2]) <= LIMIT
    done = convert(model, tmp_path / "there.gguf", "-o", tmp_path / "back")
    assert done.exit_code == 0, done.output
    assert nmse(logits(model, tmp_path / "back"), about_peft(name)[2]) <= LIMIT
    done = convert(model, tmp_path / "back", "-o", tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "there.gguf").read_bytes(), done.output
    own, came = weights(adapter), weights(tmp_path / "back")
    saved = {key for key in own if ".lora_" not in key}  # the model's own embedding, saved beside its pair
    assert came.keys() == own.keys() - saved
    if name != "llama-ranks":  # of patterns of alpha, of which a file has one
        for key, array in came.items():
            np.testing.assert_array_equal(array, own[key])


@pytest.mark.parametrize("name", OTHERS)
def test_of_classes_whose_modules_are_not_their_files_tensors_one_way_alone(
    name: str, tmp_path: Path
) -> None:
    model, adapter = inputs(tmp_path, name)
    assert convert(model, adapter, "-o", tmp_path / "there.gguf").exit_code == 0
    assert nmse(logits(model, tmp_path / "there.gguf"), about_peft(name)[2]) <= LIMIT
    done = convert(model, tmp_path / "there.gguf", "-o", tmp_path / "back")
    assert f"modules of {name} are not those of its files' tensors" in done.output


OPENED = """
import sys, json, numpy as np, torch, transformers, peft
model, adapter, out, name, ids = sys.argv[1:]
of = getattr(transformers, name).from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
whole = peft.PeftModel.from_pretrained(of, adapter).eval()
with torch.no_grad():
    logits = whole(torch.tensor(json.loads(ids))[None], use_cache=False).logits[0].numpy()
np.save(out, logits)
"""


@with_torch
@pytest.mark.skipif(
    subprocess.run([PYTHON, "-c", "import peft"], capture_output=True, check=False).returncode != 0,
    reason="peft is not installed beside torch",
)
@pytest.mark.parametrize("name", PLAIN)
def test_peft_opens_the_folder_with_the_same_logits(name: str, tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, name)
    convert(model, adapter, "-o", tmp_path / "there.gguf")
    assert convert(model, tmp_path / "there.gguf", "-o", tmp_path / "back").exit_code == 0
    of, out, ids = about(ADAPTERS[name][0])[0]["architectures"][0], tmp_path / "o.npy", str(TOKENS.tolist())
    done = subprocess.run(
        [PYTHON, "-c", OPENED, model, tmp_path / "back", out, of, ids],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert nmse(np.load(out), about_peft(name)[2]) <= LIMIT


def test_a_file_with_ranks_and_without_alpha_comes_back_as_it_was(tmp_path: Path) -> None:
    model, _ = inputs(tmp_path, "llama")
    numbers = np.random.default_rng(3)
    pairs = {
        name: (
            numbers.standard_normal((rank, 32), np.float32),
            numbers.standard_normal((32, rank), np.float32),
        )
        for name, rank in (
            ("blk.0.attn_q.weight", 3),
            ("blk.1.attn_q.weight", 2),
            ("blk.1.attn_output.weight", 3),
        )
    }
    for alpha in (None, 5.0):
        file = write_adapter(tmp_path / "first.gguf", pairs, alpha=alpha, invocation=[4, 7])
        done = convert(model, file, "-o", tmp_path / "folder", "--force")
        assert done.exit_code == 0, done.output
        fields = json.loads((tmp_path / "folder" / "adapter_config.json").read_text())
        assert set(fields["target_modules"]) == {"q_proj", "model.layers.1.self_attn.o_proj"}
        assert fields["rank_pattern"] == {r"model\.layers\.1\.self_attn\.q_proj": 2}
        assert (fields["r"], fields["lora_alpha"]) == (3, alpha or 3)
        with open_path(model) as opened:
            first, folder = read_adapter(file, opened), read_adapter(tmp_path / "folder", opened)
            assert first.invocation == folder.invocation == (4, 7)
            for name, pair in first.pairs.items():
                for left, right in zip(pair, folder.pairs[name], strict=True):
                    np.testing.assert_array_equal(left, right)
            if alpha:
                convert(model, tmp_path / "folder", "-o", tmp_path / "again.gguf", "--force")
                again = read_factors(tmp_path / "again.gguf", opened)
                assert again.alpha == alpha
                for name, pair in pairs.items():
                    for left, right in zip(pair, again.pairs[name], strict=True):
                        np.testing.assert_array_equal(left, right)


def test_scalings_that_one_alpha_does_not_have_are_in_a(tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, "llama", alpha_pattern={"q_proj": 9})
    done = convert(model, adapter, "-o", tmp_path / "out.gguf")
    assert "15 pairs, A of 2 multiplied for one alpha" in done.output, done.output
    with open_path(model) as opened:
        assert read_factors(tmp_path / "out.gguf", opened).alpha == 6
        first, came = read_adapter(adapter, opened), read_adapter(tmp_path / "out.gguf", opened)
    for name, pair in first.pairs.items():
        for left, right in zip(pair, came.pairs[name], strict=True):
            np.testing.assert_allclose(left, right, rtol=2e-7)


@pytest.mark.parametrize("name", WITH_BIASES)
def test_biases_are_refused(name: str, tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, name)
    done = convert(model, adapter, "-o", tmp_path / "out.gguf")
    assert done.exit_code == 2
    assert "a GGUF adapter has no biases; got one of blk." in done.output
    assert not (tmp_path / "out.gguf").exists()


def test_a_scaling_of_nothing_is_refused(tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, "llama", lora_alpha=0)
    done = convert(model, adapter, "-o", tmp_path / "out.gguf")
    assert "lora_alpha is 0, which a GGUF adapter cannot say" in done.output


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("peft_type", "LOHA"),
        ("layer_replication", [[0, 1]]),
    ],
)
def test_what_is_no_low_rank_product_is_refused(field: str, value: object, tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, "llama", **{field: value})
    done = convert(model, adapter, "-o", tmp_path / "out.gguf")
    assert done.exit_code == 1
    assert field in done.output
    assert not (tmp_path / "out.gguf").exists()


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "of_llama").mkdir()
    (tmp_path / "of_qwen").mkdir()
    llama, adapter = inputs(tmp_path / "of_llama", "llama")
    qwen, _ = inputs(tmp_path / "of_qwen", "qwen2")
    convert(llama, adapter, "-o", tmp_path / "llama.gguf")
    done = convert(qwen, tmp_path / "llama.gguf", "-o", tmp_path / "out")
    assert "general.architecture: wanted 'qwen2', got 'llama'" in done.output
    small = write_folder(tmp_path / "small", *about("llama-linear")[:2])
    done = convert(small, adapter, "-o", tmp_path / "out.gguf")
    assert done.exit_code == 1
    assert "adapter_model.safetensors" in done.output
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.gguf").exists()


def test_pairs_that_the_class_has_no_modules_of_are_refused(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    model, _ = inputs(tmp_path / "g", "granitemoehybrid")
    with open_path(model) as opened:
        shapes = {
            name: opened.tensors[name].shape
            for name in ("blk.0.ffn_gate_shexp.weight", "blk.0.ffn_up_shexp.weight")
        }
        architecture = opened.metadata.text("general.architecture")
    pairs = {
        name: (np.full((2, n_in), i, np.float32), np.ones((n_out, 2), np.float32))
        for i, (name, (n_out, n_in)) in enumerate(shapes.items(), 1)
    }
    file = write_adapter(tmp_path / "two.gguf", pairs, architecture, alpha=2)
    done = convert(model, file, "-o", tmp_path / "out")
    assert "in one, whose pairs have another A each" in done.output
    one_half = dict(list(pairs.items())[:1])  # zeros for the other half
    file = write_adapter(tmp_path / "half.gguf", one_half, architecture, alpha=2)
    assert convert(model, file, "-o", tmp_path / "out").exit_code == 0
    assert nmse(logits(model, tmp_path / "out"), logits(model, file)) <= LIMIT

    experts = write_folder(tmp_path / "experts", *about("qwen3_moe")[:2])
    with open_path(experts) as opened:
        name = next(name for name in opened.tensors if name.endswith("ffn_down_exps.weight"))
        n_expert, n_out, n_in = opened.tensors[name].shape
    pair = np.ones((n_expert, 2, n_in), np.float32), np.ones((n_expert, n_out, 2), np.float32)
    file = write_adapter(tmp_path / "experts.gguf", {name: pair}, "qwen3moe", alpha=2)
    done = convert(experts, file, "-o", tmp_path / "none")
    assert "experts' matrices are no modules of their own for PEFT" in done.output


def test_a_checkpoint_of_the_class_without_its_head_is_refused(tmp_path: Path) -> None:
    config, tensors, _ = about("gpt2")
    bare = {name.removeprefix("transformer."): shape for name, shape in tensors.items()}
    model = write_folder(tmp_path / "bare", config, bare)
    pair = np.ones((2, 32), np.float32), np.ones((32, 2), np.float32)
    file = write_adapter(tmp_path / "first.gguf", {"blk.0.attn_output.weight": pair}, "gpt2", alpha=2)
    done = convert(model, file, "-o", tmp_path / "out")
    assert "wanted names with the class's first part" in done.output


def test_what_is_written_is_compared_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, adapter = inputs(tmp_path, "llama")
    write = adapter_formats.write_adapter
    monkeypatch.setattr(
        adapter_formats, "write_adapter",
        lambda path, arch, pairs, alpha, ids: write(path, arch, pairs, alpha * 1.01, ids),
    )  # fmt: skip
    with pytest.raises(GraphmlError, match="is another one in what was written"):
        adapter_formats.adapter_to_gguf(adapter, model, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    model, adapter = inputs(tmp_path, "llama")
    file, base = tmp_path / "out.gguf", tmp_path / "base.gguf"
    assert convert(model, adapter, "-o", file).exit_code == 0
    base.write_bytes(b"GGUF")
    for arguments, wanted in (
        ((model, adapter, "-o", file), "is there already; --force overwrites it"),
        ((model, file, "-o", tmp_path / "b.gguf"), "wanted a folder of PEFT for --output"),
        ((model, adapter, "-o", tmp_path / "b"), "wanted a GGUF file for --output"),
        ((model, tmp_path / "none", "-o", tmp_path / "b"), "no such file or folder"),
        ((model, "-o", file, "--force"), "ADAPTER: wanted a folder of PEFT or a GGUF file"),
        ((model, file, "-o", model, "--force"), "has other files than those of an adapter"),
        ((base, adapter, "-o", base, "--force"), "is read by this command; wanted another name"),
    ):
        done = convert(*arguments)
        assert done.exit_code == 2, arguments
        assert wanted in done.output, done.output
    assert base.read_bytes() == b"GGUF"
    assert convert("-m", model, file, "-o", tmp_path / "b").exit_code == 0


def test_a_full_disk_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library has an error of its own for it."""
    model, adapter = inputs(tmp_path, "llama")
    assert convert(model, adapter, "-o", tmp_path / "a.gguf").exit_code == 0

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(adapter_formats, "save_file", full)
    done = convert(model, tmp_path / "a.gguf", "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "out: cannot be written: " in done.output
    assert "No space left on device" in done.output
    assert not (tmp_path / "out").exists()
