"""`graphml convert -o FOLDER`: a model as a folder of transformers, whose mapping of tensors is inverted."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

import graphml
from graphml.authoring.handing_back import checks, folder_of_model
from graphml.authoring.handing_back.folder_of_model import hand_back
from graphml.authoring.handing_back.inverse import Inverse, rebuilt, undone
from graphml.authoring.handing_back.shards import Shards, encoded
from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.importing import import_description
from graphml.authoring.importing.proof import write_checkpoint
from graphml.cli.main import app
from graphml.errors import GraphmlError, UsageError
from graphml.loading import discovery
from graphml.loading.huggingface.folder import read_checkpoint
from graphml.loading.huggingface.tensors import our_tensors
from graphml.loading.open_file import open_path
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.replaced_file import replacing_folder
from graphml.weights import Tensor
from graphml.weights.filemap import FileMap
from tests import golden
from tests.adapter_files import random_pairs, write_adapter
from tests.authoring.test_import_command import PYTHON, with_torch
from tests.folder_records import RECORDS, about, write_folder
from tests.folders.test_packed_folders import write_llama
from tests.import_records import described
from tests.import_records import write_folder as write_imported
from tests.packed_parts import EXAMPLES

Array = NDArray[Any]
IDS = [5, 9, 3, 17, 2, 8]
MATRICES = ("attn_q.", "attn_qkv", "attn_output", "ffn_down", "ffn_gate_exps", "ffn_up_exps")
NO_INVERSE = {
    "dots3_note": "kv_a_norm", "falcon_h1": "output.weight", "youtu": "token_embd",
}  # fmt: skip
"""Records with a factor on numbers, which a product does not keep exact."""
OPTIONS = LoadOptions(backend="reference", kv="f32")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # of parts that see, which are left out
    yield
    logging.disable(logging.NOTSET)


def of_record(name: str, path: Path, factor: float = 1.0) -> Path:
    """The folder of a record; factor: of its numbers."""
    config, tensors, _ = about(name)
    folder = write_folder(path, config, tensors)
    if factor != 1.0:
        held = load_file(folder / "model.safetensors")
        numbers = {
            key: value * np.float32(factor) if value.ndim and value.dtype == np.float32 else value
            for key, value in held.items()
        }
        save_file(numbers, folder / "model.safetensors")
    return folder


def adapter(folder: Path, path: Path, arch: Path | None = None, names: tuple[str, ...] = MATRICES) -> Path:
    """Random pairs for some of a folder's matrices."""
    with open_path(folder, arch) as file:
        shapes = {
            name: tensor.shape
            for name, tensor in file.tensors.items()
            if any(part in name for part in names) and name.endswith("weight") and len(tensor.shape) > 1
        }
        kind = file.metadata.text("general.architecture")
    assert shapes
    return write_adapter(path, random_pairs(shapes, 2, 1), kind, 4.0)


def logits(path: Path, arch: Path | None = None, **options: Any) -> golden.Floats:
    with graphml.load(path, "reference", kv="f32", arch=arch, **options) as model:
        return model.session(n_ctx=16).eval(IDS, all_logits=True)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, ("convert", *words)), "--backend", "reference", "--kv", "f32"])


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_number_of_a_family_finds_its_way_back(name: str, tmp_path: Path) -> None:
    """Ours of one folder, written as another one's: its class's tensors, which are ours again to the bit."""
    first, second = of_record(name, tmp_path / "a"), of_record(name, tmp_path / "b", 0.5)
    opened: list[FileMap] = []
    read = read_checkpoint(second, discovery.families(), None, {}, opened)
    with open_path(first) as file:
        inverse = Inverse(read, "output.weight" in file.tensors)
        ours = {key: tensor for key, tensor in file.tensors.items() if key in inverse.names}
        assert not set(file.tensors) - set(inverse.names) - inverse.others
        if name in NO_INVERSE:
            with pytest.raises((UsageError, GraphmlError), match=NO_INVERSE[name]):
                list(rebuilt(inverse, ours, set(inverse.names)))
            return
        done = {key: values for key, values, _ in rebuilt(inverse, ours, set(inverse.names))}
        assert done.keys() <= read.tensors.keys()
        as_before = load_file(first / "model.safetensors")
        held: dict[str, Tensor] = {}
        for key, of in read.tensors.items():
            if key in inverse.left_out:
                continue
            if key not in done and of.dtype != "f32":
                held[key] = of
                continue
            values = np.ascontiguousarray(done.get(key, of.numpy()), np.float32)
            held[key] = Tensor(key, "f32", of.shape, values.reshape(-1).view(np.uint8))
            if key in done and values.size == as_before[key].size:
                assert np.allclose(values, as_before[key], rtol=1e-5, atol=1e-6) or "moe_statics" in key
        again = our_tensors(read.config, read.family, held, inverse.tied, read.wrapped)
        for key in ours:
            left, right = (each.numpy().astype(np.float32) for each in (ours[key], again[key]))
            assert np.array_equal(left.view(np.uint32), right.view(np.uint32)), key
    for each in opened:
        each.close()


CLASSES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "phi3", "mixtral", "qwen3_moe", "falcon")


@pytest.mark.parametrize("name", CLASSES)
def test_a_merged_adapter_is_a_folder_of_the_class(name: str, tmp_path: Path) -> None:
    folder = of_record(name, tmp_path / "base")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    lora, output = adapter(folder, tmp_path / "lora.gguf"), tmp_path / "whole"
    done = command(folder, "--lora", lora, "-o", output)
    assert done.exit_code == 0, done.output
    assert "matrices with adapters; tensors and graph as the model's" in done.stdout
    assert golden.nmse(logits(output), logits(folder, lora=[(lora, 1.0)])) < 1e-9
    assert golden.nmse(logits(output), logits(folder)) > 1e-4
    before, after = (load_file(each / "model.safetensors") for each in (folder, output))
    assert {key: value.shape for key, value in before.items()} == {
        key: value.shape for key, value in after.items()
    }
    same = [key for key in before if np.array_equal(before[key], after[key])]
    assert 0 < len(same) < len(before)
    assert (output / "tokenizer_config.json").read_text() == '{"chat_template": "{{ messages }}"}'
    assert json.loads((output / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )


def test_several_adapters_are_merged_into_a_folder_at_their_scales(tmp_path: Path) -> None:
    folder, output = of_record("llama", tmp_path / "base"), tmp_path / "whole"
    loras = [
        (adapter(folder, tmp_path / "first.gguf"), 0.5),
        (adapter(folder, tmp_path / "second.gguf", names=("ffn_down",)), -1.5),
    ]
    words = [word for path, scale in loras for word in ("--lora", f"{path}:{scale}")]
    assert command(folder, *words, "-o", output).exit_code == 0
    assert golden.nmse(logits(output), logits(folder, lora=loras)) < 1e-9
    assert golden.nmse(logits(output), logits(folder, lora=loras[:1])) > 1e-6


@with_torch
@pytest.mark.parametrize("name", CLASSES)
def test_transformers_opens_the_folder_with_the_same_logits(name: str, tmp_path: Path) -> None:
    folder = of_record(name, tmp_path / "base")
    lora, output = adapter(folder, tmp_path / "lora.gguf"), tmp_path / "whole"
    done = command(folder, "--lora", lora, "-o", output, "--python", PYTHON)
    assert done.exit_code == 0, done.output
    assert "transformers 5." in done.stdout


@with_torch
def test_a_folder_that_transformers_reads_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of config.json a number changes behind the back: the tensors are right, and its logits are not."""
    folder = of_record("llama", tmp_path / "base")
    ask = checks.ask

    def changed(name: str, program: str, python: str, request: Mapping[str, object]) -> str:
        config = Path(str(request["model"])) / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 0.5}))
        return ask(name, program, python, request)

    monkeypatch.setattr(checks, "ask", changed)
    done = command(folder, "-o", tmp_path / "whole", "--python", PYTHON)
    assert done.exit_code == 1
    assert "transformers' logits of the written folder are not the model's" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


def quantised(folder: Path, path: Path) -> Path:
    """A folder's model as a GGUF file with matrices in Q8_0, and its definition."""
    arch = path.with_suffix(".py")
    arch.write_text("from graphml_models.llama import *\nfrom graphml_models.llama import ARCHITECTURE\n")
    done = command(folder, "--arch", arch, "--quant", "q8", "-o", path)
    assert done.exit_code == 0, done.output
    return path


def test_a_quantised_file_becomes_a_folder_of_floats(tmp_path: Path) -> None:
    folder = of_record("llama", tmp_path / "base")
    with graphml.load(folder, "reference", kv="f32", quant="q8") as model:
        packed = {key: of for key, of in model.executor.file.tensors.items() if of.dtype == "q8_0"}
        assert packed
        done = hand_back(model, tmp_path / "whole", folder, None, OPTIONS)
        assert done.n_dequantised == len(packed)
        with open_path(tmp_path / "whole") as file:
            for key, of in packed.items():
                assert file.tensors[key].dtype == "f32"
                assert np.array_equal(file.tensors[key].numpy(), of.numpy())


def test_types_are_kept_where_they_hold_the_numbers(tmp_path: Path) -> None:
    """A bfloat16 model stays one; with numbers that bfloat16 has not config.json says float32."""
    folder = of_record("llama", tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    held = load_file(folder / "model.safetensors")
    shards = Shards(tmp_path / "base")
    (folder / "model.safetensors").unlink()
    for name, values in held.items():
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        shards.add(name, "BF16", values.shape, bits)
    shards.close()
    assert (
        command(folder, "--lora", adapter(folder, tmp_path / "l.gguf"), "-o", tmp_path / "short").exit_code
        == 0
    )
    assert json.loads((tmp_path / "short/config.json").read_text())["torch_dtype"] == "bfloat16"
    with open_path(tmp_path / "short") as file:
        assert {of.dtype for key, of in file.tensors.items() if "rope" not in key} == {"bf16"}
    with graphml.load(folder, "reference", kv="f32", quant="q8") as model:
        hand_back(model, tmp_path / "long", folder, None, OPTIONS)
    assert json.loads((tmp_path / "long/config.json").read_text())["torch_dtype"] == "float32"
    assert encoded(np.float32([1.5, -0.0]), ("bf16",))[0] == "BF16"
    assert encoded(np.float32([1.0 + 2**-10]), ("bf16", "f16"))[0] == "F16"
    assert encoded(np.float32([1.0 + 2**-20]), ("bf16", "f16"))[0] == "F32"


def test_large_weights_are_several_files_with_an_index(tmp_path: Path) -> None:
    folder = of_record("mixtral", tmp_path / "base")
    with graphml.load(folder, "reference", kv="f32") as model:
        hand_back(model, tmp_path / "whole", folder, None, OPTIONS, largest=20_000)
    names = sorted(path.name for path in (tmp_path / "whole").glob("*.safetensors"))
    index = json.loads((tmp_path / "whole/model.safetensors.index.json").read_text())
    assert len(names) > 2
    assert names == sorted(set(index["weight_map"].values()))
    assert names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert np.array_equal(logits(tmp_path / "whole"), logits(folder))
    # Once more from there, over it.
    done = command(tmp_path / "whole", "-o", tmp_path / "again")
    assert done.exit_code == 0, done.output
    done = command(folder, "-o", tmp_path / "again")
    assert (done.exit_code, "--force" in done.stderr) == (2, True)
    assert command(folder, "-o", tmp_path / "again", "--force").exit_code == 0


IMPORTED = ("gpt2", "bart", "mixtral", "mpt", "falcon-new")


@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_class_is_written_by_its_own_file(name: str, tmp_path: Path) -> None:
    """A folder by --arch, and the GGUF file that the import wrote, by its definition."""
    folder, arch, weights = tmp_path / "base", tmp_path / "mine.py", tmp_path / "mine.gguf"
    description = described(name, tmp_path / "traced")
    write_imported(description, folder)
    imported = import_description(description, checkpoint(folder))
    arch.write_text(imported.text)
    write_checkpoint(imported, arch, folder, weights)
    lora = adapter(folder, tmp_path / "lora.gguf", arch, (*MATRICES, "gate_up_exps"))
    done = command(folder, "--arch", arch, "--lora", lora, "-o", tmp_path / "first")
    assert done.exit_code == 0, done.output
    assert golden.nmse(logits(tmp_path / "first", arch), logits(folder, arch, lora=[(lora, 1.0)])) < 1e-9
    done = command(weights, "--trust-arch", "--like", folder, "-o", tmp_path / "second")
    assert done.exit_code == 0, done.output
    assert "0 tensors written" in done.stdout
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "second"))
    assert all(np.array_equal(before[key], after[key]) for key in after)


def test_what_the_class_does_not_hold_is_refused(tmp_path: Path) -> None:
    folder, other = of_record("llama", tmp_path / "base"), of_record("qwen2", tmp_path / "other")
    lora = adapter(folder, tmp_path / "lora.gguf")
    cases: list[tuple[tuple[object, ...], str]] = [
        ((folder, "--like", other), "has the tensor, and the model has not|has no place for this tensor"),
        ((folder, "--rope-freq-base", 500), "computes another graph than the model: wanted .*freq_base=500"),
        ((folder, "--pre", "gpt-2"), "--pre: wanted for a GGUF file"),
        ((folder, "--like", tmp_path), "--like: .*wanted a folder of transformers"),
        ((lora, "--like", folder), "context_length"),
    ]
    for words, said in cases:
        done = command(*words, "-o", tmp_path / "whole")
        assert done.exit_code in (1, 2), words
        assert re.search(said, done.stderr), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "lora.gguf", "other"]
    done = command(folder, "-o", folder, "--force")
    assert "is the model itself" in done.stderr
    done = command(folder, "-o", tmp_path, "--force")
    assert "has other files than those of a model" in done.stderr
    done = command(folder, "-o", tmp_path / "x.gguf", "--like", folder)
    assert "--like: wanted where --output is a folder" in done.stderr


@pytest.mark.parametrize("name", ["gptq-4", "fp8-block", "modelopt-MXFP8", "compressed-tensors-int-channel"])
def test_a_packed_folder_becomes_one_of_floats(name: str, tmp_path: Path) -> None:
    """With the same numbers, and without a word of packing in config.json."""
    example = EXAMPLES[name]
    config = json.loads(json.dumps(example.config).replace('{"a":', '{"model":'))
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": config})
    (packed / "quantize_config.json").write_text(json.dumps(config))
    done = command(packed, "-o", tmp_path / "floats")
    assert done.exit_code == 0, done.output
    assert "quantization_config" not in json.loads((tmp_path / "floats/config.json").read_text())
    assert not (tmp_path / "floats/quantize_config.json").exists()
    left, right = (logits(each, quant="fp32") for each in (packed, tmp_path / "floats"))
    assert np.array_equal(left, right)


def test_trained_weights_are_in_place_of_the_models(tmp_path: Path) -> None:
    """By the model's names, as `to_torch(model).state_dict()` has them."""
    folder = of_record("qwen2", tmp_path / "base")
    with open_path(folder) as file:
        numbers = {key: np.array(of.numpy(), np.float32) for key, of in file.tensors.items()}
    numbers["blk.1.ffn_up.weight"] *= np.float32(0.5)
    save_file(numbers, tmp_path / "trained.safetensors")
    done = command(folder, "--weights", tmp_path / "trained.safetensors", "-o", tmp_path / "whole")
    assert done.exit_code == 0, done.output
    assert "1 tensors written" in done.stdout
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "whole"))
    (changed,) = [key for key in before if not np.array_equal(before[key], after[key])]
    assert changed == "model.layers.1.mlp.up_proj.weight"
    assert np.array_equal(after[changed], np.float32(0.5) * before[changed])
    for wrong, said in (
        ({"blk.1.ffn_upp.weight": numbers["blk.1.ffn_up.weight"]}, "is no tensor of .*blk.1.ffn_up.weight"),
        ({"blk.1.ffn_up.weight": np.zeros((2, 2), np.float32)}, "blk.1.ffn_up.weight: wanted floats"),
        ({"output_norm.weight": numbers["output_norm.weight"]}, "has the numbers of"),
    ):
        save_file(wrong, tmp_path / "wrong.safetensors")
        done = command(folder, "--weights", tmp_path / "wrong.safetensors", "-o", tmp_path / "other")
        assert done.exit_code == 2
        assert re.search(said, done.stderr), done.stderr


def test_an_embedding_and_an_output_that_are_one_cannot_differ(tmp_path: Path) -> None:
    folder = of_record("gpt2", tmp_path / "base")
    lora = adapter(folder, tmp_path / "lora.gguf", names=("token_embd",))
    done = command(folder, "--lora", lora, "-o", tmp_path / "whole")
    assert done.exit_code == 2
    assert "which is the output matrix, too" in done.stderr


def test_a_folder_with_another_number_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong on the way, the folder that is opened again shows it."""
    folder = of_record("llama", tmp_path / "base")

    def wrong(
        inverse: Inverse, tensors: Any, edited: set[str]
    ) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
        yield "model.norm.weight", np.zeros(inverse.read.tensors["model.norm.weight"].shape, np.float32), ()

    monkeypatch.setattr(folder_of_model, "rebuilt", wrong)
    done = command(folder, "-o", tmp_path / "whole")
    assert done.exit_code == 1
    assert "output_norm.weight: the written folder has other numbers" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with replacing_folder(target) as partial:
        (partial / "a").write_text("1")
    with pytest.raises(ZeroDivisionError), replacing_folder(target) as partial:
        (partial / "b").write_text(str(1 / 0))
    assert [path.name for path in target.iterdir()] == ["a"]
    with replacing_folder(target) as partial:
        (partial / "b").write_text("2")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_inverses_are_exact_where_one_is() -> None:
    numbers = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    for formula, computed in (("1 + x", np.float32(1) + numbers), ("-exp(x)", -np.exp(numbers))):
        back = undone(formula, computed)
        again = np.float32(1) + back if formula == "1 + x" else -np.exp(back)
        assert np.array_equal(again.view(np.uint32), computed.view(np.uint32))
