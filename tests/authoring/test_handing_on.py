"""`graphml convert`: one file of a model, its edited architecture and its adapters, which runs by itself."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.authoring import handing_on
from graphml.cli.main import app
from graphml.errors import ArchitectureError, GraphmlError, UsageError
from graphml.loading import fetch
from graphml.weights import open_model
from tests import golden, tiny_model
from tests.adapter_files import random_pairs, write_adapter
from tests.docs.pages import ROOT, blocks

IDS = [5, 9, 3, 17, 2, 8]
MATRICES = ("attn_q", "attn_output", "ffn_down")


def command(*arguments: object) -> Result:
    """A run of the command, on the reference."""
    words = ["convert", *arguments, "--backend", "reference", "--kv", "f32"]
    return CliRunner().invoke(app, [str(word) for word in words])


def logits(model: graphml.Model) -> golden.Floats:
    return model.session(n_ctx=16).eval(IDS, all_logits=True)


def definition(folder: Path) -> Path:
    """The architecture of the documentation, as an author has it in a file."""
    (source,) = [b.text for b in blocks(ROOT / "docs" / "architectures.md") if b.said("file") == "small.py"]
    path = folder / "small.py"
    path.write_text(source)
    return path


def adapter(model: Path, path: Path, names: tuple[str, ...] = MATRICES) -> Path:
    with open_model(model) as file:
        shapes = {
            name: tensor.shape
            for name, tensor in file.tensors.items()
            if any(part in name for part in names) and name.endswith("weight") and len(tensor.shape) > 1
        }
        return write_adapter(
            path, random_pairs(shapes, 2, 1), file.metadata.text("general.architecture"), 4.0
        )


def test_an_authors_file_with_adapters_is_one_that_runs_by_itself(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf", architecture="novel")
    arch, lora, whole = definition(tmp_path), adapter(model, tmp_path / "lora.gguf"), tmp_path / "whole.gguf"
    done = command(model, "--arch", arch, "--lora", lora, "-o", whole)
    assert done.exit_code == 0, done.output
    assert "matrices with adapters; logits as the model's" in done.stdout
    with pytest.raises(ArchitectureError, match="--trust-arch"):
        graphml.load(whole, "reference")
    with (
        graphml.load(model, "reference", arch=arch, kv="f32", lora=[(lora, 1.0)]) as first,
        graphml.load(whole, "reference", kv="f32", trust_arch=True) as second,
        graphml.load(model, "reference", arch=arch, kv="f32") as plain,
    ):
        assert golden.nmse(logits(second), logits(first)) < 1e-9
        assert golden.nmse(logits(plain), logits(first)) > 1e-3
        assert second.metadata["graphml.definition.source"] == arch.read_text()
        assert second.metadata["general.architecture"] == "imported-novel"
        assert second.encode("hello") == first.encode("hello")
    # Once more, from the file itself: its definition goes along.
    assert command(whole, "--trust-arch", "-o", tmp_path / "again.gguf").exit_code == 0
    with open_model(tmp_path / "again.gguf") as file:
        assert file.metadata["graphml.definition.source"] == arch.read_text()


def test_several_adapters_are_merged_at_their_scales(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf", architecture="novel")
    arch, whole = definition(tmp_path), tmp_path / "whole.gguf"
    first = adapter(model, tmp_path / "first.gguf")
    second = adapter(model, tmp_path / "second.gguf", ("attn_q.", "ffn_up"))  # in part the same matrices
    scales = [(first, 0.5), (second, -1.5), (first, 0.25)]
    words = [word for path, scale in scales for word in ("--lora", f"{path}:{scale}")]
    assert command(model, "--arch", arch, *words, "-o", whole).exit_code == 0
    with graphml.load(whole, "reference", kv="f32", trust_arch=True) as merged:
        came = logits(merged)
    for loras, is_same in ((scales, True), (scales[:1], False), ([(p, 1.0) for p, _ in scales], False)):
        with graphml.load(model, "reference", arch=arch, kv="f32", lora=loras) as running:
            assert (golden.nmse(came, logits(running)) < 1e-9) is is_same


def test_a_plain_copy_has_the_same_metadata_tensors_and_types(tmp_path: Path) -> None:
    source = golden.file("llama-dense")
    assert command(source, "-o", tmp_path / "copy.gguf").exit_code == 0
    readers = [gguf.GGUFReader(path) for path in (source, tmp_path / "copy.gguf")]
    before, after = (
        {key: (field.types, field.contents()) for key, field in reader.fields.items()} for reader in readers
    )
    assert {key for key in before if not key.startswith("GGUF.")} <= after.keys()
    assert all(after[key] == value for key, value in before.items() if not key.startswith("GGUF."))
    for first, second in zip(readers[0].tensors, readers[1].tensors, strict=True):
        assert (first.name, first.tensor_type) == (second.name, second.tensor_type)
        assert np.array_equal(first.data, second.data)


def test_another_pre_tokenizer_goes_into_the_file(tmp_path: Path) -> None:
    model, whole = fetch.resolve("smollm2"), tmp_path / "whole.gguf"
    done = CliRunner().invoke(app, ["convert", str(model), "-o", str(whole), "--pre", "qwen2"])
    assert done.exit_code == 0, done.output
    with open_model(model) as before, open_model(whole) as after:
        assert (
            before.metadata.text("tokenizer.ggml.pre") != after.metadata.text("tokenizer.ggml.pre") == "qwen2"
        )
        assert len(list(before.metadata)) == len(list(after.metadata))


@pytest.mark.parametrize("quant", ["q8", "q4"])
def test_packed_matrices_with_adapters_are_q8_0(quant: str, tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf", architecture="novel")
    arch, lora, whole = definition(tmp_path), adapter(model, tmp_path / "lora.gguf"), tmp_path / "whole.gguf"
    done = command(model, "--arch", arch, "--lora", lora, "--quant", quant, "-o", whole)
    assert done.exit_code == 0, done.output
    with open_model(whole) as file:
        kinds = {
            name: tensor.dtype for name, tensor in file.tensors.items() if tensor.name.startswith("blk.0")
        }
    assert kinds["blk.0.attn_q.weight"] == "q8_0"
    assert kinds["blk.0.attn_k.weight"] == {"q8": "q8_0", "q4": "q4_0"}[quant]


def test_a_file_whose_logits_are_others_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf", architecture="novel")
    arch, lora, whole = definition(tmp_path), adapter(model, tmp_path / "lora.gguf"), tmp_path / "whole.gguf"
    whole.write_text("of before")
    monkeypatch.setattr(handing_on, "merged_tensors", lambda model: {})
    with (
        graphml.load(model, "reference", arch=arch, kv="f32", lora=[(lora, 1.0)]) as opened,
        pytest.raises(GraphmlError, match="logits are not the model's: wanted an NMSE of at most 1e-05"),
    ):
        handing_on.hand_on(opened, whole, arch, graphml.LoadOptions(backend="reference", kv="f32"))
    assert whole.read_text() == "of before"


def test_a_model_whose_logits_are_no_numbers_is_said_to_be_so(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf", architecture="novel")
    arch, whole = definition(tmp_path), tmp_path / "whole.gguf"
    with open_model(model) as file:
        norm = file.tensors["output_norm.weight"]
        start = Path(model).read_bytes().index(np.asarray(norm.data).tobytes())
    with model.open("r+b") as stored:
        stored.seek(start)
        stored.write(np.float32("nan").tobytes())
    done = command(model, "--arch", arch, "-o", whole)
    assert done.exit_code == 1
    assert "convert: the model's own logits hold NaN or infinity" in done.output
    assert not whole.exists()


def test_what_no_weights_stand_for_is_refused(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf", architecture="novel")
    arch, whole = definition(tmp_path), tmp_path / "whole.gguf"
    with open_model(model) as file:
        shape = file.tensors["blk.0.attn_q.weight"].shape
    pairs = random_pairs({"blk.0.attn_q.weight": shape}, 2, 1)
    later = write_adapter(tmp_path / "later.gguf", pairs, "novel", 4.0, invocation=[3, 4])
    done = command(model, "--arch", arch, "--lora", later, "-o", whole)
    assert "cannot be merged: it works from some ids on alone" in done.output
    with (
        graphml.load(model, "reference", arch=arch) as opened,
        pytest.raises(UsageError, match="is the model itself"),
    ):
        handing_on.hand_on(opened, model, arch, graphml.LoadOptions())
    done = command(golden.file("dream-dense"), "-o", whole)
    assert "wanted a model that predicts the next token of a text" in done.output
    assert not whole.exists()
