"""`graphml import` from recorded descriptions: files that run, are exact, and depend on no module names."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import graphml
from graphml.authoring.importing.aten import NUMBERS
from graphml.authoring.importing.command import checkpoint, report
from graphml.authoring.importing.dependence import classed
from graphml.authoring.importing.evaluation import Evaluator, random_parameter
from graphml.authoring.importing.importing import Imported, import_description, recognised
from graphml.authoring.importing.proof import Proof, prove, tokens_alone
from graphml.authoring.verify.stages import nmse
from graphml.errors import ArchitectureError, WeightsError
from tests.authoring.test_import_refused import REFUSED, replaced
from tests.docs.pages import ROOT, blocks
from tests.folder_records import TOKENS, about
from tests.folder_records import write_folder as write_other
from tests.import_records import NAMES, described, write_folder

OTHERWISE = (
    "mixtral",
    "granitemoe_swa",
)  # experts under other names, and a rope that config.json does not say
HF = [name for name in NAMES if not name.startswith("plain") and name not in (*REFUSED, *OTHERWISE)]
RIGHT = [
    "llama",
    "gemma3",
    "cohere2",
    "glm4_moe",
    "smollm3",
    "opt",
    "lfm2",
    "falcon-new",
    "gpt2",
    "mixtral",
    "ministral3",
    "gpt_oss",
    "youtu",
    "plain-a",
    "plain-c",
    "plain-d",
    "plain-e",
    "plain-f",
    "plain-i",
    "plain-j",
    "plain-k",
    "plain-lists",
    "plain-m",
    "plain-tables",
    "plain-shared",
    "plain-past",
    "plain-maps",
    "plain-powers",
    "plain-first",
    "plain-latent",
    "plain-linear",
    "plain-looped",
    "plain-streams",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports")


@cache
def imported(name: str, folder: Path) -> Imported:
    """A record, imported from its checkpoint; a plain module, and experts under other names, without one."""
    description = described(name, folder / f"{name}.traced")
    held = {}
    if description.config:
        write_folder(description, folder / name)
        held = checkpoint(folder / name)
    made = import_description(description, held)
    (folder / f"{name.replace('-', '_')}.py").write_text(made.text)
    return made


def proof_of(name: str, folder: Path) -> Proof:
    made = imported(name, folder)
    return prove(
        made,
        folder / f"{name.replace('-', '_')}.py",
        folder / name if made.dependence.description.config else None,
    )


@pytest.mark.parametrize("name", RIGHT)
def test_a_record_becomes_a_file_that_agrees_in_every_part(name: str, folder: Path) -> None:
    proof = proof_of(name, folder)
    assert proof.holds, [(one.what, one.tokens, one.nmse) for one in proof.lines]
    assert len(proof.verdicts) == 2  # lengths on both sides of the window
    part = "model" if name == "plain-streams" else "layer 1"  # verify knows a residual stream of one width
    assert any(row.stage.name == part for verdict, _ in proof.verdicts for row in verdict.rows)


@pytest.mark.parametrize("name", HF)
def test_the_file_reads_the_folder(name: str, folder: Path) -> None:
    """The mapping of names and config.json, by the logits of the folder itself."""
    description = imported(name, folder).dependence.description
    ids = np.arange(13) % 7 + 3
    given = {one: ids[None] for one, leaf in description.inputs.items() if leaf.kind == "ids"}

    def stored(leaf: Any) -> Any:
        return random_parameter(leaf).astype(np.float32).astype(np.float64)

    wanted = Evaluator(description, given, stored).value(description.result)[0]
    arch = folder / f"{name.replace('-', '_')}.py"
    with graphml.load(folder / name, "reference", kv="f32", quant="fp32", arch=arch) as model:
        got = model.session(n_ctx=32).eval(ids.tolist(), all_logits=True)
        assert not model.executor.unused_tensors
    assert nmse(got, wanted) < 1e-10


def test_a_llama_like_file_is_short_and_has_one_loop(folder: Path) -> None:
    text = imported("llama", folder).text
    assert len(text.splitlines()) <= 60
    assert text.count("for layer in weights.layers(config.n_layer):") == 1
    assert 'q_TNH = g.rope(g.heads(layer.linear(x_TD, "attn_q"), config.n_head), table, "neox")' in text


def test_rows_follow_the_context_in_tables_of_positions_alone(folder: Path) -> None:
    """The record's feed-forward is as wide as its context; that of another checkpoint need not be."""
    assert 'To("blk.{}.ffn_up", rows(lambda c: (1, 2, 1, 2)))' in imported("phi3", folder).text
    assert 'c.size("context_length") + 2' in imported("opt", folder).text


def test_lines_of_imported_files_are_no_wider_than_ours(folder: Path) -> None:
    for name in ("gemma2", "gpt2", "plain-idea", "glm4_moe"):
        assert max(map(len, imported(name, folder).text.splitlines())) <= 110, name
    assert "\n    return g.softcap(\n        weights.logits(" in imported("gemma2", folder).text


def test_the_tutorial_shows_the_file_that_the_module_becomes(folder: Path) -> None:
    page = ROOT / "docs" / "tutorial-import.md"
    (shown,) = [one.text for one in blocks(page) if one.said("imported") == "plain-idea"]
    text = imported("plain-idea", folder).text
    assert shown == text[text.index("def build(") :]
    assert f"The file has {len(text.splitlines())} lines" in page.read_text()


def test_two_imports_give_the_same_bytes(folder: Path) -> None:
    first = imported("gemma3", folder)
    again = import_description(described("gemma3", folder / "again"), checkpoint(folder / "gemma3"))
    assert again.text == first.text


def test_names_of_modules_do_not_matter(folder: Path) -> None:
    def renamed(found: dict[str, Any]) -> None:
        for one in found["nodes"]:
            one["path"] = (
                one["path"].replace("self_attn", "mixer").replace("mlp", "other").replace("layers", "h")
            )

    first = imported("llama", folder)
    made = import_description(described("llama", folder / "renamed", renamed), checkpoint(folder / "llama"))
    assert made.text == first.text


def test_a_layer_norm_whose_centred_values_are_shared_is_one_op(folder: Path) -> None:
    text = imported("cohere2", folder).text
    assert 'g.layer_norm(x_TD, layer["attn_norm"], None, config.norm_eps)' in text
    assert "sum_rows" not in text


def test_windows_and_caps_are_found_by_running_attention(folder: Path) -> None:
    found = recognised(classed(described("gemma2", folder / "found")))
    attends = [one.numbers for one in found.values() if one.op == "attend"]
    attends.sort(key=lambda numbers: numbers["window"])
    assert [one["window"] for one in attends] == [0, 8]
    assert [one["softcap"] for one in attends] == [50.0, 50.0]


def join_experts(path: Path) -> None:
    """In one tensor for all experts, as the records' checkpoints and transformers' modules have them."""
    found = load_file(path)
    alone = [one for one in found if ".experts." in one]
    for layer in sorted({one.partition(".experts.")[0] for one in alone}):
        prefix = f"{layer}.experts."
        count = len({one.split(".")[5] for one in alone if one.startswith(prefix)})
        parts = {
            part: np.stack([found[f"{prefix}{i}.{part}_proj.weight"] for i in range(count)])
            for part in ("gate", "up", "down")
        }
        found[f"{prefix}gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], 1)
        found[f"{prefix}down_proj"] = parts["down"]
    save_file({name: one for name, one in found.items() if name not in alone}, path)


@pytest.mark.parametrize("name", ["llama", "gemma2", "glm4_moe"])
def test_a_file_of_2_layers_runs_4_wider_ones_as_transformers_does(name: str, folder: Path) -> None:
    """Llama-like, with windows in some layers, dense and sparse layers: more of everything, unchanged."""
    description = imported(name, folder).dependence.description
    config, tensors, want = about(f"{name}-larger")
    assert description.config["num_hidden_layers"] == 2
    assert config["num_hidden_layers"] == 4
    assert config["hidden_size"] not in (description.config["hidden_size"], 0)
    made = write_other(folder / f"{name}-larger", config, tensors)
    join_experts(made / "model.safetensors")
    with graphml.load(made, "reference", kv="f32", quant="fp32", arch=folder / f"{name}.py") as model:
        session = model.session(n_ctx=48)
        got = [session.eval(part, all_logits=True) for part in (TOKENS[:13].tolist(), TOKENS[13:].tolist())]
        assert not model.executor.unused_tensors
    assert nmse(np.concatenate(got), want) <= 1e-8


def test_windows_longer_than_the_traced_text_are_found(folder: Path) -> None:
    """Their number is in the graph of the mask; a text of the traced length shows nothing of them."""

    def longer(found: dict[str, Any]) -> None:
        node = next(one for one in found["nodes"] if one["op"] == "aten.lt.Scalar")
        assert node["args"]["other"] == 6
        node["args"]["other"] = 300

    assert "windows=read_windows(" in imported("plain-f", folder).text
    assert imported("plain-f", folder).keys["attention.sliding_window"] == 40
    description = described("plain-d", folder / "longer", longer)
    assert import_description(description, {}).keys["attention.sliding_windows"] == [300, 6]


def test_computed_parameters_of_a_plain_module_are_stored_as_computed(folder: Path) -> None:
    made = imported("plain-f", folder)
    computed = [one for one in made.tensors if one.change == "computed"]
    names = {one.name for one in computed}
    assert names == {"blk.{}.exp_log_temp.weight", "blk.{}.ffn_up.weight"}
    assert {one.parameter.count(" and ") for one in computed} == {0, 1}
    proof = proof_of("plain-f", folder)
    assert max(one.tokens for one in proof.lines) == 45  # longer than the window


PLANTED = [
    ("llama", '"neox"', '"norm"', "rope-order"),
    ("llama", "config.scale)", "1.1 * config.scale)", "attention-scale"),
    ("llama", "g.silu(", "g.gelu(", "activation"),
    ("gemma2", "softcap=config.attn_logit_softcapping", "softcap=20.0", "attention-softcap"),
    ("gemma2", "window=config.windows[layer.index]", "window=config.windows[layer.index] and 7",
     "window-off-by-one"),
]  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted[-1])
def test_a_planted_edit_is_named(planted: tuple[str, ...], folder: Path) -> None:
    name, edit, text, mistake = planted
    made = imported(name, folder)
    assert edit in made.text
    (folder / "planted.py").write_text(made.text.replace(edit, text))
    proof = prove(made, folder / "planted.py", folder / name)
    assert not proof.holds
    verdict, _ = proof.verdicts[-1]
    assert mistake in [cause.mistake.name for cause in verdict.causes]


def test_the_report_says_what_was_recognised_from_which_lines(folder: Path) -> None:
    made = report(imported("llama", folder), proof_of("llama", folder), "hf:llama")
    text, page = made.markdown(), made.page("a < b")
    assert "| rope | model.layers.*.self_attn | modeling_llama.py:" in text
    assert "every part agrees" in text
    assert "| op by op | times |" in text
    assert "| linear | " in text
    assert "times, cpu" in text
    assert "<td>rope</td><td>model.layers.*.self_attn</td>" in page
    assert "<h2>Fusions</h2>" in page
    assert "<pre>a &lt; b</pre>" in page


def test_what_changes_with_another_token_is_named(folder: Path) -> None:
    """By running it: with attention's outputs given, no value may change but the changed token's own."""
    made, ids = imported("llama", folder), np.arange(9)
    assert tokens_alone(made, ids) == 0.0
    description = described(
        "llama", folder / "alone", replaced("aten.silu.default", "aten.cumsum.default", dim=1)
    )
    mixing = replace(made, dependence=classed(description))
    with pytest.raises(
        ArchitectureError, match=r"cumsum.* in model\.layers\.0\.mlp.*changes with another token"
    ):
        tokens_alone(mixing, ids)


def test_what_is_too_large_for_the_proof_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = imported("llama", folder)
    for largest, told, verdicts in (
        (300000, "layers 1 to 1 were not compared with random parameters", 2),
        (100000, "no layer was compared with random parameters", 0),
    ):
        monkeypatch.setattr("graphml.authoring.importing.proof.LARGEST", largest)
        proof = prove(made, folder / "llama.py", folder / "llama")
        assert proof.holds
        assert len(proof.verdicts) == verdicts
        assert told in proof.left_out
        assert told[1:] in report(made, proof, "hf:llama").markdown()


def test_layers_of_several_kinds_are_branches_of_one_loop(folder: Path) -> None:
    """By windows, by a list of config.json, by tensors that a kind has."""
    branches = {
        "cohere2": "if config.windows[layer.index]:",
        "smollm3": "if config.no_rope_layers[layer.index]:",
        "glm4_moe": 'layer.get("ffn_gate_inp"):',
    }
    for name, branch in branches.items():
        text = imported(name, folder).text
        assert text.count("for layer in weights.layers(config.n_layer):") == 1
        assert branch in text, text


def test_other_layers_than_were_traced_follow_config_json(folder: Path) -> None:
    """A smollm3 whose first layer has no rope, by the file of one whose fourth has none."""
    description = imported("smollm3", folder).dependence.description
    arch, logits = folder / "smollm3.py", {}
    for rotated in ((1, 1, 1, 0), (0, 1, 1, 1)):
        made = folder / f"smollm3-{rotated[0]}"
        write_folder(description, made, no_rope_layers=rotated)
        for by in (arch, None)[: 1 + rotated[0]]:
            with graphml.load(made, "reference", kv="f32", quant="fp32", arch=by) as model:
                logits[rotated, by] = model.session(n_ctx=32).eval([5, 6, 7, 8], all_logits=True)
    assert nmse(logits[(1, 1, 1, 0), arch], logits[(1, 1, 1, 0), None]) < 1e-12
    assert nmse(logits[(0, 1, 1, 1), arch], logits[(1, 1, 1, 0), arch]) > 1e-6


def changed_activations(found: dict[str, Any], by: tuple[str, ...]) -> None:
    silus = [one for one in found["nodes"] if one["op"] == "aten.silu.default"]
    for one, op in zip(silus, by, strict=True):
        one["op"] = f"aten.{op}.default"


def test_layers_without_a_word_in_config_json_are_a_list(folder: Path) -> None:
    def change(found: dict[str, Any]) -> None:
        changed_activations(found, ("silu", "relu"))

    description = described("llama", folder / "differ", change)
    imported("llama", folder)
    made = import_description(description, checkpoint(folder / "llama"))
    (folder / "differ.py").write_text(made.text)
    assert 'found["layer_kinds"] = [True, False]' in made.text
    assert prove(made, folder / "differ.py", folder / "llama").holds
    write_folder(description, folder / "differ-deeper", num_hidden_layers=3)
    with pytest.raises(WeightsError, match="layer_kinds"):
        graphml.load(folder / "differ-deeper", "reference", arch=folder / "differ.py")


def test_layers_of_too_many_kinds_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported("cohere2", folder)
    monkeypatch.setattr("graphml.authoring.importing.layers.MOST_KINDS", 1)
    with pytest.raises(
        ArchitectureError, match="layer 3 computes otherwise than layer 0; layers of more than"
    ):
        import_description(described("cohere2", folder / "many"), checkpoint(folder / "cohere2"))


@pytest.mark.parametrize(("dim", "axis"), [(0, 1), (1, 0), (-1, None)])
def test_weight_norm_is_of_all_dimensions_but_one_or_of_all(dim: int, axis: int | None) -> None:
    v, g = np.arange(12.0).reshape(3, 4) + 1, np.array(2.0)
    wanted = 2 * v / np.linalg.norm(v, axis=axis, keepdims=True)
    np.testing.assert_allclose(NUMBERS["_weight_norm"]({"v": v, "g": g, "dim": dim}), wanted)


def test_what_reads_a_shape_alone_asks_for_no_numbers(folder: Path) -> None:
    """`zeros_like` of what attention gives, of a long text, would take its scores' memory."""

    def shaped(found: dict[str, Any]) -> None:
        at, last = next(
            (i, one) for i, one in enumerate(found["nodes"]) if "scaled_dot_product_attention" in one["op"]
        )
        zeros = {**last, "name": "zeros", "op": "aten.zeros_like.default",
                 "args": {"self": {"node": last["name"]}}}  # fmt: skip
        found["nodes"].insert(at + 1, zeros)

    description = described("plain-d", folder / "shaped", shaped)
    evaluator = Evaluator(description, description.with_ids(np.zeros(11, np.int64)), random_parameter)
    value = evaluator.value("zeros")
    node = description.nodes["zeros"]
    assert value.shape == tuple(11 if isinstance(size, str) else size for size in node.shape or ())
    assert not value.any()
    assert node.operands[0] not in evaluator.held


def test_keys_of_another_layer_are_read_where_they_were_written(folder: Path) -> None:
    text = imported("plain-shared", folder).text
    assert "g.attend(q_TNH, None, None, layer.index - 1, config.scale)" in text
    assert 'if layer.get("attn_k"):' in text
