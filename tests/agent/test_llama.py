"""An agent against llama.cpp with a model of random weights: what it is sent is taken, results of tools too."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.agent import Agent
from agentformer.llms.openai import OpenAIModel
from agentformer.settings import Settings
from tests.agent.conftest import Open
from tests.agent.scripted import Scripted, calls
from tests.llms.test_conformance import line_of, stop

pytestmark = pytest.mark.process
READS = 16_384  # tokens, which are letters here
SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx = sys.argv[1], int(sys.argv[2])
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_parallel, params.n_gpu_layers = 1, 0
params.warmup, params.use_jinja, params.verbosity = False, True, -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIModel]:
    for package in ("xllamacpp", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from tests.llms import tiny_gguf

    path: Path = tmp_path_factory.mktemp("gguf") / "babble.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_gguf, "CONTEXT", READS)
        tiny_gguf.write(path)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, path, str(READS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = line_of(process, r"http://[\d.]+:\d+")
        yield OpenAIModel.from_settings("babble", Settings(llm_base_url=url, llm_timeout=120))
    finally:
        stop(process)


def test_a_turn_with_tools_and_their_results_is_taken(llama: OpenAIModel, opened: Open) -> None:
    af = opened()
    af.memory.add_message("s", "assistant", "Good morning.")  # which templates do not begin with
    made = [("rag_list", {}), ("memory_search", {"query": "keys"}), ("no tool", {"a": "ä"})]
    script = calls(*made, ids=["", "x", "x"])
    af.model = model = Scripted(
        script, lambda messages: llama.complete(messages, tools=af.toolbox.tools(), max_tokens=64)
    )
    turn = Agent(af).turn("Who keeps the keys?", session_id="s")
    assert (turn.finish, turn.steps) == ("answer", 2)
    assert turn.text
    assert turn.tokens_in > sum(len(message.content) for message in model.asked[1])


def test_the_last_words_are_taken_without_tools(llama: OpenAIModel, opened: Open) -> None:
    af = opened()
    af.model = Scripted(calls(("rag_list", {})), lambda messages: llama.complete(messages, max_tokens=64))
    turn = Agent(af, max_steps=1).turn("Who keeps the keys?", session_id="s")
    assert (turn.finish, turn.steps) == ("steps", 2)
    assert turn.text


def test_a_conversation_beyond_what_the_model_reads_fails_in_words(llama: OpenAIModel, opened: Open) -> None:
    af = opened(context_tokens=100_000)
    af.model = llama
    turn = Agent(af).turn("boat " * READS, session_id="s")
    assert (turn.finish, turn.steps) == ("failed", 2)
    assert "larger context" in turn.text
