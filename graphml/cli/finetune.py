"""`graphml finetune`: a LoRA adapter trained on examples, with PyTorch, as a GGUF file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import check_file, check_target
from graphml.cli.options.opening import find, load, model_and_word
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, say, write_json
from graphml.errors import UsageError
from graphml.finetuning.run import FinetunePlan, Finetuning
from graphml.finetuning.settings import FinetuneSettings
from graphml.finetuning.step import HEAD, Step, draw, mean_loss, row
from graphml.inspect.profile.step_plot import ready
from graphml.system.progress_labels import size

_ROWS = 20  # of the curve on the terminal


@grouped
def finetune(
    opening: options.Trained,
    settings: FinetuneSettings,
    model: options.Model = None,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA.jsonl", help="Examples, one JSON object a line.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="ADAPTER.gguf", show_default=False, help="Output file."),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option("--validation", metavar="FILE.jsonl", show_default=False,
                     help="Examples that are not learned; their loss is printed before and after."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", show_default=False, help="Draw the loss over the steps."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the adapter.")] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Train a LoRA adapter on examples, by PyTorch: conversations, prompts with completions, or texts.

    DATA has lines like {"messages": [...]}, {"prompt": "...", "completion": "..."} or {"text": "..."}. An
    interrupted run goes on where it was when the same command is given again.
    """
    model, data = model_and_word(model, data, opening)
    if data is None and model is not None and model.endswith(".jsonl"):
        model, data = None, model
    if data is None or output is None:
        missing = "DATA.jsonl: wanted the examples" if data is None else "--output: wanted the adapter's file"
        raise UsageError(f"{missing}: graphml finetune MODEL DATA.jsonl -o ADAPTER.gguf")
    check_file("DATA.jsonl", Path(data))
    check_file("--validation", validation)
    check_target("--output", output, ".gguf")
    check_target("--plot", plot)
    if plot is not None:
        ready(plot)
    if output.exists() and not force:
        raise UsageError(f"--output: {output} is there already; --force overwrites it")
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        work = Finetuning(opened, Path(data), output, settings, validation)
        _announce(work.plan)
        shown = _Shown(work.plan.n_steps, bars, json)
        try:
            done = work.run(shown.step)
        except KeyboardInterrupt:
            say(f"interrupted after step {shown.latest}; the same command goes on from the checkpoint")
            raise
        if plot is not None:
            draw(plot, done.steps, done.validation, f"{opened.path.name}, {Path(data).name}")
    if json:
        steps = [asdict(step) for step in done.steps]
        write_json(
            {"adapter": str(done.path), "nmse": done.nmse, "validation": done.validation, "steps": steps}
        )
        return
    if done.validation is not None:
        print(f"validation: {done.validation[0]:.4f} before, {done.validation[1]:.4f} after")
    own = f" --arch {opening.arch}" if opening.arch else " --trust-arch" if opening.trust_arch else ""
    run = f"graphml run {opened.path.name}{own} --lora {done.path}"
    print(f"{done.path}: {size(done.path.stat().st_size)}; {run}")


def _announce(plan: FinetunePlan) -> None:
    examples = plan.examples
    cut = f"; {examples.n_cut} longer ones are cut" if examples.n_cut else ""
    left_out = f"; {examples.n_left_out} have nothing to learn" if examples.n_left_out else ""
    say(
        f"{len(examples.texts)} examples, {examples.n_tokens} tokens, {examples.n_learned} of them learned"
        f"{cut}{left_out}"
    )
    say(
        f"{plan.n_matrices} matrices get a pair, {plan.n_factors:,} numbers; {plan.n_steps} "
        f"steps; about {size(plan.memory)} of memory"
    )
    if plan.n_done:
        say(f"goes on after step {plan.n_done}, from the checkpoint")


class _Shown:
    """The curve on stdout, a row for some steps, and a bar on stderr."""

    def __init__(self, n_steps: int, bars: Bars, quiet: bool) -> None:
        self._n_steps, self._bars, self._quiet = n_steps, bars, quiet
        self._each = -(-n_steps // _ROWS)
        self._waiting: list[Step] = []
        self._highest = 0.0
        self.latest = 0

    def step(self, step: Step) -> None:
        self.latest = step.number
        self._bars.report("training", step.number, self._n_steps)
        self._waiting.append(step)
        if step.number % self._each and step.number != self._n_steps:
            return
        if not self._highest and not self._quiet:
            print(HEAD)
        self._highest = self._highest or mean_loss(self._waiting)
        if not self._quiet:
            print(row(self._waiting, self._highest), flush=True)
        self._waiting = []
