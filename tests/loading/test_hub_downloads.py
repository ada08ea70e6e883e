"""Bytes of the hub under bad conditions: broken connections, servers that lie, other callers, a full disk."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache

from graphml.errors import DownloadError
from graphml.loading.download.stored import stored_models
from graphml.loading.fetch import fetch_hub, open_hub_header
from tests.hub_server import FILES, HubServer
from tests.looped import looped

NAME = "tiny-Q8_0.gguf"
CONTENT = FILES[NAME]


def left_over(tmp_path: Path) -> list[str]:
    """Every file in the cache of the repository."""
    cache = tmp_path / "shared" / "models--some--tiny"
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


def whole(hub: HubServer, content: bytes = CONTENT) -> list[str]:
    digest = hashlib.sha256(content).hexdigest()
    return [f"blobs/{digest}", "refs/main", f"snapshots/{hub.commit}/{NAME}"]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: HubServer, tmp_path: Path) -> None:
    hub.breaks_after = 3000
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == CONTENT
    assert hub.ranges == [None, *(f"bytes={start}-" for start in (3000, 6000, 9000))]
    assert left_over(tmp_path) == whole(hub)


def test_a_very_large_file_comes_in_several_answers(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml.loading.download.resumed.MOST_BYTES_A_REQUEST", 4000)
    hub.breaks_after = 3000
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == CONTENT
    assert hub.ranges == [f"bytes={begin}-{end}" for begin, end in
                          [(0, 3999), (3000, 3999), (4000, 7999), (7000, 7999), (8000, 9999)]]  # fmt: skip


def test_an_interrupted_download_resumes_in_the_next_call(hub: HubServer, tmp_path: Path) -> None:
    hub.breaks_after = 4000

    def interrupt(done: int, total: int | None) -> None:
        if done >= 4000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_hub("some/tiny:Q8_0", progress=interrupt)
    (part,) = left_over(tmp_path)
    assert part == f"blobs/{hashlib.sha256(CONTENT).hexdigest()}.{NAME}.graphml.part"
    hub.breaks_after = None
    seen: list[int] = []
    assert fetch_hub("some/tiny:Q8_0", progress=lambda done, total: seen.append(done)).read_bytes() == CONTENT
    assert hub.ranges[-1] == "bytes=4000-"
    assert seen[0] == 4000
    assert left_over(tmp_path) == whole(hub)


@pytest.mark.parametrize("kind", [ValueError, OSError])
@pytest.mark.parametrize("fetch", [fetch_hub, open_hub_header])
def test_an_error_of_the_callers_own_is_not_the_servers(
    hub: HubServer, fetch: Callable[..., object], kind: type[Exception]
) -> None:
    own = kind("the caller's own")

    def fails(done: int, total: int | None) -> None:
        raise own

    with pytest.raises(kind, match="the caller's own") as caught:
        fetch("some/tiny:Q8_0", progress=fails)
    assert caught.value is own
    assert (own.__cause__, own.__context__) == (None, None)


def begun_before(hub: HubServer, folder: Path, begin: bytes) -> None:
    """An earlier call left the first bytes of the file behind."""
    hub.status, works = 404, hub.status
    with pytest.raises(DownloadError):
        fetch_hub("some/tiny:Q8_0")
    (part,) = left_over(folder)
    (folder / "shared" / "models--some--tiny" / part).write_bytes(begin)
    hub.status = works


def test_a_download_of_another_version_is_not_taken_up(hub: HubServer, tmp_path: Path) -> None:
    begun_before(hub, tmp_path, b"o" * 4000)
    hub.files[NAME], hub.commit = b"new" * 3000, "d" * 40
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == b"new" * 3000
    assert left_over(tmp_path) == whole(hub, b"new" * 3000)


def test_bytes_that_were_damaged_on_the_disk_are_not_taken(hub: HubServer, tmp_path: Path) -> None:
    begun_before(hub, tmp_path, b"?" * 4000)
    with pytest.raises(DownloadError, match=f"sha256 {hashlib.sha256(CONTENT).hexdigest()}, got "):
        fetch_hub("some/tiny:Q8_0")
    assert left_over(tmp_path) == []
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_is_enough(hub: HubServer, tmp_path: Path) -> None:
    hub.ignores_ranges = True
    hub.breaks_after = 7000
    with pytest.raises(DownloadError, match=r"tiny-Q8_0.gguf: 127.0.0.1"):
        fetch_hub("some/tiny:Q8_0")  # it never comes further than 7000
    hub.breaks_after = None
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == CONTENT


def test_redirects_are_followed(hub: HubServer) -> None:
    hub.redirects = True
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("lies", "says"),
    [
        ("sum", r"wanted 10000 bytes with sha256 [0-9a-f]{64}, got [0-9a-f]{64}$"),
        ("size", r"wanted 1000000000000000 bytes more on the disk"),
        ("no size", r"does not say how large it is"),
        ("smaller", r"sends more than the 9999 bytes it announced"),
        ("longer", r"sends more than the 10000 bytes it announced"),
        ("gzip", r"DecodingError"),
    ],
)
def test_a_server_that_lies_is_refused(hub: HubServer, tmp_path: Path, lies: str, says: str) -> None:
    hub.lies = lies
    with pytest.raises(DownloadError, match=says):
        fetch_hub("some/tiny:Q8_0")
    assert not [name for name in left_over(tmp_path) if name.startswith("snapshots")]


def test_terms_that_were_not_accepted_are_named(hub: HubServer) -> None:
    hub.status = 403
    with pytest.raises(
        DownloadError, match=r"accept the terms on its page http://.*/some/tiny, and set HF_TOKEN"
    ):
        fetch_hub("some/tiny:Q8_0")
    assert len(hub.ranges) == 1


def test_a_server_with_an_error_is_named(hub: HubServer) -> None:
    hub.status = 503
    with pytest.raises(DownloadError, match=r"127.0.0.1:\d+ answers 503"):
        fetch_hub("some/tiny:Q8_0")


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "a\\b", "C:evil", "a\x1b[31m", "a\nb", "a\0b", "a/../../b"]
)
def test_names_that_lead_elsewhere_or_steer_terminals_are_not_there(hub: HubServer, name: str) -> None:
    hub.files = {f"{name}-Q8_0.gguf": b"x", "...gguf": b"x"}
    with pytest.raises(DownloadError, match=r"no file fits 'Q8_0'; there are \.\.$|holds no .gguf"):
        fetch_hub("some/tiny:Q8_0")
    assert hub.downloads() == []


@pytest.mark.parametrize("commit", ["../../../etc", "main", ""])
def test_a_revision_that_is_none_is_refused(hub: HubServer, commit: str) -> None:
    hub.commit = commit
    with pytest.raises(DownloadError, match="wanted 40 hexadecimal digits"):
        fetch_hub("some/tiny:Q8_0")


@looped("reference", ["../..", "../tiny", ".cache/x", "some/..", "a b/c"])
def test_references_that_leave_the_folder_are_none(reference: str) -> None:
    with pytest.raises(Exception, match="wanted user/repo"):
        fetch_hub(reference)


def test_callers_at_the_same_time_download_once(hub: HubServer) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch_hub("some/tiny:Q8_0"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in found] == [True] * 4
    assert len(hub.downloads()) == 1


def test_a_file_that_lost_its_end_is_fetched_anew(hub: HubServer) -> None:
    fetch_hub("some/tiny:Q8_0").resolve().write_bytes(CONTENT[:10])
    assert fetch_hub("some/tiny:Q8_0").read_bytes() == CONTENT


def test_a_full_disk_is_told_before_anything_is_written(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 9999))
    with pytest.raises(DownloadError, match=r"wanted 10000 bytes more on the disk .* where 9999 are free"):
        fetch_hub("some/tiny:Q8_0")
    assert hub.downloads() == []


def test_a_cache_that_cannot_be_written_is_named(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=f"cannot write to {tmp_path / 'shared'}"):
        fetch_hub("some/tiny:Q8_0")


def test_what_other_programs_downloaded_is_used(hub: HubServer, tmp_path: Path) -> None:
    snapshot = tmp_path / "shared" / "models--some--tiny" / "snapshots" / hub.commit
    snapshot.mkdir(parents=True)
    (snapshot / NAME).write_bytes(CONTENT)
    assert fetch_hub("some/tiny:Q8_0") == snapshot / NAME
    assert fetch_hub("some/tiny:Q8_0", offline=True) == snapshot / NAME
    assert hub.downloads() == []


def test_what_was_downloaded_is_there_for_other_programs(hub: HubServer, tmp_path: Path) -> None:
    path, shared = fetch_hub("some/tiny:Q8_0"), tmp_path / "shared"
    assert try_to_load_from_cache("some/tiny", NAME, shared) == str(path)
    assert hf_hub_download("some/tiny", NAME, cache_dir=shared, local_files_only=True) == str(path)
    assert hf_hub_download("some/tiny", NAME, cache_dir=shared, endpoint=hub.address) == str(path)
    assert len(hub.downloads()) == 1
    (found,) = scan_cache_dir(shared).repos
    assert (found.repo_id, found.size_on_disk, list(found.refs)) == ("some/tiny", len(CONTENT), ["main"])


def test_a_kept_file_may_end_in_capitals(hub: HubServer, tmp_path: Path) -> None:
    hub.files["tiny-Q6_K.GGUF"] = CONTENT
    path = fetch_hub("some/tiny:Q6_K")
    assert path.name == "tiny-Q6_K.GGUF"
    assert fetch_hub("some/tiny:Q6_K", offline=True) == path
    assert "some/tiny:tiny-Q6_K.GGUF" in [one.name for one in stored_models()]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"model.safetensors": b"", "adapter_config.json": b""},
            r"it has safetensors: convert .* named \.\.\.-GGUF$",
        ),
        ({"a.onnx": b"", "pytorch_model.bin": b""}, r"it has PyTorch checkpoints and ONNX: convert"),
        ({"README.md": b"", "mmproj-x.gguf": b""}, r"it has README.md, mmproj-x.gguf$"),
        ({}, r"it is empty$"),
    ],
)
def test_a_repository_without_a_model_is_told_by_what_it_has(
    hub: HubServer, files: dict[str, bytes], says: str
) -> None:
    hub.files = files
    with pytest.raises(DownloadError, match=f"holds no .gguf model; {says}"):
        fetch_hub("some/tiny")
