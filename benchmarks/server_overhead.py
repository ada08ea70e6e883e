"""What a server takes beside the Python API: the same streamed answers from both, in turns.

    python benchmarks/server_overhead.py MODEL [--threads N] [--rounds N] [--prompt N] [--tokens N]

The API is an engine in this process, whose tokens are read as they come; the server is `graphml serve` with
the same model, threads and slots, and its client the one of `graphml bench --server`. Each round has a chat
of its own, which both get: its prompt of as many ids, then greedy tokens, none of which ends it. Printed are
the medians of an answer's time, from its request to its last token, and of a round's ratio with its extremes;
and the same of the first token, and of the time between tokens.
"""

from __future__ import annotations

import argparse
import math
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import graphml
from graphml.api.chat_prompt import chat_prompt
from graphml.api.engine import Engine
from graphml.api.model import Model
from graphml.bench.latencies import AnswerTimes
from graphml.bench.server_load import ServerLoad, messages, send
from graphml.sampling import SamplingParams

SLOTS, N_CTX = 4, 4096
START_S = 120.0


def of_api(model: Model, engine: Engine, load: ServerLoad) -> AnswerTimes:
    """An answer of the engine to the load's one chat."""
    begin = time.perf_counter()
    assert model.tokenizer is not None
    ids = chat_prompt(model.tokenizer, model.templates, messages(load, 0)).ids
    ends = SamplingParams(logit_bias=dict.fromkeys(sorted(model.tokenizer.end_tokens), -math.inf))
    times = [time.perf_counter() for _ in engine.submit(ids, ends, max_tokens=load.n_gen)]
    return AnswerTimes(begin, tuple(times), len(ids), 0)


def of_server(address: str, load: ServerLoad) -> AnswerTimes:
    """The server's answer to the same."""
    found = send(address, load)
    if len(found.answers) != 1:
        raise SystemExit(f"{address}: {dict(found.errors)}")
    return found.answers[0]


def started(command: list[str], address: str) -> subprocess.Popen[bytes]:
    """A server that is ready."""
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health").close()
            return server
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise SystemExit(f"no server: {' '.join(command)}")


def figures(one: AnswerTimes) -> tuple[float, float, float]:
    """Milliseconds of the whole answer, to its first token, and between two."""
    whole = one.token_s[-1] - one.arrived_s
    return 1e3 * whole, 1e3 * one.ttft_s, 1e3 * statistics.median(one.itl_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=256, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    options = ["-c", str(SLOTS * N_CTX), "-np", str(SLOTS), "-t", str(given.threads), "--port", str(port)]
    server = started([sys.executable, "-m", "graphml", "serve", "-m", given.model, *options], address)
    found: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    try:
        with (
            graphml.load(given.model, threads=given.threads) as model,
            model.engine(max_sequences=SLOTS, n_ctx=N_CTX) as engine,
        ):
            for seed in range(given.rounds + 1):
                load = ServerLoad(1, 1, given.prompt, given.tokens, seed=seed)
                pair = of_api(model, engine, load), of_server(address, load)
                if pair[0].n_prompt != pair[1].n_prompt:
                    raise SystemExit(f"prompts of {pair[0].n_prompt} and {pair[1].n_prompt} ids")
                if seed:  # the first warms up
                    found.append((figures(pair[0]), figures(pair[1])))
    finally:
        server.terminate()
        server.wait()
    for i, what in enumerate(("answer", "first token", "between tokens")):
        api, served = ([one[which][i] for one in found] for which in (0, 1))
        ratios = sorted(b / a for a, b in zip(api, served, strict=True))
        print(
            f"{what}: API {statistics.median(api):.2f} ms, server {statistics.median(served):.2f} ms, "
            f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
