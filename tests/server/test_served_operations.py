"""The server as a process, as operators run it: TLS, a line a request, models unloaded by the clock."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest
from live_server import live
from stand_ins import EMBEDDER, FrameClient

from samevec.errors import ConfigError
from samevec.server.lifecycle import require_tls
from samevec.server.settings import ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, *made, *named, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls_and_a_line_for_every_request(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    socket = tmp_path / "s.sock"
    settings = {"port": 0, "tls_cert": str(cert), "tls_key": str(key), "socket": str(socket), "log_requests": "all"}
    with live(settings, home=tmp_path) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusting, timeout=20) as client:
            answer = client.post(f"{server.url}/v1/embeddings", json={"input": ["private words"]})
            assert answer.status_code == 200
            assert client.get(f"{server.url}/absent").status_code == 404
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")  # nobody vouches for this certificate
        with FrameClient(socket) as frames:
            assert frames.ask({"op": "ping"})["ok"]
        assert server.stop() == 0
        assert server.process.stderr is not None
        log = server.process.stderr.read()
    assert "private" not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    first, second, third = (line for line in lines if line["logger"] == "samevec.requests")
    assert first["request_id"] == answer.headers["x-request-id"]
    assert (first["route"], first["status"], first["items"], first["tokens"]) == ("/v1/embeddings", 200, 1, 14)
    assert (first["level"], first["model"], first["error"]) == ("info", EMBEDDER, None)
    assert first["seconds"] >= first["run_s"] >= 0
    assert (second["route"], second["status"], second["error"]) == ("other", 404, "invalid_request_error")
    assert (third["route"], third["status"]) == ("socket/ping", 200)


def test_a_certificate_that_cannot_be_used_is_refused(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    require_tls(ServerSettings(tls_cert=cert, tls_key=key))
    with pytest.raises(ConfigError, match=r"^--tls-cert .*cannot be used"):
        require_tls(ServerSettings(tls_cert=key, tls_key=cert))
    with pytest.raises(ConfigError, match="both are needed, or none"):
        ServerSettings(tls_cert=cert)
    with pytest.raises(ConfigError, match="has no use with --uds"):
        ServerSettings(tls_cert=cert, tls_key=key, uds=cert.parent / "s.sock")
