"""References to models of the hub, and the choice of the files of a repository that are the model of one.

A reference is "user/repo", "user/repo:QUANT" or "user/repo:FILE.gguf".

Knows file names alone: they name quantisations, the parts of split models, and the files of a folder of
transformers that are read: never pickles, never code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from graphml.errors import DownloadError, UsageError
from graphml.loading.huggingface.folder import CONFIG, INDEX, WHOLE
from graphml.loading.huggingface.sentence_modules import MODULES, PROMPTS, SETTINGS
from graphml.weights.file_names import is_gguf, part_name, without_ending

REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<wanted>.+))?", re.ASCII)


_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/(?P<repo>\w[\w.-]*/\w[\w.-]*)"
    r"(?:/(?:resolve|blob)/(?P<revision>[^/?#]+)/(?P<file>[^?#]+)|/tree/[^/?#]+/?|/)?"
    r"(?::(?P<quant>[^?#]+))?(?:[?#].*)?",
    re.ASCII,
)


@dataclass(frozen=True)
class RepoReference:
    """A repository, and the quantisation or the file in it, if any is named."""

    text: str
    repo: str
    wanted: str | None

    @property
    def called(self) -> str:
        """The reference's text in errors."""
        return f"hub model {self.text!r}"


def read_reference(text: str) -> RepoReference:
    """Parse a reference; UsageError for any other text."""
    match = REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(f"hub model {text!r}: wanted user/repo or user/repo:QUANT")
    return RepoReference(text, match["repo"], match["wanted"])


DEFAULT_QUANTISATION = "Q4_K_M"
# Files that are no models of their own: image projectors and importance matrices.
NO_MODEL = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)
MOST_NAMED = 20
READ_OF_FOLDER = (
    CONFIG, "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.json", "chat_template.jinja",
    MODULES, SETTINGS, PROMPTS,
)  # fmt: skip
NAMED_TEMPLATE = re.compile(r"additional_chat_templates/[\w.-]+\.jinja", re.ASCII)
MODULE_FILE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)", re.ASCII)
# Other kinds of files that a user may mistake for a model.
OTHER_FORMATS = {
    ".safetensors": "safetensors", ".bin": "PyTorch checkpoints", ".pt": "PyTorch checkpoints",
    ".pth": "PyTorch checkpoints", ".onnx": "ONNX", ".ggml": "GGML files from before GGUF",
    ".mlmodel": "Core ML", ".tflite": "TensorFlow Lite", ".h5": "TensorFlow", ".msgpack": "Flax",
}  # fmt: skip


def choose(files: Sequence[str], wanted: str | None, reference: str) -> list[str]:
    """Choose from a repository's files the one model that `wanted` names: its parts in order, at least one.

    Where there is no GGUF file and no `wanted`, the files of a folder of transformers, config.json first, of
    the weights the index or the only file. Raises DownloadError that lists the choices if nothing fits, or
    names the parts that are missing.
    """
    models = models_of(files)
    if not models:
        folder = folder_files(files)
        if folder and wanted is None:
            return folder
        raise DownloadError(
            f"hub model {reference!r}: the repository holds no .gguf model; "
            + (f"it has safetensors: leave out {':' + str(wanted)!r}" if folder else _instead(files))
        )
    # Of several that match, the shortest name is the plain one.
    fitting = [model for model in models if fits(model, wanted or DEFAULT_QUANTISATION)]
    fitting.sort(key=lambda model: (len(model), model))
    if not fitting and wanted is None:
        fitting = list(models)
    if not fitting:
        raise DownloadError(f"hub model {reference!r}: no file fits {wanted!r}; there are {_listed(models)}")
    parts = models[fitting[0]]
    missing = _missing(parts)
    if missing:
        raise DownloadError(f"hub model {reference!r}: parts are missing: {', '.join(missing[:5])}")
    return parts


def folder_files(files: Iterable[str]) -> list[str]:
    """The files of a folder of transformers, without what the index names; none if there are no weights."""
    there = set(files)
    weights = next((name for name in (WHOLE, INDEX) if name in there), None)
    if CONFIG not in there or weights is None:
        return []
    further = sorted(name for name in there if NAMED_TEMPLATE.fullmatch(name))
    further += sorted(name for name in there if MODULES in there and MODULE_FILE.fullmatch(name))
    return [*(name for name in READ_OF_FOLDER if name in there), *further, weights]


def models_of(files: Iterable[str]) -> dict[str, list[str]]:
    """The models among files: name without ending and part number -> its files in order."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if is_gguf(file) and not NO_MODEL.search(file.rpartition("/")[2]):
            part = part_name(file)
            models.setdefault(part.model if part else without_ending(file), []).append(file)
    return models


def fits(model: str, wanted: str) -> bool:
    """Whether the name of a model contains `wanted` as a word, or equals it."""
    plain, part = without_ending(wanted), part_name(wanted)
    if model.lower() in (plain.lower(), part and part.model.lower()):
        return True
    return re.search(rf"(^|[-._/]){re.escape(plain)}([-./]|$)", model, re.IGNORECASE) is not None


def is_safe(name: str) -> bool:
    """Whether a name from a server stays below its target folder and has no control characters."""
    inside = not name.startswith("/") and not re.search(r"[\\:\0]", name) and ".." not in name.split("/")
    return inside and name.isprintable()


def _missing(parts: Sequence[str]) -> list[str]:
    part = part_name(parts[0])
    if part is None:
        return []
    needed = {part.part(number).lower() for number in range(1, min(part.count, 1000) + 1)}
    return sorted(needed - {name.lower() for name in parts})


def _instead(files: Sequence[str]) -> str:
    """The other kinds of files that a repository has, for an error."""
    formats = [what for ending, what in OTHER_FORMATS.items() if any(file.endswith(ending) for file in files)]
    if formats:
        kinds = " and ".join(dict.fromkeys(formats))
        return f"it has {kinds}: convert them to GGUF, or look for a repository of this model named ...-GGUF"
    return f"it has {_listed(files)}" if files else "it is empty"


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def reference_of_address(text: str) -> str | None:
    """The reference of a page or a file at huggingface.co or hf.co; None for any other text.

    Two are "hf.co/user/repo:Q4_K_M" and "https://huggingface.co/user/repo/resolve/main/model.gguf".
    UsageError for a file of another revision than main, which references cannot say.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    if match["revision"] not in (None, "main"):
        raise UsageError(f"model {text!r}: wanted a file of the revision main, not of {match['revision']!r}")
    wanted = match["file"] or match["quant"]
    return f"{match['repo']}:{unquote(wanted)}" if wanted else match["repo"]


def is_address(text: str) -> bool:
    """Whether a text is written as an address of HTTP."""
    return text.lower().startswith(("https://", "http://"))
