"""Folders of encoders and of sentence-transformers, held to what they compute (`encoder_records`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError, GraphmlError, UsageError, WeightsError
from graphml.loading import discovery
from graphml.loading.open_file import open_path
from graphml.text.tokenizer import load_tokenizer
from tests.encoder_records import (
    ENCODERS,
    FOLDER,
    QUERY,
    SENTENCES,
    TEXT,
    TEXTS,
    TOKENS,
    VARIANTS,
    about,
    write,
)
from tests.golden import nmse

LIMIT, NEAR = 1e-10, 2e-6
SETTINGS, MODULES, POOLING = "sentence_bert_config.json", "modules.json", "1_Pooling/config.json"
WITHOUT_CLASS = {"neobert"}
"""Encoders of which transformers has no class; see `test_neobert_folders`."""
PROMPTS, DENSE = "config_sentence_transformers.json", "2_Dense/config.json"


def folder(path: Path, name: str, **changed: Any) -> Path:
    """The folder of a record, with other fields of files, by their names; None leaves one out."""
    files, tensors, _ = about(name)
    for file, fields in changed.items():
        whole = files[file] | fields if isinstance(fields, dict) and file in files else fields
        files[file] = {key: value for key, value in whole.items() if value is not None} if (
            isinstance(whole, dict)
        ) else whole  # fmt: skip
    return write(path / name, {file: text for file, text in files.items() if text is not None}, tensors)


def opened(path: Path, backend: str = "reference") -> graphml.Model:
    return graphml.load(path, backend=backend, kv="f32", quant="fp32", threads=1)


def test_there_is_a_record_of_every_encoder() -> None:
    assert sorted([*ENCODERS, *SENTENCES]) == sorted(path.stem for path in FOLDER.glob("*.npz"))
    recorded = {about(name)[0]["config.json"]["model_type"] for name in [*ENCODERS, *SENTENCES]}
    drafts = discovery.drafters()
    for family in (of for of in discovery.families().values() if of.architecture not in drafts):
        encodes = discovery.architecture(family.architecture).output == "embeddings"
        assert encodes != family.logits
        assert family.logits or (recorded | WITHOUT_CLASS) & set(family.model_types), family.model_types


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_are_what_transformers_computes(name: str, tmp_path: Path) -> None:
    ids, arrays = TOKENS.tolist(), about(name)[2]
    with opened(folder(tmp_path, name)) as model:
        assert nmse(model.embed_ids([ids], "none")[0], arrays["rows"]) <= LIMIT
        if "scores" in arrays:
            assert model.executor.pooling == "rank"
            assert np.abs(model.embed_ids([ids], "rank")[0][0] - arrays["scores"]).max() <= NEAR
        together = model.embed_ids([ids, ids[:7], ids[3:]], "mean")
        alone = [model.embed_ids([each], "mean")[0] for each in (ids, ids[:7], ids[3:])]
    assert max(np.abs(one - other).max() for one, other in zip(together, alone, strict=True)) <= NEAR


POOLED: dict[str, Callable[[Any], Any]] = {
    "mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "last": lambda rows: rows[-1]
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ENCODERS if "scores" not in name])
def test_pooled_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """BERT and kin, ModernBERT, EuroBERT, EmbeddingGemma, Nomic Embed, Jina 3, T5: in each way of pooling."""
    ids, wanted = TOKENS.tolist(), about(name)[2]["rows"].astype(np.float64)
    with opened(folder(tmp_path, name)) as model:
        for pooling, pooled in POOLED.items():
            assert nmse(model.embed_ids([ids], pooling)[0][0], pooled(wanted)) <= LIMIT


def test_folders_of_classes_that_are_not_read_are_refused(tmp_path: Path) -> None:
    """Jina Embeddings 2 says that it is a BERT, and has ALiBi."""
    jina = {"architectures": ["JinaBertForMaskedLM"], "position_embedding_type": "alibi"}
    with pytest.raises(ArchitectureError, match="position_embedding_type is 'alibi'"):
        open_path(folder(tmp_path, "bert", **{"config.json": jina}))


@pytest.mark.parametrize("name", ["roberta", "camembert"])
def test_padding_is_refused_where_positions_are_counted_without_it(name: str, tmp_path: Path) -> None:
    padding = about(name)[0].get("pad_token_id", 1)
    assert padding not in TOKENS
    refused = pytest.raises(UsageError, match=rf"texts\[1\]: .* padding token, {padding}, .* got it at 2")
    with opened(folder(tmp_path, name)) as model, refused:
        model.embed_ids([[5, 6], [5, 6, padding, 7]], "mean")
    with opened(folder(tmp_path / "bert", "bert")) as model:
        assert len(model.embed_ids([[5, about("bert")[0].get("pad_token_id", 0), 7]], "none")[0]) == 3


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "umt5"])
def test_they_are_on_the_cpu(name: str, tmp_path: Path) -> None:
    with opened(folder(tmp_path, name), "cpu") as model:
        assert nmse(model.embed_ids([TOKENS.tolist()], "none")[0], about(name)[2]["rows"]) <= LIMIT


@pytest.mark.parametrize("name", [name for name in SENTENCES if "pairs" not in name])
def test_texts_become_what_sentence_transformers_computes(name: str, tmp_path: Path) -> None:
    files, _, arrays = about(name)
    normed = any(module["type"].endswith("Normalize") for module in files[MODULES])
    with opened(folder(tmp_path, name)) as model:
        rows = model.embed(TEXTS, normalize=normed)
        assert rows.shape == arrays["embeddings"].shape
        assert np.abs(rows - arrays["embeddings"]).max() <= NEAR
        if "documents" in arrays:
            documents = model.embed(TEXTS, prompt_name="document")
            assert np.abs(documents - arrays["documents"]).max() <= NEAR < np.abs(documents - rows).max()
        alone = np.stack([model.embed(text, normalize=normed) for text in TEXTS])
    assert np.abs(rows - alone).max() <= NEAR


def test_a_decoder_without_an_output_matrix_embeds_alone(tmp_path: Path) -> None:
    """Else logits would be products with the embedding, which an untied config does not mean."""
    with opened(folder(tmp_path, "last", **{"config.json": {"tie_word_embeddings": True}})) as model:
        assert model.generate("the cat", max_tokens=2)
    with opened(folder(tmp_path, "last", **{"config.json": {"tie_word_embeddings": False}})) as model:
        assert model.embed(TEXTS).shape[0] == len(TEXTS)
        with pytest.raises(graphml.UsageError, match="gives embeddings, no logits: see embed"):
            model.generate("the cat", max_tokens=2)


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name in VARIANTS for i in range(len(VARIANTS[name]))]
)
def test_classes_of_tokenizers_read_their_own_fields(name: str, number: int, tmp_path: Path) -> None:
    with open_path(folder(tmp_path, name, **{"tokenizer_config.json": VARIANTS[name][number]})) as file:
        ids = load_tokenizer(file.metadata).encode(TEXT)
    assert ids == about(name)[2][f"ids-{number}"].tolist()


@pytest.mark.parametrize("name", [name for name in SENTENCES if "pairs" in name])
def test_pairs_are_scored_as_by_a_cross_encoder(name: str, tmp_path: Path) -> None:
    with opened(folder(tmp_path, name)) as model:
        scores = model.rank(QUERY, TEXTS)
        assert np.abs(scores - about(name)[2]["scores"]).max() <= NEAR
        assert np.abs(np.stack([model.rank(QUERY, text) for text in TEXTS]) - scores).max() <= NEAR


def test_the_second_text_has_a_kind_only_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    stated = {"model_input_names": ["input_ids", "attention_mask"]}
    other = {"tokenizer_class": "PreTrainedTokenizerFast"}
    with opened(folder(tmp_path, "pairs")) as model:
        scores = model.rank(QUERY, TEXTS)
    for number, settings in enumerate((stated, other)):
        with opened(folder(tmp_path / str(number), "pairs", **{"tokenizer_config.json": settings})) as model:
            plain = model.rank(QUERY, TEXTS)
        assert np.abs(plain - scores).max() > 1e-4


def test_a_text_is_at_most_as_long_as_the_folder_says(tmp_path: Path) -> None:
    with opened(folder(tmp_path, "mean")) as model:
        model.embed("cat " * 15)
        with pytest.raises(UsageError, match=r"wanted 1 to 24 tokens \(max_seq_length\); got"):
            model.embed("cat " * 30)
    with (
        opened(folder(tmp_path, "unigram")) as model,
        pytest.raises(UsageError, match="wanted 1 to 60 tokens"),
    ):
        model.embed("cat " * 70)


def test_an_unknown_prompt_is_refused(tmp_path: Path) -> None:
    with (
        opened(folder(tmp_path, "mean")) as model,
        pytest.raises(UsageError, match=r"prompt_name: .*wanted one of 'document', 'query'; got 'passage'"),
    ):
        model.embed("a", prompt_name="passage")
    with opened(folder(tmp_path, "bytes")) as model, pytest.raises(UsageError, match="its file has none"):
        model.embed("a", prompt_name="query")


def test_arguments_of_loading_and_prompts_of_none_change_no_row(tmp_path: Path) -> None:
    with opened(folder(tmp_path, "mean", **{PROMPTS: {"default_prompt_name": None}})) as model:
        rows = model.embed(TEXTS)
    loading = {"model_args": {"torch_dtype": "float16"}, "tokenizer_args": {"use_fast": True}}
    prompts = {"prompts": None, "default_prompt_name": None}
    with opened(folder(tmp_path / "again", "mean", **{SETTINGS: loading, PROMPTS: prompts})) as model:
        np.testing.assert_array_equal(model.embed(TEXTS), rows)
    with pytest.raises(ArchitectureError, match="not understood: config_args"):
        open_path(folder(tmp_path / "other", "mean", **{SETTINGS: {"config_args": {"n_layers": 1}}}))


def test_a_prompt_that_spells_control_tokens_is_refused(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "[SEP] query"}, "default_prompt_name": None}
    with opened(folder(tmp_path, "mean", **{PROMPTS: prompts})) as model:
        model.embed("a")
        for asked in ({"prompt_name": "query"}, {"prompt": "[SEP] query"}):
            with pytest.raises(UsageError, match=r"prompt '\[SEP\] query' spells control tokens"):
                model.embed("a", **asked)


def test_a_folder_without_modules_says_nothing_of_pooling(tmp_path: Path) -> None:
    path = folder(tmp_path, "mean", **{MODULES: None, PROMPTS: None})
    with opened(path) as model, pytest.raises(UsageError, match="says none"):
        model.embed("a")


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_pooler_and_a_head_for_training_are_no_classifier(name: str, tmp_path: Path) -> None:
    with open_path(folder(tmp_path, name)) as file:
        assert not [tensor for tensor in file.tensors if tensor.startswith("cls")]


def test_modernbert_in_the_style_of_transformers_4_says_the_same(tmp_path: Path) -> None:
    old = {"rope_parameters": None, "layer_types": None, "global_attn_every_n_layers": 3,
           "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}  # fmt: skip
    with (
        open_path(folder(tmp_path, "modernbert")) as file,
        open_path(folder(tmp_path / "old", "modernbert", **{"config.json": old})) as older,
    ):
        assert dict(file.metadata) == dict(older.metadata)


WRONG: list[tuple[str, str, Any, str]] = [
    ("mean", POOLING, None, r"1_Pooling/config\.json is not there, which modules\.json names"),
    ("mean", POOLING, {"pooling_mode_max_tokens": True},
     r"pooling_mode .*'mean', 'max'.*, which are concatenated"),
    ("mean", POOLING, {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True},
     r"pooling_mode \['weightedmean'\]: wanted one of mean, cls, lasttoken"),
    ("dense", POOLING, {"pooling_mode": "median"}, r"pooling_mode \['median'\]"),
    ("dense", POOLING, {"pooling_mode": ["cls", "mean"]}, "which are concatenated"),
    ("mean", POOLING, {"pooling_mode": "cls"}, "pooling_mode is 'cls' beside mean: wanted one"),
    ("mean", POOLING, {"include_prompt": False}, "include_prompt: wanted true"),
    ("mean", POOLING, {"a_new_field": 1}, "not understood: a_new_field"),
    ("mean", POOLING, {"word_embedding_dimension": 31}, "wanted the model's 32; got 31"),
    ("dense", DENSE, {"in_features": 31}, "in_features: wanted the model's 32; got 31"),
    ("dense", "3_Dense/config.json", {"in_features": 25}, "wanted 24 of the layer before; got 25"),
    ("dense", DENSE, {"out_features": 0}, "in_features, out_features, bias: wanted numbers"),
    ("dense", DENSE, {"activation_function": "os.system"},
     r"activation_function: wanted .*Tanh.*got 'os\.system'"),
    ("dense", DENSE, {"use_residual": True}, "use_residual"),
    ("dense", DENSE, {"module_input_name": "token_embeddings"}, "module_input_name: wanted"),
    ("dense", DENSE, {"bias": False}, r"2_Dense/model\.safetensors: wanted .*linear\.weight"),
    ("mean", SETTINGS, {"do_lower_case": "yes"}, "do_lower_case: wanted true or false"),
    ("mean", SETTINGS, {"max_seq_length": "long"}, "max_seq_length: wanted a number"),
    ("mean", SETTINGS, {"query_expansion": {"length": 9}}, "not understood: query_expansion"),
    ("mean", SETTINGS, {"modality_config": {"image": {}}}, "not understood: modality_config"),
    ("mean", SETTINGS, {"transformer_task": "sequence-classification"}, "Pooling behind a classifier"),
    ("mean", PROMPTS, {"default_prompt_name": "passage"}, r"wanted one of \['document', 'query'\]"),
    ("mean", PROMPTS, {"prompts": {"query": 1}}, "prompts: wanted texts by name"),
    ("dense", POOLING, {"pooling_mode": [{}]}, "modules.json"),
    ("dense", DENSE, {"activation_function": []}, "modules.json"),
    ("mean", PROMPTS, {"default_prompt_name": []}, "modules.json"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "fields", "message"), WRONG)
def test_what_would_be_left_out_or_contradicts_is_refused(
    name: str, file: str, fields: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphmlError, match=message) as raised:
        open_path(folder(tmp_path, name, **{file: fields}))
    assert isinstance(raised.value, ArchitectureError | WeightsError)


def modules(*kinds: str) -> list[dict[str, str]]:
    return [{"path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
            for i, kind in enumerate(kinds)]  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "message"),
    [(modules("Transformer"), "wanted one Pooling behind the Transformer"),
     (modules("Transformer", "Pooling", "Pooling"), "wanted one Pooling"),
     (modules("Transformer", "Normalize", "Pooling"), "wanted one Pooling"),
     (modules("Transformer", "Pooling", "Normalize", "Dense"), "Normalize before Dense"),
     (modules("Pooling", "Transformer"), "wanted a Transformer in this folder first"),
     (modules("Transformer", "CNN"), r"module 'sentence_transformers\.models\.CNN'"),
     ([*modules("Transformer"), {"path": "", "type": "custom_st.Pooling"}], "module 'custom_st.Pooling'"),
     ([*modules("Transformer"), {"path": "../x", "type": "sentence_transformers.models.Pooling"}],
      "wanted the name of a folder"), ([], "wanted a list of 1 to"), ({}, "wanted a list of 1 to")],
)  # fmt: skip
def test_modules_in_another_order_or_of_others_are_refused(listed: Any, message: str, tmp_path: Path) -> None:
    path = folder(tmp_path, "mean")
    (path / MODULES).write_text(json.dumps(listed))
    with pytest.raises(GraphmlError, match=message):
        open_path(path)


def test_modules_of_a_classifier_want_one(tmp_path: Path) -> None:
    settings = {SETTINGS: {"transformer_task": "sequence-classification"}}
    scored, path = folder(tmp_path, "pairs", **settings), folder(tmp_path, "mean", **settings)
    for place in (scored, path):
        (place / MODULES).write_text(json.dumps(modules("Transformer")))
    with open_path(scored) as file:
        assert file.metadata["bert.pooling_type"] == 4
    with pytest.raises(ArchitectureError, match=r"modules\.json: wanted a classifier, or a Pooling"):
        open_path(path)


def test_pickled_dense_layers_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, "dense")
    (path / "2_Dense" / "model.safetensors").rename(path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"is not there, which modules\.json names; pickles are not read"):
        open_path(path)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [("bert", {"hidden_act": "relu"}, "hidden_act"), ("bert", {"is_decoder": True}, "is_decoder"),
     ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
     ("roberta", {"pad_token_id": 70}, "max_position_embeddings: wanted more than 71"),
     ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling"),
     ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj"),
     ("t5", {"relative_attention_max_distance": 64}, "relative_attention_max_distance"),
     ("nomic_bert", {"prenorm": True}, "prenorm")],
)  # fmt: skip
def test_fields_of_encoders_that_change_the_mathematics_are_refused(
    name: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ArchitectureError, match=message):
        open_path(folder(tmp_path, name, **{"config.json": fields}))
