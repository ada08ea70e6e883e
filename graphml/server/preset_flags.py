"""llama-server's flags that stand for others: a model of the hub, with what it is served with.

Knows names; nothing of what they mean.
"""

from __future__ import annotations

from typing import Final

_CODER = "--port 8012 -b 1024 -ub 1024 -hf ggml-org/"
_DRAFT = " -hfd ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
_OSS = "--port 8013 -b 32768 -ub 2048 -np 2 -c 262144 --temp 1 --top-p 1 --top-k 0 --min-p 0.01 -hf ggml-org/"
_GEMMA = "--port 8014 -hf ggml-org/"

PRESETS: Final = {
    "--embd-gemma-default": "--port 8011 -b 2048 -ub 2048 -np 32 -c 65536 --embeddings "
    "-hf ggml-org/embeddinggemma-300M-qat-q4_0-GGUF:embeddinggemma-300M-qat-Q4_0.gguf",
    "--fim-qwen-1.5b-default": f"{_CODER}Qwen2.5-Coder-1.5B-Q8_0-GGUF:qwen2.5-coder-1.5b-q8_0.gguf",
    "--fim-qwen-3b-default": f"{_CODER}Qwen2.5-Coder-3B-Q8_0-GGUF:qwen2.5-coder-3b-q8_0.gguf",
    "--fim-qwen-7b-default": f"{_CODER}Qwen2.5-Coder-7B-Q8_0-GGUF:qwen2.5-coder-7b-q8_0.gguf",
    "--fim-qwen-7b-spec": f"{_CODER}Qwen2.5-Coder-7B-Q8_0-GGUF:qwen2.5-coder-7b-q8_0.gguf{_DRAFT}",
    "--fim-qwen-14b-spec": f"{_CODER}Qwen2.5-Coder-14B-Q8_0-GGUF:qwen2.5-coder-14b-q8_0.gguf{_DRAFT}",
    "--fim-qwen-30b-default": f"{_CODER}Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF"
    ":qwen3-coder-30b-a3b-instruct-q8_0.gguf",
    "--gpt-oss-20b-default": f"{_OSS}gpt-oss-20b-GGUF:gpt-oss-20b-mxfp4.gguf",
    "--gpt-oss-120b-default": f"{_OSS}gpt-oss-120b-GGUF",
    "--vision-gemma-4b-default": f"{_GEMMA}gemma-3-4b-it-qat-GGUF",
    "--vision-gemma-12b-default": f"{_GEMMA}gemma-3-12b-it-qat-GGUF",
    "--spec-default": "--spec-type ngram-mod",
}
