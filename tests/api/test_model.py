"""The door of the library: what loads, what it says of itself, and what it refuses."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest

import graphml
from tests import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def load(path: Path, **options: Any) -> graphml.Model:
    return graphml.load(path, backend="reference", **options)


def test_the_package_and_the_model_need_no_llvm(path: Path) -> None:
    script = (
        "import sys, graphml\n"
        "assert 'numpy' not in sys.modules, 'import graphml alone needs no numpy'\n"
        "assert set(graphml.__all__) <= set(dir(graphml))\n"
        f"model = graphml.load({str(path)!r}, backend='reference')\n"
        "model.session().eval(model.encode('hello'))\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'llvmlite'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_is_there() -> None:
    for name in graphml.__all__:
        assert getattr(graphml, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="no attribute 'loads'"):
        _ = graphml.loads  # type: ignore[attr-defined]


def test_what_a_model_says_of_itself(path: Path) -> None:
    with load(path) as model:
        assert model.arch == "llama"
        assert model.n_ctx == tiny_model.N_CTX
        assert model.n_vocab == len(tiny_model.vocabulary())
        assert model.config.n_layer == tiny_model.LAYERS
        with pytest.raises(dataclasses.FrozenInstanceError):
            model.config.n_layer = 3
        assert model.path == path
        ids = model.encode("hello world\u00e9")
        assert len(ids) < len("hello world\u00e9")
        assert model.decode(ids) == "hello world\u00e9"
        assert model.piece(ids[0]) == "hello"
        assert model.encode("<|im_end|>", parse_special=True) == [tiny_model.END]
        assert len(model.encode("<|im_end|>")) > 1
        assert model.tokenizer is not None
        assert model.tokenizer.end_tokens == {tiny_model.END}


def test_begin_token_is_added_if_the_file_says_so(tmp_path: Path) -> None:
    with load(tiny_model.write(tmp_path / "bos.gguf", add_bos=True)) as model:
        assert model.encode("hello")[0] == tiny_model.BEGIN
        assert model.encode("hello", add_special=False) == model.encode("hello")[1:]


def test_a_model_without_vocabulary_runs_on_ids(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "bare.gguf", tokenizer=False)
    with load(path) as model:
        assert model.tokenizer is None
        session = model.session()
        assert [token.piece for token in session.generate([4, 5], max_tokens=3)] == ["", "", ""]
        uses = (lambda: model.encode("a"), lambda: model.decode([1]), lambda: model.piece(1), model.chat)
        for use in uses:
            with pytest.raises(graphml.TokenizerError, match="no vocabulary"):
                use()
        with pytest.raises(graphml.UsageError, match="stop: wanted a model with a tokenizer"):
            session.generate([4], graphml.SamplingParams(stop=("a",)))
    with pytest.raises(graphml.TokenizerError, match="no vocabulary"):
        graphml.load_tokenizer(path)


def test_a_tokenizer_needs_no_weights(path: Path, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tiny_model.vocabulary())
    writer.add_token_merges(tiny_model.MERGES)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    alone = graphml.load_tokenizer(tmp_path / "vocabulary.gguf")
    assert alone.encode("hello world") == graphml.load_tokenizer(path).encode("hello world")
    assert alone.decode(alone.encode("hello world")) == "hello world"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"backend": "abacus"}, graphml.BackendError, "no backend 'abacus'.*reference"),
        ({"threads": 0}, graphml.UsageError, "threads: wanted"),
        ({"threads": 1.5}, graphml.UsageError, "threads: wanted"),
        ({"backend": 3}, graphml.UsageError, "backend: wanted"),
        ({"fuse": ["swiglu"]}, graphml.UsageError, "fuse: wanted"),
        ({"n_batch": 0}, graphml.UsageError, "n_batch: wanted"),
        ({"kv": "q4"}, graphml.UsageError, "kv: wanted one of f16"),
        ({"pre": "gpt-3"}, graphml.TokenizerError, "'gpt-3' is not a known pre-tokenizer"),
        ({"arch": "nowhere.py"}, graphml.ArchitectureError, "nowhere.py: no such architecture file"),
        ({"template": Path("nowhere.jinja")}, graphml.TemplateError, "nowhere.jinja: cannot be read"),
    ],
    ids=repr,
)
def test_wrong_arguments_are_named(
    path: Path, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        graphml.load(path, **{"backend": "reference", **options})


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(graphml.UsageError, match=r"'smolm2': no such file.*did you mean smollm2"):
        graphml.load("smolm2")
    with pytest.raises(graphml.UsageError, match="no such file"):
        graphml.load_tokenizer(tmp_path / "nothing.gguf")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_model.write(tmp_path / "whole.gguf").read_bytes()[:3000])
    with pytest.raises(graphml.WeightsError, match=r"damaged\.gguf"):
        load(damaged)


def test_a_template_may_be_given_as_text_or_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("FILE {{ messages[0]['content'] }}", encoding="utf-8")
    for given, says in (
        ("TEXT {{ messages[0]['content'] }}", "TEXT hi"),
        (tmp_path / "own.jinja", "FILE hi"),
    ):
        with load(path, template=given) as model:
            assert model.has_template
            chat = model.chat()
            chat.add_user("hi")
            assert chat.render_turn() == says


def test_no_template_is_an_error_and_never_a_guess(tmp_path: Path) -> None:
    with load(tiny_model.write(tmp_path / "plain.gguf", template=None)) as model:
        assert not model.has_template
        with pytest.raises(graphml.TemplateError, match="no chat template"):
            model.chat()


def test_a_closed_model_says_so(path: Path) -> None:
    model = load(path)
    session = model.session()
    model.close()
    model.close()
    with pytest.raises(graphml.UsageError, match="was closed"):
        session.eval([4])
    with pytest.raises(graphml.UsageError, match="was closed"):
        model.session()


def test_progress_is_reported(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with load(path, n_batch=8, progress=lambda *report: seen.append(report)) as model:
        model.session().eval([4] * 20)
        n_bytes = sum(tensor.n_bytes for tensor in model.executor.file.tensors.values())
    assert seen[0] == ("mapping", n_bytes, n_bytes)
    assert [report for report in seen if report[0] == "prefill"] == [
        ("prefill", 0, 20), ("prefill", 8, 20), ("prefill", 16, 20), ("prefill", 20, 20)
    ]  # fmt: skip


def test_attributes_of_other_libraries_name_ours(model: graphml.Model) -> None:
    chat = model.chat()
    for owner, name, ours in (
        (model, "named_modules", "graph('build').nodes"),
        (chat, "turns", "history"),
        (model, "compare", "graphml.compare"), (graphml, "GraphBuilder", "graphml.Builder()"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'.*{re.escape(ours)}"):
            getattr(owner, name)
    with pytest.raises(AttributeError, match=r"'Chat' object has no attribute 'sing'$"):
        _ = chat.sing  # type: ignore[attr-defined]
