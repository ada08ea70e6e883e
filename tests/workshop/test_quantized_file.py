"""`graphml quantize`: the file that it writes, what it says, what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

import graphml
from graphml.authoring.gguf_file import write_tiny
from graphml.errors import UsageError
from graphml.loading.discovery import architecture
from graphml.weights import open_model
from graphml.weights.gguf_writing import TensorPlan, stored_values, writing_gguf
from graphml.weights.metadata import stored
from graphml.weights.model_file import ModelFile
from graphml.workshop.importance import Importance
from graphml.workshop.importance_file import write_importance
from graphml.workshop.quantized_file import WantedTypes, changes, write_quantized
from tests import tiny_model
from tests.cli.test_commands import graphml_command


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf")


def test_a_file_holds_what_the_encoders_make_of_each_matrix(path: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    name = "blk.0.ffn_down.weight"
    seen = Importance({name: rng.random((1, tiny_model.HIDDEN))}, {name: np.array([1])}, ("t",), 1)
    with open_model(path) as file:
        plan = changes(file, WantedTypes("Q4_0"), seen)
        write_quantized(file, plan, "Q4_0", tmp_path / "out.gguf", seen, "im.gguf", threads=2)
        with open_model(tmp_path / "out.gguf") as written:
            assert list(written.tensors) == list(file.tensors)
            for tensor in file.tensors.values():
                made_of_it = written.tensors[tensor.name]
                assert made_of_it.shape == tensor.shape
                if made_of_it.dtype == tensor.dtype:
                    assert (made_of_it.data == tensor.data).all()
                    continue
                weights = seen.of(name)[0] if tensor.name == name else None  # type: ignore[index]
                wanted = graphml.quantize(tensor.numpy(), made_of_it.dtype, weights)
                assert (np.asarray(made_of_it.data) == wanted.ravel()).all(), tensor.name
            assert {tensor.dtype for tensor in written.tensors.values()} == {"f32", "q4_0", "q8_0"}
            keys = {key: written.metadata[key] for key in written.metadata}
            assert keys["general.file_type"] == 2
            assert keys["quantize.imatrix.entries_count"] == 1
            before = {key: file.metadata[key] for key in file.metadata}
            assert {key: keys[key] for key in before if key not in ("general.file_type",)} == {
                key: value for key, value in before.items() if key != "general.file_type"
            }


def test_threads_and_pieces_do_not_matter(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(path) as file:
        plan = changes(file, WantedTypes("Q5_1"), None)
        write_quantized(file, plan, "Q5_1", tmp_path / "one.gguf", threads=1)
        monkeypatch.setattr("graphml.workshop.quantized_file.PIECE", 100)
        write_quantized(file, plan, "Q5_1", tmp_path / "many.gguf", threads=4)
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "many.gguf").read_bytes()


def test_experts_have_importance_of_their_own(tmp_path: Path) -> None:
    samples = architecture("qwen3moe").sample
    assert samples is not None
    write_tiny(tmp_path / "moe.gguf", "qwen3moe", samples("qwen3moe")[0])
    with open_model(tmp_path / "moe.gguf") as file:
        name = next(name for name in file.tensors if "ffn_gate_exps" in name)
        tensor = file.tensors[name]
        n_expert, _, columns = tensor.shape
        sums = np.random.default_rng(1).random((n_expert, columns)) ** 4
        seen = Importance({name: sums}, {name: np.ones(n_expert, np.int64)}, (), 1)
        plan = changes(file, WantedTypes("Q4_0", types=((name, "Q4_1"),)), seen)
        write_quantized(file, plan, "Q4_0", tmp_path / "out.gguf", seen)
        with open_model(tmp_path / "out.gguf") as written:
            data = np.asarray(written.tensors[name].data).reshape(n_expert, -1)
            for expert in range(n_expert):
                wanted = graphml.quantize(tensor.numpy()[expert], "Q4_1", sums[expert].astype(np.float32))
                assert (data[expert] == wanted.ravel()).all()
        seen.sums[name] = sums.reshape(1, -1).copy()  # as of the older form
        seen.counts[name] = np.ones(1, np.int64)
        seen.sums[name][:, columns : 2 * columns] = 0
        write_quantized(file, plan, "Q4_0", tmp_path / "out.gguf", seen)
        with open_model(tmp_path / "out.gguf") as written:
            data = np.asarray(written.tensors[name].data).reshape(n_expert, -1)
            wanted = graphml.quantize(tensor.numpy()[1], "Q4_1", np.ones(columns, np.float32))
            assert (data[1] == wanted.ravel()).all()
        seen.counts[name] = np.ones(n_expert, np.int64)
        seen.sums[name] = sums[:, :-1]
        with pytest.raises(
            UsageError, match=f"{name}: wanted {n_expert} x {columns} numbers; got .* another"
        ):
            changes(file, WantedTypes("Q4_0"), seen)


def test_what_is_asked_for_by_name_comes_first(path: Path) -> None:
    with open_model(path) as file:
        wanted = WantedTypes(
            "Q8_0", types=(("blk.1.*weight", "q5_1"), ("ffn_down", "Q4_0"), ("ffn_down", "F16"))
        )
        types = {change.tensor.name: change.dtype for change in changes(file, wanted, None)}
        assert types["blk.1.ffn_down.weight"] == types["blk.1.attn_q.weight"] == "q5_1"
        assert types["blk.0.ffn_down.weight"] == "q4_0"
        assert types["blk.0.attn_q.weight"] == "q8_0"
        assert types["blk.1.attn_norm.weight"] == "f32"
        pure = {
            change.tensor.name: change for change in changes(file, WantedTypes("Q4_K_M", pure=True), None)
        }
        assert pure["blk.0.ffn_down.weight"].dtype == "q5_0"  # 64 columns are no whole blocks of 256
        assert "no whole blocks of 256" in pure["blk.0.ffn_down.weight"].reason
        left = {c.tensor.name: c.dtype for c in changes(file, WantedTypes("Q8_0", keep_output=True), None)}
        assert left.get("output.weight", "f32") == "f32"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (WantedTypes("Q4_X"), "--type: wanted one of F32, F16"),
        (
            WantedTypes("Q4_0", types=(("ffn_up", "Q4_X"),)),
            "--tensor-type ffn_up=Q4_X: wanted one of",
        ),
        (WantedTypes("Q4_0", types=(("ffn_upp", "Q4_0"),)), "--tensor-type ffn_upp: no matrix"),
        (
            WantedTypes("Q4_0", types=(("ffn_up(", "Q4_0"),)),
            r"--tensor-type ffn_up\(: is no regular",
        ),
        (
            WantedTypes("Q4_0", types=(("attn_norm", "Q4_0"),)),
            "--tensor-type attn_norm: no matrix",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(path: Path, wanted: WantedTypes, says: str) -> None:
    with open_model(path) as file, pytest.raises(UsageError, match=says):
        changes(file, wanted, None)


def test_the_command(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    said = graphml_command("quantize", path, output, "q8_0").stdout
    assert said.startswith(f"{output}: ")
    assert "Q8_0" in said
    assert graphml_command("run", output, "hello", "-n", 2, "--backend", "reference").stdout
    for arguments, says in (
        ([path, output, "Q4_0"], "--force overwrites it"),
        ([output, tmp_path / "x.gguf", "Q4_0"], "is Q8_0 already, and loses twice"),
        ([path, path, "Q4_0", "--force"], "is the model itself"),
        ([path, "Q4_0"], "wanted MODEL OUTPUT TYPE; got"),
        ([path, tmp_path / "x.gguf", "Q9"], "graphml: TYPE: wanted one of F32, F16, "),
        ([path, "--auto", "--target-bits", 5, "-f", __file__], f"wanted MODEL OUTPUT; got '{path}'"),
        ([path, tmp_path / "x.gguf", "Q4_0", "--tensor-type", "ffn"], "wanted REGEX=TYPE"),
        ([tmp_path, tmp_path / "x.gguf", "Q4_0"], "wanted a model file, a folder"),
    ):
        failed = graphml_command("quantize", *arguments, code=2)
        assert says in failed.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.gguf", "tiny.gguf"]
    dry = json.loads(graphml_command("quantize", path, "Q4_K_M", "--dry-run", "--json").stdout)
    assert {row["type"] for row in dry["tensors"]} == {"f32", "q5_0", "q8_0", "q5_1"} & {
        row["type"] for row in dry["tensors"]
    }
    assert sum(row["bytes"] for row in dry["tensors"]) == dry["bytes"] < dry["bytes_before"]
    other = Importance({"blk.0.ffn_down.weight": np.ones((1, 7))}, {"blk.0.ffn_down.weight": np.array([1])})
    write_importance(tmp_path / "other.gguf", other)
    failed = graphml_command(
        "quantize", path, tmp_path / "x.gguf", "Q4_0", "--imatrix", tmp_path / "other.gguf", code=2
    )
    assert "It is of another model" in failed.stderr


def test_a_split_model_stays_split(path: Path, tmp_path: Path) -> None:
    with open_model(path) as file:
        names = list(file.tensors)
        halves = (names[: len(names) // 2], names[len(names) // 2 :])
        for number, half in enumerate(halves):
            values = stored_values(file.metadata) if number == 0 else {}
            values |= {
                "split.no": stored(number, "u16"), "split.count": stored(2, "u16"),
                "split.tensors.count": stored(len(names), "i32"),
            }  # fmt: skip
            plans = [TensorPlan(name, file.tensors[name].dtype, file.tensors[name].shape) for name in half]
            with writing_gguf(tmp_path / f"s-0000{number + 1}-of-00002.gguf", values, plans) as part:
                for name in half:
                    part.add([np.asarray(file.tensors[name].data)])
    split = tmp_path / "s-00001-of-00002.gguf"
    said = graphml_command("quantize", split, tmp_path / "q.gguf", "Q8_0", "--keep-split").stdout
    assert "2 parts" in said
    again = graphml_command("quantize", split, tmp_path / "q.gguf", "Q8_0", "--keep-split", code=2).stderr
    assert "q-00001-of-00002.gguf is there already" in again
    graphml_command("quantize", split, tmp_path / "whole.gguf", "Q8_0")
    with (
        open_model(tmp_path / "q-00001-of-00002.gguf") as parts,
        open_model(tmp_path / "whole.gguf") as whole,
    ):
        assert len(parts.paths) == 2
        assert not whole.metadata.has("split.count")
        assert list(parts.tensors) == list(whole.tensors)
        for name, tensor in whole.tensors.items():
            assert (parts.tensors[name].data == tensor.data).all()


def test_writing_says_what_is_missing(tmp_path: Path) -> None:
    plans = [TensorPlan("a", "f32", (2, 3)), TensorPlan("b", "q8_0", (32,))]

    def write(*pieces: list[bytes]) -> None:
        with writing_gguf(tmp_path / "out.gguf", {}, plans) as file:
            for piece in pieces:
                file.add(piece)

    for pieces, says in (
        ([[bytes(24)]], "b: its data was not written"),
        ([[bytes(20)], [bytes(34)]], "a: wanted 24 bytes of data; got 20"),
    ):
        with pytest.raises(graphml.WeightsError, match=says):
            write(*pieces)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"nowhere/out.gguf: cannot be written"):
        writing_gguf(tmp_path / "nowhere" / "out.gguf", {}, plans).__enter__()


def test_all_kinds_of_values_are_read_again(tmp_path: Path) -> None:
    values = {
        "general.architecture": stored("x"), "b": stored(True), "u8": stored(200, "u8"),
        "i16": stored(-3, "i16"), "f32": stored(0.5, "f32"), "u64": stored(1 << 60, "u64"),
        "texts": stored(["é", ""]),
        "numbers": stored([1, 2], "i32"), "flags": stored([True, False]),
        "none": stored([], "f32"),
        "general.alignment": stored(64, "u32"),
    }  # fmt: skip
    with writing_gguf(tmp_path / "out.gguf", values, [TensorPlan("a", "q8_0", (2, 32))]) as file:
        file.add([bytes(range(34)), bytes(range(34))])
    with open_model(tmp_path / "out.gguf") as read:
        assert {key: read.metadata[key] for key in read.metadata} == {
            key: value.read(None) for key, value in values.items() if key != "general.alignment"
        }
        assert read.tensors["a"].data.tolist() == [*range(34), *range(34)]
    tensors = gguf.GGUFReader(tmp_path / "out.gguf").tensors
    assert [(str(tensor.name), tensor.shape.tolist()) for tensor in tensors] == [("a", [32, 2])]


def test_parts_get_their_names_when_all_are_whole(path: Path, tmp_path: Path) -> None:
    with open_model(path) as file:
        plan = changes(file, WantedTypes("Q8_0"), None)
        broken = dataclasses.replace(plan[-1].tensor, data=plan[-1].tensor.data[:-4])
        parts = [plan[:3], [*plan[3:-1], dataclasses.replace(plan[-1], tensor=broken)]]
        with pytest.raises(graphml.WeightsError, match=r"bytes|data"):
            write_quantized(file, plan, "Q8_0", tmp_path / "q.gguf", parts=parts)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_factor_of_nvfp4_is_not_left_without_its_type(path: Path, tmp_path: Path) -> None:
    name = "blk.0.ffn_down.weight"
    with open_model(path) as file:
        tensors = dict(file.tensors)
        blocks = graphml.quantize(tensors[name].numpy(), "NVFP4")
        tensors[name] = dataclasses.replace(tensors[name], dtype="nvfp4", data=blocks.ravel())
        scale = np.ones(1, np.float32).view(np.uint8)
        tensors["blk.0.ffn_down.scale"] = dataclasses.replace(
            tensors[name], name="blk.0.ffn_down.scale", dtype="f32", shape=(1,), data=scale
        )
        other = ModelFile(path, file.metadata, tensors, [])
        with pytest.raises(UsageError, match=r"ffn_down.weight: blk.0.ffn_down.scale is its factor"):
            changes(other, WantedTypes("Q8_0", requantise=True), None)


def test_a_type_that_rows_do_not_fit_is_said(path: Path, tmp_path: Path) -> None:
    """The tiny model's rows have 32 or 64 columns; K types have blocks of 256."""
    with open_model(path) as file:
        wanted = WantedTypes("Q8_0", types=(("blk.0.ffn_down", "Q6_K"), ("blk.1.ffn_down", "Q5_0")))
        plan = {change.tensor.name: change for change in changes(file, wanted, None)}
        mixed = {change.tensor.name: change for change in changes(file, WantedTypes("Q4_0"), None)}
    said = {name: (change.dtype, change.reason) for name, change in plan.items() if "ffn_down" in name}
    assert said == {
        "blk.0.ffn_down.weight": ("q8_0", "rows of 64 are no whole blocks of 256, as of Q6_K"),
        "blk.1.ffn_down.weight": ("q5_0", "as asked for"),
    }
    output = mixed["output.weight"]
    assert (output.dtype, output.reason) == ("q8_0", "rows of 32 are no whole blocks of 256, as of Q6_K")
    assert mixed["blk.0.ffn_up.weight"].reason == ""
    done = graphml_command("quantize", path, tmp_path / "a.gguf", "Q8_0", "--tensor-type", "ffn_up=Q4_K")
    assert "2 Q5_0: rows of 32 are no whole blocks of 256, as of Q4_K" in done.stdout


def test_an_output_matrix_that_the_model_lacks_is_not_left(path: Path, tmp_path: Path) -> None:
    """Its embedding, which is quantised as in llama-quantize, is the output matrix too: that is said."""
    with open_model(path) as file:
        keys = stored_values(file.metadata)
        tensors = {name: tensor for name, tensor in file.tensors.items() if name != "output.weight"}
        plans = [TensorPlan(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        with writing_gguf(tmp_path / "tied.gguf", keys, plans) as written:
            for tensor in tensors.values():
                written.add([tensor.data])
    option = "--leave-output-tensor"
    said = graphml_command("quantize", tmp_path / "tied.gguf", tmp_path / "a.gguf", "Q8_0", option).stderr
    assert f"{option}: the model has no output.weight: token_embd.weight, " in said
    assert "--tensor-type token_embd=F32 keeps it" in said
    assert "token_embd" not in graphml_command("quantize", path, tmp_path / "b.gguf", "Q8_0", option).stderr
    with open_model(tmp_path / "a.gguf") as file:
        assert file.tensors["token_embd.weight"].dtype == "q8_0"


def test_importance_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    own, other = "blk.0.ffn_down.weight", "blk.9.ffn_down.weight"

    def write(*names: str) -> Path:
        sums = {name: np.ones((1, tiny_model.HIDDEN)) for name in names}
        write_importance(tmp_path / "seen.gguf", Importance(sums, {name: np.array([1]) for name in names}))
        return tmp_path / "seen.gguf"

    common = ["quantize", path, tmp_path / "out.gguf", "Q4_0", "--imatrix"]
    failed = graphml_command(*common, write(other), code=2).stderr
    assert "--imatrix: has none of the model's matrices: it is of another model" in failed
    assert not (tmp_path / "out.gguf").exists()
    done = graphml_command(*common, write(own, other))
    assert f"importance of matrices that the model does not have: {other}" in done.stdout
    seen = write(own)
    for read in (path, seen):
        before = read.read_bytes()
        failed = graphml_command("quantize", path, read, "Q4_0", "--imatrix", seen, "--force", code=2).stderr
        assert "wanted another name" in failed
        assert read.read_bytes() == before


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    with writing_gguf(tmp_path / "words.gguf", {"general.architecture": stored("llama")}, []):
        pass
    for words in ([tmp_path / "out.gguf", "Q4_0"], ["Q4_0", "--dry-run"]):
        failed = graphml_command("quantize", tmp_path / "words.gguf", *words, code=2).stderr
        assert "wanted a GGUF file of a model; it has no tensors" in failed
    plans = [TensorPlan("a.weight", "f32", (2, 32))]  # as of an adapter
    with writing_gguf(tmp_path / "a.gguf", {"general.architecture": stored("llama")}, plans) as file:
        file.add([bytes(256)])
    failed = graphml_command("quantize", tmp_path / "a.gguf", "Q4_0", "--dry-run", code=2).stderr
    assert f"{tmp_path / 'a.gguf'}: llama.block_count: wanted a whole number; got None" in failed


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("F16", 65520.0),
        ("F16", np.nan),
        ("BF16", np.finfo(np.float32).max),
        ("BF16", np.inf),
        ("Q8_0", np.nan),
    ],
)
def test_numbers_that_a_type_does_not_have_are_refused(
    dtype: str, number: float, path: Path, tmp_path: Path
) -> None:
    with open_model(path) as file:
        name = "blk.0.ffn_down.weight"
        values = file.tensors[name].numpy().copy()
        values[3, 5] = -number
        data = values.astype("<f4").view(np.uint8).reshape(-1)
        tensors = {**file.tensors, name: dataclasses.replace(file.tensors[name], data=data)}
        changed = file.with_tensors(tensors)
        plan = changes(changed, WantedTypes(dtype, requantise=True), None)
        with pytest.raises(graphml.WeightsError, match=rf"{name}: {dtype} wants finite values"):
            write_quantized(changed, plan, dtype, tmp_path / "out.gguf")
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_an_error_names_the_output_of_convert(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the folder beside it, in which files wait to be compared."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphml.weights.gguf_writing._head", full)
    output = path.parent / "out.gguf"
    failed = graphml_command("convert", path, "-o", output, "--backend", "reference", code=2).stderr
    assert failed == f"graphml: {output}: cannot be written: No space left on device\n"
