"""Counts of a server, in the names of llama-server's and vLLM's metrics, as Prometheus reads them.

Clocks are monotonic; a time to the first token counts from when the request came. No name of a user or key
is in a label. Knows numbers; nothing of requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from graphml.api.stats import EngineStats
from graphml.server.options.key_limits import KeyUse
from graphml.system.pages import own_memory

SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
FINISHED = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True)
class SequenceUse:
    """Tokens of a sequence: of its prompt, of these found and computed ones, and of its answer; and seconds.

    prompt_s: from submission to its first token, else to its end; predicted_s: from there to its end.
    """

    n_prompt: int
    n_cached: int
    n_computed: int
    n_gen: int
    prompt_s: float
    predicted_s: float

    @property
    def timings(self) -> dict[str, Any]:
        """The same as llama-server writes it; the first token comes from the prompt's last step."""
        new, rest = self.n_computed, max(0, self.n_gen - 1)
        return {
            "cache_n": self.n_cached, "prompt_n": new, "prompt_ms": self.prompt_s * 1e3,
            "prompt_per_token_ms": _rate(self.prompt_s * 1e3, new),
            "prompt_per_second": _rate(new, self.prompt_s),
            "predicted_n": self.n_gen, "predicted_ms": self.predicted_s * 1e3,
            "predicted_per_token_ms": _rate(self.predicted_s * 1e3, rest),
            "predicted_per_second": _rate(rest, self.predicted_s),
        }  # fmt: skip


@dataclass
class Sums:
    """Tokens of prompts and of answers, and the seconds in which they were computed."""

    prompt: int = 0
    prompt_s: float = 0.0
    predicted: int = 0
    predicted_s: float = 0.0

    def add(self, prompt: int, prompt_s: float, predicted: int = 0, predicted_s: float = 0.0) -> None:
        """A request was answered."""
        self.prompt += prompt
        self.prompt_s += prompt_s
        self.predicted += predicted
        self.predicted_s += predicted_s


@dataclass
class ServerMetrics:
    """Counts and histograms; requests end in any thread.

    totals: since the server began; window: since the last scrape. decodes: steps besides those of the engine,
    of embeddings. longest: tokens of the largest sequence.
    """

    totals: Sums = field(default_factory=Sums)
    window: Sums = field(default_factory=Sums)
    cached: int = 0
    longest: int = 0
    decodes: int = 0
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._registry, self._lock = CollectorRegistry(), threading.Lock()

        def histogram(name: str, about: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"vllm:{name}", about, buckets=buckets, registry=self._registry)

        self.finished = Counter(
            "vllm:request_success",
            "Requests by why they ended.",
            ["finished_reason"],
            registry=self._registry,
        )
        self.ttft = histogram("time_to_first_token_seconds", "From arrival.")
        self.itl = histogram("inter_token_latency_seconds", "Between two tokens of a request.")
        self.e2e = histogram("e2e_request_latency_seconds", "From arrival to end.")
        self.prefill = histogram("request_prefill_time_seconds", "From submission to the first token.")
        self.decode = histogram("request_decode_time_seconds", "From the first token to the end.")
        self.n_prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.n_generated = histogram("request_generation_tokens", "Tokens of an answer.", TOKENS)

    def ended(self, used: SequenceUse, waited: float, reason: str) -> None:
        """A sequence has ended, however that was, that arrived `waited` seconds before it was submitted."""
        with self._lock:
            for sums in (self.totals, self.window):
                prompt_s = used.prompt_s if used.n_computed else 0.0
                sums.add(used.n_computed, prompt_s, used.n_gen, used.predicted_s)
            self.cached += used.n_cached
            self.longest = max(self.longest, used.n_cached + used.n_computed + used.n_gen)
        self.finished.labels(FINISHED.get(reason, "abort")).inc()
        self.e2e.observe(waited + used.prompt_s + used.predicted_s)
        if used.n_gen:
            self.prefill.observe(used.prompt_s)
            self.decode.observe(used.predicted_s)
        self.n_prompt.observe(used.n_prompt)
        self.n_generated.observe(used.n_gen)

    def embedded(self, n_tokens: int, seconds: float) -> None:
        """Texts were embedded, in a step or more."""
        with self._lock:
            for sums in (self.totals, self.window):
                sums.add(n_tokens, seconds)
            self.decodes += 1

    def text(self, stats: EngineStats | None) -> str:
        """All of them; rates are of the time since the last scrape."""
        with self._lock:
            window, self.window = self.window, Sums()
        lines: list[str] = []
        for name, kind, about, value in (*self._llama(window, stats), *self._vllm(stats)):
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value:.10g}"]
        return "\n".join(lines) + "\n" + generate_latest(self._registry).decode()

    def _llama(self, window: Sums, stats: EngineStats | None) -> Iterator[tuple[str, str, str, float]]:
        totals = self.totals
        drafts, drafted, accepted = (
            (stats.n_drafts, stats.n_drafted, stats.n_accepted) if stats else (0, 0, 0)
        )
        steps = self.decodes + (stats.n_steps if stats else 0)
        counters: tuple[tuple[str, str, float], ...] = (
            ("prompt_tokens_total", "Number of prompt tokens computed, without cached ones.", totals.prompt),
            ("prompt_tokens_cached_total", "Number of prompt tokens found in the cache.", self.cached),
            ("prompt_seconds_total", "Seconds in which prompts were computed.", totals.prompt_s),
            ("tokens_predicted_total", "Number of generated tokens.", totals.predicted),
            ("tokens_predicted_seconds_total", "Seconds in which tokens were generated.", totals.predicted_s),
            ("n_decode_total", "Number of steps.", steps),
            ("n_tokens_max", "Largest sequence so far, prompt and answer.", self.longest),
            ("spec_decode_num_draft_tokens_total", "Draft tokens.", drafted),
            ("spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.", accepted),
            ("spec_decode_num_drafts_total", "Drafts.", drafts),
        )
        for name, about, value in counters:
            yield f"llamacpp:{name}", "counter", about, value
        running, waiting = (stats.running, stats.waiting) if stats else (0, 0)
        generated = _rate(window.predicted, window.predicted_s)
        busy = stats.sequences_per_step if stats else 0
        gauges: tuple[tuple[str, str, float], ...] = (
            ("prompt_tokens_seconds", "Prompt tokens per second.", _rate(window.prompt, window.prompt_s)),
            ("predicted_tokens_seconds", "Generated tokens per second.", generated),
            ("requests_processing", "Sequences that run.", running),
            ("requests_deferred", "Sequences that wait.", waiting),
            ("n_busy_slots_per_decode", "Mean sequences of a step.", busy),
        )  # fmt: skip
        for name, about, value in gauges:
            yield f"llamacpp:{name}", "gauge", about, value

    def _vllm(self, stats: EngineStats | None) -> Iterator[tuple[str, str, str, float]]:
        if stats is None:
            return
        totals, cached = self.totals, self.cached
        used = stats.blocks_used / max(1, stats.blocks_used + stats.blocks_free)
        yield "vllm:num_requests_running", "gauge", "Sequences that run.", stats.running
        yield "vllm:num_requests_waiting", "gauge", "Sequences that wait.", stats.waiting
        yield "vllm:kv_cache_usage_perc", "gauge", "Share of blocks in use.", used
        yield "vllm:num_preemptions_total", "counter", "Preemptions.", stats.n_preempted
        yield "vllm:prefix_cache_queries_total", "counter", "Tokens looked for.", totals.prompt + cached
        yield "vllm:prefix_cache_hits_total", "counter", "Tokens found.", cached
        yield "vllm:prompt_tokens_total", "counter", "Prompt tokens.", totals.prompt + cached
        yield "vllm:generation_tokens_total", "counter", "Generated tokens.", totals.predicted


def key_metrics(shares: Sequence[tuple[str, KeyUse, int]]) -> str:
    """What each key has used, and the answers of it that run; its label is its place, never its text."""
    rows: tuple[tuple[str, str, str, Callable[[KeyUse, int], int]], ...] = (
        ("key_requests_total", "counter", "Requests of a key.", lambda use, _: use.requests),
        ("key_refused_total", "counter", "Requests beyond its limits.", lambda use, _: use.refused),
        ("key_prompt_tokens_total", "counter", "Tokens of its prompts.", lambda use, _: use.prompt_tokens),
        ("key_generated_tokens_total", "counter", "Tokens of its answers.",
         lambda use, _: use.generated_tokens),
        ("key_requests_processing", "gauge", "Its answers that run or wait.", lambda _, running: running),
    )  # fmt: skip
    lines: list[str] = []
    for name, kind, about, value in rows if shares else ():
        lines += [f"# HELP graphml:{name} {about}", f"# TYPE graphml:{name} {kind}"]
        lines += [f'graphml:{name}{{key="{place}"}} {value(use, running)}' for place, use, running in shares]
    return "".join(f"{line}\n" for line in lines)


def own_bytes() -> int | None:
    """The process's own memory: without mapped files, with what was swapped out; None where unknown."""
    memory = own_memory()
    return memory["RssAnon"] + memory.get("VmSwap", 0) if "RssAnon" in memory else None


def process_metrics(asleep: bool) -> str:
    """Whether the model sleeps, and the process's own memory where that is known."""
    rows = [("model_sleeping", "Whether the model sleeps and holds no memory.", int(asleep))]
    if (count := own_bytes()) is not None:
        rows.append(("process_anonymous_bytes", "Memory of its own, without mapped files.", count))
    return "".join(
        f"# HELP graphml:{name} {about}\n# TYPE graphml:{name} gauge\ngraphml:{name} {value}\n"
        for name, about, value in rows
    )


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
