"""Fetches GGUF files from the Hugging Face hub, or from a server that speaks as it does.

Needs huggingface-hub (`pip install graphml-engine[hub]`), loaded only here. Knows nothing of what a file
holds but the part of its name that tells its quantisation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from graphml import cache_access, settings
from graphml.errors import DownloadError, UsageError
from graphml.pages import let_go

DEFAULT_QUANTISATION = "Q4_K_M"
REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<wanted>.+))?")
PART = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# Files that lie beside models but are none: image projectors and importance matrices.
NO_MODEL = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)


def fetch_hub(
    reference: str,
    endpoint: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Return the path of a model from the hub, its first part if it is split, downloading what is missing.

    `reference` is "user/repo", "user/repo:QUANT" (matched without regard to case; Q4_K_M, else the first
    file, if left out) or "user/repo:FILE.gguf". `endpoint` is the server's address, by default
    huggingface-hub's own. Where the server cannot be reached, files fetched before are used. `progress`
    gets the bytes done and in all. Raises UsageError for an unusable reference, DownloadError with the
    choices, or with the reason, if it fails.
    """
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise UsageError(f"hub model {reference!r}: wanted user/repo or user/repo:QUANT")
    repo, wanted = match["repo"], match["wanted"]
    hub = _library()
    folder = settings.cache_folder() / "models" / "hub" / repo
    try:
        information = hub.HfApi(endpoint=endpoint).model_info(repo, files_metadata=True)
    except Exception as error:  # whatever its HTTP library raises: it has changed with its versions
        kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
        if not kept or isinstance(error, (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError)):
            raise DownloadError(f"hub model {reference!r}: {_reason(error)}") from error
        return folder / choose(kept, wanted, reference)[0]
    sizes = {file.rfilename: file.size for file in information.siblings or [] if _is_safe(file.rfilename)}
    parts = choose(list(sizes), wanted, reference)
    bar = _bar(progress, sizes, parts)
    for part in parts:
        is_new = not (folder / part).exists()
        try:
            cache_access.make(folder)
            hub.hf_hub_download(
                repo,
                part,
                revision=information.sha,
                local_dir=folder,
                endpoint=endpoint,
                tqdm_class=bar(part),
            )
        except Exception as error:  # as above
            raise DownloadError(f"hub model {reference!r}: {part}: {_reason(error)}") from error
        if is_new:
            with (folder / part).open("rb") as file:
                let_go(file.fileno())
    return folder / parts[0]


def choose(files: Sequence[str], wanted: str | None, reference: str) -> list[str]:
    """Pick from a repository's files the one model that `wanted` names: its parts in order, at least one.

    Raises DownloadError that lists the choices if nothing fits, or names the parts that are missing.
    """
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.lower().endswith(".gguf") and not NO_MODEL.search(file.rpartition("/")[2]):
            part = PART.fullmatch(file)
            models.setdefault(part["model"] if part else file[: -len(".gguf")], []).append(file)
    if not models:
        raise DownloadError(f"hub model {reference!r}: the repository holds no .gguf model")
    # Of several that fit, the shortest name is the plain one.
    fitting = [model for model in models if _fits(model, wanted or DEFAULT_QUANTISATION)]
    fitting.sort(key=lambda model: (len(model), model))
    if not fitting and wanted is None:
        fitting = list(models)
    if not fitting:
        raise DownloadError(
            f"hub model {reference!r}: no file fits {wanted!r}; there are {', '.join(models)}"
        )
    parts = models[fitting[0]]
    part = PART.fullmatch(parts[0])
    if part is not None:
        count = min(int(part["count"]), 1000)
        needed = [f"{part['model']}-{number:05}-of-{part['count']}.gguf" for number in range(1, count + 1)]
        missing = sorted({name.lower() for name in needed} - {name.lower() for name in parts})
        if missing:
            raise DownloadError(f"hub model {reference!r}: parts are missing: {', '.join(missing[:5])}")
    return parts


def _fits(model: str, wanted: str) -> bool:
    """Whether the name holds `wanted` as a word, or is it."""
    plain = wanted[: -len(".gguf")] if wanted.lower().endswith(".gguf") else wanted
    part = PART.fullmatch(wanted)
    if model.lower() in (plain.lower(), part and part["model"].lower()):
        return True
    return re.search(rf"(^|[-._/]){re.escape(plain)}([-./]|$)", model, re.IGNORECASE) is not None


def _is_safe(name: str) -> bool:
    """Whether a file name from the server stays below the folder it is put into."""
    return not name.startswith("/") and not re.search(r"[\\:\0]", name) and ".." not in name.split("/")


def _library() -> ModuleType:
    try:
        import huggingface_hub  # large and optional, needed for this alone
        import huggingface_hub.errors
    except ImportError as error:
        raise DownloadError(
            "downloading from the hub needs huggingface-hub: pip install 'graphml-engine[hub]'"
        ) from error
    return huggingface_hub  # type: ignore[no-any-return] # an optional library, not seen by the type checker


def _reason(error: Exception) -> str:
    """Return the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _bar(
    progress: Callable[[int, int | None], None] | None, sizes: Mapping[str, int | None], parts: Sequence[str]
) -> Callable[[str], type]:
    """Make, for each part, a class that huggingface-hub takes for its progress bar and that draws nothing."""
    known = [sizes[part] for part in parts]
    total = None if None in known else sum(size or 0 for size in known)

    def bar_of(part: str) -> type:
        before = sum(size or 0 for size in known[: parts.index(part)])

        class Bar:
            """As much of a tqdm bar as the downloader uses."""

            def __init__(self, *args: Any, **options: Any) -> None:
                self.n = int(options.get("initial") or 0)
                self.total = options.get("total")
                self.disable = True

            def update(self, n: float | None = 1) -> None:
                self.n += int(n or 0)
                if progress is not None:
                    progress(before + self.n, total)

            def refresh(self, *args: Any, **options: Any) -> None:
                pass

            close = reset = set_description = set_description_str = set_postfix_str = refresh

            def __enter__(self) -> Bar:
                return self

            def __exit__(self, *args: object) -> None:
                pass

        return Bar

    return bar_of
