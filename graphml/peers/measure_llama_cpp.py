"""A process that measures llama.cpp on command, through llama-cpp-python: the other end is `bench.side`.

Knows nothing of graphml, so that it runs with any Python that has llama-cpp-python. Like llama-bench:
random tokens, no sampling and no tokenising in the time; the cache is truncated to the depth before each run.
A `sampled` test is timed with greedy sampling, whose tokens are evaluated next.
"""

from __future__ import annotations

import base64
import os
import random
import time
from typing import Any

from peer_talk import RefusedError, serve_measuring

# ggml's numbers of the types that a cache may have
TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20}


class LlamaCppPeer:
    """A model of llama.cpp, and a context for each test."""

    def __init__(self, setting: dict[str, Any]) -> None:
        try:
            import llama_cpp
            from numpy.ctypeslib import as_array  # llama-cpp-python needs NumPy itself
        except ImportError as error:
            problem = "llama-cpp-python is not installed; in a clone of graphml: pip install '.[peers]'"
            raise RefusedError(f"{problem}, or name --peer-python ({error})", "BackendError") from None

        self.api: Any = llama_cpp
        self.as_array: Any = as_array
        self.setting, self.context = setting, None
        self.test: dict[str, Any] = {}
        self.prompts: list[list[int]] = []
        self.batch: Any = None
        if setting["quant"]:
            raise RefusedError("llama.cpp keeps weights as the file has them; compare without --quant")
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        start = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(setting["model"].encode(), params)
        if not self.model:
            raise RefusedError(f"{setting['model']}: llama.cpp cannot load the model")
        self.load_s = time.perf_counter() - start
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def describe(self) -> dict[str, Any]:
        """Versions and build options."""
        version = f"llama-cpp-python {self.api.__version__}"
        system = self.api.llama_print_system_info().decode()
        return {"engine_version": version, "level": system, "load_ms": 1e3 * self.load_s}

    def prepare(self, test: dict[str, Any]) -> dict[str, Any]:
        """Make a context for the test, with its depth filled."""
        api, setting, several = self.api, self.setting, test["n_parallel"]
        if self.context:
            api.llama_free(self.context)
            self.context = None
        size = test["n_prompt"] + test["n_gen"] + test["n_depth"]
        params = api.llama_context_default_params()
        params.n_ctx = several * (-(-size // 256) * 256)
        params.n_batch, params.n_ubatch = setting["n_batch"], setting["n_ubatch"]
        params.n_seq_max = several
        params.n_threads = params.n_threads_batch = setting["threads"]
        for name in ("type_k", "type_v"):
            if setting[name] not in TYPES:
                raise RefusedError(f"{name}: llama.cpp has {', '.join(TYPES)}; got {setting[name]}")
            setattr(params, name, TYPES[setting[name]])
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RefusedError("llama.cpp cannot make a context of these sizes and types")
        self.test, generator = test, random.Random(0)
        ids = [generator.randrange(self.n_vocab) for _ in range(size)]
        self.prompts = [ids] * several
        if test["sampled"]:  # sequences differ, as they do in an engine
            self.prompts = [[generator.randrange(self.n_vocab) for _ in ids] for _ in range(several)]
        self.batch = api.llama_batch_init(max(setting["n_batch"], several), 0, 1)
        if test["n_depth"]:
            # Filling the context is not measured, so it may have every core.
            api.llama_set_n_threads(self.context, setting["threads"], os.cpu_count() or setting["threads"])
            self._evaluate(slice(-test["n_depth"], None), 0)
            api.llama_synchronize(self.context)
            api.llama_set_n_threads(self.context, setting["threads"], setting["threads"])
        return {}

    def run(self) -> dict[str, Any]:
        """Run the test once."""
        api, test, depth = self.api, self.test, self.test["n_depth"]
        memory = api.llama_get_memory(self.context)
        for sequence in range(test["n_parallel"]):
            if not api.llama_memory_seq_rm(memory, sequence, depth, -1):
                raise RefusedError("llama.cpp cannot cut this model's memory back to a depth")
        prompt = test["n_prompt"]
        steps: list[int] = []
        start = time.perf_counter_ns()
        if prompt:
            self._evaluate(slice(prompt), depth)
            api.llama_synchronize(self.context)
        several = range(test["n_parallel"])
        tokens = [ids[prompt] for ids in self.prompts] if test["n_gen"] else []
        for i in range(test["n_gen"]):
            begin = time.perf_counter_ns()
            self._step(tokens, list(several), [depth + prompt + i] * len(several), several)
            api.llama_synchronize(self.context)
            if test["sampled"]:
                tokens = [self._most_likely(row) for row in several]
            elif i + 1 < test["n_gen"]:
                tokens = [ids[prompt + i + 1] for ids in self.prompts]
            steps.append(time.perf_counter_ns() - begin)
        return {"ns": time.perf_counter_ns() - start, "steps": [] if test["sampled"] else steps}

    def logits(self, ids: list[int], n_prompt: int) -> dict[str, Any]:
        """Of a prompt of the first ids and of each further one, float32 in base64; ends the present test."""
        rest = len(ids) - n_prompt
        test = {"n_prompt": n_prompt, "n_gen": rest, "n_depth": 0, "n_parallel": 1, "sampled": False}
        self.prepare(test)
        self._step(ids[:n_prompt], [0] * n_prompt, list(range(n_prompt)), [n_prompt - 1])
        rows = [self._row(n_prompt - 1)]
        for position in range(n_prompt, len(ids)):
            self._step([ids[position]], [0], [position], [0])
            rows.append(self._row(0))
        return {"logits": base64.b64encode(b"".join(rows)).decode()}

    def _row(self, row: int) -> bytes:
        logits = self.api.llama_get_logits_ith(self.context, row)
        return bytes(self.as_array(logits, (self.n_vocab,)).astype("<f4").tobytes())

    def _most_likely(self, row: int) -> int:
        """The greedy token after a row of the latest step; cheaper than `llama_sampler_sample`."""
        logits = self.api.llama_get_logits_ith(self.context, row)
        return int(self.as_array(logits, (self.n_vocab,)).argmax())

    def _evaluate(self, part: slice, position: int) -> None:
        """Evaluate a part of each sequence's ids, n_batch at a time, with logits after the last."""
        most = self.setting["n_batch"]
        prompts = [ids[part] for ids in self.prompts]
        rows = [(token, s, position + i) for s, ids in enumerate(prompts) for i, token in enumerate(ids)]
        last = {(s, position + len(ids) - 1) for s, ids in enumerate(prompts)}
        for start in range(0, len(rows), most):
            chunk = rows[start : start + most]
            wanted = [i for i, (_, s, at) in enumerate(chunk) if (s, at) in last]
            self._step([r[0] for r in chunk], [r[1] for r in chunk], [r[2] for r in chunk], wanted)

    def _step(self, ids: list[int], sequences: list[int], positions: list[int], wanted: Any) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, (token, sequence, position) in enumerate(zip(ids, sequences, positions)):  # noqa: B905
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, 0
        for i in wanted:
            batch.logits[i] = 1
        status = self.api.llama_decode(self.context, batch)
        if status:
            raise RefusedError(f"llama.cpp: llama_decode gave {status} for {len(ids)} tokens")


if __name__ == "__main__":
    serve_measuring(LlamaCppPeer)
