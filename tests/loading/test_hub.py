"""Downloads from a hub, which is a small server on this machine that speaks as the real one does."""

import subprocess
import sys

import pytest

from graphml.errors import DownloadError, UsageError
from graphml.loading.download.choice import choose
from graphml.loading.fetch import fetch_hub
from tests.hub_server import FILES
from tests.looped import looped


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("some/tiny", "tiny-Q4_K_M.gguf"),
        ("some/tiny:q8_0", "tiny-Q8_0.gguf"),
        ("some/tiny:tiny-Q8_0.gguf", "tiny-Q8_0.gguf"),
    ],
)
def test_a_quantisation_is_found_and_fetched_once(hub, tmp_path, reference, name):
    seen = []
    path = fetch_hub(reference, hub.address, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "shared" / "models--some--tiny" / "snapshots" / hub.commit / name
    assert path.read_bytes() == FILES[name]
    assert seen[-1] == (len(FILES[name]), len(FILES[name]))
    assert fetch_hub(reference, hub.address) == path
    assert len(hub.downloads()) == 1


def test_all_parts_of_a_split_model_come(hub):
    seen = []
    path = fetch_hub("some/tiny:F16", hub.address, lambda done, total: seen.append((done, total)))
    assert path.name == "tiny-f16-00001-of-00002.gguf"
    for name in FILES:
        if "f16" in name:
            assert path.with_name(name.partition("/")[2]).read_bytes() == FILES[name]
    assert seen[-1] == (15000, 15000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_errors_name_the_choices(hub):
    with pytest.raises(
        DownloadError, match=r"no file fits 'Q2_K'; there are big/tiny-f16, tiny-Q4_K_M, tiny-Q8_0$"
    ):
        fetch_hub("some/tiny:Q2_K", hub.address)
    with pytest.raises(DownloadError, match=r"'some/other': 127.0.0.1:\d+ has no such repository"):
        fetch_hub("some/other", hub.address)
    for wrong in ("tiny", "a/b/c", "some/tiny:", ""):
        with pytest.raises(UsageError, match="wanted user/repo"):
            fetch_hub(wrong, hub.address)


def test_an_unreachable_hub_is_one_clear_error_unless_the_file_is_there(hub):
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(DownloadError, match=r"'some/tiny': \w+"):
        fetch_hub("some/tiny", nowhere)
    path = fetch_hub("some/tiny:Q8_0", hub.address)
    assert fetch_hub("some/tiny:Q8_0", nowhere) == path
    with pytest.raises(DownloadError, match=r"no file fits 'F16'; there are tiny-Q8_0"):
        fetch_hub("some/tiny:F16", nowhere)


def test_a_changed_file_is_fetched_anew(hub):
    fetch_hub("some/tiny:Q8_0", hub.address)
    hub.files["tiny-Q8_0.gguf"] = b"new" * 100
    hub.commit = "d" * 40
    assert fetch_hub("some/tiny:Q8_0", hub.address).read_bytes() == b"new" * 100
    assert fetch_hub("some/tiny:Q8_0", offline=True).read_bytes() == b"new" * 100


def test_names_that_leave_the_folder_are_not_fetched(hub):
    hub.files = {"../../evil-Q4_K_M.gguf": b"x", "/etc/Q4_K_M.gguf": b"x", "..\\Q4_K_M.gguf": b"x"}
    with pytest.raises(DownloadError, match=r"holds no .gguf model"):
        fetch_hub("some/tiny", hub.address)


def test_the_endpoint_of_the_environment_is_used(hub, tmp_path, monkeypatch):
    # huggingface-hub reads it when it is imported, so a process of its own has to look.
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    code = "from graphml.loading.fetch import fetch_hub; print(fetch_hub('some/tiny:Q8_0'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("tiny-Q8_0.gguf")
    assert done.stderr == ""


@looped(
    ("files", "wanted", "chosen"),
    [
        (["b-Q8_0.gguf", "a-Q5_0.gguf"], None, ["a-Q5_0.gguf"]),
        (["x-UD-Q4_K_M.gguf", "x-Q4_K_M.gguf"], None, ["x-Q4_K_M.gguf"]),
        (["x-IQ4_XS.gguf", "x-Q4_K_S.gguf", "x-Q4_K_M.gguf"], "q4_k_s", ["x-Q4_K_S.gguf"]),
        (["Q8_0/x-00001-of-00002.gguf", "Q8_0/x-00002-of-00002.gguf"], "Q8_0", None),
        (["x.Q4_0.gguf", "x.imatrix.gguf"], "Q4_0", ["x.Q4_0.gguf"]),
        (["m-00001-of-00001.gguf"], "m-00001-of-00001.gguf", None),
        (["X-BF16.GGUF"], "bf16", None),
    ],
)
def test_choices(files, wanted, chosen):
    assert choose(files, wanted, "a/b") == (chosen or files)


def test_missing_parts_are_named():
    with pytest.raises(DownloadError, match=r"parts are missing: x-00002-of-00003.gguf"):
        choose(["x-00001-of-00003.gguf", "x-00003-of-00003.gguf"], None, "a/b")
    with pytest.raises(DownloadError, match="no file fits 'Q4_K'; there are x-Q4_K_M"):
        choose(["x-Q4_K_M.gguf"], "Q4_K", "a/b")
