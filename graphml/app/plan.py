"""`graphml plan`: how much memory a model needs, from its header alone."""

from __future__ import annotations

from graphml.app import options
from graphml.app.console import Bars, size, write_json
from graphml.app.opening import find
from graphml.engine.executor import Executor
from graphml.engine.loading import open_executor
from graphml.engine.memory import memory_need
from graphml.errors import UsageError


def plan(
    model: options.Model = None,
    ctx: options.Context = None,
    kv: options.CacheType = "f16",
    batch: options.BatchSize = 512,
    backend: options.Backend = "cpu",
    arch: options.Architecture = None,
    json: options.Json = False,
    hf: options.Hub = None,
) -> None:
    """Show the memory for weights, keys and values, and intermediate results; reads the header only."""
    with Bars() as bars:
        path = find(model, hf, bars)
    executor = open_executor(path, backend, 1, arch, kv, batch)
    try:
        need = memory_need(executor, _context(executor, ctx))
    finally:
        executor.close()
    if json:
        write_json({"model": str(path), "backend": backend, "kv": kv, "n_batch": batch, **need.as_dict()})
        return
    rows = [
        ("weights", need.weights, "mapped, shared between processes"),
        (
            f"keys and values ({kv}, {need.n_ctx} tokens)",
            need.cache,
            f"{size(need.cache_per_token)} per token",
        ),
        ("arena, one token", need.arena_decode, ""),
        (f"arena, {batch} tokens", need.arena_prefill, ""),
        ("together", need.total, ""),
    ]
    print(f"{path} on {backend}")
    for name, n_bytes, note in rows:
        print(f"  {name:38} {size(n_bytes):>11}  {note}".rstrip())


def _context(executor: Executor, ctx: int | None) -> int:
    limit = executor.config.n_ctx
    if ctx is not None and ctx > limit:
        raise UsageError(f"--ctx: wanted 1 to {limit}, the context the model was trained for; got {ctx}")
    return limit if ctx is None else ctx
