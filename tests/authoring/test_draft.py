"""`graphml new-arch`: drafts work at once on their own sample, and say what they leave out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.authoring.draft.huggingface import read_config
from graphml.authoring.draft.traits import differences, nearest, traits_known, traits_of
from graphml.cli.main import app
from graphml.loading import discovery
from tests import tiny_model

CONFIGS = Path(__file__).parent / "configs"
# The known architecture that a config.json is nearest to; "" where the draft stands alone.
EXTENDED = {
    "qwen3": "qwen3", "gemma3_text": "gemma3", "gpt2": "gpt2", "mixtral": "llama", "granite": "granite",
    "novel": "", "novel_experts": "", "novel_plain": "falcon",
}  # fmt: skip


def new_arch(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["new-arch", *[str(one) for one in arguments]])
    assert result.exit_code == code, result.output
    return result


def test_every_config_is_tried() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(EXTENDED)


@pytest.mark.parametrize("name", EXTENDED)
def test_a_draft_from_a_config_runs_on_its_own_sample(name: str, tmp_path: Path) -> None:
    file, model = tmp_path / "mine.py", tmp_path / "mine.gguf"
    done = new_arch("my-arch", "--from-hf", CONFIGS / f"{name}.json", "-o", file, "--sample", model)
    assert done.stdout == f"{file}\n"
    text = file.read_text()
    module = f"from graphml_models.{EXTENDED[name]} import build" if EXTENDED[name] else "def build("
    assert module in text
    assert max(map(len, text.splitlines())) <= 110
    config = read_config(CONFIGS / f"{name}.json")
    with graphml.load(model, "reference", arch=file, kv="f32", n_batch=24) as opened:
        executor = opened.executor
        found = traits_of(executor.build(1, 1))
        assert not executor.unused_tensors
        ids = np.random.default_rng(1).integers(0, 80, 20)
        together = opened.session().eval([int(one) for one in ids], all_logits=True)
        session = opened.session()
        alone = np.concatenate([session.eval([int(one)], all_logits=True) for one in ids])
    assert np.isfinite(together).all()
    np.testing.assert_allclose(alone, together, atol=1e-4)
    # An extended sample may be of another kind, as llama's first has no experts.
    alike = traits_known(EXTENDED[name]) if EXTENDED[name] else [found]
    assert any(not differences(config.traits, one) for one in alike)


def test_a_plain_draft_computes_what_llama_does_on_files_of_llama(tmp_path: Path) -> None:
    file, model = tmp_path / "mine.py", tiny_model.write(tmp_path / "tiny.gguf")
    new_arch("mine", "-o", file)
    ids = list(range(3, 40))
    with graphml.load(model, "reference") as known, graphml.load(model, "reference", arch=file) as drafted:
        assert drafted.arch == "mine"
        np.testing.assert_allclose(drafted.logits(ids), known.logits(ids), atol=1e-5)


def test_what_a_draft_leaves_out_is_in_it_and_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "novel.py"
    done = new_arch("novel", "--from-hf", CONFIGS / "novel.json", "-o", file)
    wanted = [
        "depth_router = {'kind': 'learned', 'layers': [1, 2]}",
        "rope_scaling, the rest = {'mystery': 7}",
    ]
    *left, after = done.stderr.splitlines()[1:]
    assert left == [f"graphml: not in the draft: {line}" for line in wanted]
    assert f"`graphml run --arch {file} MODEL.gguf`" in after
    assert all(f"- {line}" in file.read_text() for line in wanted)


def test_names_of_sizes_become_keys() -> None:
    keys = read_config(CONFIGS / "novel.json").keys
    wanted = {
        "context_length": 8192, "embedding_length": 2048, "block_count": 24, "attention.head_count": 16,
        "attention.head_count_kv": 4, "attention.key_length": 128, "feed_forward_length": 6144,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5e5, "rope.dimension_count": 64,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "attention.sliding_window": 1024,
        "rope.scaling.original_context_length": 4096, "final_logit_softcapping": 30.0, "embedding_scale": 2.0,
    }  # fmt: skip
    assert {key: keys[key] for key in wanted} == wanted
    assert keys["attention.sliding_window_pattern"] == [1, 1, 0] * 8
    gemma = read_config(CONFIGS / "gemma3_text.json")
    assert gemma.keys["embedding_scale"] == pytest.approx(2048**0.5)
    assert gemma.keys["attention.scale"] == pytest.approx(1 / 16)
    assert any("1 + weight" in note for note in gemma.notes)
    granite = read_config(CONFIGS / "granite.json").keys
    assert (granite["logit_scale"], granite["residual_scale"]) == (0.125, 0.22)
    experts = read_config(CONFIGS / "novel_experts.json").keys
    assert (experts["expert_count"], experts["expert_used_count"]) == (16, 4)
    assert experts["expert_feed_forward_length"] == 512


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma2", "gptneox", "deepseek2", "seed_oss"])
def test_a_known_architecture_is_nearest_to_itself(name: str) -> None:
    traits = traits_known(name.replace("_", "-"))[0]
    assert nearest(traits, name.replace("_", "-")) == (name.replace("_", "-"), [])


@pytest.mark.parametrize("like", ["llama", "gemma3", "deepseek2", "seed_oss", "command-r"])
def test_a_draft_like_another_runs(like: str, tmp_path: Path) -> None:
    file, model = tmp_path / "mine.py", tmp_path / "mine.gguf"
    new_arch("mine", "--like", like, "-o", file, "--sample", model)
    assert len(file.read_text().splitlines()) < 12
    with graphml.load(model, "reference", arch=file) as opened:
        assert opened.arch == "mine"
        assert np.isfinite(opened.session().eval([1, 2, 3])).all()


def test_without_anything_it_is_a_plain_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_arch("tiny-one", "--sample", "t.gguf").stdout == "tiny_one.py\n"
    with graphml.load(Path("t.gguf"), "reference", arch=Path("tiny_one.py")) as opened:
        assert np.isfinite(opened.session().eval([1, 2, 3])).all()
    assert "is there already" in new_arch("tiny-one", code=2).stderr
    new_arch("tiny-one", "--force")
    assert discovery.architecture_from_file(Path("tiny_one.py")).name == "tiny-one"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{", "cannot be read as config.json"),
        ("[1]", "wanted an object; got list"),
        ("{}", "wanted one of hidden_size, n_embd"),
        (json.dumps({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 9}), "num_attention_heads"),
        (json.dumps({"hidden_size": -4}), "a size of at least 1"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "cannot be read as config.json"),
    ],
)
def test_what_is_no_config_is_an_error(text: str, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    done = new_arch("mine", "--from-hf", path, "-o", tmp_path / "mine.py", code=2)
    assert wanted in done.stderr
    assert not (tmp_path / "mine.py").exists()


def test_a_config_cannot_write_code(tmp_path: Path) -> None:
    """Names and values stand in a docstring, which they cannot end."""
    config = json.loads((CONFIGS / "novel.json").read_text())
    config['evil"""\nraise SystemExit(9)\n"""'] = 'x"""\nraise SystemExit(9)\n"""\\'
    config["model_type"] = 'm"""\nraise SystemExit(9)\n"""'
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    new_arch("mine", "--from-hf", path, "-o", tmp_path / "mine.py")
    assert discovery.architecture_from_file(tmp_path / "mine.py").name == "mine"


def test_a_draft_says_what_import_would_do_better(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "novel.json").read_text())
    for weights, wanted in (
        (None, "the weights beside config.json"),
        ("model-00001-of-00002.safetensors", ""),
    ):
        if weights:
            (tmp_path / weights).touch()
        made = tmp_path / f"mine_{weights is None}.py"
        done = new_arch("mine", "--from-hf", tmp_path / "config.json", "-o", made)
        assert f"`graphml import hf:{tmp_path} -o {made}`" in done.stderr
        assert ("the weights beside" in done.stderr) == bool(wanted)


@pytest.mark.parametrize("name", ["llama", "command_r"])
def test_the_name_of_an_architecture_begins_from_it(name: str, tmp_path: Path) -> None:
    """A plain decoder under that name would compute something else."""
    own, alike = tmp_path / "own.py", tmp_path / "alike.py"
    like = name.replace("_", "-")
    said = f"graphml: {like} is an architecture here: the file begins from it, as by --like"
    assert said in new_arch(name, "-o", own).stderr
    new_arch(name, "--like", like, "-o", alike)
    assert own.read_text() == alike.read_text()


@pytest.mark.parametrize("name", ["import", "9lives", "a b", "../x", "a.b", ""])
def test_a_name_that_is_no_module_is_an_error(name: str, tmp_path: Path) -> None:
    assert "NAME: wanted letters" in new_arch(name, "-o", tmp_path / "m.py", code=2).stderr


def test_a_config_alone_is_drafted_and_a_known_type_is_told(tmp_path: Path) -> None:
    config, file = CONFIGS / "qwen3.json", tmp_path / "mine.py"
    done = new_arch(config, "-o", file)
    assert f"graphml: qwen3 runs as it is: `graphml run {CONFIGS}`" in done.stderr
    named = new_arch("mine", "--from-hf", config, "-o", file, "--force")
    assert (done.stdout, done.stderr) == (named.stdout, named.stderr)
    assert (
        "runs as it is"
        not in new_arch("mine", "--from-hf", CONFIGS / "novel.json", "-o", file, "--force").stderr
    )
    sampled = new_arch("mine", "-o", file, "--sample", tmp_path / "s.gguf", "--force").stderr
    assert f"`graphml bench -m {tmp_path / 's.gguf'} --arch {file}` runs it" in sampled
    assert "NAME: wanted a name before config.json, or -o NAME.py" in new_arch(config, code=2).output
