"""Folders of encoders as GGUF files: rows, keys, what llama.cpp computes of them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

import graphml
from graphml.authoring.handing_on import hand_on
from graphml.authoring.llama_cpp.fitted import reads
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.weights import open_model
from tests.encoder_records import ENCODERS, SENTENCES, TOKENS, about, write
from tests.golden import nmse
from tests.llama_cpp_rows import CASES, OPTIONS, RECORD, SCORED, Case, converted, cosine, folder, rows_of

NEAR = 0.9999
"""The least cosine: llama.cpp has a table of GELU by its tangent, in half precision."""
REFUSED = {
    "bert-scores": "token_type_by_id = True",
    "dense": "dense_2.bias: llama.cpp's bert has no such tensor",
    "gemma": "attention.scale = 0.2236",
    "gemma3_text": "attention.scale = 0.2236",
    "eurobert-masked": "attn_output.bias: llama.cpp's eurobert has no such tensor",
    "jina_embeddings_v3-scores": "cls.bias: llama.cpp's jina-bert-v3 has no such tensor",
    "mean": "sentence_transformers.default_prompt = 'query'",
    "modernbert-scores": "cls.bias: llama.cpp's modern-bert has no such tensor",
    "pairs": "token_type_by_id = True",
    "pairs-unigram": "no vocabulary of a GGUF file encodes as tokenizer.json",
    "unigram": "no vocabulary of a GGUF file encodes as tokenizer.json",
}
"""Records that llama.cpp could not be told -> what is said of them."""


def written(path: Path, name: str) -> Path:
    files, tensors, _ = about(name)
    with graphml.load(write(path / name, files, tensors), "reference", kv="f32", quant="fp32") as model:
        return hand_on(model, path / f"{name}.gguf", None, OPTIONS).path


def rows(path: Path, pooling: str) -> Any:
    with graphml.load(path, "reference", kv="f32", quant="fp32") as model:
        return model.embed_ids([TOKENS.tolist()], pooling)[0]


@pytest.mark.parametrize("name", [name for name in (*ENCODERS, *SENTENCES) if name not in REFUSED])
def test_a_folders_file_has_its_rows(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    poolings = ["none", "mean", *(["rank"] if "scores" in name else [])]
    for pooling in poolings:
        assert nmse(rows(path, pooling), rows(tmp_path / name, pooling)) < 1e-11
    with open_model(path) as file:
        arch = file.metadata.text("general.architecture")
        assert file.metadata.boolean(f"{arch}.attention.causal", True) is (arch == "qwen3")
        known = reads(arch)[1]
        for tensor in file.tensors:
            assert ".".join("#" if part.isdecimal() else part for part in tensor.split(".")) in known
        kinds = file.tensors.get("token_types.weight")
        if "token_types.weight" in known:
            count = 1 if kinds is None else kinds.shape[0]
            assert file.metadata.integer("tokenizer.ggml.token_type_count") == count


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_cannot_be_told_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="convert") as raised:
        written(tmp_path, name)
    assert REFUSED[name] in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_computes_the_rows_of_the_folder(name: str, tmp_path: Path) -> None:
    """Recorded of the same files by `tests.llama_cpp_rows`."""
    path = converted(tmp_path, CASES[name])
    with np.load(RECORD) as record:
        theirs = record[name]
    for place in (tmp_path / "folder", path):
        with graphml.load(place, "reference", kv="f32", quant="fp32") as model:
            ours = rows_of(model, name)
        assert ours.shape == theirs.shape
        if name in SCORED:
            assert np.abs(ours - theirs).max() < 2e-3 * max(1.0, np.abs(theirs).max())
        else:
            assert cosine(ours, theirs) >= NEAR


def test_keys_have_the_types_that_llama_cpp_reads(tmp_path: Path) -> None:
    fields = gguf.GGUFReader(converted(tmp_path, CASES["gemma"])).fields
    assert fields["general.architecture"].contents() == "gemma-embedding"
    assert fields["gemma-embedding.pooling_type"].types == [gguf.GGUFValueType.UINT32]
    assert fields["gemma-embedding.attention.causal"].contents() is False
    sizes = [fields[f"gemma-embedding.dense_{of}"].contents() for of in ("2_feat_out", "3_feat_in")]
    assert sizes == [48, 48]


def test_scores_have_the_names_of_the_config(tmp_path: Path) -> None:
    fields = gguf.GGUFReader(converted(tmp_path, CASES["xlm-roberta-scores"])).fields
    assert fields["bert.classifier.output_labels"].contents() == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert fields["bert.pooling_type"].contents() == int(gguf.PoolingType.RANK)
    assert fields["tokenizer.ggml.add_sep_token"].contents() is True


def test_wordpiece_has_llama_cpps_tokens(tmp_path: Path) -> None:
    fields = gguf.GGUFReader(converted(tmp_path, CASES["bert"])).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert fields["tokenizer.ggml.model"].contents() == "bert"
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert "\u2581the" in tokens
    assert not [token for token in tokens if token.startswith("##")]
    assert fields["tokenizer.ggml.seperator_token_id"].contents() == 3
    assert fields["tokenizer.ggml.bos_token_id"].contents() == 2
    flags = [fields[f"tokenizer.ggml.add_{of}_token"].contents() for of in ("bos", "eos", "sep")]
    assert flags == [True, False, True]  # llama.cpp puts both between two texts where both are true


def test_prompts_are_kept_for_graphml(tmp_path: Path) -> None:
    prompts = {"config_sentence_transformers.json": {"prompts": {"query": "what is: "}}}
    path = converted(tmp_path, replace(CASES["bert"], more=prompts))
    with graphml.load(path, "reference", kv="f32") as model:
        asked, plain = model.embed("a cat", prompt_name="query"), model.embed("what is: a cat")
    np.testing.assert_array_equal(asked, plain)


def test_a_pair_with_other_tokens_between_is_refused(tmp_path: Path) -> None:
    """ModernBERT's puts one separator between two texts, llama.cpp none or two."""
    case = Case("modernbert-scores", "bytes", "", {"classifier_bias": False}, without=("head.dense.bias",))
    whole = json.loads(about("bytes")[0]["tokenizer.json"])
    pair = [part for part in whole["post_processor"]["pair"] if "SpecialToken" not in part]
    whole["post_processor"]["pair"] = pair
    with pytest.raises(UsageError, match="a pair of texts: wanted ids"):
        converted(tmp_path, replace(case, more={"tokenizer.json": whole}))


def test_dense_layers_end_with_the_models_width(tmp_path: Path) -> None:
    path = folder(tmp_path / "folder", CASES["gemma"])
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps([each for each in modules if each["path"] != "3_Dense"]))
    with (
        graphml.load(path, "reference", kv="f32") as model,
        pytest.raises(UsageError, match=r"dense_2.weight has 48 rows: llama.cpp's gemma-embedding knows"),
    ):
        hand_on(model, tmp_path / "out.gguf", None, OPTIONS)


def test_the_command_writes_an_encoder_in_another_type(tmp_path: Path) -> None:
    source = folder(tmp_path / "folder", CASES["bert"])
    words = ["convert", source, "-o", tmp_path / "out.gguf", "--type", "f16", "--backend", "reference"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert "rows as the model's" in done.output
    with open_model(tmp_path / "out.gguf") as file:
        assert file.tensors["blk.0.ffn_up.weight"].dtype == "f16"
        assert file.tensors["position_embd.weight"].dtype == "f32"


@pytest.mark.parametrize(
    ("name", "stated"),
    [("mean", "sentence_transformers.default_prompt=str:"), ("pairs", "bert.token_type_by_id=bool:false")],
)
def test_what_is_refused_is_written_as_another_model_that_an_override_states(
    name: str, stated: str, tmp_path: Path
) -> None:
    files, tensors, _ = about(name)
    source, output = write(tmp_path / name, files, tensors), tmp_path / "out.gguf"
    words = ["convert", source, "-o", output, "--backend", "reference", "--override-kv", stated]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    with open_model(output) as file:
        assert not file.metadata.text("sentence_transformers.default_prompt", "")
        assert not [key for key in file.metadata if "by_id" in key]
