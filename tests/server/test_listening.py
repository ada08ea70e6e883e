"""Where `graphml serve` listens: by TLS, and at the path of a UNIX socket."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from graphml.cli.serve import check_binding, server_options
from graphml.errors import UsageError
from graphml.server.access.open_connections import OpenConnections
from graphml.server.listening import _socket, listening
from graphml.server.options.command_line import parsed
from graphml.server.options.server_options import ServerOptions
from tests.stories import STORIES

TLS = Path(__file__).parents[1] / "data" / "tls"
ASKED = {"prompt": "Once upon a time", "n_predict": 5, "temperature": 0}


@contextmanager
def _process(*flags: str | Path) -> Iterator[str]:
    """A server with these flags: its address."""
    start = [sys.executable, "-c", "from graphml.cli.main import main; main()", "serve", "-m", str(STORIES)]
    command = [*start, "-c", "256", "-np", "1", "-t", "1", *map(str, flags)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split(" at ")[1].split()[0]
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_https_is_answered_with_the_certificate_that_was_given() -> None:
    key, certificate = TLS / "localhost-key.pem", TLS / "localhost-certificate.pem"
    with _process("--port", "0", "--ssl-key-file", key, "--ssl-cert-file", certificate) as address:
        assert address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certificate))
        with httpx2.Client(base_url=address, verify=trusted) as client:
            assert client.post("/completion", json=ASKED).json()["tokens_predicted"] == 5
        with httpx2.Client(base_url=address) as stranger, pytest.raises(httpx2.ConnectError):
            stranger.get("/health")


def test_a_unix_socket_is_listened_at_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    check_binding(server_options(parsed(["--host", str(path)])))  # nobody else can ask there
    for _ in range(2):  # the second finds what the first would have left, had it been killed
        with _process("--host", path) as address:
            assert address == f"unix://{path}"
            assert stat.S_ISSOCK(path.stat().st_mode)
            with httpx2.Client(
                base_url="http://localhost", transport=httpx2.HTTPTransport(uds=str(path))
            ) as client:
                assert client.post("/completion", json=ASKED).json()["tokens_predicted"] == 5
                assert client.get("/props", headers={"Host": "proxied.example"}).status_code == 200
        assert not path.exists()
        _left_behind(path)


def test_what_is_at_a_unix_sockets_path_stays_if_it_is_not_the_servers_own(tmp_path: Path) -> None:
    path, text = tmp_path / "other.sock", tmp_path / "notes.sock"
    text.write_text("mine")
    with listening([str(path)], 0, OpenConnections(8)) as [first]:
        for hosts in ([str(path)], [str(tmp_path / "new.sock"), str(path)], [str(text)]):
            with pytest.raises(UsageError, match="in use"), listening(hosts, 0, OpenConnections(8)):
                pass
        assert text.read_text() == "mine"
        assert not (tmp_path / "new.sock").exists()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            first.accept()[0].close()
        path.unlink()
        path.write_text("another's by now")
    assert path.exists()


@pytest.mark.parametrize("text", ["", " , "])
def test_a_server_without_an_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--host: wanted an address"):
        check_binding(server_options(parsed(["--host", text])))


def _left_behind(path: Path) -> None:
    script = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


def test_a_port_that_is_in_use_is_said_to_be() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as ends:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: the port is in use on 127.0.0.1; choose an"):
            _socket("127.0.0.1", port, ends)


def test_metrics_are_there_unless_they_are_refused() -> None:
    assert ServerOptions().metrics
    assert not parsed(["--no-metrics"]).values["metrics"]
