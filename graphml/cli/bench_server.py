"""`graphml bench --server URL`: clients of running servers, which are measured in turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import tee
from urllib.parse import urlsplit

from graphml.bench.bench_options import LengthOptions, MeasuredServers, OutputOptions, RunOptions
from graphml.bench.server_load import ServerLoad
from graphml.bench.server_rows import FORMATS, measure_servers
from graphml.cli.options.checks import key_of
from graphml.cli.terminal.console import Bars, write_both
from graphml.errors import UsageError

HEEDED = ("-p", "-n", "-r", "--no-warmup")
"""Options of a model's tests that say something of a server's load, too."""
N_PROMPT, N_GEN, ROUNDS = 256, 128, 3


def check_server(
    servers: MeasuredServers, asked: Sequence[str], of_server: Sequence[str], written: OutputOptions
) -> None:
    """UsageError for options that servers do not heed, those of servers without one, and wrong addresses."""
    if not servers.server:
        if of_server:
            raise UsageError(f"{of_server[0]}: wanted --server too, whose clients it is about")
        return
    wrong = [flag for flag in asked if flag not in HEEDED]
    if wrong:
        raise UsageError(f"--server: wanted no {', '.join(wrong)}: its model and settings are the server's")
    for address in servers.server:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"--server: wanted an address as http://127.0.0.1:8080; got {address!r}")
    for flag, name in (("-o", written.output), ("-oe", written.output_err)):
        if name is not None and name not in FORMATS:
            raise UsageError(f"{flag}: wanted {' or '.join(FORMATS)} of --server; got {name!r}")


def run_servers(
    servers: MeasuredServers,
    lengths: LengthOptions,
    asked: Sequence[str],
    how: RunOptions,
    written: OutputOptions,
) -> None:
    """Send the loads and print a row for each and each server."""
    n_prompt = _one("-p", lengths.n_prompt, asked, N_PROMPT, least=1)
    n_gen = _one("-n", lengths.n_gen, asked, N_GEN, least=2)
    key = key_of(servers.api_key or "")
    loads = [
        ServerLoad(
            count,
            servers.requests,
            n_prompt,
            n_gen,
            servers.shared,
            api_key=key,
            n_long=servers.long_prompt,
            n_idle=servers.idle,
        )
        for count in servers.clients
    ]
    rounds = how.repetitions if "-r" in asked else ROUNDS
    with Bars() as bars:
        rows = measure_servers(servers.server, loads, rounds, not how.no_warmup, bars.report)
        ours, theirs = tee(rows)
        other = FORMATS[written.output_err](theirs) if written.output_err else iter(())
        write_both(FORMATS[written.output](ours), other)


def _one(flag: str, values: Sequence[int], asked: Sequence[str], default: int, least: int) -> int:
    if flag not in asked:
        return default
    if len(values) != 1 or values[0] < least:
        raise UsageError(f"{flag}: wanted one number of {least} or more of --server; got {list(values)}")
    return values[0]
