"""A server's command line in a deploy file of Ray Serve, and what such a file may not say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from graphml.cli.serve_app import app
from graphml.errors import UsageError
from tests.cluster.ray_nodes import RAY, RayNodes, free_port
from tests.stories import STORIES

FILE = """
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
  - name: stories
    route_prefix: /
    import_path: graphml.cli.serve_app:app
    args:
      command: "{model} --replicas 2 -c 256 --api-key secret"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")
def test_a_deploy_file_serves_by_replicas(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "stories.yaml"
    path.write_text(FILE.format(port=port, model=STORIES))
    nodes = RayNodes(Path("/tmp") / f"graphml-deploy-{os.getpid()}", 2)
    command = [str(RAY.with_name("serve")), "run", str(path), "--address", nodes.address]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            end, replicas = time.monotonic() + 90, 0
            while replicas != 2:
                assert time.monotonic() < end, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.3)
                try:
                    replicas = client.get("/health").json().get("replicas", 0)
                except (httpx2.TransportError, ValueError):
                    replicas = 0
            asked = {"prompt": "Once upon a time", "max_tokens": 5}
            assert client.post("/v1/completions", json=asked).status_code == 401
            client.headers["authorization"] = "Bearer secret"
            answer = client.post("/v1/completions", json=asked)
            assert answer.json()["usage"]["completion_tokens"] == 5
            streamed = client.post("/v1/completions", json={**asked, "stream": True}).text
            assert streamed.endswith("data: [DONE]\n\n")
    finally:
        process.kill()
        process.wait()
        nodes.close()


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({}, "args: wanted command: 'MODEL and flags of graphml serve'; got {}"),
        ({"command": "smollm2 --port 80 --api-key a"}, "--port: Ray Serve's proxies listen"),
        ({"command": "smollm2"}, "wanted an --api-key, or --allow-no-key"),
        ({"command": "smollm2 --allow-no-key --replicas 0"}, "wanted N or LEAST-MOST from 1 on; got '0'"),
        (
            {"command": "smollm2 --allow-no-key --replicas many"},
            "wanted N or LEAST-MOST from 1 on; got 'many'",
        ),
        (
            {"command": "smollm2 --allow-no-key --slot-save-path /tmp"},
            "--slot-save-path: wanted a server without",
        ),
        ({"command": "smollm2 other --allow-no-key"}, "wanted one model; got 'other' too"),
    ],
)
def test_what_a_deploy_file_cannot_say_is_refused(args: dict[str, str], wanted: str) -> None:
    with pytest.raises(UsageError) as error:
        app(args)
    assert wanted in str(error.value)
