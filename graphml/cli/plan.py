"""`graphml plan`: how much memory a model needs, how fast it will be, what is left unused: by its header."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import bytes_of
from graphml.cli.options.opening import header
from graphml.cli.options.options import Opening
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import UsageError
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import MemoryNeed, memory_need
from graphml.system.pages import free_memory
from graphml.system.progress_labels import size
from graphml.workshop.expected_speed import PROMPT, Speed, expected_speed, most_by_figures
from graphml.workshop.fitting_types import TypeFit, fitting_types, longest_context

AS_IT_IS = "as it is"
UNUSED = {
    "unused_tensors": "tensors in the file that this architecture does not use",
    "unread_keys": "metadata that this architecture need not read",
}


@grouped
def plan(
    opening: options.Header,
    model: options.Model = None,
    ctx: options.Context = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", show_default=False,
            help="What fits into so much memory, such as 8GB: file types, and contexts.",
        ),
    ] = None,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed",
            help="Measure how fast it is here, with --memory in each type that fits: by random weights.",
        ),
    ] = False,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="GB/S", show_default=False,
            help="How fast it is at most on a device whose memory is so fast, a GPU for example.",
        ),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(
            metavar="N", show_default=False,
            help="And how fast prompts are: 10^12 operations a second of that device's matrix products.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Show the memory that one session needs: weights, keys and values (the KV cache), intermediate results.

    Also whether so much is free, what of the file stays unused, how fast it will be. Reads the header only.
    """
    wanted = None if memory is None else bytes_of("--memory", memory)
    if wanted == 0:
        raise UsageError(f"--memory: wanted a size such as 8GB; got {memory!r}")
    _check_figures(bandwidth, tflops)
    with Bars() as bars, header(model, opening, opening.n_batch, bars) as (path, executor):
        need, kv = memory_need(executor, _context(executor, ctx)), executor.cache_dtype
        most = executor.config.n_ctx
        fits = fitting_types(executor, need, wanted, most, opening.kv) if wanted else []
        speeds = _speeds(executor, opening, fits, bars) if speed else {}
        most_speed = _most_speed(executor, bandwidth, tflops)
        unused = {"unused_tensors": executor.unused_tensors, "unread_keys": _unread_keys(executor)}
    if json:
        write_json(
            {
                "model": str(path), "backend": opening.backend, "kv": kv, "n_batch": opening.n_batch,
                **need.as_dict(), **unused, **_advice(wanted, need, fits, most, speeds),
                **({"speed": asdict(speeds[AS_IT_IS])} if speeds else {}),
                **({"most_speed": most_speed} if most_speed else {}),
            }
        )  # fmt: skip
        return
    step = f"a step of {opening.n_batch} tokens (--batch)"
    rows = [
        ("weights", need.weights, "mapped from the file, shared between processes"),
        (f"keys and values ({kv})", need.cache, f"{size(need.cache_per_token)} a token of context"),
        *([("  of them in windows", need.cache_windows, "constant")] if need.cache_windows else []),
        *([("recurrent states", need.recurrent, "per sequence")] if need.recurrent else []),
        ("intermediate results, prompt", need.arena_prefill, step),
        ("intermediate results, generation", need.arena_decode, "a step of one token"),
        ("total", need.total, _fits(need.total)),
    ]
    print(f"{path} on {opening.backend}: memory of one session of {need.n_ctx} tokens (-c)")
    for name, n_bytes, note in rows:
        print(f"  {name:38} {size(n_bytes):>11}  {note}".rstrip())
    _print_speeds(speeds, most_speed, bandwidth)
    if wanted is not None:
        _print_fits(wanted, need, fits, most, speeds)
    for what, names in unused.items():
        if names:
            listed = ", ".join(repr(name)[1:-1] for name in names)
            print(f"  {UNUSED[what]}: {listed}")


def _check_figures(bandwidth: float | None, tflops: float | None) -> None:
    """UsageError for figures that no device has."""
    for flag, value in (("--bandwidth", bandwidth), ("--tflops", tflops)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{flag}: wanted a number above 0; got {value:g}")
    if tflops is not None and bandwidth is None:
        raise UsageError("--tflops: wanted --bandwidth beside it")


def _speeds(executor: Executor, opening: Opening, fits: list[TypeFit], bars: Bars) -> dict[str, Speed]:
    """The speeds of the model as it is, and of it in each type that fits."""
    asked = {AS_IT_IS: dict[str, str]()} | {fit.name: dict(fit.types) for fit in fits if fit.n_ctx}
    speeds = {}
    for done, (name, types) in enumerate(asked.items()):
        bars.report("speed", done, len(asked))
        speeds[name] = expected_speed(executor.file, opening, types)
    bars.report("speed", len(asked), len(asked))
    return speeds


def _most_speed(executor: Executor, bandwidth: float | None, tflops: float | None) -> dict[str, float]:
    if bandwidth is None:
        return {}
    n_prompt = min(PROMPT, executor.n_batch, executor.config.n_ctx - 1)
    rates = most_by_figures(executor, n_prompt, 1e9 * bandwidth, 1e12 * (tflops or 0.0))
    if rates == (None, None):
        raise UsageError(f"--bandwidth: {executor.file.path} does not generate: wanted --tflops beside it")
    known = zip(("prompt", "generation"), rates, strict=True)
    return {"n_prompt": n_prompt, **{name: value for name, value in known if value is not None}}


def _print_speeds(speeds: Mapping[str, Speed], most: Mapping[str, float], bandwidth: float | None) -> None:
    if speeds:
        here = speeds[AS_IT_IS]
        print(f"  {'speed here, prompt':38} {_rate(here.prompt):>11}  of {here.n_prompt} tokens")
        if here.generation is not None:
            print(f"  {'speed here, generation':38} {_rate(here.generation):>11}  behind that prompt")
    if most:
        at = f"at {bandwidth:g} GB/s"
        if "prompt" in most:
            print(f"  {f'at most {at}, prompt':38} {_rate(most['prompt']):>11}  of {most['n_prompt']} tokens")
        if "generation" in most:
            note = "kernels do not reach all of a device's figures"
            print(f"  {f'at most {at}, generation':38} {_rate(most['generation']):>11}  {note}")


def _rate(value: float) -> str:
    """Tokens a second to read: three digits."""
    return f"{value:,.0f} t/s" if value >= 100 else f"{value:.3g} t/s"


def _advice(
    memory: int | None, need: MemoryNeed, fits: list[TypeFit], most: int, speeds: Mapping[str, Speed]
) -> dict[str, object]:
    if memory is None:
        return {}
    types = [
        {"type": fit.name, "weights": fit.weights, "n_ctx": fit.n_ctx,
         **({"speed": asdict(speeds[fit.name])} if fit.name in speeds else {})}
        for fit in fits
    ]  # fmt: skip
    return {
        "memory": memory,
        "longest_ctx": longest_context(need, need.weights, memory, most),
        "types": types,
    }


def _print_fits(
    memory: int, need: MemoryNeed, fits: list[TypeFit], most: int, speeds: Mapping[str, Speed]
) -> None:
    """A row for each file type, and the largest that leaves room for the context that is asked for."""
    behind = f"; t/s of a prompt of {speeds[AS_IT_IS].n_prompt}, and of generation" if speeds else ""
    print(f"in {size(memory)}, one session, {most} tokens at most{behind}:")
    as_it_is = TypeFit(AS_IT_IS, need.weights, longest_context(need, need.weights, memory, most))
    for fit in (as_it_is, *fits):
        context = f"{fit.n_ctx} tokens" if fit.n_ctx else "does not fit"
        speed = speeds.get(fit.name)
        both = (speed.prompt, speed.generation) if speed and fit.n_ctx else ()
        rates = "".join(f"{_rate(value):>14}" for value in both if value is not None)
        print(f"  {fit.name:38} {size(fit.weights):>11}  {context:13}{rates}".rstrip())
    best = [fit for fit in fits if fit.n_ctx >= need.n_ctx]
    if best:
        print(f"  {best[-1].name} is the largest of these with room for {need.n_ctx} tokens")
    else:
        print(f"  none of these has room for {need.n_ctx} tokens: a smaller -c or --kv q8_0 needs less")


def _fits(total: int) -> str:
    """Whether so much main memory is free now; "" where that is not known."""
    free = free_memory()
    if not free:
        return ""
    if total <= free:
        return f"fits: {size(free)} of main memory are free"
    return f"too much: {size(free)} of main memory are free; a smaller -c or --kv q8_0 needs less"


def _unread_keys(executor: Executor) -> list[str]:
    """The architecture's keys of the file that neither its configuration nor its graph asked for."""
    metadata = executor.file.metadata
    prefix = f"{metadata.text('general.architecture')}."
    return [key for key in metadata.unread() if key.startswith(prefix)]


def _context(executor: Executor, ctx: int | None) -> int:
    limit = executor.config.n_ctx
    if ctx is not None and ctx > limit:
        raise UsageError(f"--ctx: wanted 1 to {limit}, the context the model was trained for; got {ctx}")
    return limit if ctx is None else ctx
