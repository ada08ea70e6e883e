"""Ops of one's own in a model: every command knows them, and what was kept before a change is not reused."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.cli.terminal import machine
from graphml.errors import GraphError, UsageError
from graphml.ir import op_table
from graphml.loading import own_ops
from tests import tiny_model

ROTATED = Path(__file__).with_name("rotated.py")
PLANTED = (
    "out[row, i], out[row, i + step] = a + b, a - b",
    "out[row, i], out[row, i + step] = a + b, a - b * 1.01",
)
PROMPT = "hello world hello"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 20)


def command(*given: object, code: int = 0) -> str:
    found = CliRunner().invoke(app, list(map(str, given)))
    assert found.exit_code == code, (found.output, found.exception)
    return found.output


def logits(path: Path, **options: str) -> np.ndarray:
    with graphml.load(path, **options) as model:
        session = model.session()
        return np.array(session.eval(model.tokenizer.encode(PROMPT)))


def test_fused_is_unfused_is_the_model_without_rotation(model_path: Path) -> None:
    plain = logits(model_path)
    fused = logits(model_path, arch=str(ROTATED))
    apart = logits(model_path, arch=str(ROTATED), fuse="-swiglu_hadamard")
    in_numpy = logits(model_path, arch=str(ROTATED), backend="reference")
    for other in (apart, in_numpy, plain):
        np.testing.assert_allclose(fused, other, rtol=1e-3, atol=1e-4)
    assert not np.array_equal(fused, plain)


def test_explain_names_kernel_fusion_and_declaration(model_path: Path) -> None:
    here = ("--arch", ROTATED, "--node")
    told = command("explain", model_path, *here, "layers.1.rotated")
    assert "fusion swiglu_hadamard      took layers.1.rotated, layers.1.mul, layers.1.silu" in told
    assert "calls                       swiglu_hadamard" in told
    told = command("explain", model_path, *here, "layers.1.back")
    assert "x H / sqrt(n) over the last dimension" in told
    assert "arXiv:2404.00456; declared at rotated.py:" in told
    kernel = op_table.own_op("hadamard").kernels.pop("cpu")  # type: ignore[union-attr]
    told = command("explain", model_path, *here, "layers.1.back")
    op_table.own_op("hadamard").kernels["cpu"] = kernel  # type: ignore[union-attr]
    assert "placed on                   numpy: no kernel for hadamard" in told


def test_dumps_are_read_where_the_op_is_known(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text(command("graph", model_path, "--arch", ROTATED, "--format", "json"))
    nodes = json.loads(dump.read_text())["passes"][0]["nodes"]
    (back,) = (one for one in nodes if one["name"] == "layers.0.back")
    assert (back["op"], back["family"]) == ("hadamard", "own")
    assert "declared at rotated.py" in back["declared"]
    names = [name for name in op_table.own_ops() if "hadamard" in name]
    op_table.forget(*names)
    told = command("diff", dump, dump, code=2)
    assert "; GRAPHML_OPS names files that declare ops" in " ".join(told.split())
    monkeypatch.setenv("GRAPHML_OPS", str(ROTATED))
    command("diff", dump, dump)


def test_bisect_finds_a_planted_kernel_and_its_repro_runs_alone(model_path: Path, tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(ROTATED.read_text().replace(*PLANTED))
    to = ("--repro", tmp_path / "repro")
    told = command("bisect", model_path, "--arch", planted, "-p", PROMPT, *to, code=1)
    assert "layers.0.rotated" in told
    assert "x hadamard (kernel)" in told
    alone = subprocess.run(
        [sys.executable, tmp_path / "repro" / "repro.py"], capture_output=True, text=True, check=False
    )
    assert alone.returncode == 1, alone.stderr
    assert "cpu against reference: NMSE" in alone.stdout


def test_a_report_has_the_file_that_declares_the_op(model_path: Path, tmp_path: Path) -> None:
    command("report", model_path, "--arch", ROTATED, "-o", tmp_path / "report.zip")
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        assert archive.read("ops/rotated.py") == ROTATED.read_bytes()
        assert "errors.txt" not in archive.namelist()


def test_a_profile_has_it(model_path: Path) -> None:
    assert "own (hadamard)" in command("profile", model_path, "--arch", ROTATED, "-p", 8, "-n", 2)


def test_a_session_saved_with_another_definition_is_refused(model_path: Path, tmp_path: Path) -> None:
    file, saved = tmp_path / "mine.py", tmp_path / "session.bin"
    file.write_text(ROTATED.read_text())
    with graphml.load(model_path, arch=str(file)) as model:
        session = model.session()
        session.eval(model.tokenizer.encode(PROMPT))
        session.save(saved)
        model.restore(saved)
    op_table.forget(*op_table.own_ops())
    file.write_text(ROTATED.read_text().replace("y / np.sqrt(n)", "y / np.sqrt(n + 0)"))
    with (
        graphml.load(model_path, arch=str(file)) as model,
        pytest.raises(UsageError, match="saved with another definition of the architecture or of its ops"),
    ):
        model.restore(saved)


# --- test-op


def test_test_op_prints_a_table_and_json() -> None:
    told = command("test-op", ROTATED, "--backend", "cpu,numba")
    assert "| swiglu_hadamard | numba   | kernel  |" in told
    assert "0 failed" in told
    found = json.loads(command("test-op", ROTATED, "--op", "hada*", "--backend", "cpu", "-o", "json"))
    (result,) = found["results"]
    assert (result["op"], result["how"], result["failed"]) == ("hadamard", "kernel", [])
    assert [one["tokens"] for one in result["timings"]] == [1, 512]
    assert result["timings"][1]["bytes_per_s"] > 0


def test_test_op_fails_where_one_is_wrong(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(ROTATED.read_text().replace(*PLANTED))
    told = command("test-op", planted, "--backend", "cpu", code=1)
    assert "FAIL cpu hadamard/1: hadamard(f32[T<=5, 2]), T=5 of at most 5: result_0: NMSE" in told


def test_test_op_refuses_what_it_cannot_test(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    for given, said in (
        ((empty,), "declares and imports no op like '*'"),
        ((ROTATED, "--op", "softmax"), "declares and imports no op like 'softmax'"),
        ((tmp_path / "none.py",), "no such file"),
        ((ROTATED, "-o", "xml"), "--output: wanted one of table, json"),
        ((ROTATED, "--backend", "none"), "no backend 'none' is installed"),
    ):
        assert said in " ".join(command("test-op", *given, code=2).split())


def test_test_op_refuses_a_kernel_for_a_backend_that_is_not_installed(tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped.py"
    mistyped.write_text(ROTATED.read_text().replace('hadamard.kernel("cpu"', 'hadamard.kernel("cpuu"'))
    told = " ".join(command("test-op", mistyped, "--backend", "cpu", code=1).split())
    assert "op 'hadamard' (" in told
    assert "its kernel is for 'cpuu'; wanted one of the installed: cpu, " in told
    assert "Did you mean 'cpu'" in told


# --- entry points


class _Entry:
    def __init__(self, error: Exception) -> None:
        self.name, self.value, self._error = "mine", "my_package.ops", error

    def load(self) -> None:
        raise self._error


def test_an_installed_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own_ops._load_installed.cache_clear()
    monkeypatch.setattr(own_ops, "installed", lambda group: (_Entry(ImportError("no torch")),))
    with pytest.raises(GraphError, match=r"entry point 'mine' of graphml.ops: wanted a module .* no torch"):
        own_ops.load_own_ops()
    monkeypatch.setattr(own_ops, "installed", lambda group: (_Entry(GraphError("op 'f' is declared twice")),))
    with pytest.raises(
        GraphError, match=r"'mine' of graphml.ops \(my_package.ops\): op 'f' is declared twice"
    ):
        own_ops.load_own_ops()
    monkeypatch.undo()
    own_ops.load_own_ops()
