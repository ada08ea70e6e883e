"""`graphml verify` as a user runs it: records of other programs, goldens, and what is no record.

`tests/data/records` holds what llama.cpp (llama-cpp-python 0.3.36) and transformers 5.23.0 computed for the
sample of qwen3, each recorded with `graphml verify --record`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import graphml_models.qwen3
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from graphml.authoring.verify import record as records
from graphml.authoring.verify import search
from graphml.cli.main import app
from tests import golden
from tests.authoring.planted_models import HERE
from tests.authoring.planted_models import write_model as write_planted
from tests.sample_models import MODELS, write_model

RECORDS = Path(__file__).parents[1] / "data" / "records"
# Llama's attention in place of qwen3's: two mistakes, the norms of heads and the order of rope.
BOTH = """from graphml_models import llama
from graphml_models._config import Config


def build(g, config, weights):
    return llama.build(g, config, weights)
"""


def command(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["verify", *[str(one) for one in arguments]])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # else it would look like exit code 1
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("verify") / "qwen3.gguf", *MODELS["qwen3-plain"])


@pytest.mark.parametrize("by", ["llama.cpp", "hf"])
def test_against_what_another_program_recorded(by: str, model: Path) -> None:
    done = command(model, "--against", RECORDS / f"qwen3-plain-{by}.npz")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# qwen3.gguf (qwen3) against ")
    parts = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:]
    assert parts == ["embedding", "layer 0", "layer 1", "output"]
    assert "every part agrees" in lines[-1]


def test_without_a_reference_the_error_says_what_can_be_typed(model: Path) -> None:
    said = command(model, code=2).stderr
    for typed in ("`--against llama.cpp`", "`--against hf:CHECKPOINT`", "`--against FILE.npz`"):
        assert typed in said


@pytest.mark.parametrize("by", ["llama.cpp", "hf"])
def test_what_is_wrong_is_told_with_its_cause(by: str, model: Path, tmp_path: Path) -> None:
    arch = tmp_path / "mine.py"
    arch.write_text(BOTH)
    record = RECORDS / f"qwen3-plain-{by}.npz"
    done = command(model, "--against", record, "--arch", arch, "--format", "json", code=1)
    found = json.loads(done.stdout)
    assert (found["agrees"], found["first_wrong"], found["architecture"]) == (False, "layer 0", "mine")
    assert found["unused_tensors"][0] == "blk.0.attn_k_norm.weight"
    source = Path(graphml_models.qwen3.__file__).read_text()
    built, wrong = "partial(_windows.attention, norm", 'partial(llama.attention, mode="norm", norm'
    assert built in source
    arch.write_text(source.replace(built, wrong))
    told = command(model, "--against", record, "--arch", arch, code=1).stdout
    assert "first wrong: layer 0, at input of attn_output" in told
    assert "likely cause: rope-order" in told
    assert "mode 'norm' -> 'neox': layer 0 goes from " in told


def test_a_golden_has_logits_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PAIRS_S", 1.0)  # no pair of mistakes turns a tensor's sign
    one = golden.read("llama-dense")
    path = golden.build(one, tmp_path / "m.gguf")
    for name in ("llama-dense.npz", "llama-dense.json"):
        done = command(path, "--against", golden.FOLDER / name)
        assert "| model |" in done.stdout
    poisoned = golden.poisoned(one, path, "blk.1.attn_output.weight", tmp_path / "p.gguf")
    told = command(poisoned, "--against", golden.FOLDER / "llama-dense.npz", code=1).stdout
    assert "first wrong: model" in told


def test_a_model_can_be_recorded_and_is_held_against_that(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    assert command(model, "--record", path, "--tokens", 5).stdout == ""
    record = records.read(path)
    assert (len(record.ids), record.logits.shape) == (5, (5, 80))
    assert {"stream.0", "stream.2", "blk.1.ffn_down.in", "blk.1.ffn_down.out"} <= set(record.values)
    assert "every part agrees" in command(model, "--against", path).stdout
    values = {**record.values, "blk.1.ffn_up.out": record.values["blk.1.ffn_up.out"] * 1.5}
    values["stream.2"] = record.values["stream.2"] + 1
    records.save(records.PeerRecord("a liar", record.ids, record.logits, values), path)
    told = command(model, "--against", path, code=1).stdout
    assert "first wrong: layer 1, at ffn_up" in told
    assert "no mistake of the catalogue explains it" in told


def broken_ids(header: dict[str, object], arrays: dict[str, object]) -> None:
    header["ids"] = [1, -4]


def short(header: dict[str, object], arrays: dict[str, object]) -> None:
    arrays["stream.0"] = np.zeros((1, 64), np.float32)


def no_logits(header: dict[str, object], arrays: dict[str, object]) -> None:
    del arrays["logits"]


def whole_numbers(header: dict[str, object], arrays: dict[str, object]) -> None:
    arrays["logits"] = np.zeros((2, 80), np.int32)


def other(header: dict[str, object], arrays: dict[str, object]) -> None:
    header["format"] = "another"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (broken_ids, "wanted a list of 1 to 65536 token ids; got [1, -4]"),
        (short, "stream.0: wanted floats [2, n], a row for each token; got float32[1, 64]"),
        (no_logits, "logits: wanted floats [2, n], a row for each token; got nothing"),
        (whole_numbers, "logits: wanted floats [2, n], a row for each token; got int32[2, 80]"),
        (other, "wanted the format graphml-record-1"),
    ],
)
def test_a_damaged_record_is_an_error(
    change: Callable[[dict[str, object], dict[str, object]], None], text: str, model: Path, tmp_path: Path
) -> None:
    header: dict[str, object] = {"format": records.FORMAT, "by": "x", "ids": [1, 2]}
    arrays: dict[str, object] = {"logits": np.zeros((2, 80), np.float32)}
    change(header, arrays)
    held = {**arrays, "header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    np.savez(tmp_path / "r.npz", **held)  # type: ignore[arg-type]
    done = command(model, "--against", tmp_path / "r.npz", code=2)
    assert text in done.stderr


def test_what_cannot_be_held_against_is_an_error(model: Path, tmp_path: Path) -> None:
    assert "`--against hf:CHECKPOINT`" in command(model, code=2).stderr
    assert "wanted hf, llama.cpp or a file" in command(model, "--against", "vllm", code=2).stderr
    np.savez(tmp_path / "alone.npz", logits=np.zeros((2, 80), np.float32))
    told = command(model, "--against", tmp_path / "alone.npz", code=2).stderr
    assert "alone.json beside it" in told
    (tmp_path / "text.npz").write_text("no zip")
    assert "cannot be read as a record" in command(model, "--against", tmp_path / "text.npz", code=2).stderr
    record = RECORDS / "qwen3-plain-hf.npz"
    small = write_model(tmp_path / "m.gguf", *MODELS["llama-plain"])
    assert "every part" not in command(small, "--against", record, code=1).stdout


@pytest.mark.parametrize(
    ("by", "package", "wanted"),
    [
        ("llama.cpp", "llama_cpp", "llama-cpp-python is not installed"),
        ("hf", "torch", "torch and transformers"),
    ],
)
def test_a_missing_peer_is_named(by: str, package: str, wanted: str, model: Path) -> None:
    if importlib.util.find_spec(package) is None:
        assert wanted in command(model, "--against", by, code=1).stderr
    told = command(model, "--against", by, "--python", "/no/python", code=2).stderr
    assert "/no/python cannot be started" in told


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs llama-cpp-python")
def test_against_llama_cpp_itself(model: Path) -> None:
    assert "every part agrees" in command(model, "--against", "llama.cpp").stdout


def test_a_text_crosses_the_windows_of_a_model_or_they_are_named(tmp_path: Path) -> None:
    """In a text that no window leaves, a window off by one and none at all are the same."""
    model = write_planted(tmp_path / "gated.gguf", "gated", **{"attention.sliding_window": 20})
    arch = ("--arch", HERE / "gated.py")
    command(model, *arch, "--record", tmp_path / "long.npz")
    command(model, *arch, "--record", tmp_path / "short.npz", "--tokens", 16)
    long, short = (records.read(tmp_path / f"{name}.npz") for name in ("long", "short"))
    assert (len(long.ids), len(short.ids)) == (25, 16)
    told = command(model, *arch, "--against", tmp_path / "short.npz").stdout
    assert (
        "not looked at: windows or chunks of 20 tokens, which a text of 16 does not leave; --tokens 25 does"
        in told
    )
    assert "not looked at" not in command(model, *arch, "--against", tmp_path / "long.npz").stdout
    found = json.loads(command(model, *arch, "--against", tmp_path / "short.npz", "--format", "json").stdout)
    assert (found["agrees"], found["unreached_windows"], found["outliers"]) == (True, [20], [])


def test_a_part_that_agrees_far_worse_than_the_others_is_named(tmp_path: Path) -> None:
    """Another form of GELU or another eps, say, may keep the limit of float32."""
    model = write_planted(tmp_path / "plain.gguf", "plain")
    text = (HERE / "plain.py").read_text()
    other = tmp_path / "plain.py"
    other.write_text(text.replace('"ffn_down")\n', '"ffn_down")\n        h_TD = g.scale(h_TD, 1.0002)\n'))
    command(model, "--arch", HERE / "plain.py", "--record", tmp_path / "run.npz")
    exact = command(model, "--arch", HERE / "plain.py", "--against", tmp_path / "run.npz", "--limit", 1e-6)
    assert "more than rounding" not in exact.stdout
    told = command(model, "--arch", other, "--against", tmp_path / "run.npz", "--limit", 1e-6).stdout
    assert "every part agrees" in told
    assert "more than rounding does" in told
    assert "layer 0 (" in told


def test_a_module_that_is_not_there_is_named(model: Path) -> None:
    for against in ("module", "module:", "module:nowhere.py:make"):
        told = command(model, "--against", against, code=2).stderr
        assert f"wanted module:FILE.py:factory, a file that is there; got '{against}'" in told
