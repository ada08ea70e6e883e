"""An imported file on other checkpoints: each field of config.json changed is computed, or refused by name.

Without torch the logits of a changed checkpoint are those of graphml's own architecture of its class.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

import graphml
from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.importing import Imported, Understood, understood, written
from graphml.authoring.importing.numbers import Pins
from graphml.authoring.importing.other_configs import ConfigTrial, ConfigTrials, Settled, outcome, settle
from graphml.authoring.importing.proof import prove
from graphml.cli.main import app
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.config_names import SIZES
from graphml.peers.changed_configs import WINDOW, changes, others, smaller, wider
from tests.authoring.test_import_command import PYTHON, run, with_torch
from tests.import_records import described, write_folder

IDS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
CHANGED: Mapping[str, Sequence[tuple[str, Any]]] = {
    "llama": [("rms_norm_eps", 0.05)],
    "gemma2": [("rms_norm_eps", 0.05), ("attn_logit_softcapping", 2.0), ("query_pre_attn_scalar", 3)],
    "cohere2": [("layer_types", ["full_attention", *["sliding_attention"] * 3]), ("logit_scale", 0.5)],
}


def trials_of(name: str, folder: Path) -> tuple[Understood, ConfigTrials]:
    """A record, recognised, and checkpoints of it with changed fields."""
    description = described(name, folder / "traced")
    write_folder(description, folder / "checkpoint")
    listed = []
    fields = [("", None), *CHANGED[name]]
    for i, (path, value) in enumerate(fields):
        where = folder / f"trial-{i}"
        write_folder(description, where, **({path: value} if path else {}))
        with graphml.load(where, "reference", kv="f32", quant="fp32") as model:
            logits = model.session(n_ctx=32).eval(IDS, all_logits=True)
        np.savez(where / "logits.npz", ids=np.array(IDS), logits=logits)
        listed.append(ConfigTrial(path, value, where))
    return understood(description, checkpoint(folder / "checkpoint")), ConfigTrials(
        listed, [path for path, _ in fields], 0.0
    )


def settled(name: str, folder: Path, poison: tuple[str, str] = ("", "")) -> Settled:
    """A record's file, with a part of its text replaced."""
    model, trials = trials_of(name, folder)

    def write(pins: Pins) -> Imported:
        file = written(model, pins)
        assert poison[0] in file.text
        return replace(file, text=file.text.replace(*poison) if poison[0] else file.text)

    return settle(write, trials, model.dependence.description.config)


@pytest.mark.parametrize("name", CHANGED)
def test_what_follows_config_json_is_not_pinned(name: str, tmp_path: Path) -> None:
    done = settled(name, tmp_path)
    assert not done.pinned
    assert all(each.agrees for each in done.outcomes)
    assert len(done.outcomes) == 1 + len(CHANGED[name])


POISONS = [
    ("llama", ("config.norm_eps", "1e-05"), "rms_norm_eps"),
    ("gemma2", ("softcap=config.attn_logit_softcapping", "softcap=50.0"), "attn_logit_softcapping"),
    ("gemma2", ("config.scale", "24**-0.5"), "query_pre_attn_scalar"),
    ("cohere2", ("config.windows[layer.index]", "(8, 8, 8, 0)[layer.index]"), "layer_types"),
]


@pytest.mark.parametrize(("name", "poison", "path"), POISONS, ids=[path for *_, path in POISONS])
def test_a_constant_for_a_field_is_caught_and_pinned(
    name: str, poison: tuple[str, str], path: str, tmp_path: Path
) -> None:
    done = settled(name, tmp_path, poison)
    assert list(done.pinned) == [path]
    (refused,) = [each for each in done.outcomes if each.trial.path == path]
    wanted, got = (re.escape(str(value)[:60]) for value in (done.pinned[path], refused.trial.value))
    assert re.search(rf"{path}: wanted {wanted}, as in the model .*; got {got}", refused.refusal)
    assert f"{path} = {str(done.pinned[path])[:40]}" in dict(done.rows())["pinned"]


def test_a_file_that_is_wrong_for_the_small_model_pins_all(tmp_path: Path) -> None:
    done = settled("llama", tmp_path, ('"neox"', '"norm"'))
    assert list(done.pinned) == ["rms_norm_eps"]
    assert 'config.pinned("rms_norm_eps"' in done.imported.text


def test_the_constants_of_a_module_are_refused_for_weights_of_another(tmp_path: Path) -> None:
    """Module d scales what it adds by 0.7, which is in no key: a file of weights says it."""
    model = understood(described("plain-d", tmp_path / "traced"), {})
    file = written(model)
    assert file.keys["constants"] == [0.7]
    arch = tmp_path / "mine.py"
    arch.write_text(file.text)
    assert prove(file, arch, None).holds
    arch.write_text(file.text.replace("0.7", "0.5"))
    with pytest.raises(ArchitectureError, match=r"constants: wanted \[0\.5\].*got \[0\.69?"):
        prove(file, arch, None)


@pytest.mark.parametrize("name", ["plain-e", "plain-f"])
def test_a_file_without_constants_is_refused_for_weights_with_some(name: str, tmp_path: Path) -> None:
    """A size may stand in it where the other module has a number of its own."""
    file = written(understood(described(name, tmp_path / "traced"), {}))
    assert "constants" not in file.keys
    arch = tmp_path / "mine.py"
    arch.write_text(file.text)
    assert prove(file, arch, None).holds
    with pytest.raises(ArchitectureError, match=r"constants: wanted \[\].*got \[4\.0\]"):
        prove(replace(file, keys={**file.keys, "constants": [4.0]}), arch, None)


def test_fields_of_an_encoder_are_not_refused_for_its_decoder(tmp_path: Path) -> None:
    """As of BART's decoder alone: those that change no logits. One that does is refused."""
    fields = {"encoder_width": 7, "decoder_width": 7, "encoder_scale": 3, "decoder_scale": 3}
    description = described("llama", tmp_path / "traced", lambda found: found["config"].update(fields))
    write_folder(description, tmp_path / "known")
    with graphml.load(tmp_path / "known", "reference", kv="f32", quant="fp32") as model:
        logits = model.session(n_ctx=32).eval(IDS, all_logits=True)
    description = replace(description, config={**description.config, "model_type": "novel"})
    listed = []
    for path, value, factor in (("", 0, 1), ("encoder_width", 9, 1), ("encoder_scale", 5, 2)):
        where = tmp_path / f"trial-{path}"
        write_folder(description, where, **({path: value} if path else {}))
        np.savez(where / "logits.npz", ids=np.array(IDS), logits=factor * logits)
        listed.append(ConfigTrial(path, value, where))
    model = understood(description, checkpoint(tmp_path / "known"))
    trials = ConfigTrials(listed, [trial.path for trial in listed], 0.0)
    done = settle(lambda pins: written(model, pins), trials, description.config)
    assert [each.agrees for each in done.outcomes] == [True, True, False]
    assert "encoder_scale is '5': this architecture knows 3 alone" in done.outcomes[-1].refusal
    assert 'ignored=(\n        "encoder_width",' in done.imported.text


LLAMA_8B = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-5, "sliding_window": 4096,
    "max_window_layers": 28, "layer_types": ["full_attention", "sliding_attention"] * 16,
    "eos_token_id": 128001, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}  # fmt: skip
NAMES = {key: list(names) for key, names in SIZES.items()}


def test_a_large_model_is_tried_as_a_small_one_of_its_ratios() -> None:
    small = smaller(LLAMA_8B, NAMES, 8 << 30)
    assert (small["hidden_size"], small["num_attention_heads"], small["num_key_value_heads"]) == (128, 8, 2)
    assert small["layer_types"] == LLAMA_8B["layer_types"][: small["num_hidden_layers"]]
    assert (small["sliding_window"], small["max_window_layers"]) == (WINDOW, 28)
    assert small["eos_token_id"] == 0
    assert smaller(small, NAMES, 1000) == small
    sizes, larger = wider(small, NAMES)
    assert [larger[name] for name in sizes] == [2 * small[name] for name in sizes]


def test_each_number_and_list_is_changed_alone() -> None:
    small = smaller(LLAMA_8B, NAMES, 8 << 30)
    listed = dict(changes(small, NAMES, {"head_dim": 16}, {"eos_token_id"}))
    assert set(listed) == {*small, "head_dim", "rope_parameters.rope_theta", "rope_parameters.rope_type"} - {
        "eos_token_id", "rope_parameters"}  # fmt: skip
    for path, models in listed.items():
        for changed in models:
            differ = {name for name in {*small, *changed} if small.get(name) != changed.get(name)}
            assert differ <= {path.partition(".")[0], "layer_types"}
    assert len(listed["num_hidden_layers"][0]["layer_types"]) == 2 * small["num_hidden_layers"]
    assert others(1e-6) == [0.05, 0.2]  # larger than what an error of eps would hide in
    assert others(True) == [False]


MADE = """
import json, sys
from pathlib import Path
import numpy, torch, transformers
name, out, first, *others = sys.argv[1], Path(sys.argv[2]), *map(json.loads, sys.argv[3:])
sys.path.insert(0, "graphml/peers")
from changed_configs import _draw
for i, fields in enumerate([first, *others]):
    config = getattr(transformers, f"{name}Config")(**{**first, **fields})
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = kind._from_config(config, attn_implementation="eager").eval()
    _draw(torch, model)
    ids = torch.arange(24)[None] * 5 % 61
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].numpy()
    model.save_pretrained(out / str(i))
    numpy.savez(out / str(i) / "logits.npz", ids=ids[0].numpy(), logits=logits)
"""
SHORT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48, "vocab_size": 64, "n_positions": 64}
LONG = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
LOCAL = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "window_size": 8,
         "max_position_embeddings": 64, "intermediate_size": 48, "bos_token_id": 1,
         "attention_types": [[["global", "local"], 1]], "eos_token_id": 2}  # fmt: skip
CONTROLLED = {name: value for name, value in SHORT.items() if name != "n_inner"}
DECODER = {"d_model": 32, "decoder_layers": 2, "encoder_layers": 2, "decoder_ffn_dim": 48, "vocab_size": 64,
           "encoder_ffn_dim": 48, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
           "is_decoder": True, "decoder_start_token_id": 1, "max_position_embeddings": 64,
           "is_encoder_decoder": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
           "forced_eos_token_id": 2}  # fmt: skip
# Class, fields of the imported checkpoint, and of others; None: right, else what is refused.
CLASSES = {
    # Its four groups of q, v and k are no heads.
    "codegen": ("CodeGen", {**SHORT, "rotary_dim": 4}, {"n_head": 8}, {"n_head": 2, "n_embd": 48}, None),
    "codegen-16": ("CodeGen", {**SHORT, "n_embd": 128, "n_head": 16, "rotary_dim": 4}, {"n_head": 8},
                   {"n_head": 4}, None),
    # Its norms have PyTorch's eps, whatever the field says.
    "biogpt": ("BioGpt", LONG, {"layer_norm_eps": 0.05}, {"hidden_size": 64, "num_hidden_layers": 2}, None),
    "smollm3": ("SmolLM3", {**LONG, "num_key_value_heads": 2}, {"no_rope_layers": [0, 1, 0, 1]},
                {"num_hidden_layers": 8, "rms_norm_eps": 0.1}, None),
    # Its files name a window that the class does not use.
    "qwen2": ("Qwen2", {**LONG, "num_key_value_heads": 2}, {"num_key_value_heads": 4},
              {"num_hidden_layers": 2, "rope_theta": 500.0}, None),
    "opt": ("OPT", {**LONG, "ffn_dim": 48, "word_embed_proj_dim": 32}, {"num_attention_heads": 8},
            {"num_hidden_layers": 2}, None),
    # Its feed-forward is a Sequential, whose numbers are no experts.
    "ctrl": ("CTRL", {**CONTROLLED, "dff": 48}, {"n_layer": 3}, {"dff": 64}, None),
    # Its encoder is no part of it.
    "bart": ("Bart", DECODER, {"encoder_attention_heads": 8, "encoder_layers": 3, "encoder_ffn_dim": 9},
             {"decoder_layers": 3, "init_std": 0.5, "decoder_layerdrop": 0.1}, None),
    "gpt_neo": ("GPTNeo", LOCAL, {"attention_types": [[["local", "global"], 1]]},
                {"attention_types": [[["local"], 2]]}, "attention_layers: wanted .*'global', 'local'.*; got"),
}  # fmt: skip


@with_torch
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_transformers_on_other_checkpoints(name: str, tmp_path: Path) -> None:
    kind, *fields, refusal = CLASSES[name]
    given = [PYTHON, "-c", MADE, kind, str(tmp_path), *map(json.dumps, fields)]
    subprocess.run(given, check=True, capture_output=True)
    for config in tmp_path.glob("*/config.json") if name == "qwen2" else ():
        config.write_text(json.dumps({**json.loads(config.read_text()), "sliding_window": 4096}))
    arch = tmp_path / "imported_file.py"
    code, told, error = run(f"hf:{tmp_path / '0'}", "-o", arch, "--python", PYTHON)
    assert code == 0, error
    followed = re.search(r"\| every value agrees \| (.*) \|", told)
    assert followed is not None
    assert len(followed[1].split(", ")) >= 3
    for i in (0, 1, 2):
        done = outcome(arch, ConfigTrial("", None, tmp_path / str(i)))
        if i and refusal:
            assert re.search(refusal, done.refusal), done
        else:
            assert done.agrees, done


@with_torch
def test_products_of_a_class_that_gguf_does_not_know_are_compared(tmp_path: Path) -> None:
    """By the names in the file's own FAMILY: the part is named within the layer, and the mistake."""
    kind, fields, *_ = CLASSES["codegen"]
    given = [PYTHON, "-c", MADE, kind, str(tmp_path), json.dumps(fields)]
    subprocess.run(given, check=True, capture_output=True)
    source, arch = tmp_path / "0", tmp_path / "codegen_file.py"
    code, _, error = run(f"hf:{source}", "-o", arch, "--python", PYTHON)
    assert code == 0, error
    assert "codegen" not in gguf.MODEL_ARCH_NAMES.values()
    arch.write_text(arch.read_text().replace("g.gelu(", "g.silu("))
    against = ["verify", source, "--arch", arch, "--against", f"hf:{source}", "--python", PYTHON]
    done = CliRunner().invoke(app, list(map(str, against)))
    assert done.exit_code == 1, done.output
    assert "first wrong: layer 0, at input of ffn_down" in done.stdout
    assert "likely cause: activation" in done.stdout
