"""The files of `deploy/` for a machine: units of systemd, nginx, Caddy and logrotate, each used by its own program."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agentformer.settings import Settings
from agentformer.settings.fields import PLAIN, SECRETS
from tests.edges.running import BOUND, Running

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())


@pytest.mark.unit
def test_every_variable_in_deploy_is_a_setting() -> None:
    names = {PLAIN.get(field.name, f"AGENTFORMER_{field.name.upper()}") for field in dataclasses.fields(Settings)}
    names |= {f"{PLAIN.get(name, f'AGENTFORMER_{name.upper()}')}_FILE" for name in SECRETS} | {"AGENTFORMER_ENV_FILE"}
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert set(re.findall(r"AGENTFORMER_[A-Z_]+", path.read_text())) <= names, path


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="the package systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = tmp_path / "agentformer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS:
        text = unit.read_text().replace("/opt/agentformer/bin/agentformer", str(program))
        (tmp_path / unit.name).write_text(text)
    units = [str(tmp_path / unit.name) for unit in UNITS]
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd-analyze needs a system in which systemd can run")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("agentformer.service", "agentformer-worker.service"):
        safe = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", str(tmp_path / name)]
        done = subprocess.run(safe, capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == 0, done.stdout[-600:] + done.stderr


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("logrotate"), reason="the package logrotate is not installed")
def test_logrotate_rotates_a_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o700)
    log = tmp_path / "logs" / "server.log"
    log.write_text("GET /healthz\n")
    config = tmp_path / "agentformer"
    config.write_text(
        (DEPLOY / "logrotate" / "agentformer").read_text().replace("/var/log/agentformer", str(log.parent))
    )
    config.chmod(0o644)
    command = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    assert (done.returncode, done.stderr) == (0, "")
    assert log.read_text() == "" and log.with_name("server.log.1").read_text() == "GET /healthz\n"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    environ = {
        "AGENTFORMER_ALLOWED_HOSTS": "memory.example.org",
        "AGENTFORMER_TRUSTED_PROXIES": "127.0.0.1",
        "AGENTFORMER_URL_PREFIX": "/memory",
    }
    running = Running(tmp_path, **environ)
    yield running
    running.close()


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("nginx"), reason="the package nginx is not installed")
@pytest.mark.skipif(not shutil.which("openssl"), reason="the program openssl is not installed")
def test_nginx_serves_the_api_below_a_path(running: Running, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=memory.example.org"]
    subprocess.run(
        [*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True, timeout=BOUND
    )
    port = free_port()
    config = (DEPLOY / "nginx" / "agentformer.conf").read_text()
    for former, new in (
        ("127.0.0.1:8808", f"127.0.0.1:{running.port}"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/certs/memory.example.org.pem", str(certificate)),
        ("/etc/ssl/private/memory.example.org.key", str(key)),
    ):
        assert former in config
        config = config.replace(former, new)
    whole = tmp_path / "nginx.conf"
    temporary = "".join(
        f"{name}_temp_path {tmp_path}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole.write_text(
        f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}{config} }}\n"
    )
    with started(["nginx", "-p", str(tmp_path), "-c", str(whole)], port):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        checked(running, tmp_path, http.client.HTTPSConnection("127.0.0.1", port, timeout=BOUND, context=context))


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("caddy"), reason="the package caddy is not installed")
def test_caddy_serves_the_api(running: Running, tmp_path: Path) -> None:
    port = free_port()
    config = (DEPLOY / "caddy" / "Caddyfile").read_text()
    for former, new in (
        ("127.0.0.1:8808", f"127.0.0.1:{running.port}"),
        ("memory.example.org {", f"{{\n\tadmin off\n}}\n\nhttp://memory.example.org:{port} {{\n\tbind 127.0.0.1"),
    ):
        assert former in config
        config = config.replace(former, new)
    (tmp_path / "Caddyfile").write_text(config)
    with started(["caddy", "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"], port):
        checked(running, tmp_path, http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND))


def checked(running: Running, folder: Path, connection: http.client.HTTPConnection) -> None:
    """Use the API through a proxy: with a key, since a forwarded request needs one, and below the path."""

    def ask(method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        content = json.dumps(body).encode() if body is not None else None
        sent = {"Host": "memory.example.org", "Content-Type": "application/json", **headers}
        connection.request(method, path, content, sent)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()

    assert ask("POST", "/memory/api/memory", {"content": "Anna lives in Turku."})[0] == 401
    from agentformer.access.keys import KeyStore

    _, secret = KeyStore(folder / "indexes").make("team", ("read", "write", "admin"))
    key = {"Authorization": f"Bearer {secret}"}
    status, headers, _ = ask("POST", "/memory/api/memory", {"content": "Anna lives in Turku."}, **key)
    assert status == 201 and headers["Location"].startswith("/memory/api/memory/")
    assert ask("GET", headers["Location"], **key)[0] == 200
    status, headers, body = ask(
        "POST", "/memory/api/rag/query", {"question": "Where does Anna live?", "stream": True}, **key
    )
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream") and b"event: answer" in body
    connection.close()


@contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    """Run a proxy, and yield when it takes connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + BOUND
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=BOUND).close()
                break
            assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=BOUND)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
