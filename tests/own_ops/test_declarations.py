"""Declarations of ops of one's own: what is refused, where it is said, and what a declared op is known to."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.errors import GraphError, ShapeError
from graphml.ir import op_table
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.own_op import OwnOp
from graphml.ir.text import parse, write
from graphml.ir.verify import verify
from graphml.loading.own_ops import load_ops_of_file
from graphml.ops import ROWS, Type, f32, op, sample
from graphml.passes.fusion import all_ops, fusions
from graphml.passes.switches import switched

HEAD = "import numpy as np\nfrom graphml.ops import *\nfrom graphml.ops import op, sample, fused\n"


def declared(folder: Path, text: str, name: str = "mine.py") -> tuple[OwnOp, ...]:
    file = folder / name
    file.write_text(HEAD + textwrap.dedent(text))
    return load_ops_of_file(file)


def plain(**more: Any) -> Any:
    return op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))], **more)


def builder() -> tuple[Builder, Any]:
    g = Builder(max_tokens=8)
    return g, g.input("x", F32, (g.n_tokens, 16))


def test_a_declared_op_is_a_method_with_its_signature_and_help(softpick: OwnOp) -> None:
    g, x = builder()
    assert str(inspect.signature(g.softpick)) == "(x, *, eps: float = 1e-06, name=None)"
    assert g.softpick.__doc__.startswith("relu(exp(x) - 1)")
    node = g.softpick(x=x, eps=1, name="picked")
    assert repr(node) == "%picked: f32[T<=8, 16] = softpick(%x)"
    assert node.attributes["eps"] == 1.0
    assert isinstance(node.attributes["eps"], float)
    assert g.call(softpick, x).attributes["eps"] == 1e-6
    with pytest.raises(AttributeError, match=r"g has no 'softpik': did you mean g.softpick\?"):
        g.softpik  # noqa: B018


def test_wrong_calls_name_the_op_and_the_line(softpick: OwnOp) -> None:
    g, x = builder()
    ids, half = g.input("ids", I32, (g.n_tokens, 16)), g.weight("w", dtype("q8_0"), (4, 32))
    for call, said in (
        (lambda: g.softpick(), r"\[g.softpick\] missing a required argument: 'x'; it takes"),
        (lambda: g.softpick(x, ep=1.0), r"\[g.softpick\] got an unexpected keyword argument 'ep'"),
        (lambda: g.softpick(x, eps="a"), r"\[softpick\] attribute 'eps': wanted a number; got 'a'"),
        (lambda: g.softpick(x, eps=True), r"\[softpick\] attribute 'eps': wanted a number; got True"),
        (lambda: g.softpick(ids), r"\[softpick\] operand 'x': wanted f32; got i32"),
        (lambda: g.softpick(half), r"\[softpick\] operand 'x': wanted f32; got q8_0"),
        (lambda: g.softpick(3.0), r"wanted a node of this graph; got 3.0"),
        (lambda: g.call(softpick, x, x), r"\[softpick\] wanted 1 operands \(x\); got 2"),
    ):
        with pytest.raises(GraphError, match=said + r".*at .*test_declarations.py"):
            call()


def test_a_call_with_arrays_computes_what_the_function_says() -> None:
    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8), factor=2.0)])
    def powered(x: Any, *, by: int = 3, factor: float) -> Any:
        return factor * x**by

    x = np.full((2, 3), 2.0, np.float32)
    np.testing.assert_array_equal(powered(x, factor=1.0), np.full((2, 3), 8.0))
    assert powered([1.0, 2.0], by=2, factor=3.0).tolist() == [3.0, 12.0]
    for call, wanted in (
        (lambda: powered(x, x, factor=1.0), r"wanted x, by=, factor=; got 2 arrays, factor"),
        (lambda: powered(x), r"wanted x, by=, factor=; got 1 arrays"),
        (lambda: powered(x, factor=1.0, to=2), "got 1 arrays, factor, to"),
        (lambda: powered(x, factor="a"), "attribute 'factor': wanted a number; got 'a'"),
        (lambda: powered(object()), "wanted variables as texts, or terms"),
    ):
        with pytest.raises(GraphError, match=wanted):
            call()


def test_a_state_is_no_operand(softpick: OwnOp) -> None:
    g, x = builder()
    kept = g.state("memory", F32, (g.n_sequences, 16))
    with pytest.raises(
        GraphError, match=r"\[softpick\] wanted values of the step as operand 0; got %memory, .* has no state"
    ):
        g.softpick(kept)
    graph = g.finish(y=g.softpick(x))
    text = write(graph).replace("= input()", "= state()")
    with pytest.raises(GraphError, match="has no state"):
        verify(parse(text, all_ops()))


def test_a_graph_of_it_survives_its_text(softpick: OwnOp) -> None:
    g, x = builder()
    graph = verify(g.finish(y=g.softpick(x, eps=0.5)))
    again = verify(parse(write(graph), all_ops()))
    assert write(again) == write(graph)
    values = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    assert np.array_equal(interpret(graph, {"x": values})["y"], interpret(again, {"x": values})["y"])
    op_table.forget("softpick", "softpick_mul")
    with pytest.raises(GraphError, match=r"line 3 is not a node \(unknown op 'softpick'; GRAPHML_OPS names"):
        parse(write(graph), all_ops())


def test_a_fusion_comes_and_goes_with_its_op(softpick: OwnOp) -> None:
    assert fusions()["softpick_mul"].replace is op_table.own_op("softpick_mul")
    assert "softpick_mul" in switched("")
    assert "softpick_mul" not in switched("-softpick_mul")
    op_table.forget("softpick_mul")
    assert "softpick_mul" not in fusions()
    assert "softpick_mul" not in switched("")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(x, *, eps=1.0): return x", "attribute 'eps': wanted a type: int, float"),
        ("def f(x, *, k: int = 1.5): return x", "attribute 'k': wanted a whole number; got 1.5"),
        ("def f(x, *, k: list = 1): return x", "attribute 'k': wanted a type"),
        ("def f(*x): return x", "parameter 'x': wanted operands without defaults"),
        ("def f(x, y=None): return x", "parameter 'y': wanted operands without defaults"),
        ("def f(*, eps: float = 1.0): return 1", "wanted at least one operand"),
        ("def f(x, *, begin: int = 0): return x", "parameter 'begin': the name has a meaning of its own"),
        ("def f(x): return x[:1]", r"its shape rule says f32\[5, 8\] for result; its function returns"),
        ("def f(x): return x.astype(int)", r"its shape rule says f32\[5, 8\] for result; .* returns int64"),
        ("def f(x): return x, x", "its shape rule says f32"),
        ("def f(x): return 1 / 0", r"its function raised ZeroDivisionError: .*; of float32\[5, 8\]"),
        ("def f(x):\n    x[0] = 1\n    return x", "raised ValueError: assignment destination is read-only"),
        ("def f(x): return [x, x[:1]]", "its function returns list, which is no array"),
        ("def f(x): return None", r"its function returns object\[\]"),
        ("def f(x, *, op: int = 1): return x", "parameter 'op': the name has a meaning of its own"),
        ("def f(x, *, self: int = 1): return x", "parameter 'self': the name has a meaning of its own"),
        ("def f(x, *, fill: float = 1.0): return x", "parameter 'fill': the name has a meaning of its own"),
        ("def f(x, *, k: 'Nobody' = 1): return x", "attribute 'k': its type 'Nobody' cannot be read: NameE"),
        ("def f(x, *, k: float = 10**400): return x", "attribute 'k': wanted numbers of 64 bits; got 10"),
        ("def f(x, *, k: int = 2**70): return x", "attribute 'k': wanted numbers of 64 bits; got 118"),
        ("def add(x): return x", "graphml has an op or a method of that name"),
        ("def attend(x): return x", "graphml has an op or a method of that name"),
    ],
)
def test_contradictions_are_refused_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    head = "@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])\n"
    with pytest.raises(GraphError, match=rf"op '.*' \(.*mine.py:\d+\): .*({said})"):
        declared(tmp_path, head + text)
    assert not op_table.declared_in(tmp_path.resolve() / "mine.py")


def test_the_types_of_operands_need_not_be_known() -> None:
    @plain()
    def seen(x: "Nobody", *, eps: "float" = 1.0) -> "Nobody":  # type: ignore[name-defined]  # noqa: F821, UP037
        return x

    assert seen.declared.kinds == {"eps": float}


LIKE, ONE = "shape=lambda x: x, ", "samples=[sample(f32(ROWS, 8))]"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LIKE + "samples=[]", "samples: wanted at least one"),
        (LIKE + "samples=[1]", "sample 0: wanted what graphml.ops.sample returns"),
        (LIKE + "samples=[sample(f32(ROWS, 8), k=1)]", "sample 0: no attribute is called 'k'"),
        (LIKE + "samples=[sample(f32(ROWS, 8), eps='a')]", "sample 0: attribute 'eps': wanted a number"),
        (LIKE + "samples=[sample(i32(ROWS, 8))]", "sample 0: operand 'x': wanted f32; got i32"),
        (LIKE + ONE + ", inplace=['y']", "inplace: wanted names of operands in a tuple"),
        (LIKE + ONE + ", dtypes={'y': F32}", "dtypes: wanted names of operands in a tuple"),
        (LIKE + ONE + ", dtypes={'x': dtype('q8_0')}", "operand 'x': wanted plain numbers"),
        (LIKE + ONE + ", name='a-b'", "wanted a name of letters"),
        (LIKE + ONE + ", name='class'", "wanted a name of letters"),
        ("shape=lambda x, y: x, " + ONE, "sample 0: its shape rule .* raised TypeError"),
        ("shape=lambda x: 5, " + ONE, "sample 0: its shape rule .*: wanted types"),
        ("shape=lambda x: Type(F32, (8, ROWS)), " + ONE, "sample 0: wanted a last dimension known"),
        ("shape=lambda x, *, k: x, " + ONE, "its shape rule asks for 'k'"),
        (LIKE + "samples=sample(f32(ROWS, 8))", "samples: wanted a list of what graphml.ops.sample returns"),
        (LIKE + "samples=[sample(f32(ROWS, 0))]", r"sample 0: wanted dimensions of at least 1; got f32\["),
        (LIKE + "samples=[sample(f32(ROWS, 8.5))]", "sample 0: wanted dimensions of at least 1"),
        (LIKE + "samples=[sample(8)]", "sample 0: wanted types of operands, such as .*; got 8"),
        (
            LIKE + "samples=[sample(f32(ROWS, 8), fill=2.0)]",
            "sample 0: fill: wanted the number of an operand",
        ),
        (LIKE + "samples=[sample(f32(ROWS, 8), fill={1: np.ones})]", "sample 0: fill: wanted the number"),
        (
            LIKE + "samples=[sample(f32(ROWS, 8), fill={0: lambda g, s: 1 / 0})]",
            "sample 0: fill of operand 0 ra",
        ),
        (
            LIKE + "samples=[sample(f32(ROWS, 8), fill={0: lambda g, s: np.ones(3)})]",
            "sample 0: fill .* got .3",
        ),
        ("shape=f32(ROWS, 8), " + ONE, "shape: wanted a function of the operands' types"),
        ("shape=np.tanh, " + ONE, "shape: wanted a function of the operands' types, .*; got <ufunc"),
        ("shape=lambda x: (), " + ONE, r"sample 0: its shape rule .*: wanted at least one type; got \(\)"),
        ("shape=lambda x: Type(F32, (ROWS, 0)), " + ONE, "sample 0: its shape rule .*of at least 1; got"),
        ("shape=lambda x: Type(F32, (ROWS, -1)), " + ONE, "sample 0: its shape rule .*of at least 1; got"),
        ("shape=lambda x: Type(F32, (ROWS, 8 / 2)), " + ONE, "sample 0: its shape rule .*of at least 1; got"),
        (
            "shape=lambda x: Type(F32, [ROWS, 8]), " + ONE,
            "sample 0: its shape rule .*: wanted as a shape a tu",
        ),
        (
            LIKE + ONE + ", dtypes={'x': 'nothing'}",
            "dtypes: wanted operand -> dtype, .*; got {'x': 'nothing'}",
        ),
        (LIKE + ONE + ", dtypes=F32", "dtypes: wanted operand -> dtype"),
        (LIKE + ONE + ", inplace='x'", "inplace: wanted names of operands in a tuple"),
        (LIKE + ONE + ", rowwise=(0,)", "rowwise: wanted names of operands in a tuple"),
        (LIKE + ONE + ", commutative=True", "commutative=True: no sample checks it"),
        (LIKE + "samples=[sample(f32(8))], rowwise=['x']", "rowwise='x': no sample checks it"),
    ],
)
def test_wrong_arguments_are_refused_with_their_line(tmp_path: Path, given: str, said: str) -> None:
    with pytest.raises(GraphError, match=rf"op '.*' \(.*mine.py:\d+\): {said}"):
        declared(tmp_path, f"@op({given})\ndef f(x, *, eps: float = 1.0): return x")


def test_a_name_has_one_declaration(tmp_path: Path) -> None:
    text = "@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])\ndef f(x): return x\n"
    with pytest.raises(GraphError, match=r"op 'f' is declared twice: .*mine.py:\d+ and .*mine.py:\d+"):
        declared(tmp_path, text + text)
    (first,) = declared(tmp_path, text)
    assert declared(tmp_path, text) == (first,)  # the same file is not run again
    with pytest.raises(GraphError, match=r"op 'f' is declared twice: .*mine.py:\d+ and .*other.py:\d+"):
        declared(tmp_path, text, "other.py")
    (changed,) = declared(tmp_path, text.replace("return x", "return x + x"))
    assert changed is not first
    assert op_table.own_op("f") is changed
    assert changed.definition != first.definition


def test_a_definition_covers_what_is_called(tmp_path: Path) -> None:
    def hash_of(helper: str, comment: str = "") -> str:
        text = f"def helper(x): return {helper}{comment}\n"
        text += "@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])\ndef f(x): return helper(x)\n"
        return declared(tmp_path, text)[0].definition

    assert hash_of("x + 1") == hash_of("x + 1", "  # one more")
    assert hash_of("x + 1") != hash_of("x + 2")


def test_several_results_and_attributes_in_the_shape(tmp_path: Path) -> None:
    @op(
        shape=lambda x, *, k: (Type(F32, (x.shape[0], k)), Type(I32, (x.shape[0], k))),
        samples=[sample(f32(ROWS, 8), k=2)],
    )
    def first_ones(x: Any, *, k: int) -> Any:
        """The first k, and their numbers."""
        return x[:, :k], np.broadcast_to(np.arange(k), (len(x), k))

    g, x = builder()
    values, numbers = g.results(g.first_ones(x, k=3))
    assert (repr(values.type), repr(numbers.type)) == ("f32[T<=8, 3]", "i32[T<=8, 3]")
    graph = verify(g.finish(a=values, b=numbers))
    given = np.arange(128, dtype=np.float32).reshape(8, 16)
    found = interpret(graph, {"x": given})
    assert np.array_equal(found["a"], given[:, :3])
    assert found["b"].dtype == np.int32
    with pytest.raises(GraphError, match=r"\[g.first_ones\] missing a required argument: 'k'"):
        g.first_ones(x)


def test_a_shape_rule_may_refuse(tmp_path: Path) -> None:
    def even(x: Type) -> Type:
        if int(x.shape[-1]) % 2:  # type: ignore[arg-type]
            raise ShapeError(f"wanted an even width; got {x}")
        return x

    @op(shape=even, samples=[sample(f32(ROWS, 8))])
    def halves(x: Any) -> Any:
        return x

    g, _ = builder()
    with pytest.raises(
        ShapeError, match=r"\[halves\] wanted an even width; got f32\[T<=8, 3\].*test_declarations"
    ):
        g.halves(g.input("odd", F32, (g.n_tokens, 3)))


def test_a_second_kernel_of_a_backend_is_refused(softpick: OwnOp) -> None:
    with pytest.raises(GraphError, match=r"op 'softpick' .* it has a kernel for cpu already"):
        softpick.kernel("cpu")(lambda out, x, begin, end: None)
    with pytest.raises(GraphError, match="wanted names of backends"):
        softpick.kernel(lambda: None)  # type: ignore[arg-type]


FOUND, PRODUCT = "find=lambda x, y: mul(softpick(x), y)", "g.mul(g.softpick(x), y)"


@pytest.mark.parametrize(
    ("given", "body", "said"),
    [
        ("find=lambda x, y: mul(softpick(y), x)", PRODUCT, "finds the operands of sample 0 in another"),
        ("find=lambda a, b: mul(softpick(a), b)", PRODUCT, "its pattern has the variables a, b"),
        (FOUND, "g.add(g.softpick(x), y)", "does not find its own decomposition"),
        (FOUND + ", when=lambda match: 'never'", PRODUCT, "its own decomposition: sample 0; never"),
    ],
)
def test_a_pattern_has_to_find_its_decomposition(
    softpick: OwnOp, tmp_path: Path, given: str, body: str, said: str
) -> None:
    text = f"""
    from graphml.ir.ops.elementwise import mul
    from graphml.ir.op_table import own_op
    softpick = own_op("softpick")
    @fused({given}, samples=[sample(f32(ROWS, 8), f32(ROWS, 8))])
    def other_mul(g, x, y):
        return {body}
    """
    with pytest.raises(GraphError, match=rf"op 'other_mul' \(.*mine.py:\d+\): .*{said}"):
        declared(tmp_path, text)
    assert "other_mul" not in fusions()
