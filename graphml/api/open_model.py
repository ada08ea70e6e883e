"""An open model file: what it says of the model, and its tokenizer and templates, read when asked for.

Knows metadata, texts and ids; nothing of sessions, engines or results.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, TypeVar, overload

from graphml.api.model_templates import ModelTemplates
from graphml.api.model_tokenizer import no_tokenizer, tokenizer_of
from graphml.api.prompt_encoder import Prompt, PromptEncoder
from graphml.api.tokens import checked_ids
from graphml.errors import TokenizerError, UsageError
from graphml.options.keyword_arguments import named_arguments
from graphml.other_attributes import NamesOthers
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.sampling.settings.sampling_defaults import SamplingDefaults, sampling_defaults
from graphml.text.chat_template import DEFAULT_NAME, ChatTemplate, template_names
from graphml.text.tokenizer import Tokenizer
from graphml.weights import Metadata
from graphml.weights.tensor_table import TensorTable

T = TypeVar("T")


class _MadeOnce(cached_property[T]):
    """A cached property that one thread makes, as those of Python 3.12 and later do not promise."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> _MadeOnce[T]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        with instance._making:
            return super().__get__(instance, owner)


class OpenModel(NamesOthers):
    """What a `Model` is without what it computes.

    arch: name of the architecture. config: its configuration, a frozen dataclass. n_ctx, context_length: the
    tokens of the context that it was trained for. n_vocab, vocab_size: how many ids it knows. path: the file.
    executor: what runs it. pre, template: of `load`, in place of what the file says.
    opened_by: the options of `load`; None of a model that was put together otherwise.
    """

    _same: ClassVar = {
        **dict.fromkeys(("n_layer", "n_layers", "num_layers"), "config.n_layer"),
        **dict.fromkeys(("n_embd", "hidden_size"), "config.n_embd"), "n_head": "config.n_head",
        "tokenize": "encode", "detokenize": "decode", "forward": "logits", "n_parameters": "n_params",
        **dict.fromkeys(("complete", "predict", "invoke", "generate_batch", "batch_generate"), "generate"),
        **dict.fromkeys(("generate_stream", "stream_generate"), "stream"), "nodes": "graph.nodes",
        **dict.fromkeys(("ask", "respond", "answer"), "chat"),
        **dict.fromkeys(("embedding", "embeddings"), "embed"), "rerank": "rank", "unload": "close",
        **dict.fromkeys(("load_session", "load_state", "load_chat"), "restore"),
        "eos_token_id": "tokenizer.eos_id", "bos_token_id": "tokenizer.bos_id",
        **dict.fromkeys(("backend", "device"), "executor.backend.name"), "architecture": "arch",
        **dict.fromkeys(("model_path", "file", "filename"), "path"), "weights": "tensors",
    }  # fmt: skip
    _instead: ClassVar = {
        "compare": "graphml.compare(model, ...)",
        **dict.fromkeys(("to_torch", "torch", "module", "to_module"), "graphml.to_torch(model)"),
        "create_completion": "generate",
        **dict.fromkeys(("trace", "run_with_cache"), "capture(text, *patterns)"),
        "create_chat_completion": "chat(messages)",
        **dict.fromkeys(("save_session", "save_state", "save"), "Session.save or Chat.save"),
        "layers": "graph().nodes", "named_modules": "graph('build').nodes",
        **dict.fromkeys(("num_parameters", "size"), "n_params"),
        "parameters": "n_params for their number, tensors.values() for themselves",
        **dict.fromkeys(("named_parameters", "state_dict"), "tensors.items()"),
        **dict.fromkeys(("tensor", "get_tensor", "weight", "get_parameter"), "tensors[name]"),
        **dict.fromkeys(("to", "cuda"), "load(..., backend=...)"),
        **dict.fromkeys(("dtype", "quantization"), "load(..., quant=...)"),
        **dict.fromkeys(("eval", "train"), "session().eval(ids) for logits; a model is never trained"),
        "create_embedding": "embed", "token_eos": "tokenizer.eos_id", "token_bos": "tokenizer.bos_id",
        "name": "path or arch", "set_seed": "seed= of what generates", "scores": "logits(ids)",
        "reset": "session().rewind(0), or a new session", "pooling_type": "embed(..., pooling=...)",
        "chat_template": "template", "batch": "generate of a list, or engine()",
        "apply_chat_template": "template.render(messages), or prompt_ids(messages) for ids",
        **dict.fromkeys(("n_tokens", "token_count", "tokens"), "count_tokens(text)"),
        "top_k": "generate(text, max_tokens=1, logprobs=5)", "quantize": "load(..., quant='q8')",
        **dict.fromkeys(("lora", "load_lora", "load_adapter"), "load(..., lora=path), or Session.set_lora"),
        **dict.fromkeys(("info", "describe", "summary"), "print(model), config or metadata"),
        **dict.fromkeys(("bench", "benchmark"), "profile(prompt), or `graphml bench`"),
        **dict.fromkeys(("score", "loss"), "perplexity(text), or generate(..., prompt_logprobs=0)"),
        **dict.fromkeys(("logprobs", "next_token"), "generate(text, max_tokens=1, logprobs=5)"),
        **dict.fromkeys(("show", "view", "visualize", "draw", "plot"), "viewer(), or print(model.graph)"),
        **dict.fromkeys(("similarity", "cosine_similarity"), "embed(texts); rows @ rows.T are cosines"),
    }  # fmt: skip
    _made_by: ClassVar = "graphml.load(path)"

    def __init__(
        self, executor: Executor, path: Path, pre: str | None = None, template: str | None = None
    ) -> None:
        self._pre, self._template_text = pre, template
        self.opened_by: LoadOptions | None = None
        self._making = RLock()
        self.executor, self.path = executor, path
        self.arch: str = executor.architecture.name
        self.config: Any = executor.config
        self.n_ctx: int = executor.config.n_ctx
        self.context_length = self.n_ctx
        self.n_vocab = self.vocab_size = executor.n_vocab
        if pre is not None:
            _ = self.tokenizer  # a wrong name is told at once

    @property
    def tensors(self) -> TensorTable:
        """The file's tensors by name, each with `dtype`, `shape` and `numpy()`; `weights` is the same."""
        if self.executor.closed:
            raise UsageError(f"{self.path}: the model was closed")
        return self.executor.file.tensors

    @property
    def n_params(self) -> int:
        """How many weights the file's tensors have together."""
        return sum(tensor.n_elements for tensor in self.executor.file.tensors.values())

    @_MadeOnce
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, read when first asked for; None if the file has no vocabulary."""
        return tokenizer_of(self.metadata, self._pre)

    @_MadeOnce
    def _prompts(self) -> PromptEncoder:
        return PromptEncoder(self.tokenizer, lambda: self.templates)

    @_MadeOnce
    def sampling_defaults(self) -> SamplingDefaults:
        """The fields of `SamplingParams` that the file states (`general.sampling.*`, generation_config.json).

        Empty where it states none: then `SamplingParams(**model.sampling_defaults)` is greedy. A setting that
        is not known or out of range is logged, and in `unused`.
        """
        return sampling_defaults(self.metadata)

    @property
    def has_template(self) -> bool:
        """Whether a chat template was given or is in the file."""
        return self._template_text is not None or bool(template_names(self.metadata))

    @_MadeOnce
    def templates(self) -> ModelTemplates:
        """The chat templates by name: "default", and those with names of their own, such as "tool_use"."""
        return ModelTemplates(self.metadata, self._needed(), self._template_text)

    @property
    def template(self) -> ChatTemplate:
        """The default chat template; TemplateError if there is none."""
        return self.templates[DEFAULT_NAME]

    @named_arguments
    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`. TokenizerError without a vocabulary."""
        return self._needed().encode(text, add_special, parse_special)

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, with those that the vocabulary puts around it."""
        return len(self.encode(text))

    @named_arguments
    def decode(self, ids: Any, skip_special: bool = False) -> str:
        """Return the text of ids; skip_special leaves control tokens out."""
        return self._needed().decode(ids, skip_special)

    def piece(self, id: int) -> str:
        """Return the text of one token; bytes that make no character become U+FFFD."""
        return self._needed().piece(id)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids of a prompt: of a text, of messages as the chat template renders them, or of ids."""
        return list(map(int, checked_ids(self._prompts.ids(prompt), self.n_vocab, some=True)))

    @property
    def metadata(self) -> Metadata:
        """The file's metadata by key, such as "general.name"; values are read when they are asked for."""
        self.executor.file.check_unchanged()
        return self.executor.file.metadata

    def _needed(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(f"{self.path}: {no_tokenizer(self.executor.file.metadata)}")
        return self.tokenizer
