"""The file of weights that `graphml import` writes from a folder: its model, by its definition alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import graphml
from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.importing import import_description
from graphml.authoring.importing.naming import pattern
from graphml.authoring.importing.proof import LIMIT, write_checkpoint, write_weights
from graphml.authoring.importing.vocabulary import tokenizer_keys
from graphml.errors import ArchitectureError, UsageError, WeightsError
from tests.import_records import described, write_folder

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def with_tokenizer(path: Path, n_vocab: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator(["Hello world, hello there"], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "phi3"])
def test_the_file_is_the_folders_model_and_no_other(name: str, tmp_path: Path) -> None:
    """Llama's rope, say, pairs halves in a folder and neighbours in GGUF: the name of neither would do."""
    description = described(name, tmp_path / "traced")
    folder, arch, weights = tmp_path / name, tmp_path / "mine.py", tmp_path / "mine.gguf"
    write_folder(description, folder)
    with_tokenizer(folder, 40)
    imported = import_description(description, checkpoint(folder))
    arch.write_text(imported.text)
    lines = write_checkpoint(imported, arch, folder, weights)
    assert all(line.nmse <= LIMIT for line in lines)
    digest = hashlib.sha256(imported.text.encode()).hexdigest()
    with pytest.raises(ArchitectureError, match=rf"Python code in the file, .* {digest}: .* --trust-arch"):
        graphml.load(weights, "reference")
    with graphml.load(weights, "reference", trust_arch=True) as by_itself:
        assert by_itself.arch.startswith(f"imported-{name}")
    with (
        graphml.load(folder, "reference", kv="f32", quant="fp32", arch=arch) as first,
        graphml.load(weights, "reference", kv="f32", quant="fp32", arch=arch) as second,
    ):
        assert not second.executor.unused_tensors
        assert (
            second.context_length
            == first.context_length
            == description.config.get("max_position_embeddings", description.config.get("n_positions"))
        )
        assert second.encode("Hello there") == first.encode("Hello there")
        rows = [
            model.session(n_ctx=32).eval((np.arange(13) % 7 + 3).tolist(), all_logits=True)
            for model in (first, second)
        ]
        np.testing.assert_allclose(rows[1], rows[0], rtol=1e-4, atol=1e-4 * np.abs(rows[0]).max())
        assert second.metadata["graphml.definition.sha256"] == digest
        assert second.metadata["tokenizer.chat_template"] == TEMPLATE


def test_a_plain_module_gets_a_tokenizer_and_is_one_file(tmp_path: Path) -> None:
    """From a folder, from one of its files, and from a GGUF file that has one."""
    imported = import_description(described("plain-maps", tmp_path / "traced"), {})
    n_vocab = int(imported.layers.result.shape[-1])
    folder, weights = tmp_path / "tokenizer", tmp_path / "mine.gguf"
    folder.mkdir()
    with pytest.raises(WeightsError, match=r"wanted a tokenizer: tokenizer\.json"):
        tokenizer_keys(folder, n_vocab)
    with_tokenizer(folder, 40)
    write_weights(imported, weights, random=True, tokenizer=tokenizer_keys(folder, n_vocab))
    with graphml.load(weights, "reference", trust_arch=True) as model:
        ids = model.encode("Hello there")
        assert model.decode(ids) == "Hello there"
        assert model.session().eval(ids).shape == (n_vocab,)
        assert model.template.source == TEMPLATE
    assert tokenizer_keys(weights, n_vocab) == tokenizer_keys(folder / "tokenizer.json", n_vocab)
    with pytest.raises(
        UsageError, match=rf"--tokenizer: .* has {n_vocab} tokens; the module has {n_vocab + 1}"
    ):
        tokenizer_keys(weights, n_vocab + 1)


def test_numbers_of_a_layer_and_an_expert_are_counted_and_others_are_names() -> None:
    """A Sequential's feed-forward is no list of experts."""
    assert pattern("h.12.ffn.2.weight") == "h.{}.ffn.2.weight"
    assert pattern("layers.3.mlp.experts.41.w1.weight") == "layers.{}.mlp.experts.{}.w1.weight"
    assert pattern("layers.3.moe.local_experts.0.0.weight") == "layers.{}.moe.local_experts.{}.0.weight"
    assert pattern("w.weight") == "w.weight"
