"""GGUF files at addresses of a server on this machine: downloaded, resumed, refused, listed and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graphml
from graphml.errors import DownloadError, UsageError
from graphml.loading import fetch
from graphml.loading.download.addresses import place_of
from graphml.loading.download.stored import OURS, PARTLY, named, remove, stored_models
from graphml.weights import remote_header
from tests import tiny_model
from tests.cli.test_models_listed import REFERENCE, graphml_command
from tests.hub_server import HubServer
from tests.looped import looped

CONTENT = b"GGUF" + b"abcdef" * 1500


@pytest.fixture
def address(hub: HubServer) -> str:
    hub.files = {"m.gguf": CONTENT}
    return f"{hub.address}/some/tiny/resolve/{hub.commit}/m.gguf"


def kept(tmp_path: Path) -> list[str]:
    """The names of all files of addresses."""
    return sorted(path.name for path in (tmp_path / "cache" / "models").rglob("*") if path.is_file())


def interrupted(address: str, after: int) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.resolve(address, interrupt)


def test_a_file_is_downloaded_once_and_keeps_host_and_path(
    hub: HubServer, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen: list[tuple[int, int | None]] = []
    path = fetch.resolve(address, lambda done, total: seen.append((done, total)))
    folder = f"http/127.0.0.1%3A{hub.server_port}/some/tiny/resolve/{hub.commit}"
    assert path == tmp_path / "cache" / "models" / folder / "m.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert hub.ranges == ["bytes=0-3", None]
    assert fetch.resolve(address) == fetch.resolve(address, offline=True) == path
    assert len(hub.ranges) == 2
    assert hub.tokens == {None}


@looped("version", [None, {"Last-Modified": "Sat, 28 Nov 2026 20:00:00 GMT"}, {"ETag": 'W/"weak"'}])
def test_an_interrupted_download_is_resumed(
    hub: HubServer, address: str, tmp_path: Path, version: dict[str, str] | None
) -> None:
    hub.version = version
    interrupted(address, 4000)
    assert fetch.resolve(address).read_bytes() == CONTENT
    assert hub.ranges[-1] is not None
    assert hub.ranges[-1].startswith("bytes=4")
    assert kept(tmp_path) == ["m.gguf"]
    remove(named(stored_models(), address)[0])


def test_a_connection_that_breaks_is_taken_up(hub: HubServer, address: str) -> None:
    hub.breaks_after = 3000
    assert fetch.resolve(address).read_bytes() == CONTENT
    assert hub.ranges == ["bytes=0-3", None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]


def test_a_server_without_ranges_sends_the_whole_file_again(hub: HubServer, address: str) -> None:
    interrupted(address, 4000)
    hub.ignores_ranges = True
    assert fetch.resolve(address).read_bytes() == CONTENT
    assert hub.sent >= len(CONTENT) * 2


@looped("version", [None, {}])
def test_a_part_of_another_version_is_not_used(
    hub: HubServer, address: str, tmp_path: Path, version: dict[str, str] | None
) -> None:
    hub.files["m.gguf"], hub.version = CONTENT, version
    interrupted(address, 4000)
    hub.files["m.gguf"] = new = b"GGUF" + b"newnew" * 1500
    assert fetch.resolve(address).read_bytes() == new
    assert hub.ranges[-1] is None
    assert kept(tmp_path) == ["m.gguf"]
    remove(named(stored_models(), address)[0])


def test_a_file_that_changes_while_it_comes_is_sent_anew(hub: HubServer, address: str) -> None:
    interrupted(address, 4000)
    new = b"GGUF" + b"newnew" * 1500

    def change(done: int, total: int | None) -> None:
        hub.files["m.gguf"] = new

    assert fetch.resolve(address, change).read_bytes() == new
    assert hub.ranges[-1] is not None  # the condition If-Range, not the probe, saw the change


def test_a_redirect_is_followed_to_this_machine_alone(hub: HubServer, address: str, tmp_path: Path) -> None:
    hub.redirects, hub.target = True, "http://example.org/m.gguf"
    with pytest.raises(
        DownloadError, match=r"m\.gguf': it redirects to 'http://example\.org/m\.gguf'; wanted"
    ):
        fetch.resolve(address)
    hub.target = address
    with pytest.raises(DownloadError, match=r"m\.gguf': it redirects more than 10 times"):
        fetch.resolve(address)
    assert kept(tmp_path) == []
    hub.target = ""
    assert fetch.resolve(address) == place_of(address)
    assert place_of(address).read_bytes() == CONTENT


def test_errors_name_the_address_and_the_status(hub: HubServer, address: str, tmp_path: Path) -> None:
    missing = address.replace("m.gguf", "other.gguf")
    with pytest.raises(DownloadError, match=rf"^model '{missing}': 127.0.0.1:\d+ answers 404$"):
        fetch.resolve(missing)
    with pytest.raises(DownloadError, match=rf"^model '{address}': it is not on this machine, and --offline"):
        fetch.resolve(address, offline=True)
    hub.status = 403
    with pytest.raises(DownloadError, match="answers 403"):
        fetch.resolve(address)
    hub.status, hub.lies = 200, "longer"
    with pytest.raises(DownloadError, match=rf"'{address}': 127.0.0.1:\d+ sends more than the 9004 bytes"):
        fetch.resolve(address)
    hub.lies, hub.files["m.gguf"] = "", b"<html>no</html>"
    with pytest.raises(DownloadError, match=r"wanted a GGUF file, which begins with b'GGUF'; got b'<htm'"):
        fetch.resolve(address)
    assert not any(name.endswith(".gguf") for name in kept(tmp_path))


@looped("text, reason", [
    ("http://example.org/m.gguf", "wanted https: http is only for this machine"),
    ("https://example.org/m.bin", "wanted https://HOST/PATH.gguf"),
    ("https:///m.gguf", "wanted https://HOST/PATH.gguf"),
    ("https://example.org/a/%2e%2e/m.gguf", "without '.', '..' and empty names"),
    ("https://example.org//m.gguf", "without '.', '..' and empty names"),
    ("https://example.org:x/m.gguf", "Port could not be cast"),
])  # fmt: skip
def test_other_addresses_are_refused_before_a_server_is_asked(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"model '{text}'") as caught:
        fetch.resolve(text)
    assert reason in str(caught.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="without a user and a password") as caught:
        fetch.resolve("https://me:secret@example.org/m.gguf")
    assert "secret" not in str(caught.value)


@looped("address, place", [
    ("https://Example.org:443/a/m.gguf", "https/example.org/a/m.gguf"),
    ("https://example.org:8443/a%20b:c/m.gguf#end", "https/example.org%3A8443/a%20b%3Ac/m.gguf"),
    ("https://example.org/AUX/con.v1./NUL.gguf", "https/example.org/%41UX/%63on.v1%2E/%4EUL.gguf"),
    ("https://example.org/a%5C%2F..%2Fm.gguf", "https/example.org/a%5C%2F..%2Fm.gguf"),
    ("http://[::1]:80/console/m.GGUF", "http/%5B%3A%3A1%5D/console/m.GGUF"),
])  # fmt: skip
def test_the_names_of_files_are_valid_on_every_system(address: str, place: str) -> None:
    models = place_of("https://a/b.gguf").parents[2]
    assert place_of(address).relative_to(models).as_posix() == place


def test_queries_are_different_files() -> None:
    first, other = (place_of(f"https://example.org/m.gguf?key={key}") for key in "ab")
    assert first != other
    assert first.name == other.name == "m.gguf"


def test_all_parts_of_a_split_model_are_downloaded(hub: HubServer, address: str) -> None:
    hub.files = {f"m-0000{number}-of-00002.gguf": CONTENT + bytes(number) for number in (1, 2)}
    second = address.replace("m.gguf", "m-00002-of-00002.gguf")
    seen: list[tuple[int, int | None]] = []
    first = fetch.resolve(second, lambda done, total: seen.append((done, total)))
    assert first.name == "m-00001-of-00002.gguf"
    assert place_of(second).read_bytes() == CONTENT + bytes(2)
    assert seen[-1] == (2 * len(CONTENT) + 3, 2 * len(CONTENT) + 3)
    (model,) = (stored for stored in stored_models() if stored.place == OURS)
    assert model.files == (first, place_of(second))
    for part in (second, second.replace("00002-of", "00001-of")):
        assert named(stored_models(), part) == [model]
    first.unlink()
    assert [(left.place, left.files) for left in named(stored_models(), second)] == [
        (PARTLY, (place_of(second),))
    ]


def test_an_address_may_be_written_otherwise_and_folders_of_others_are_no_error(
    hub: HubServer, address: str, tmp_path: Path
) -> None:
    path = fetch.resolve(f"{address}?key=1")
    stray = tmp_path / "cache" / "models" / "https" / "%FF" / "m.gguf"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(CONTENT)
    for written in (f"{address}?key=1", f"HTTP{address.removeprefix('http')}?key=1"):
        (model,) = named(stored_models(), written)
        assert model.files == (path,)


def test_what_is_here_is_listed_and_removed_by_its_address(
    hub: HubServer, address: str, tmp_path: Path
) -> None:
    interrupted(address, 4000)
    (partial,) = named(stored_models(), address)
    assert (partial.place, partial.n_bytes >= 4000) == (PARTLY, True)
    (entry,) = json.loads(graphml_command("cache", "partial", "--json").stdout)["entries"]
    assert entry["path"] == str(partial.path)
    graphml_command("rm", address, "--yes")
    assert kept(tmp_path) == []
    path = fetch.resolve(address)
    (model,) = named(stored_models(), address)
    assert (model.path, model.place) == (path, OURS)
    assert "m.gguf" in graphml_command("cache", "models").stdout
    assert f"removed {address} {path}" in graphml_command("rm", address, "--yes").stdout
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_commands_take_an_address(
    hub: HubServer, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model.write(tmp_path / "tiny.gguf")
    hub.files["m.gguf"] = model.read_bytes()
    monkeypatch.setattr(remote_header, "FIRST_BYTES", 1000)
    assert "llama" in graphml_command("info", address).stdout
    assert hub.sent < len(hub.files["m.gguf"]) // 2
    assert kept(tmp_path) == []
    options = ["-p", "hello", "-n", 3, "--temp", 0, *REFERENCE]
    assert graphml_command("run", address, *options).stdout == graphml_command("run", model, *options).stdout
    with graphml.load(address, "reference", offline=True) as opened:
        assert opened.path == place_of(address)
