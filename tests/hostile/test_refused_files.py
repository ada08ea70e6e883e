"""Files that once ended in another exception, never, or in gigabytes: each is refused by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, GraphmlError, TokenizerError, UsageError, WeightsError
from graphml.inspect.compare import archive
from graphml.loading.adapter_files import read_adapter
from graphml.loading.open_file import open_path
from graphml.runtime.store.block_files import MARK, BlockFiles
from graphml.system.read_files import guarded, plain_bytes, plain_json, plain_text
from graphml.weights import open_model
from graphml.weights.deferred import computed
from tests import adapter_files
from tests.folder_records import LLAMA3, about, write_folder
from tests.hostile.attacks import within_limits
from tests.hostile.targets import TARGETS
from tests.looped import looped
from tests.stories import STORIES

PART = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1e30}
DEEP = "[" * 100_000 + "]" * 100_000


def folder(path: Path, name: str, **changed: Any) -> Path:
    config, tensors, _ = about(name)
    return write_folder(path, config | changed, tensors)


@looped(
    "name, fields, wanted",
    [
        ("llama", {"hidden_size": 1 << 32, "rope_parameters": LLAMA3}, "hidden_size: wanted at most 512"),
        ("llama", {"head_dim": 1 << 40, "rope_parameters": LLAMA3}, "head_dim: wanted at most 512"),
        ("llama", {"num_hidden_layers": 1 << 30}, "num_hidden_layers: wanted at most 16384; got 1073741824"),
        ("llama", {"num_hidden_layers": 0}, "wanted a number from 1 up; got '0'"),
        ("llama", {"vocab_size": 1 << 22}, "vocab_size: wanted at most 512"),
        ("llama", {"partial_rotary_factor": 1e30, "rope_parameters": LLAMA3}, "the class rotates whole"),
        ("stablelm", {"rope_parameters": PART}, "a number from 0 to 1; got 1e"),
        ("llama", {"rope_parameters": LLAMA3 | {"factor": 0.0}}, "factor"),
        ("llama", {"rope_parameters": LLAMA3 | {"factor": 5e-324}}, "factor: wanted 0, or"),
        ("jamba", {"num_hidden_layers": 0, "layers_block_type": []}, "num_hidden_layers"),
    ],
)  # fmt: skip
def test_a_config_of_sizes_that_no_tensor_has(
    name: str, fields: dict[str, Any], wanted: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = folder(tmp_path_factory.mktemp("sizes"), name, **fields)
    tracemalloc.start()
    with within_limits(), pytest.raises(ArchitectureError) as refused:
        open_path(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path / "config.json") in str(refused.value)
    assert wanted in str(refused.value)
    assert peak < 50 << 20


def test_a_config_that_its_own_tensors_cannot_be_cut_by(tmp_path: Path) -> None:
    path = folder(tmp_path, "falcon", num_kv_heads=0, multi_query=False, new_decoder_architecture=True)
    with open_path(path) as file, pytest.raises(WeightsError, match=r"tensor 'blk.0.attn_qkv.*ZeroDivision"):
        computed(file)


@looped(
    "change",
    [{"added_tokens": [{"content": "x", "id": float("inf")}]},
     {"added_tokens": [{"content": ["x"], "id": 3}]}, {"added_tokens": [{"content": 5, "id": 3}]},
     {"added_tokens": [{"content": {}, "id": 3}]}, {"model": []}, {"model": {"vocab": {"a": 1 << 21}}},
     {"model": {"type": "Unigram", "vocab": [[["a"], 0.0]]}}],
)  # fmt: skip
def test_a_tokenizer_of_no_names_and_ids(
    change: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tokenizer")
    TARGETS["tokenizer.json"].write(path)
    whole = json.loads((path / "tokenizer.json").read_text()) | change
    (path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises((WeightsError, TokenizerError), match=r"tokenizer\.json: wanted"):
        open_path(path)


def test_an_index_of_names_that_are_too_long(tmp_path: Path) -> None:
    path = folder(tmp_path, "llama")
    (path / "model.safetensors").unlink()  # a whole file counts, whatever an index says
    named = {"weight_map": {"a": "x" * 5000 + ".safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(named))
    with pytest.raises(WeightsError, match=r"index\.json: cannot be read: File name too long"):
        open_path(path)


def test_a_mark_of_a_store_that_is_a_pipe_or_nested_deep(tmp_path: Path) -> None:
    mark = tmp_path / MARK
    os.mkfifo(mark)
    with within_limits(), pytest.raises(UsageError, match=rf"{MARK}: is damaged.*wanted a plain file"):
        BlockFiles(tmp_path, {}, {}, 1)
    mark.unlink()
    mark.write_text("[" * 900)
    with pytest.raises(UsageError, match=f"{MARK}: is damaged"):
        BlockFiles(tmp_path, {}, {}, 1)


def test_an_archive_that_numpy_does_not_write(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "run.npz"
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        archive.write(path, {}, {"a": np.ones(3, np.float32)})
        with zipfile.ZipFile(path) as held:
            members = {name: held.read(name) for name in held.namelist()}
        with zipfile.ZipFile(path, "w", method) as held:
            for name, content in members.items():
                held.writestr(name, content)
        with pytest.raises(UsageError, match=r"run\.npz: cannot be read as a record: .*in another way"):
            archive.read(path, "a record")


def test_an_adapter_whose_scale_overflows(tmp_path: Path) -> None:
    pairs = adapter_files.random_pairs({"blk.0.attn_q.weight": (64, 64)}, 4, 1)
    path = adapter_files.write_adapter(tmp_path / "a.gguf", {
        name: (np.full_like(a, 3e38), b) for name, (a, b) in pairs.items()
    }, alpha=3e38)  # fmt: skip
    with open_model(STORIES) as model, pytest.raises(WeightsError, match=r"a\.gguf: .*overflow"):
        read_adapter(path, model)


class TestTheGuard:
    def test_any_exception_becomes_the_kind_with_the_name_and_its_cause(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        for error in (KeyError("a"), OSError(36, "too long"), RuntimeError(), MemoryError(), EOFError("end")):
            with (
                pytest.raises(WeightsError, match=rf"^{path}: no: ") as caught,
                guarded(path, WeightsError, "no"),
            ):
                raise error
            assert caught.value.__cause__ is error
            assert type(error).__name__ in str(caught.value) or "too long" in str(caught.value)

    def test_an_error_of_graphml_keeps_its_kind_and_gets_the_name(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        for text, wanted in (("a: no", f"{path}: a: no"), (f"{path}: no", f"{path}: no"),
                             (f"{tmp_path / 'y'}: no", f"{tmp_path / 'y'}: no")):  # fmt: skip
            with pytest.raises(TokenizerError) as caught, guarded(path, WeightsError):
                raise TokenizerError(text)
            assert str(caught.value) == wanted
        with pytest.raises(UsageError, match=r"^pre: no$"), guarded(path, WeightsError):
            raise UsageError("pre: no")
        with pytest.raises(UsageError, match=f"^{path}: pre: no$"), guarded(path, UsageError):
            raise UsageError("pre: no")

    def test_a_long_reason_is_cut(self, tmp_path: Path) -> None:
        for error in (ValueError("x" * 9999), WeightsError("x" * 9999)):
            with pytest.raises(GraphmlError) as caught, guarded(tmp_path / "x", WeightsError):
                raise error
            assert len(str(caught.value)) < 2000

    def test_numpy_raises_within_and_warns_as_before_behind(self, tmp_path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # or pytest makes errors of them
            with pytest.raises(WeightsError, match="overflow"), guarded(tmp_path / "x", WeightsError):
                np.float32(3e38) * np.float32(3e38)
        assert np.geterr()["over"] == "warn"

    def test_interrupts_pass(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), guarded(tmp_path / "x", WeightsError):
            raise KeyboardInterrupt


class TestPlainFiles:
    def test_a_file_of_the_most_bytes_is_read_and_one_more_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"x" * (3 << 20))
        assert len(plain_bytes(path, UsageError, 3 << 20)) == 3 << 20
        with pytest.raises(UsageError, match=f"^{path}: cannot be read: it is larger than 2 MiB"):
            plain_bytes(path, UsageError, (3 << 20) - 1)

    def test_no_memory_is_taken_for_what_a_file_may_have(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x")
        tracemalloc.start()
        assert plain_bytes(tmp_path / "a", UsageError, 1 << 30) == b"x"
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20

    def test_what_is_no_plain_file_is_refused_at_once(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "zero").symlink_to("/dev/zero")
        for name in ("pipe", "loop", "zero", "nothing", "."):
            with within_limits(), pytest.raises(UsageError, match=str(tmp_path)):
                plain_bytes(tmp_path / name, UsageError)

    def test_a_pipe_of_the_shell_is_read(self) -> None:
        code = "import sys; from graphml.system.read_files import *; from graphml.errors import *\n" \
               "print(plain_text(Path(sys.argv[1]), UsageError), end='')"  # fmt: skip
        command = f"{sys.executable} -c \"$CODE\" <(printf 'abc\\r\\nd')"
        done = subprocess.run(["bash", "-c", command], env={**os.environ, "CODE": code},
                              capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
        assert (done.stdout, done.stderr) == ("abc\nd", "")

    def test_the_null_device_is_an_empty_file(self) -> None:
        assert plain_text(Path(os.devnull), UsageError) == ""

    def test_the_mark_that_windows_writes_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("[1]", encoding="utf-8-sig")
        assert plain_text(tmp_path / "a", UsageError) == "[1]"
        assert plain_json(tmp_path / "a", UsageError) == [1]

    def test_json_that_is_nested_deep_or_no_json(self, tmp_path: Path) -> None:
        for text in (DEEP, "{", '"\ud800"'.encode("utf-8", "surrogatepass"), "9" * 5000):
            (tmp_path / "a").write_bytes(text.encode() if isinstance(text, str) else text)
            with pytest.raises(UsageError, match="a: not mine: "):
                plain_json(tmp_path / "a", UsageError, what="not mine")


def test_a_model_of_hostile_metadata_is_refused_by_name(tmp_path: Path) -> None:
    from tests import tiny_model

    path = tiny_model.write(tmp_path / "m.gguf")
    with pytest.raises(GraphmlError, match=str(path)):
        graphml.load(path, override_kv={"llama.attention.head_count": 0})
