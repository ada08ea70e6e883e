"""`graphml plan`: how much memory a model needs, and what of it is left unused, from its header alone."""

from __future__ import annotations

from typing import Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import bytes_of
from graphml.cli.options.opening import header
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import UsageError
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import MemoryNeed, memory_need
from graphml.system.pages import free_memory
from graphml.system.progress_labels import size
from graphml.workshop.fitting_types import TypeFit, fitting_types, longest_context

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
    json: options.Json = False,
) -> None:  # fmt: skip
    """Show the memory that one session needs: weights, keys and values (the KV cache), intermediate results.

    Also whether so much is free, and what of the file stays unused. Reads the header only.
    """
    wanted = None if memory is None else bytes_of("--memory", memory)
    if wanted == 0:
        raise UsageError(f"--memory: wanted a size such as 8GB; got {memory!r}")
    with Bars() as bars, header(model, opening, opening.n_batch, bars) as (path, executor):
        need = memory_need(executor, _context(executor, ctx))
        most = executor.config.n_ctx
        fits = fitting_types(executor.file, need, wanted, most) if wanted else []
        unused = {"unused_tensors": executor.unused_tensors, "unread_keys": _unread_keys(executor)}
    if json:
        write_json(
            {
                "model": str(path), "backend": opening.backend, "kv": opening.kv, "n_batch": opening.n_batch,
                **need.as_dict(), **unused, **_advice(wanted, need, fits, most),
            }
        )  # fmt: skip
        return
    step = f"a step of {opening.n_batch} tokens (--batch)"
    rows = [
        ("weights", need.weights, "mapped from the file, shared between processes"),
        (f"keys and values ({opening.kv})", need.cache, f"{size(need.cache_per_token)} a token of context"),
        *([("  of them in windows", need.cache_windows, "constant")] if need.cache_windows else []),
        *([("recurrent states", need.recurrent, "per sequence")] if need.recurrent else []),
        ("intermediate results, prompt", need.arena_prefill, step),
        ("intermediate results, generation", need.arena_decode, "a step of one token"),
        ("total", need.total, _fits(need.total)),
    ]
    print(f"{path} on {opening.backend}: memory of one session of {need.n_ctx} tokens (-c)")
    for name, n_bytes, note in rows:
        print(f"  {name:38} {size(n_bytes):>11}  {note}".rstrip())
    if wanted is not None:
        _print_fits(wanted, need, fits, most)
    for what, names in unused.items():
        if names:
            listed = ", ".join(repr(name)[1:-1] for name in names)
            print(f"  {UNUSED[what]}: {listed}")


def _advice(memory: int | None, need: MemoryNeed, fits: list[TypeFit], most: int) -> dict[str, object]:
    if memory is None:
        return {}
    types = [{"type": fit.name, "weights": fit.weights, "n_ctx": fit.n_ctx} for fit in fits]
    return {
        "memory": memory,
        "longest_ctx": longest_context(need, need.weights, memory, most),
        "types": types,
    }


def _print_fits(memory: int, need: MemoryNeed, fits: list[TypeFit], most: int) -> None:
    """A row for each file type, and the largest that leaves room for the context that is asked for."""
    print(f"in {size(memory)}, one session, {most} tokens at most:")
    as_it_is = TypeFit("as it is", need.weights, longest_context(need, need.weights, memory, most))
    for fit in (as_it_is, *fits):
        context = f"{fit.n_ctx} tokens" if fit.n_ctx else "does not fit"
        print(f"  {fit.name:38} {size(fit.weights):>11}  {context}")
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
