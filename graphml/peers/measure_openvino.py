"""A process that measures OpenVINO GenAI on command, on the CPU: the other end is `bench.side`.

Knows nothing of graphml, so that it runs with any Python that has openvino-genai, whose `LLMPipeline` reads
the GGUF file itself. Prompts are random token ids and no text is made. OpenVINO samples every token, greedily
here, and evaluates it next: what it reports as sampling is part of a `sampled` test and subtracted in others.
The depth is a common beginning of all prompts, kept by its prefix cache. Does not know logits, which the
pipeline does not return, nor several sequences at a time.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from peer_talk import RefusedError, serve_measuring

BLOCK = 32  # tokens of a block of keys and values, the unit of the prefix cache on CPUs
TYPES = ("f32", "f16", "bf16")  # of keys and values: those that OpenVINO and graphml both have
FAILURES = (RuntimeError, ValueError, TypeError, LookupError)  # what C++ exceptions become


def told(error: Exception) -> str:
    """The kind of an error of OpenVINO and the last line of its text, which has the reason."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"


class OpenVinoPeer:
    """A model of OpenVINO GenAI, and a pipeline for each test."""

    def __init__(self, setting: dict[str, Any]) -> None:
        try:
            import numpy
            import openvino
            import openvino_genai
        except ImportError as error:
            raise RefusedError(
                f"openvino-genai is not installed in this Python ({error})", "BackendError"
            ) from None
        self.numpy: Any = numpy
        self.openvino: Any = openvino
        self.api: Any = openvino_genai
        self.setting = setting
        if setting["quant"]:
            raise RefusedError("OpenVINO holds weights as its reader of GGUF does; compare without --quant")
        for name in ("type_k", "type_v"):
            if setting[name] not in TYPES:
                raise RefusedError(f"{name}: wanted one of {', '.join(TYPES)}; got {setting[name]}")
        self.test: dict[str, Any] = {}
        self.prefix: list[int] = []
        self.random = random.Random(0)
        start = time.perf_counter()
        self.pipeline: Any = self._pipeline(1, False)
        self.load_s = time.perf_counter() - start
        self.n_vocab = len(self.pipeline.get_tokenizer().get_vocab())

    def _pipeline(self, n_ctx: int, prefix_cache: bool) -> Any:
        """The model with room for two sequences of n_ctx tokens: one runs, one is in the prefix cache."""
        setting, scheduler = self.setting, self.api.SchedulerConfig()
        scheduler.num_kv_blocks = 2 * (-(-n_ctx // BLOCK) + 1)
        scheduler.max_num_batched_tokens = setting["n_batch"]
        scheduler.enable_prefix_caching = prefix_cache
        try:
            return self.api.LLMPipeline(
                setting["model"], "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=setting["threads"],
                KEY_CACHE_PRECISION=setting["type_k"], VALUE_CACHE_PRECISION=setting["type_v"],
            )  # fmt: skip
        except FAILURES as error:
            raise RefusedError(
                f"{Path(setting['model']).name}: OpenVINO cannot open it: {told(error)}"
            ) from None

    def describe(self) -> dict[str, Any]:
        """Versions, and the types that this processor computes in."""
        versions = f"openvino-genai {self.api.__version__}, openvino {self.openvino.__version__}"
        level = " ".join(self.openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
        return {"engine_version": versions, "level": level, "load_ms": 1e3 * self.load_s}

    def prepare(self, test: dict[str, Any]) -> dict[str, Any]:
        """Make a pipeline for the test, with its depth in the prefix cache."""
        depth, several = test["n_depth"], test["n_parallel"]
        if several != 1:
            raise RefusedError(f"OpenVINO is measured with one sequence; got {several}")
        if test["n_prompt"] and depth % BLOCK:
            raise RefusedError(
                f"OpenVINO keeps depths in blocks: wanted a multiple of {BLOCK} before a prompt; got {depth}"
            )
        self.test, self.random = test, random.Random(0)
        self.pipeline = None  # its memory first
        self.pipeline = self._pipeline(test["n_prompt"] + test["n_gen"] + depth + 1, depth > 0)
        self.prefix = self._ids(depth)
        if depth:
            self._generate(self.prefix, 1)
        return {}

    def run(self) -> dict[str, Any]:
        """Run the test once. A prompt differs from that of the run before, which the prefix cache has."""
        test = self.test
        prompt = self._ids(test["n_prompt"] or int(not self.prefix))
        raw = self._generate(self.prefix + prompt, test["n_gen"] + 1)
        taken = [raw.m_times_to_first_token[0], *raw.m_durations]  # microseconds
        if not test["sampled"]:
            taken = [whole - part for whole, part in zip(taken, raw.sampling_durations)]  # noqa: B905
        ns = [round(1e3 * seconds) for seconds in taken]
        return {"ns": sum(ns[not test["n_prompt"] :]), "steps": [] if test["sampled"] else ns[1:]}

    def logits(self, ids: list[int], n_prompt: int) -> dict[str, Any]:
        """Refuse: see the module."""
        raise RefusedError(f"OpenVINO GenAI returns no logits; asked for {len(ids)} tokens after {n_prompt}")

    def _ids(self, count: int) -> list[int]:
        return [self.random.randrange(self.n_vocab) for _ in range(count)]

    def _generate(self, ids: list[int], count: int) -> Any:
        """Generate so many tokens after the ids; returns what OpenVINO measured of each."""
        config = self.api.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        prompt = self.openvino.Tensor(self.numpy.asarray([ids], self.numpy.int64))
        try:
            result = self.pipeline.generate(prompt, config)
        except FAILURES as error:
            raise RefusedError(f"OpenVINO cannot generate after {len(ids)} tokens: {told(error)}") from None
        raw, n_tokens = result.perf_metrics.raw_metrics, len(result.tokens[0])
        reported = {n_tokens, len(raw.m_durations) + 1, len(raw.sampling_durations)}
        if reported != {count}:
            raise RefusedError(f"OpenVINO: wanted times of {count} tokens; got {sorted(reported)}")
        return raw


if __name__ == "__main__":
    serve_measuring(OpenVinoPeer)
