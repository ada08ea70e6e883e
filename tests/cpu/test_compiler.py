"""The kernel compiler: parameter blocks, errors, and the cache on disk."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import graphml_quant
import numpy as np
import pytest
from graphml_cpu import compiler, kernel_cache, kernel_compilation, machine_code, target
from graphml_cpu.compiler import KernelRef, compile_kernels
from graphml_cpu.llvm_modules import module_texts

from graphml.errors import BackendError
from tests.looped import looped

MODULE = "cpu_sample_kernels"
ABSOLUTE = KernelRef("absolute", MODULE, "make_unary", ("absolute",))
SQUARE = KernelRef("sqr", "graphml_cpu.kernels.elementwise.operations", "make_unary", ("sqr",))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder and a process that has nothing loaded."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "_loaded", {})
    monkeypatch.setattr(machine_code, "_loaded", {})
    return tmp_path


def run_absolute(found: compiler.LoadedKernel) -> None:
    x = np.linspace(-1, 1, 37, dtype=np.float32)
    out = np.zeros_like(x)
    found(found.block(x=x.ctypes.data, out=out.ctypes.data, n=37))
    np.testing.assert_array_equal(out, np.abs(x))


def test_every_kind_of_slot() -> None:
    found = compile_kernels([KernelRef("slots", MODULE, "make_slots")])["slots"]
    kinds = dict(found.parameters)
    assert kinds == {
        "out": "address",
        "number": "int",
        "factor": "float",
        "rows": "dim",
        "state": "run_address",
    }
    out, rows, state = np.zeros(6, np.int64), np.array([12]), np.array([1234567890123])
    addresses = {"out": out.ctypes.data, "rows": rows.ctypes.data, "state": state.ctypes.data}
    block = found.block(number=-5, factor=0.1, **addresses)
    found(block, 3, 7)
    assert list(out[[0, 1, 2, 4, 5]]) == [3, 7, -5, 12, 1234567890123]
    assert out[3:4].view(np.float32)[0] == np.float32(0.1)
    rows[0], state[0] = 13, 99
    found(block, 3, 7)
    assert list(out[4:]) == [13, 99]


def test_a_type_that_widens_later_reaches_what_was_typed_before(fresh: Path) -> None:
    found = compile_kernels([KernelRef("widening", MODULE, "make_widening")])["widening"]
    out = np.zeros(1, np.float32)
    found(found.block(out=out.ctypes.data, n=3))
    assert out[0] == 1.5


@looped(
    ("a", "b", "step"), [(0, 10, 3), (2, 9, 1), (3, 3, 1), (-7, 4, 5), (5, -3, 4), (5, -3, -2), (9, 0, -3)]
)
def test_loops_are_those_of_python(a: int, b: int, step: int) -> None:
    wanted = list(range(b))
    for i in range(a, b):
        if i != 4:
            wanted += [i * 1000 + j for j in range(i, b, 3) if j <= 7]
    wanted += range(a, b, step)
    wanted += [i - j for i in range(a, b, 2) for j in range(a, b, 2)]
    wanted += range(b, a, -2)
    wanted.append([-1, *range(a, b, 5)][-1])
    found = compile_kernels([KernelRef("loops", MODULE, "make_loops")])["loops"]
    out, count = np.full(300, 77, np.int64), np.zeros(1, np.int64)
    found(found.block(out=out.ctypes.data, count=count.ctypes.data, a=a, b=b, step=step))
    assert out[: count[0]].tolist() == wanted
    assert (out[count[0] :] == 77).all()


def test_a_loop_is_a_comparison_and_an_addition() -> None:
    """What a name means where control flow joins is a phi: LLVM has no variables to find on the stack."""
    (text,), _, _ = module_texts(KernelRef("halves", MODULE, "make_halves"))
    assert text.count("icmp") == text.count("phi") == 1
    assert not re.search("sdiv|srem|alloca", text)


@pytest.mark.parametrize(
    ("module", "factory", "arguments"),
    [
        ("positions.rope", "make_rope_cache_write", ("norm", "q8_0", False)),
        ("attention.decode", "make_attention_combine", (64,)),
    ],
)
def test_memory_on_the_stack_is_not_cleared_byte_by_byte(
    module: str, factory: str, arguments: tuple[str | int, ...]
) -> None:
    """LLVM makes a store of each byte of an array that is cleared: 3 s for `rope_cache_write`, not 0.1."""
    texts, _, _ = module_texts(KernelRef(factory, f"graphml_cpu.kernels.{module}", factory, arguments))
    assert any(re.search(r"alloca \[\d+ x i8\]", text) for text in texts)
    assert not [line for text in texts for line in re.findall(r"store \[\d+ x i8\].*", text)]


CALLER = KernelRef("caller", MODULE, "make_caller", calls=(("called", ABSOLUTE), ("other", None)))


def test_a_kernel_calls_another(fresh: Path) -> None:
    """Its address is no parameter of the caller's block; both are compiled once and found again on disk."""
    for _ in range(2):
        kernel = compile_kernels([CALLER])["caller"]
        assert [name for name, _ in kernel.parameters] == ["x", "out", "n"]
        x, out = np.array([-1.5, 2, -3], np.float32), np.full(4, 7, np.float32)
        kernel(kernel.block(x=x.ctypes.data, out=out.ctypes.data, n=3))
        assert list(out) == [1.5, 2, 3, 7]
        assert len(list(kernel_cache.folder().glob("*.kernel"))) == 2
        compiler._loaded.clear()


def test_what_a_kernel_calls_must_be_named() -> None:
    for calls in ((), (("called", ABSOLUTE),), (*CALLER.calls, ("third", None))):
        with pytest.raises(BackendError, match=r"kernel caller calls \['called', 'other'\]; given are \["):
            compile_kernels([replace(CALLER, calls=calls)])


def test_blocks_need_every_parameter() -> None:
    found = compile_kernels([ABSOLUTE])["absolute"]
    with pytest.raises(BackendError, match=r"missing \['n', 'out'\], unknown \['m'\]"):
        found.block(x=0, m=1)


@pytest.mark.parametrize(
    ("factory", "arguments", "text"),
    [
        ("make_wrong", (), "undefined_name"),
        ("make_unannotated", (), "parameter x needs one of"),
        ("make_missing", (), "no make_missing"),
    ],
)
def test_what_does_not_compile_says_why(factory: str, arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(BackendError, match=text):
        compile_kernels([KernelRef("bad", MODULE, factory, arguments)])


def test_one_name_cannot_mean_two_kernels() -> None:
    with pytest.raises(BackendError, match="two kernels are called absolute"):
        compile_kernels([ABSOLUTE, KernelRef("absolute", MODULE, "make_unary", ("exp",))])


def test_missing_symbols_are_errors_not_crashes() -> None:
    text = "declare void @no_such()\ndefine void @graphml_x() {\n call void @no_such()\n ret void\n}"
    for compiled in (machine_code.compile_texts, machine_code.list_texts):
        with pytest.raises(BackendError, match="kernel x calls no_such"):
            compiled([text], "x")


def test_progress_counts_what_is_compiled(fresh: Path) -> None:
    seen: list[tuple[int, int]] = []
    refs = [ABSOLUTE, KernelRef("slots", MODULE, "make_slots")]
    compile_kernels(refs, lambda done, total: seen.append((done, total)))
    compile_kernels(refs, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_one_function_of_several_names_is_compiled_once(fresh: Path) -> None:
    refs = [ABSOLUTE, replace(ABSOLUTE, name="again"), CALLER, replace(CALLER, name="calls_again")]
    seen: list[tuple[int, int]] = []
    found = compile_kernels(refs, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert found["again"].address == found["absolute"].address
    assert (
        found["calls_again"].code == found["caller"].code == {"called": found["absolute"].address, "other": 0}
    )


def test_damaged_entries_are_compiled_anew(fresh: Path) -> None:
    compile_kernels([ABSOLUTE])
    (entry,) = kernel_cache.folder().glob("*.kernel")
    whole = entry.read_bytes()
    for damaged in (
        b"",
        whole[:100],
        whole[:-7],
        b"{}\n",
        whole.replace(b"sha256", b"sha255"),
        b"\xff" * 4000,
    ):
        entry.write_bytes(damaged)
        assert kernel_cache.read(kernel_cache.folder(), ABSOLUTE) is None
        compiler._loaded.clear()
        machine_code._loaded.clear()
        run_absolute(compile_kernels([ABSOLUTE])["absolute"])
        assert kernel_cache.read(kernel_cache.folder(), ABSOLUTE) is not None


def loaded_again(monkeypatch: pytest.MonkeyPatch, refs: list[KernelRef]) -> list[KernelRef]:
    """What a new process compiles of these, all of which run."""
    compiled: list[KernelRef] = []
    real = kernel_compilation.module_texts

    def watched(ref: KernelRef) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]:
        compiled.append(ref)
        return real(ref)

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_loaded", {})
        patch.setattr(machine_code, "_loaded", {})
        patch.setattr(kernel_compilation, "module_texts", watched)
        for ref, kernel in zip(refs, compile_kernels(refs).values(), strict=True):
            if ref == ABSOLUTE:
                run_absolute(kernel)
    return compiled


def test_the_file_of_another_kernel_is_compiled_anew(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exponential = KernelRef("exp", MODULE, "make_unary", ("exp",))
    compile_kernels([ABSOLUTE, exponential])
    folder = kernel_cache.folder()
    mine, other = (folder / f"{kernel_cache.file_stem(ref)}.kernel" for ref in (ABSOLUTE, exponential))
    assert loaded_again(monkeypatch, [ABSOLUTE, exponential]) == []
    mine.write_bytes(other.read_bytes())
    assert loaded_again(monkeypatch, [ABSOLUTE]) == [ABSOLUTE]
    assert loaded_again(monkeypatch, [ABSOLUTE, exponential]) == []


def test_the_file_of_other_sources_or_another_level_is_compiled_anew(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_kernels([ABSOLUTE])
    folder = kernel_cache.folder()
    monkeypatch.setattr(kernel_cache, "sources_hash", lambda: "sse2-of-another-version")
    shutil.copytree(folder, kernel_cache.folder())
    assert loaded_again(monkeypatch, [ABSOLUTE]) == [ABSOLUTE]


def test_a_changed_header_is_compiled_anew(fresh: Path) -> None:
    compile_kernels([ABSOLUTE])
    (entry,) = kernel_cache.folder().glob("*.kernel")
    whole = entry.read_bytes()
    swapped = whole.replace(b'["x", "address"], ["out", "address"]', b'["out", "address"], ["x", "address"]')
    assert swapped != whole
    entry.write_bytes(swapped)
    assert kernel_cache.read(kernel_cache.folder(), ABSOLUTE) is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_a_cache_that_others_can_write_is_neither_read_nor_written(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compile_kernels([ABSOLUTE])
    (entry,) = kernel_cache.folder().glob("*.kernel")
    entry.unlink()
    fresh.chmod(0o777)
    assert loaded_again(monkeypatch, [ABSOLUTE]) == loaded_again(monkeypatch, [ABSOLUTE]) == [ABSOLUTE]
    assert not entry.exists()
    assert caplog.text.count(f"{fresh} has mode 0777") == 1


def test_a_cache_that_cannot_be_written_is_done_without(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_CACHE", str(fresh / "file" / "below"))
    (fresh / "file").write_text("not a folder")
    run_absolute(compile_kernels([ABSOLUTE])["absolute"])


def test_old_folders_of_a_level_are_pruned(fresh: Path) -> None:
    """Those of others are left alone: the tests use more levels than folders of one are kept."""
    level = target.current().name
    for age in range(20):
        for name in (f"{level}-old{age}", f"{level}-other-{age}"):
            folder = fresh / "kernels" / name
            folder.mkdir(parents=True)
            os.utime(folder, (1000 + age, 1000 + age))
    compile_kernels([ABSOLUTE])
    left = {path.name for path in (fresh / "kernels").iterdir()}
    mine = {name for name in left if "other" not in name}
    assert len(mine) == kernel_cache.KEPT_FOLDERS
    assert {f"{level}-old19", f"{level}-old18", kernel_cache.sources_hash()} <= mine
    assert len(left - mine) == 20


def test_the_folder_changes_with_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    source = tmp_path / "kernels" / "a.py"
    source.write_text("x = 1")
    monkeypatch.setattr(kernel_cache, "_package_folder", lambda: tmp_path)
    before = kernel_cache.sources_hash.__wrapped__()
    (tmp_path / "lowering.py").write_text("no kernel")
    assert kernel_cache.sources_hash.__wrapped__() == before
    source.write_text("x = 2")
    assert kernel_cache.sources_hash.__wrapped__() != before


def test_the_folder_changes_with_the_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their codebooks are compiled into kernels."""
    codebook = tmp_path / "_codebook.py"
    codebook.write_text("GRID = 1")
    monkeypatch.setattr(graphml_quant, "__file__", str(tmp_path / "__init__.py"))
    before = kernel_cache.sources_hash.__wrapped__()
    assert kernel_cache.sources_hash.__wrapped__() == before
    codebook.write_text("GRID = 2")
    assert kernel_cache.sources_hash.__wrapped__() != before


def test_a_warm_process_needs_no_front_end(fresh: Path) -> None:
    code = f"""
import sys
from graphml_cpu.compiler import KernelRef, compile_kernels
from graphml_cpu.llvm_modules import module_texts
from graphml_cpu.runtime.workers import Team
compile_kernels([{SQUARE!r}])
Team(2).close()
print("graphml_cpu.frontend" in sys.modules)
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [run.stdout.strip() for run in runs] == ["True", "False"], [run.stderr for run in runs]


def test_processes_share_a_cache(fresh: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_compiler import ABSOLUTE, run_absolute
from graphml_cpu.compiler import compile_kernels
run_absolute(compile_kernels([ABSOLUTE])["absolute"])
"""
    started = [subprocess.Popen([sys.executable, "-c", code], env=os.environ) for _ in range(3)]
    assert [process.wait(timeout=120) for process in started] == [0, 0, 0]
    assert not list(kernel_cache.folder().glob(".writing-*"))


def test_an_error_between_kernels_leaves_those_before_it(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendError, match="undefined_name"):
        compile_kernels([ABSOLUTE, KernelRef("bad", MODULE, "make_wrong")])
    assert loaded_again(monkeypatch, [ABSOLUTE]) == []


def test_the_code_of_what_is_listed_is_kept(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "graphml_" in compiler.assembly(ABSOLUTE)
    assert loaded_again(monkeypatch, [ABSOLUTE]) == []
