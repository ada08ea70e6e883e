"""What stands before texts that are embedded: instructions that models were trained with, by family.

A folder of sentence-transformers states its own. For files that state none, `FAMILIES` has what the authors
of known models publish; a family is recognised by the model's name. Nothing is put before texts unless it is
asked for, or the folder has a default. Knows metadata and names; nothing of tokens or rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from graphml.errors import UsageError
from graphml.options.argument_checks import text_of
from graphml.runtime.programs.executor import Executor

DEFAULT_PROMPT = "sentence_transformers.default_prompt"
PROMPTS, PROMPT = "sentence_transformers.prompts", "sentence_transformers.prompt"


@dataclass(frozen=True)
class PromptFamily:
    """Models that were trained with the same texts before queries and documents.

    pattern: found in the names of such models, lower case with `-` between words. prompts: by name, "" where
    the authors say that nothing is put there. source: the page that says so.
    """

    name: str
    pattern: str
    prompts: Mapping[str, str]
    source: str


def _pair(query: str, document: str = "", **more: str) -> dict[str, str]:
    return {"query": query, "document": document, **more}


_PASSAGES: Final = "Represent this sentence for searching relevant passages: "
_SEARCH: Final = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
_HUB: Final = "https://huggingface.co/"
FAMILIES: Final = (
    PromptFamily(
        "nomic-embed-text", r"nomic-embed-text",
        _pair("search_query: ", "search_document: ", clustering="clustering: ",
              classification="classification: "),
        f"{_HUB}nomic-ai/nomic-embed-text-v1.5",
    ),
    PromptFamily(
        "e5-instruct", r"multilingual-e5-large-instruct|e5-mistral-7b-instruct", _pair(f"{_SEARCH} "),
        f"{_HUB}intfloat/multilingual-e5-large-instruct",
    ),
    PromptFamily(
        "e5", r"(multilingual-)?e5-(small|base|large)", _pair("query: ", "passage: "),
        f"{_HUB}intfloat/multilingual-e5-base",
    ),
    PromptFamily(
        "bge-en", r"bge-(small|base|large)-en", _pair(_PASSAGES), f"{_HUB}BAAI/bge-base-en-v1.5",
    ),
    PromptFamily(
        "bge-zh", r"bge-(small|base|large)-zh", _pair("为这个句子生成表示以用于检索相关文章："),
        f"{_HUB}BAAI/bge-base-zh-v1.5",
    ),
    PromptFamily("bge-m3", r"bge-m3", _pair(""), f"{_HUB}BAAI/bge-m3"),
    PromptFamily(
        "mxbai-embed-large", r"mxbai-embed-large-v1", _pair(_PASSAGES),
        f"{_HUB}mixedbread-ai/mxbai-embed-large-v1",
    ),
    PromptFamily(
        "snowflake-arctic-embed-v2", r"snowflake-arctic-embed2|snowflake-arctic-embed-[ml]-v2(\.0)?",
        _pair("query: "), f"{_HUB}Snowflake/snowflake-arctic-embed-l-v2.0",
    ),
    PromptFamily(
        "snowflake-arctic-embed", r"snowflake-arctic-embed(-(xs|s|m|l))?(-long|-v1\.5)?(?!-(xs|s|m|l|v))",
        _pair(_PASSAGES), f"{_HUB}Snowflake/snowflake-arctic-embed-m-v1.5",
    ),
    PromptFamily(
        "qwen3-embedding", r"qwen3-embedding", _pair(_SEARCH), f"{_HUB}Qwen/Qwen3-Embedding-0.6B",
    ),
    PromptFamily(
        "gte-qwen2", r"gte-qwen2-(1\.5|7)b-instruct", _pair(f"{_SEARCH} "),
        f"{_HUB}Alibaba-NLP/gte-Qwen2-1.5B-instruct",
    ),
    PromptFamily(
        "embeddinggemma", r"embedding-?gemma",
        _pair("task: search result | query: ", "title: none | text: ",
              clustering="task: clustering | query: ", classification="task: classification | query: "),
        f"{_HUB}google/embeddinggemma-300m",
    ),
    PromptFamily(
        "jina-embeddings-v4", r"jina-embeddings-v4", _pair("Query: ", "Passage: "),
        f"{_HUB}jinaai/jina-embeddings-v4-text-retrieval-GGUF",
    ),
)  # fmt: skip
"""The first one whose pattern a name has counts. jina-embeddings-v3 is none: each of its prompts goes with an
adapter of its own."""


def family_of(name: str) -> PromptFamily | None:
    """The family of a model by its name; None for an unknown one."""
    plain = re.sub(r"[^a-z0-9.]+", "-", name.lower())
    return next((of for of in FAMILIES if re.search(rf"(^|-)({of.pattern})(-|$)", plain)), None)


def prompt_of(executor: Executor, name: str | None, prompt: str | None = None) -> str:
    """What is put before texts.

    prompt: that text itself. name: which of the folder's prompts, or of the model's family where the file has
    none; None: the folder's default one, if any. UsageError for a name that there is not.
    """
    metadata = executor.file.metadata
    if prompt is not None:
        if name is not None:
            raise UsageError(f"prompt: wanted it or the name {name!r:.80}, not both; got {prompt!r:.80}")
        return text_of("prompt", prompt)
    names = metadata[PROMPTS] if metadata.has(PROMPTS) else []
    if name is None:
        name = metadata.text(DEFAULT_PROMPT, "")
        return metadata.text(f"{PROMPT}.{name}") if name else ""
    if name in names:
        return metadata.text(f"{PROMPT}.{name}")
    if names:
        wanted = f"wanted one of {', '.join(map(repr, names))}"
        raise UsageError(f"prompt_name: {executor.file.path}: {wanted}; got {name!r:.80}")
    return _of_family(executor, name)


def _of_family(executor: Executor, name: str) -> str:
    """The prompt of a file that states none, by the family of its model."""
    metadata = executor.file.metadata
    called = [metadata.text(f"general.{key}", "") for key in ("name", "basename")]
    family = next((of for each in called if (of := family_of(each)) is not None), None)
    if family is None:
        known = ", ".join(of.name for of in FAMILIES)
        raise UsageError(
            f"prompt_name: {executor.file.path}: its file has none, and its name, {called[0]!r:.80}, is of "
            f"none of the families {known}; prompt puts any text before texts; got {name!r:.80}"
        )
    if name not in family.prompts:
        wanted = f"wanted one of {', '.join(map(repr, family.prompts))}, of {family.name}"
        raise UsageError(f"prompt_name: {executor.file.path}: {wanted}; got {name!r:.80}")
    return family.prompts[name]
