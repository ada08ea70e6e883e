"""`graphml simulate`: what N replicas would answer, how soon, and what that costs; without a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, columns, say, write_json
from graphml.cluster.cluster_options import least_and_most
from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE

if TYPE_CHECKING:
    from graphml.simulation import Autoscaling, CostModel


@grouped
def simulate(
    opening: options.Running,
    model: Annotated[
        str | None,
        typer.Argument(metavar="COST.json|MODEL", show_default=False,
                       help="Cost model that --measure has written; with --measure the model."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run MODEL and measure its steps for the cost model.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="COST.json", show_default=False,
                     help="File that keeps the cost model."),
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
        typer.Option("--arrivals", metavar="FILE", show_default=False,
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
    from graphml.simulation import CostModel, Failures, Simulation, Traffic, arrivals, read_arrivals
    from graphml.simulation.replica_choices import choice_of

    law = Traffic(
        rate, seconds, shape, prompt_tokens, answer_tokens, tail, prefix_share, prefixes, prefix_tokens
    )
    count = _replicas(replicas, start)
    failures = Failures(math.inf if fail_every is None else fail_every, restart, again=ask_again)
    choice_of(routing)
    check_target("--output", output)
    requests = arrivals(law, seed) if trace is None else read_arrivals(trace)
    with Bars() as bars:
        if measure:
            cost = _measured(opening, model, parallel, ctx, bars)
        elif model is None or not model.endswith(".json") or opening.named:
            wanted = "wanted what graphml simulate MODEL --measure -o COST.json writes"
            raise UsageError(f"COST.json: {wanted}; got {opening.named or model or 'none'!r:.80}")
        else:
            cost = CostModel.read(Path(model))
        cost = _with_sizes(cost, parallel, ctx, blocks)
        if output is not None:
            cost.write(output)
        simulation = Simulation(cost, requests, count, routing, failures, seed)
        report = simulation.run(lambda done, total: bars.report("simulate", done, total))
    if json:
        write_json(
            {"model": cost.name, "replicas": replicas, "routing": routing, "seed": seed, **report.as_dict()}
        )
        return
    for line in columns(list(report.lines())):
        print(line)


def _measured(
    opening: options.Opening, model: str | None, parallel: int | None, ctx: int | None, bars: Bars
) -> CostModel:
    """The cost model of a model on this machine."""
    from graphml.simulation.measuring import measure

    with load(find(model, opening, bars), opening, bars) as opened:
        cost = measure(opened, parallel or 8, ctx, bars.report)
    rows, prompt_s = cost.rows_s[-1]
    alone_s, full_s = (cost.step_s(count, count, count) for count in (1, cost.parallel))
    say(
        f"graphml: {cost.name}: a step of one sequence {1e3 * alone_s:.1f} ms, of {cost.parallel} "
        f"{1e3 * full_s:.1f} ms; prompts {rows / prompt_s:.0f} t/s; half of all steps within {cost.error:.0%}"
    )
    return cost


def _with_sizes(cost: CostModel, parallel: int | None, ctx: int | None, blocks: int | None) -> CostModel:
    """The same for replicas of other sizes."""
    if parallel is None and ctx is None and blocks is None:
        return cost
    parallel, ctx = parallel or cost.parallel, ctx or cost.n_ctx
    return replace(cost, parallel=parallel, n_ctx=ctx, n_blocks=blocks or parallel * -(-ctx // BLOCK_SIZE))


def _replicas(text: str, start: float) -> int | Autoscaling:
    from graphml.simulation import Autoscaling

    least, most = least_and_most(text)
    scaling = Autoscaling(least, most, start)
    return scaling if "-" in text else least
