"""The demo: upload documents to an HTTP server, ask questions in three languages, and show cited answers.

It uses a temporary folder, the loopback interface, the packaged embedder and no language model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENTS = sorted(p for p in (HERE / "documents").iterdir() if p.suffix in {".pdf", ".md", ".txt"})
# No model hub is used; all else is as in `agentformer serve`.
ENVIRONMENT = {
    **os.environ,
    "AGENTFORMER_EMBEDDER": "multilingual",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
START_SECONDS = 60


def main() -> int:
    questions = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="agentformer-demo-") as folder, tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "agentformer.cli", "serve", "--port", "0"),
                *("--index-dir", f"{folder}/indexes", "--upload-dir", f"{folder}/uploads"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,  # a line for each request
            text=True,
            env=ENVIRONMENT,
        )
        try:
            assert server.stdout is not None
            started = server.stdout.readline()
            if not started:
                log.seek(0)
                print(f"{log.read()}The server did not start; its message is above.", file=sys.stderr)
                return 1
            url = started.split()[-1]
            print(f"A server is running on {url}, with its memory in a temporary folder.\n")
            upload(url)
            outcomes = [ask(url, question) for question in questions]
        finally:
            server.terminate()
            server.wait(START_SECONDS)
    cited, quoted = (sum(outcome) for outcome in zip(*outcomes, strict=True))
    print(f"{cited} of {len(questions)} answers cite the page with the answer; {quoted} quote it.")
    print("\nTo continue with your own documents:")
    print("  make serve                                   the HTTP API, on http://127.0.0.1:8808")
    print("  .venv/bin/agentformer ingest PATH...         files and folders")
    print('  .venv/bin/agentformer ask "a question"       an answer with page citations')
    return 0


def upload(url: str) -> None:
    """Upload all documents in one request, and print the status of each."""
    result = post(f"{url}/api/rag/upload", *form_of(DOCUMENTS, uuid.uuid4().hex))
    print("POST /api/rag/upload")
    for document in result["documents"]:
        size = f"{plural(document['pages'], 'page')}, {plural(document['chunks'], 'chunk')}"
        print(f"  {document['status']:6} {document['name']}: {size}")
    print()


def form_of(paths: Sequence[Path], border: str) -> tuple[bytes, str]:
    """Return the body and the type of a request that uploads files."""
    body = b"".join(
        f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n\r\n'.encode()
        + path.read_bytes()
        + b"\r\n"
        for path in paths
    )
    return body + f"--{border}--\r\n".encode(), f"multipart/form-data; boundary={border}"


def ask(url: str, question: dict[str, Any]) -> tuple[bool, bool]:
    """Ask one question. Return whether a citation names the page of the answer, and whether one quotes it."""
    body = json.dumps({"question": question["question"]}).encode()
    result = post(f"{url}/api/rag/query", body, "application/json")
    print(f"Q: {question['question']}")
    print(f"A: {result['answer'].replace(chr(10), chr(10) + '   ')}   ({result['mode']})")
    for citation in result["citations"]:
        printed = citation["label"] if citation["label"] != str(citation["page"]) else ""
        print(f"   [{citation['number']}] {citation['document']}, page {citation['page']}" + printed_as(printed))
    print()
    wanted = (question["document"], question["page"])
    cited = [c for c in result["citations"] if (c["document"], c["page"] if wanted[1] else None) == wanted]
    return bool(cited), any(question["answer"] in " ".join(c["quote"].split()) for c in cited)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def printed_as(label: str) -> str:
    return f" (printed: {label})" if label else ""


def post(url: str, body: bytes, content_type: str) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    with urllib.request.urlopen(request, timeout=300) as response:
        result: dict[str, Any] = json.load(response)
        return result


if __name__ == "__main__":
    sys.exit(main())
