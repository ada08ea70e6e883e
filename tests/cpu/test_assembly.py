"""The instructions in the hot loops of kernels that multiply weights, read in the assembly, also of ARM's.

A hot loop is an innermost loop with at least half as many multiplications as the one with most.
"""

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from graphml_cpu import target
from machine_loops import Loop, hot_loops, innermost_loops

# How each level multiplies bytes and floats. Float kernels are looked at where `FMA` has the level, and some
# kernels where a level differs from another in one instruction.
DOT = {
    "avx512": r"vpdpbusd\s.*%zmm",
    "avx2-vnni": r"(\{vex\}\s+)?vpdpbusd\s.*%ymm",
    "avx2": r"vpmaddubsw\s.*%ymm",
    "neon-i8mm": r"(us|s)dot\s+v\d+\.4s, v\d+\.16b",
    "neon-dotprod": r"sdot\s+v\d+\.4s, v\d+\.16b",
}
SOME = ("avx2-vnni", "neon-i8mm")
FMA = {"avx512": r"vfmadd\w+ps\s.*%zmm", "neon-dotprod": r"fmla\s+v\d+\.4s"}
BF16 = r"vdpbf16ps\s.*%zmm"
HALF = {"avx512": r"vcvtph2ps\s.*%zmm", "neon-dotprod": r"fcvtl2?\s+v\d+\.4s"}


@dataclass(frozen=True)
class Listing:
    """One kernel's hot loops, and the whole text."""

    kernel: str
    kind: str
    text: str

    @property
    def loops(self) -> list[Loop]:
        return hot_loops(self.text)


@functools.cache
def listings(level: str) -> list[Listing]:
    """The level's kernels, compiled in a process of their own."""
    script = Path(__file__).parent / "list_families.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, str(script), level, "all" if level in FMA else "some" if level in SOME else "dot"],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [Listing(one["kernel"], one["kind"], one["assembly"]) for one in json.loads(done.stdout)]


def without(listings: list[Listing], pattern: str) -> set[str]:
    """Kernels with a hot loop that lacks an instruction."""
    # The gate of a fused product is a loop of its own, with as many multiplications as that for one token.
    lacking = [(one, [not loop.count(pattern) for loop in one.loops]) for one in listings]
    return {one.kernel for one, lacks in lacking if (all if "glu" in one.kernel else any)(lacks)}


def of_kind(listings: list[Listing], kind: str) -> list[Listing]:
    found = [one for one in listings if one.kind == kind]
    assert found, f"no kernels of kind {kind}"
    return found


def test_every_level_is_looked_at() -> None:
    assert list(DOT) == [name for name in target.REQUIRED if name not in ("neon", "plain")]


@pytest.mark.parametrize("level", DOT)
def test_hot_loops(level: str) -> None:
    """All of a level in one test, so that its kernels are compiled once."""
    bytes_meet_the_instruction_of_the_level(level)
    if level in FMA:
        floats_are_multiplied_and_added_in_one_instruction(level)
        halves_are_converted_in_one_instruction(level)
    if level == "neon-i8mm":
        kernels = of_kind(listings(level), "dot")
        assert any(loop.count(r"usdot\s") for one in kernels for loop in one.loops)
    if target.level(level).has_bf16:  # only where this processor has it
        pairs = of_kind(listings(level), "bf16")
        assert {"mul_mat_tiles-bf16_pairs", "mul_mat_id-bf16_pairs"} <= {one.kernel for one in pairs}
        assert not without(pairs, BF16)
        assert len(without(listings(level), BF16)) == len(listings(level)) - len(pairs)
    if level == "avx512":
        matrix_products_keep_their_registers(level)


def bytes_meet_the_instruction_of_the_level(level: str) -> None:
    integer = of_kind(listings(level), "dot")
    assert not without(integer, DOT[level])
    # Other levels' instructions are not there: what was found is no accident of the pattern.
    for other in DOT.keys() - {level, "neon-i8mm"}:
        assert without(integer, DOT[other]) == {one.kernel for one in integer}, other


def floats_are_multiplied_and_added_in_one_instruction(level: str) -> None:
    # Weights are decoded in loops with more multiplications than the product has, so no half as above.
    found = {one.kernel: innermost_loops(one.text) for one in of_kind(listings(level), "fma")}
    most = {name: max(loop.count(FMA[level]) for loop in loops) for name, loops in found.items()}
    assert min(most.values()) >= 4, most


def halves_are_converted_in_one_instruction(level: str) -> None:
    halves = [one for one in listings(level) if one.kernel.endswith("-f16")]
    assert halves
    for one in halves:
        assert any(loop.count(HALF[level]) for loop in innermost_loops(one.text)), one.kernel


def matrix_products_keep_their_registers(level: str) -> None:
    spilled = {
        one.kernel: stores
        for one in listings(level)
        if one.kernel.startswith("mul_mat") and "rows" not in one.kernel
        for loop in one.loops
        if (stores := loop.stack_stores)
    }
    assert not spilled


X86 = """f:
	movq	%rsp, %rbp
.LBB0_1:
	vmulps	%zmm1, %zmm2, %zmm3
.LBB0_2:
	vpdpbusd	(%rdi){1to16}, %zmm1, %zmm2
	vpdpbusd	4(%rdi){1to16}, %zmm1, %zmm2
	vpdpbusd	8(%rdi){1to16}, %zmm1, %zmm2
	vmovups	%zmm2, 64(%rsp)
	vmovups	64(%rsp), %zmm3
	jne	.LBB0_2
	addq	$1, %rax
	jmp	.LBB0_1
.LBB0_3:
	vmulps	%zmm1, %zmm2, %zmm3
	jb	.LBB0_3
	retq
"""
ARM = """f:
.LBB0_1:
	sdot	v0.4s, v1.16b, v2.4b[0]
	sdot	v0.4s, v1.16b, v2.4b[1]
	fmla	v0.4s, v1.4s, v2.4s
	str	q0, [sp, #16]
	ldr	q1, [sp, #16]
	str	q1, [x0]
	subs	x0, x0, #1
	b.ne	.LBB0_1
	cbz	x0, .LBB0_3
.LBB0_2:
	fmul	v0.4s, v1.4s, v2.4s
	tbnz	x1, #3, .LBB0_2
.LBB0_3:
	ret
"""


@pytest.mark.parametrize(("text", "dot"), [(X86, DOT["avx512"]), (ARM, DOT["neon-dotprod"])])
def test_loops_are_read_right(text: str, dot: str) -> None:
    (hot,) = hot_loops(text)
    assert hot.multiplications == 3
    assert hot.count(dot) == (3 if text is X86 else 2)
    assert len(hot.stack_stores) == 1
    assert hot.lines[0].startswith(".LBB0_2" if text is X86 else ".LBB0_1")
