"""The model of lm-evaluation-harness beside the harness's own `hf`, on a folder of SmolLM2's shape.

Runs where the extras `eval` and `authoring` are installed, which the Python of other tests lacks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for module in ("lm_eval", "torch"):
    pytest.importorskip(module, reason=f"without {module}: pip install '.[eval,authoring]'")

import lm_eval  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from graphml.errors import UsageError  # noqa: E402
from graphml.workshop.lm_eval import HarnessModel  # noqa: E402

MAX_LENGTH = 120
TEXT = "The old dog sees a red ball in the park. A girl reads a wet book at the station, and then it rains. "
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: label
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
""",
    "answers": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{text}}"
generation_kwargs:
  until: ["e", "."]
  max_gen_toks: 9
metric_list:
  - metric: exact_match
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's shape, random weights."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = CHATML
    fast.save_pretrained(path)
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=len(fast), hidden_size=72, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=256,
        tie_word_embeddings=True, rope_theta=100000.0,
        initializer_range=0.2, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks and their documents."""
    path = tmp_path_factory.mktemp("tasks")
    words = TEXT.split()
    documents = [
        {
            "question": " ".join(words[i : i + 5 + i % 7]), "label": i % 3,
            "choices": [" ".join(words[i + j : i + 2 * j + 1]) for j in (1, 2, 4)],
            "text": TEXT * (1 + i % 4) + words[i],
        }
        for i in range(12)
    ]  # fmt: skip
    (path / "documents.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, text in TASKS.items():
        (path / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\ndataset_kwargs:\n"
            f"  data_files:\n    test: {path}/documents.jsonl\n{text}"
        )
    return path


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[HarnessModel, HFLM]]:
    ours = HarnessModel(pretrained=str(folder), max_length=MAX_LENGTH, kv="f32")
    yield (
        ours,
        HFLM(pretrained=str(folder), max_length=MAX_LENGTH, dtype="float32", device="cpu", batch_size=1),
    )
    ours.model.close()


def results(model: Any, pages: Path, **how: Any) -> Any:
    return lm_eval.simple_evaluate(
        model=model, tasks=list(TASKS), log_samples=True, bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(pages), include_defaults=False), **how,
    )  # fmt: skip


@pytest.mark.parametrize(
    "how", [{}, {"num_fewshot": 2}, {"apply_chat_template": True}], ids=["plain", "examples", "chat"]
)
def test_results_are_those_of_the_harness_on_transformers(
    both: tuple[HarnessModel, HFLM], pages: Path, how: dict[str, Any]
) -> None:
    ours, theirs = (results(model, pages, **how) for model in both)
    n_scores = 0
    for name in TASKS:
        for metric, value in theirs["results"][name].items():
            if isinstance(value, float):
                assert ours["results"][name][metric] == pytest.approx(value, rel=1e-4), (name, metric)
        for one, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert list(one["arguments"]) == list(other["arguments"])
            for response, wanted in zip(one["filtered_resps"], other["filtered_resps"], strict=True):
                if isinstance(wanted, str):
                    assert response == wanted
                elif isinstance(wanted, tuple | list):
                    assert response[0] == pytest.approx(wanted[0], abs=1e-3)
                    assert response[1] == wanted[1]
                else:
                    assert response == pytest.approx(wanted, abs=1e-2)  # 400 tokens
                n_scores += 1
    assert n_scores == 12 * 5


def calls(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each, task_name="x") for each in arguments]


def test_contexts_that_are_empty_long_or_end_in_spaces(both: tuple[HarnessModel, HFLM]) -> None:
    asked = calls(
        ("", TEXT), ("The old dog", " sees"), ("The old dog ", "sees"), (TEXT * 9, " A girl"),
        ("<|im_start|>The", " old"), ("The", TEXT * 2),
    )  # fmt: skip
    found, wanted = (model.loglikelihood(asked, disable_tqdm=True) for model in both)
    for (total, greedy), (other, other_greedy) in zip(found, wanted, strict=True):
        assert total == pytest.approx(other, abs=1e-3)
        assert greedy == other_greedy
    spaces, empty = both[0].loglikelihood(calls(("\n\n", "It"), ("", "\n\nIt")), disable_tqdm=True)
    assert spaces == pytest.approx(empty)


def test_texts_of_several_windows(both: tuple[HarnessModel, HFLM]) -> None:
    asked = calls((TEXT * 7,), ("x",), ("",), (TEXT,))
    found, wanted = (model.loglikelihood_rolling(asked, disable_tqdm=True) for model in both)
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-3)


def test_answers_end_at_texts_and_counts(both: tuple[HarnessModel, HFLM]) -> None:
    asked = calls(
        ("The old dog", {"until": ["e"], "max_gen_toks": 20}),
        (TEXT * 9, {"max_gen_toks": 30, "until": "zz"}),
        ("A girl", {"max_gen_toks": 12, "until": [], "do_sample": False, "temperature": 0.7}),
        ("A girl", {"max_new_tokens": 3, "repetition_penalty": 1.5}),
    )  # fmt: skip
    found, wanted = ([model.generate_until([call], disable_tqdm=True)[0] for call in asked] for model in both)
    assert found == wanted
    assert both[0].generate_until(asked, disable_tqdm=True) == wanted
    assert both[0].generate_until([]) == []


def test_conversations_are_rendered_as_by_transformers(both: tuple[HarnessModel, HFLM]) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello th"}]
    for prompted, turns in ((True, messages[:1]), (False, messages)):
        assert both[0].apply_chat_template(turns, prompted) == both[1].apply_chat_template(turns, prompted)
    assert both[0].chat_template(True) == both[1].chat_template(True) == CHATML
    assert both[0].chat_template(False) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_beams": 3}, "generation_kwargs: wanted some of temperature, .* got num_beams"),
        ({"max_gen_toks": MAX_LENGTH}, "max_gen_toks: wanted less than max_length, 120; got 120"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    both: tuple[HarnessModel, HFLM], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        both[0].generate_until(calls(("The", options)))
    with pytest.raises(UsageError, match="max_length: wanted at least"):
        both[0].loglikelihood(calls(("The", TEXT * 9)), disable_tqdm=True)


def test_a_context_that_the_model_has_not_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="max_length: wanted 1 to 254, for the model's context; got 255"):
        HarnessModel(pretrained=str(folder), max_length=255)
    for name, value in (("max_length", "abc"), ("max_gen_toks", 0), ("max_gen_toks", "-3"),
                        ("prefix_token_id", 10**8)):  # fmt: skip
        with pytest.raises(UsageError, match=f"{name}: wanted [01] to .*; got {value!r}"):
            HarnessModel(pretrained=str(folder), **{name: value})


def test_the_command_line_is_the_harness_own(folder: Path, pages: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "graphml.workshop.lm_eval", "--model", "graphml", "--model_args",
            f"pretrained={folder},max_length={MAX_LENGTH},kv=f32", "--tasks", "choices,answers",
            "--include_path", pages, "--output_path", tmp_path,
        ],
        capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "graphml" in done.stdout
    assert "acc_norm" in done.stdout
    command = [sys.executable, "-m", "graphml.workshop.lm_eval", "--model", "graphml", "--tasks", "choices"]
    command += ["--include_path", str(pages), "--model_args", f"pretrained={folder},max_length=999"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.endswith("graphml: max_length: wanted 1 to 254, for the model's context; got 999\n")
    (written,) = tmp_path.rglob("results_*.json")
    assert json.loads(written.read_text())["config"]["model_num_parameters"] > 0
