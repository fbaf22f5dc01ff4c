"""The Dockerfile, the compose files, the Helm chart and the files of a release agree with the package.

`make test-container` runs the steps of the image, and `make lint-deployment` checks the files by their schemas."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from agentformer import __version__
from agentformer.cli import main
from agentformer.errors import IMAGE_EXTRAS
from agentformer.settings import load_settings
from scripts.test_container import context_files, ignored, stages

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "agentformer"
COMPOSE = ("compose.yaml", "deploy/compose.postgres.yaml")


def loaded(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def check_settings(environ: dict[str, Any]) -> None:
    """Assert that each variable of AgentFormer is a setting with a valid value."""
    values = {name: str(value) for name, value in environ.items() if name.startswith("AGENTFORMER_")}
    with pytest.MonkeyPatch.context() as patch:
        warned: list[str] = []
        patch.setattr("agentformer.settings.loading._warn_unknown", warned.append)
        load_settings(environ=values)
    assert warned == []


def check_command(words: list[str]) -> None:
    """Assert that `agentformer` has this command with these options."""
    context = click.Context(main)
    command = main.get_command(context, words[0])
    assert command is not None, words
    with command.make_context(words[0], words[1:], parent=context):
        pass


def test_the_image_runs_the_server_as_a_user_without_rights() -> None:
    build, image = stages((ROOT / "Dockerfile").read_text())
    assert build.base == image.base and build.name == "build"
    assert image.last("USER") == "10001:10001" and image.last("VOLUME") == "/data"
    assert "/healthz" in image.last("HEALTHCHECK")
    assert json.loads(image.last("ENTRYPOINT")) == ["agentformer"]
    check_command(json.loads(image.last("CMD")))
    check_settings(image.environ())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert build.environ()["EXTRAS"] == IMAGE_EXTRAS and {*IMAGE_EXTRAS.split(",")} <= extras.keys()


@pytest.mark.process
def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    files = context_files()
    copied = [
        word
        for stage in stages((ROOT / "Dockerfile").read_text())
        for key, text in stage.steps
        if key == "COPY"
        for word in text.split()[:-1]
        if not text.startswith("--from")
    ]
    assert "agentformer/" in copied
    assert [path for path in files if not path.startswith(tuple(copied))] == []
    assert [word for word in copied if not any(path.startswith(word) for path in files)] == []
    assert ignored(".env", ["*", "!agentformer"]) and not ignored("agentformer/aio.py", ["*", "!agentformer"])
    assert ignored("agentformer/__pycache__/aio.pyc", ["*", "!agentformer", "**/__pycache__"])


@pytest.mark.parametrize("name", COMPOSE)
def test_a_compose_file_uses_commands_and_settings_that_exist(name: str) -> None:
    composed = loaded(ROOT / name)
    for service in composed["services"].values():
        if "build" in service:
            assert ((ROOT / name).parent / service["build"] / "Dockerfile").is_file()
            check_settings(
                {
                    k: v.replace("${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD}", "x")
                    for k, v in service.get("environment", {}).items()
                }
            )
            check_command(
                service.get("command") or json.loads(stages((ROOT / "Dockerfile").read_text())[-1].last("CMD"))
            )
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in composed["volumes"]
        assert set(service.get("depends_on", ())) <= composed["services"].keys()


def test_the_chart_uses_values_commands_and_settings_that_exist() -> None:
    templates = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    values, schema = loaded(CHART / "values.yaml"), json.loads((CHART / "values.schema.json").read_text())
    names = {
        f"{name}.{key}" if isinstance(part, dict) and part else name
        for name, part in values.items()
        for key in (part if isinstance(part, dict) and part else [""])
    }
    names = {name.split(".limits")[0].split(".requests")[0] for name in names}
    assert {match.removesuffix(".") for match in re.findall(r"\.Values\.([\w.]+)", templates)} == names
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, part in values.items():
        if isinstance(part, dict) and (described := schema["properties"][name].get("properties")):
            assert described.keys() == part.keys()
    assert loaded(CHART / "values-postgres.yaml").keys() <= values.keys()
    for words in re.findall(r'"args" \(list ((?:"[^"]+" ?)+)\)', templates):
        check_command(re.findall(r'"([^"]+)"', words))
    check_settings(
        dict.fromkeys(
            re.findall(r"name: (AGENTFORMER_(?!POSTGRES|BACKEND|ORIGINALS)\w+)", templates), "host.example.org"
        )
    )
    assert loaded(CHART / "Chart.yaml")["appVersion"] == __version__
    assert re.search(r"runAsUser: 10001\b", templates) and "mountPath: /data" in templates


def test_the_files_of_a_release_have_its_version() -> None:
    server = json.loads((ROOT / "server.json").read_text())
    versions = {
        "server.json": server["version"],
        "its package": server["packages"][0]["version"],
        "CITATION.cff": loaded(ROOT / "CITATION.cff")["version"],
        "the chart": loaded(CHART / "Chart.yaml")["version"],
        "the plugin": json.loads((ROOT / "plugins/claude-code/.claude-plugin/plugin.json").read_text())["version"],
        "CHANGELOG.md": re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0],
    }
    assert versions == dict.fromkeys(versions, __version__)


def test_the_entry_of_the_mcp_registry_is_as_its_schema_wants_and_starts_the_server() -> None:
    """The rules are those of the schema that the file names: https://static.modelcontextprotocol.io/schemas/."""
    server = json.loads((ROOT / "server.json").read_text())
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"]) and len(server["description"]) <= 100
    assert f"<!-- mcp-name: {server['name']} -->" in (ROOT / "README.md").read_text()
    (package,) = server["packages"]
    assert {"registryType", "identifier", "transport"} <= package.keys()
    words = []
    for argument in package["packageArguments"]:
        assert argument["type"] in ("positional", "named")
        assert argument.get("value") if argument["type"] == "positional" else argument["name"].startswith("--")
        words += [argument["value"]] if argument["type"] == "positional" else [argument["name"], "."]
    check_command(words)


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yaml")), ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_runs_targets_that_exist(path: Path) -> None:
    workflow, text = loaded(path), path.read_text()
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for action in [step["uses"] for step in job["steps"] if "uses" in step]:
            assert re.fullmatch(r"actions/[\w-]+@v\d+|[\w/-]+@[0-9a-f]{40}", action)


@pytest.mark.process
def test_the_action_shows_the_figures_of_the_example_and_fails_below_a_recall(tmp_path: Path) -> None:
    action, example = loaded(ROOT / "action.yml"), ROOT / "examples" / "evaluation"
    step = loaded(example / ".github/workflows/memory.yaml")["jobs"]["eval"]["steps"][-1]
    assert step["with"].keys() <= action["inputs"].keys()
    script = next(each["run"] for each in action["runs"]["steps"] if each.get("id") == "eval")
    for line in re.findall(r"agentformer ((?:ingest|eval) .*?)(?: >.*)?\n", script):
        check_command(shlex.split(line.replace('"$DOCUMENTS"', str(example)).replace('"$QUESTIONS"', str(example))))
    environ = {**os.environ, "AGENTFORMER_EMBEDDER": "hashing", "GITHUB_OUTPUT": str(tmp_path / "output")}
    environ |= {"AGENTFORMER_INDEX_DIR": str(tmp_path / "i"), "AGENTFORMER_UPLOAD_DIR": str(tmp_path / "u")}

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, *map(str, words)]
        return subprocess.run(line, cwd=example, env=environ, capture_output=True, text=True, timeout=120)

    assert run("-m", "agentformer", "ingest", "documents").returncode == 0
    (tmp_path / "eval.json").write_text(run("-m", "agentformer", "eval", "questions.jsonl", "--json").stdout)
    shown = run(ROOT / "scripts" / "eval_table.py", tmp_path / "eval.json", "0.9")
    assert shown.returncode == 0 and "| recall of 4 questions | 1.000 | 1.000 | 1.000 | 1.000 |" in shown.stdout
    assert (tmp_path / "output").read_text() == "recall=1.0\n"
    result = json.loads((tmp_path / "eval.json").read_text())
    result["results"][0] |= {"rank": None, "question": "Who? @all [x](y)"}
    (tmp_path / "eval.json").write_text(json.dumps({**result, "recall": dict.fromkeys(result["recall"], 0.5)}))
    lower = run(ROOT / "scripts" / "eval_table.py", tmp_path / "eval.json", "0.9")
    assert lower.returncode == 1 and "0.500, less than 0.9" in lower.stderr
    assert r"- line 1: Who? \@all \[x\](y)" in lower.stdout
