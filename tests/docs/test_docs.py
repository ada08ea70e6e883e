"""The documentation is true: examples run, commands parse, links and paths resolve, tables are the code's.

Comments above a block say how it is tried: `<!-- file: NAME -->` writes it to a file instead of running it,
`<!-- from: PATH -->` says that the file of the repository holds these lines, `<!-- prints -->` that it is
what the Python block before it prints. A page with `<!-- test: needs smollm2 -->` is tried with that model.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphml_quant
import pytest
import typer
from graphml_cpu import lowering, target
from graphml_cpu.kernels import formats as kernel_formats

import graphml
from graphml import backend as contract
from graphml import errors
from graphml.authoring.draft.traits import Traits, traits_known
from graphml.authoring.mistakes import CATALOGUE
from graphml.cli.conversation.commands import COMMANDS as CONVERSATION
from graphml.cli.main import COMMANDS, app
from graphml.ir.ops.constant import constant
from graphml.ir.ops.leaf import LEAVES
from graphml.loading import discovery, fetch
from graphml.passes.fusion import all_ops, fusions
from graphml.sampling import Needs, NeedsTopK
from graphml.sampling.chain.filter_order import CHAIN
from tests import architecture_table, option_table, support_table
from tests.docs.pages import PAGES, ROOT, Block, blocks, headings, name_of, prose, table
from tests.looped import looped

NEEDS_TORCH = "<!-- test: needs torch -->"
NEEDS_MODEL = "<!-- test: needs smollm2 -->"


def pages_with(language: str) -> list[Any]:
    marks = {page: [pytest.mark.model] if NEEDS_MODEL in page.read_text() else [] for page in PAGES}
    return [
        pytest.param(page, id=name_of(page), marks=marks[page])
        for page in PAGES
        if any(block.language == language for block in blocks(page))
    ]


every_page = looped("page", PAGES, ids=name_of)


@pytest.mark.parametrize("page", pages_with("python"))
def test_examples_run_and_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if NEEDS_MODEL in page.read_text():
        try:
            fetch.fetch("smollm2")
        except graphml.DownloadError as error:
            pytest.skip(f"offline: {error}")
    if NEEDS_TORCH in page.read_text():
        pytest.importorskip("torch", reason="without torch; tests/authoring/test_in_torch.py runs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    capsys.readouterr()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_blocks(page, namespace, capsys)


def run_blocks(page: Path, namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Write the page's files, run its Python, compare what it prints."""
    for block in blocks(page):
        if (name := block.said("file")) is not None:
            Path(name).write_text(block.text)
        elif (name := block.said("more of")) is not None:
            Path(name).write_text(Path(name).read_text() + "\n\n" + block.text)
        elif block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, name_of(page), "exec")
            exec(code, namespace)
        elif block.said("prints") is not None:
            printed = capsys.readouterr().out
            assert printed == block.text, f"{name_of(page)}:{block.line}"


@every_page
def test_quoted_files_are_as_quoted(page: Path) -> None:
    for block in blocks(page):
        source = block.said("from")
        if source is not None:
            assert block.text in (ROOT / source).read_text(), f"{name_of(page)}:{block.line}: not in {source}"


def graphml_commands(block: Block) -> list[list[str]]:
    """The arguments of every graphml command of a block: all lines of `sh`, lines with a prompt elsewhere."""
    found = []
    for line in block.text.splitlines():
        if block.language != "sh" and not line.startswith("$ "):
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in ("&&", "|", ";", ">", "2>", "<"):
                if words and Path(words[0]).name == "graphml":
                    found.append(words[1:])
                words = []
            else:
                words.append(word)
    return found


def parse(arguments: list[str]) -> None:
    """Let the command line take the arguments apart without running anything."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("graphml", list(arguments), resilient_parsing="--help" in arguments)
    rest = [*context._protected_args, *context.args]
    if rest:
        name, command, rest = group.resolve_command(context, rest)
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", [*pages_with("sh"), *pages_with("console")])
def test_commands_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.language in ("sh", "console"):
            for arguments in graphml_commands(block):
                try:
                    parse(arguments)
                except Exception as error:
                    pytest.fail(f"{name_of(page)}:{block.line}: graphml {shlex.join(arguments)}: {error!r}")


@looped("wrong", [["run", "--no-such"], ["nothing"], ["plan", "-c", "many"], ["import"]])
def test_a_wrong_command_is_noticed(wrong: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|valid integer|missing"):
        parse(wrong)


@every_page
def test_links_resolve(page: Path) -> None:
    for target_name in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target_name):
            continue
        path, _, anchor = target_name.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{name_of(page)}: {target_name}"
        if anchor:
            assert anchor in headings(linked), f"{name_of(page)}: {target_name}"


@every_page
def test_paths_named_in_the_text_exist(page: Path) -> None:
    """A path of the repository in backticks; one with a capital word, as `NAME.py`, or `*` is a pattern."""
    top = {path.name for path in ROOT.iterdir() if path.is_dir()}
    for name in re.findall(r"`([\w.\-]+/[\w.\-/*]*)`", prose(page)):
        if name.split("/")[0] not in top:
            continue
        pattern = re.sub(r"\b[A-Z]{2,}\b", "*", name.rstrip("/"))
        assert any(ROOT.glob(pattern)), f"{name_of(page)}: {name}"


@every_page
def test_commands_named_in_the_text_exist(page: Path) -> None:
    for name in re.findall(r"`graphml (\w[\w-]*)[^`]*`", prose(page)):
        assert name in COMMANDS, name_of(page)


def test_every_page_is_on_the_map() -> None:
    linked = set(re.findall(r"\]\(([\w/.\-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent != ROOT}
    assert linked >= pages - {"README.md"}


def test_the_readme_holds_the_line_that_continuous_integration_runs() -> None:
    (block,) = [block for block in blocks(ROOT / "README.md") if block.said("test line") is not None]
    (line,) = block.text.splitlines()
    assert line.startswith("python3 -m venv ")
    assert line.endswith("pytest")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


# What the docs list is what the code has.


def test_variables() -> None:
    """Each that the docs or the code name is defined; what it is, the tables have from there."""
    known = {row[0].strip("`") for row in option_table.variables()[1:]}
    files = [path for root in ("graphml", "backends") for path in (ROOT / root).rglob("*.py")]
    for paths in (PAGES, files):
        texts = [path.read_text(encoding="utf-8") for path in paths]
        named = {name for text in texts for name in re.findall(r"\bGRAPHML_[A-Z_]+\b", text)}
        assert named - {"GRAPHML_", "GRAPHML_BACKEND_NAME"} == known


def test_ops() -> None:
    listed = {row["op"]: row["family"] for row in table("docs/graph.md", "op")}
    assert listed == {name: op.family for name, op in all_ops().items() if op.family != "fused"}


def test_fusions() -> None:
    listed = {row["fusion"]: row["makes"] for row in table("docs/passes.md", "fusion")}
    assert listed == {name: fusion.replace.name for name, fusion in fusions().items()}


def test_formats() -> None:
    compiled = discovery.backend("cpu").encoder
    encoders = {(True, True): "both", (True, False): "NumPy", (False, True): "compiled", (False, False): ""}
    listed = [
        (row["format"], row["number"], row["elements"], row["bytes"], row["encoder"], row["activation"])
        for row in table("docs/formats.md", "format")
    ]
    assert listed == [
        (
            one.name, str(one.ggml_type), str(one.block_elements), str(one.block_bytes),
            encoders[one.encode is not None, compiled(one.name) is not None], one.activation or "",
        )
        for one in graphml_quant.formats().values()
    ]  # fmt: skip


def test_architectures() -> None:
    rows = table("docs/architectures.md", "architecture")
    assert [row["architecture"] for row in rows] == discovery.architecture_names(), architecture_table.HOW
    for row in rows:
        name = row["architecture"]
        assert row["what it is"] == architecture_table.first_line(name), architecture_table.HOW
        proved = [cell.split() for cell in row["NMSE against llama.cpp"].split(", ") if cell]
        wanted = architecture_table.goldens(name) or architecture_table.others(name)
        assert [golden for golden, _ in proved] == wanted, architecture_table.HOW
        assert all(float(error) <= 1e-6 for _, error in proved)


def test_errors_of_architectures_are_measured_for_their_table(tmp_path: Path) -> None:
    others = next(name for name in discovery.architecture_names() if architecture_table.others(name))
    assert 0 < architecture_table.measured("llama-dense", tmp_path, ["reference"]) <= 1e-6
    assert 0 < architecture_table.measured_otherwise(others, tmp_path, ["reference"]) <= 1e-6


def test_mistakes() -> None:
    rows = table("docs/verifying.md", "mistake")
    listed = {row["mistake"]: row["what the model has instead"] for row in rows}
    assert listed == {mistake.name: mistake.says for mistake in CATALOGUE}


FAMILIES: dict[str, Callable[[Traits], bool]] = {
    "dense": lambda traits: not (traits.latent or traits.recurrent),
    "experts": lambda traits: traits.experts,
    "latent": lambda traits: traits.latent,
    "recurrent": lambda traits: traits.recurrent,
    "encoders": lambda traits: not traits.recurrent,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_members_of_families_are_what_the_page_says(family: str) -> None:
    for row in table(f"docs/architectures/{family}.md", "member"):
        name = row["member"].split("`")[0]
        assert name in discovery.architecture_names(), name
        assert any(FAMILIES[family](traits) for traits in traits_known(name)), name
        known = discovery.architecture(name)
        assert (known.causal and known.encode is None) == (family != "encoders"), name


def test_every_family_has_a_page() -> None:
    assert {path.stem for path in (ROOT / "docs" / "architectures").glob("*.md")} == set(FAMILIES)


def test_backends_and_their_contract() -> None:
    assert sorted(row["backend"] for row in table("docs/backends.md", "backend")) == discovery.backend_names()
    fields = [field.name for field in dataclasses.fields(contract.Backend)]
    assert [row["field"] for row in table("docs/backends.md", "field")] == fields
    listed = [row["method"].partition("(")[0] for row in table("docs/backends.md", "method")]
    assert listed == [
        f"{one.__name__}.{name}"
        for one in (contract.Device, contract.Program, contract.State)
        for name in vars(one)
        if not name.startswith("_")
    ]


def test_which_ops_and_formats_have_kernels() -> None:
    for first, (header, *rows) in support_table.tables().items():
        listed = table("docs/backends.md", first)
        assert [list(row.values()) for row in listed] == [
            [cell.strip("`") for cell in row] for row in rows
        ], support_table.HOW
        assert list(listed[0]) == header


def test_cpu_levels_and_what_has_no_kernel() -> None:
    assert [row["level"] for row in table("docs/cpu.md", "level")] == list(target.REQUIRED)
    without = set(all_ops()) - set(lowering.table()) - {op.name for op in LEAVES}
    without = {name for name in without if not all_ops()[name].view and all_ops()[name] is not constant}
    (sentence,) = re.findall(r"No kernel yet: (.*?)\.\n", (ROOT / "docs" / "cpu.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == without


def test_weights_that_are_multiplied_as_integers() -> None:
    (integer, _) = table("docs/cpu.md", "product")
    with_reader = {name for name in kernel_formats.names() if kernel_formats.has_reader(name)}
    assert set(integer["weights"].replace("`", "").split(", ")) == with_reader


def test_activation_formats_are_the_only_ones_without_a_decoder_in_kernels() -> None:
    """As docs/formats.md says."""
    assert set(graphml_quant.formats()) - set(kernel_formats.names()) == {"q8_1", "q8_k"}


def test_filters_of_the_sampler() -> None:
    needs = {
        Needs.ROW: "the row", Needs.HISTORY: "the row and the history", Needs.STATE: "the row and a state",
    }  # fmt: skip
    listed = [list(row.values()) for row in table("docs/samplers.md", "filter")]
    assert [[cell.replace("`", "") for cell in row] for row in listed] == [
        [
            one.name,
            ", ".join(one.params_read),
            "the top k" if isinstance(one.needs, NeedsTopK) else needs[one.needs],
            "yes" if one.on_device else "no",
        ]
        for one in CHAIN
    ]
    assert [row["sampler"] for row in table("docs/samplers.md", "sampler")] == [one.name for one in CHAIN]


def test_entries_of_a_chain() -> None:
    rows = table("docs/samplers.md", "type")
    listed = {row["type"].replace("`", ""): row["parameters"] for row in rows}
    for one in CHAIN:
        for entry in one.entries:
            assert listed.pop(entry.type).replace("`", "") == ", ".join(entry.fields)
    assert set(listed) == {"dist, greedy", "grammar"}


def test_errors() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    known = {one.__name__ for one in kinds if one.__module__ == errors.__name__}
    assert {row["error"] for row in table("docs/generation.md", "error")} == known


def options_of(command: Any) -> set[str]:
    own = {max(one.opts, key=len) for one in command.params if one.param_type_name == "option"}
    if own:
        return own
    return {option for inner in getattr(command, "commands", {}).values() for option in options_of(inner)}


def test_commands_and_their_options() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    sections = dict(re.findall(r"^## `graphml ([\w-]+)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(COMMANDS)
    group: Any = typer.main.get_command(app)
    named = {name: set(re.findall(r"`(--[\w-]+)", section)) for name, section in sections.items()}
    for row in table("docs/command-line.md", "option"):
        for name in row["commands"].split(", ") if row["commands"] != "all" else COMMANDS:
            named[name.strip("`")].add(re.findall(r"--[\w-]+", row["option"])[-1])
    of_sampling = {max(row["flag"].split(", "), key=len) for row in table("docs/generation.md", "setting")}
    for name in ("run", "chat", "batch"):
        named[name] |= of_sampling
    for name in COMMANDS:
        wanted = options_of(group.get_command(None, name)) - {"--help"}
        assert named[name] == wanted, f"graphml {name}"


@pytest.mark.parametrize(
    ("page", "rows"), [pytest.param(*one, id=one[1].__name__) for one in option_table.TABLES]
)
def test_options(page: str, rows: Callable[[], list[option_table.Row]]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == option_table.written(text, rows()), option_table.HOW


def test_commands_of_a_conversation() -> None:
    listed = [
        (row["command"], row["takes"].replace("\\|", "|"), row["what it does"])
        for row in table("docs/chat.md", "command")
    ]
    assert listed == [(one.name, one.takes, one.help) for one in CONVERSATION]
