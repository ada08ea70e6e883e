"""Downloads from a hub, which is a small server on this machine that speaks as the real one does."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from graphml.engine.fetch import fetch_hub
from graphml.engine.hub import choose
from graphml.errors import DownloadError, UsageError

pytest.importorskip("huggingface_hub")

COMMIT = "c0ffee" * 6 + "c0ff"
FILES = {
    "README.md": b"# tiny",
    "tiny-Q8_0.gguf": b"q8" * 5000,
    "tiny-Q4_K_M.gguf": b"k4" * 4000,
    "mmproj-tiny-Q8_0.gguf": b"picture",
    "big/tiny-f16-00001-of-00002.gguf": b"one" * 3000,
    "big/tiny-f16-00002-of-00002.gguf": b"two" * 2000,
}


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files = FILES

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):  # the name that http.server calls
        self.answer()

    def do_GET(self):  # as above
        self.answer()

    def answer(self):
        self.server.asked.append((self.command, self.path))
        path = unquote(urlsplit(self.path).path)
        resolved = f"/some/tiny/resolve/{COMMIT}/"
        if path.startswith("/api/models/some/tiny"):
            siblings = [
                {"rfilename": name, "size": len(raw), "blobId": "0" * 40}
                for name, raw in self.server.files.items()
            ]
            body = json.dumps({"id": "some/tiny", "sha": COMMIT, "siblings": siblings}).encode()
            self.reply(200, body, {"Content-Type": "application/json"})
        elif path.startswith(resolved) and path.removeprefix(resolved) in self.server.files:
            raw = self.server.files[path.removeprefix(resolved)]
            headers = {"ETag": f'"{hashlib.sha256(raw).hexdigest()}"', "X-Repo-Commit": COMMIT}
            first = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
            if first:
                headers["Content-Range"] = f"bytes {first}-{len(raw) - 1}/{len(raw)}"
            self.reply(206 if first else 200, raw[first:], headers)
        else:
            self.reply(
                404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            )

    def reply(self, code, body, headers):
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.files, server.asked = dict(FILES), []
        server.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def downloads(hub):
    return [path for command, path in hub.asked if command == "GET" and "/resolve/" in path]


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
    assert path == tmp_path / "cache" / "models" / "hub" / "some" / "tiny" / name
    assert path.read_bytes() == FILES[name]
    assert seen[-1] == (len(FILES[name]), len(FILES[name]))
    assert fetch_hub(reference, hub.address) == path
    assert len(downloads(hub)) == 1


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
    with pytest.raises(DownloadError, match=r"'some/other': RepositoryNotFoundError"):
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


def test_a_changed_file_is_fetched_anew(hub, monkeypatch):
    path = fetch_hub("some/tiny:Q8_0", hub.address)
    hub.files["tiny-Q8_0.gguf"] = b"new" * 100
    monkeypatch.setattr(sys.modules[__name__], "COMMIT", "d" * 40)
    assert fetch_hub("some/tiny:Q8_0", hub.address) == path
    assert path.read_bytes() == b"new" * 100


def test_names_that_leave_the_folder_are_not_fetched(hub):
    hub.files = {"../../evil-Q4_K_M.gguf": b"x", "/etc/Q4_K_M.gguf": b"x", "..\\Q4_K_M.gguf": b"x"}
    with pytest.raises(DownloadError, match=r"holds no .gguf model"):
        fetch_hub("some/tiny", hub.address)


def test_the_endpoint_of_the_environment_is_used(hub, tmp_path, monkeypatch):
    # huggingface-hub reads it when it is imported, so a process of its own has to look.
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    code = "from graphml.engine.fetch import fetch_hub; print(fetch_hub('some/tiny:Q8_0'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("tiny-Q8_0.gguf")
    assert done.stderr == ""


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r"pip install 'graphml-engine\[hub\]'"):
        fetch_hub("some/tiny")


@pytest.mark.parametrize(
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
