"""`graphml simulate`: what N replicas would answer, how soon, and what that costs; without a cluster."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, columns, say, write_json
from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE

if TYPE_CHECKING:
    from graphml.simulation import CostModel, Scaling

REPLICAS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@grouped
def simulate(
    opening: options.Running,
    model: Annotated[
        str | None,
        typer.Argument(metavar="COST.json|MODEL", show_default=False,
                       help="Cost model that --measure has written; with --measure the model."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run MODEL, measure its steps and write a cost model.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="COST.json", show_default=False,
                     help="File for the cost model."),
    ] = None,
    replicas: Annotated[
        str,
        typer.Option(metavar="N|LEAST-MOST", help="Replicas; LEAST-MOST: as many as the load wants."),
    ] = "1",
    routing: Annotated[
        str, typer.Option(help="Choice of a replica: prefix (of graphml serve), round-robin, least-loaded.")
    ] = "prefix",
    parallel: Annotated[
        int | None,
        typer.Option("--parallel", "-np", min=1, show_default="8, or as measured",
                     help="Requests that a replica computes together."),
    ] = None,
    ctx: options.Context = None,
    blocks: Annotated[
        int | None,
        typer.Option(min=1, show_default="as many as --parallel contexts fill",
                     help=f"Blocks of {BLOCK_SIZE} tokens that a replica has memory for."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False,
                     help="Requests: CSV or JSON lines of arrival_s, prompt, answer, prefix, prefix_tokens."),
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests a second, on average.")] = 1.0,
    seconds: Annotated[float, typer.Option(help="Seconds in which requests come.")] = 600.0,
    shape: Annotated[str, typer.Option(help="When they come: poisson, bursty, diurnal, even.")] = "poisson",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt, on average.")] = 512,
    answer_tokens: Annotated[int, typer.Option(help="Tokens of an answer, on average.")] = 128,
    tail: Annotated[
        float, typer.Option(help="Standard deviation of the lengths' logarithms; 0: all are equal.")
    ] = 0.7,
    prefix_share: Annotated[float, typer.Option(help="Share of requests with a common beginning.")] = 0.0,
    prefixes: Annotated[int, typer.Option(help="Common beginnings; the i-th is 1 / i as frequent.")] = 8,
    prefix_tokens: Annotated[int, typer.Option(help="Tokens of a common beginning.")] = 512,
    fail_every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", show_default=False, help="Mean time after which a replica dies."),
    ] = None,
    restart: Annotated[float, typer.Option(metavar="SECONDS", help="Time until it runs again.")] = 30.0,
    ask_again: Annotated[
        bool, typer.Option("--ask-again", help="Clients repeat requests whose answers broke off.")
    ] = False,
    start: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time until an added replica answers.")
    ] = 10.0,
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Seed of requests and deaths.")] = 0,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Simulate replicas of a server: requests, routing, deaths, autoscaling, with a measured cost model."""
    from graphml.simulation import Failures, Simulation, Traffic, arrivals, read_arrivals

    if measure:
        _measure(opening, model, output, parallel, ctx, blocks, json)
        return
    if model is None or not model.endswith(".json"):
        name = f"got {model!r:.80}" if model else "got none"
        raise UsageError(
            f"COST.json: wanted what graphml simulate MODEL --measure -o COST.json writes; {name}"
        )
    from graphml.simulation import CostModel

    cost = _with_sizes(CostModel.read(Path(model)), parallel, ctx, blocks)
    count = _replicas(replicas, start)
    failures = Failures(math.inf if fail_every is None else fail_every, restart, again=ask_again)
    if trace is None:
        law = Traffic(
            rate, seconds, shape, prompt_tokens, answer_tokens, tail, prefix_share, prefixes, prefix_tokens
        )
        requests = arrivals(law, seed)
    else:
        requests = read_arrivals(trace)
    simulation = Simulation(cost, requests, count, routing, failures, seed)
    with Bars() as bars:
        report = simulation.run(lambda done, total: bars.report("simulate", done, total))
    if json:
        write_json(
            {"cost": model, "replicas": replicas, "routing": routing, "seed": seed, **report.as_dict()}
        )
        return
    for line in columns(list(report.lines())):
        print(line)


def _measure(
    opening: options.Opening, model: str | None, output: Path | None, parallel: int | None, ctx: int | None,
    blocks: int | None, json: bool,
) -> None:  # fmt: skip
    """Measure a model and keep what came."""
    from graphml.simulation.measuring import measure

    if output is None:
        raise UsageError(
            "--output: wanted a file for the cost model: graphml simulate MODEL --measure -o COST.json"
        )
    check_target("--output", output)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        cost = _with_sizes(measure(opened, parallel or 8, ctx, bars.report), None, None, blocks)
    cost.write(output)
    rows, step_s = cost.rows_s[-1]
    values = {
        "output": str(output), "prompt_tokens_per_s": rows / step_s, "step_ms": 1e3 * cost.step_s(1, 1, 1),
        "full_step_ms": 1e3 * cost.step_s(cost.parallel, cost.parallel, cost.parallel), "error": cost.error,
    }  # fmt: skip
    if json:
        write_json(values)
        return
    say(
        f"graphml: {output}: a step of one sequence {values['step_ms']:.1f} ms, of {cost.parallel} "
        f"{values['full_step_ms']:.1f} ms, prompts {values['prompt_tokens_per_s']:.0f} t/s; "
        f"half of all steps within {cost.error:.0%}"
    )


def _with_sizes(cost: CostModel, parallel: int | None, ctx: int | None, blocks: int | None) -> CostModel:
    """The same for replicas of other sizes."""
    if parallel is None and ctx is None and blocks is None:
        return cost
    parallel, ctx = parallel or cost.parallel, ctx or cost.n_ctx
    return replace(cost, parallel=parallel, n_ctx=ctx, n_blocks=blocks or parallel * -(-ctx // BLOCK_SIZE))


def _replicas(text: str, start: float) -> int | Scaling:
    from graphml.simulation import Scaling

    match = REPLICAS.fullmatch(text)
    if match is None:
        raise UsageError(f"--replicas: wanted N or LEAST-MOST; got {text!r:.80}")
    return int(match[1]) if match[2] is None else Scaling(int(match[1]), int(match[2]), start)
