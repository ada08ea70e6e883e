"""`graphml run` and `chat` with a diffusion model, and the view of how an answer is denoised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.api.denoising import OPEN
from graphml.cli.main import app
from graphml.cli.terminal import denoising_view
from graphml.cli.terminal.denoising_view import DenoisingView
from graphml.sampling import PeekableRandom
from graphml.sampling.denoiser import Denoiser
from tests import tiny_model

BLOCKS = ["--diffusion-block-length", "4", "--diffusion-steps", "4", "--temp", "0"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("denoised") / "tiny.gguf", denoises=True)


def run(*arguments: object, **more: str) -> Result:
    done = CliRunner().invoke(app, [*map(str, arguments), "--backend", "reference"], **more)
    assert done.exit_code == 0, done.output
    return done


def test_the_text_is_the_models(path: Path) -> None:
    options = ["run", path, "hello", "--raw", "-n", 8, *BLOCKS]
    shown, parsed = run(*options), json.loads(run(*options, "--json").stdout)
    assert shown.stdout == parsed["text"] + "\n"
    assert (parsed["stop_reason"], parsed["stats"]["n_gen"]) == ("length", len(parsed["ids"]))
    assert parsed["stats"]["gen_tps"] > 0
    with graphml.load(path, "reference") as model:
        usual = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
        result = model.generate("hello", max_tokens=8, diffusion_block_length=4, diffusion_steps=4, **usual)
    assert (parsed["ids"], parsed["text"]) == (result.tokens, result.text)


def test_the_view_is_on_stderr_and_the_text_on_stdout(path: Path) -> None:
    options = ["run", path, "hello", "--raw", "-n", 8, *BLOCKS]
    plain, seen = run(*options), run(*options, "--diffusion-visual")
    assert seen.stdout == plain.stdout
    assert [seen.stderr.count(f"step {i} of 4\n") for i in range(1, 6)] == [1, 1, 1, 1, 0]
    first, *_, last = seen.stderr.split("step ")[1:]
    assert first.count(OPEN) == 6
    assert OPEN not in last
    assert OPEN not in plain.stderr


def test_a_conversation_goes_on(path: Path) -> None:
    lines = "hello\n/set diffusion_steps 8\nagain\n/regenerate\n"
    done = run("chat", path, "-n", 8, *BLOCKS, "--diffusion-visual", "--stats", input=lines)
    assert [done.stderr.count(f"of {n}\n") for n in (4, 8)] == [4, 16]
    assert done.stderr.count("of 160") == 3
    refused = CliRunner().invoke(
        app, ["chat", str(path), "--backend", "reference", "--choice", "yes"], input="hello\n"
    )
    assert refused.exit_code == 1
    assert "choices: a diffusion model fills in" in refused.stderr


class Terminal:
    """What is written to a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("COLUMNS", "21")
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setattr(denoising_view, "sys", SimpleNamespace(stderr=(made := Terminal())))
    return made


def test_on_a_terminal_each_step_is_drawn_over_the_one_before(path: Path, terminal: Terminal) -> None:
    with graphml.load(path, "reference") as model:
        assert model.tokenizer is not None
        session, view = model.session(), DenoisingView(model.tokenizer)
        session.on_denoised = view.show
        list(session.generate("hello", max_tokens=30, diffusion_block_length=30, diffusion_steps=2))
        view.erase()
    first, second, rest = terminal.text.split("\x1b[")[0], *terminal.text.split("\x1b[J")[1:]
    assert first.startswith("step 1 of 2\n")
    assert first.count(OPEN) >= 15
    assert max(map(len, first.split("\n"))) <= 20
    n_lines = first.count("\n")
    assert f"\x1b[{n_lines}F\x1b[Jstep 2 of 2\n" in terminal.text
    assert OPEN not in second
    assert rest == ""
    assert not set("\x07\x9b") & set(terminal.text)


def test_a_tall_answer_leaves_the_terminal_its_first_lines(path: Path, terminal: Terminal) -> None:
    with graphml.load(path, "reference") as model:
        assert model.tokenizer is not None
        session, view = model.session(), DenoisingView(model.tokenizer)
        session.on_denoised = view.show
        list(session.generate("hello", max_tokens=120, diffusion_block_length=120, diffusion_steps=1))
    assert terminal.text.count("\n") == 4


def test_a_model_does_not_steer_the_terminal(path: Path, terminal: Terminal) -> None:
    with graphml.load(path, "reference") as model:
        assert model.tokenizer is not None
        model_facts = model.executor.diffusion
        assert model_facts is not None
        ids = model.tokenizer.encode("a\x1b[2Jb", add_special=False)
        answer = Denoiser([1], len(ids), model_facts, graphml.SamplingParams(), PeekableRandom(0))
        answer.answer[:] = ids
        DenoisingView(model.tokenizer).show(answer)
    assert terminal.text == "step 0 of 128\na[2Jb\n"
