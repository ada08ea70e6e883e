"""The methods of `g`: each is declared once, typed, checked, in step with its op, and on its page of docs."""

from __future__ import annotations

import doctest
import inspect
import pydoc
from collections.abc import Callable
from typing import Any

from graphml.ir import argument_kinds, builder, step
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.ops import table
from graphml.loading.architecture import Layer, Tensors
from tests import builder_page
from tests.looped import looped

Method = Callable[..., Any]
OF_FAMILIES: dict[str, Method] = {
    name: method
    for family in builder_page.FAMILIES
    for name, method in builder_page.methods_of(builder_page.family(family)).items()
}
OF_OTHERS = {
    one.__name__: builder_page.methods_of(one) for one in (builder.BaseBuilder, Tensors, Layer)
}  # fmt: skip
ALL = [*OF_FAMILIES.items(), *(item for some in OF_OTHERS.values() for item in some.items())]
every_method = looped("name", OF_FAMILIES)

# Attributes that a method takes from its operands.
OF_OPERANDS = {"from_dtype"}
# Attributes that authors must say, though their op has a default: architectures differ in them.
AUTHORS_SAY = {
    "scale": {"factor"}, "clamp": {"low", "high"}, "rms_norm": {"eps"}, "layer_norm": {"eps"},
    "l2_norm": {"eps"}, "rope": {"mode"}, "gated_delta_net": {"scale"}, "ngram_rows": {"eos"},
}  # fmt: skip


def test_the_builder_has_every_method_of_the_families_under_its_own_name() -> None:
    listed = {name: value for name, value in vars(Builder).items() if not name.startswith("_")}
    assert listed == OF_FAMILIES
    assert list(listed) == list(OF_FAMILIES)  # in the order of the files
    assert {path.stem for path in builder_page.FOLDER.glob("[a-z]*.py")} == set(builder_page.FAMILIES)


@looped("op", [op for op in table().values() if op.name in OF_FAMILIES], ids=repr)
def test_a_method_has_the_attributes_of_its_op_and_their_defaults(op: Op) -> None:
    parameters = inspect.signature(OF_FAMILIES[op.name]).parameters
    attributes = {name: default for name, default in op.attributes.items() if name not in OF_OPERANDS}
    assert set(attributes) <= set(parameters)
    given = {
        parameters[name].name: parameters[name].default
        for name in attributes
        if parameters[name].default is not inspect.Parameter.empty
    }
    assert given == {name: attributes[name] for name in given}
    required = {name for name, default in attributes.items() if default is None}
    assert set(attributes) - set(given) - required == AUTHORS_SAY.get(op.name, set())


@looped(("name", "method"), ALL, ids=[name for name, _ in ALL])
def test_every_parameter_has_a_type_that_is_checked(name: str, method: Method) -> None:
    _, *parameters = inspect.signature(method).parameters.values()
    named = {"call": ["attributes"], "finish": ["outputs"]}.get(name, [])
    assert [one.name for one in parameters if one.kind is one.VAR_KEYWORD] == named
    for one in parameters:
        kind = eval(one.annotation, vars(inspect.getmodule(method)))
        assert argument_kinds.kind_of(kind).words != "anything", one.name


@every_method
def test_help_shows_the_signature_and_the_docstring(name: str) -> None:
    shown = pydoc.render_doc(getattr(Builder(), name), renderer=pydoc.plaintext)
    parameters = inspect.signature(OF_FAMILIES[name]).parameters
    assert all(f"{one}: " in shown for one in [*parameters][1:])
    assert (inspect.getdoc(OF_FAMILIES[name]) or "?").partition("\n")[0] in shown


@looped("name", [*OF_OTHERS["BaseBuilder"], *OF_FAMILIES])
def test_the_example_of_a_docstring_is_true(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(builder_page.EXAMPLE, namespace)
    words = inspect.getdoc((OF_OTHERS["BaseBuilder"] | OF_FAMILIES)[name]) or ""
    test = doctest.DocTestParser().get_doctest(words, namespace, name, None, 0)
    assert test.examples
    told: list[str] = []
    assert not doctest.DocTestRunner().run(test, out=told.append).failed, "".join(told)


def test_the_page_is_what_the_code_says() -> None:
    assert builder_page.PAGE.read_text(encoding="utf-8") == builder_page.page(), builder_page.HOW


def test_the_inputs_of_a_step_are_on_the_page() -> None:
    page = builder_page.PAGE.read_text(encoding="utf-8")
    names = [name for name, value in vars(step.StepBuilder).items() if isinstance(value, property)]
    assert names
    assert all(f"| `g.{name}` |" in page for name in names)
    assert all(isinstance(getattr(Builder(), name), Node) for name in names)
