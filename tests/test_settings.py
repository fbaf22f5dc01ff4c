"""Where settings come from: real `.env` files, the environment, and what is told about them without telling a key."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentformer.errors import InvalidInput
from agentformer.settings import Settings, fields, load_settings, unused_values

KEY = "sk-canary-5a1f"
ENV_LINE = re.compile(r"# [A-Z_]+=")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, and nothing in the environment that the tests themselves set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentformer.settings.loading.ENV_FILE", ".env")
    servers = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LMSTUDIO_BASE_URL", "OLLAMA_BASE_URL")
    for name in (*servers, "AGENTFORMER_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def env_file(folder: Path, content: str | bytes) -> None:
    (folder / ".env").write_bytes(content.encode() if isinstance(content, str) else content)


def test_an_argument_beats_the_environment_and_that_beats_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TOP_K", "5"), ("FANOUT", "50"), ("RRF_K", "20")):
        monkeypatch.setenv(f"AGENTFORMER_{name}", value)
    env_file(folder, "AGENTFORMER_TOP_K=6\nAGENTFORMER_FANOUT=60\n")
    settings = load_settings({"top_k": 7})
    assert (settings.top_k, settings.fanout, settings.rrf_k, settings.chunk_tokens) == (7, 50, 20, 500)
    (unused,) = [line for line in unused_values() if "FANOUT" in line]
    assert unused == f"AGENTFORMER_FANOUT in {folder / '.env'} is not used, because the environment has another value"


ENVIRONMENT, FILE, DEFAULT = "http://environment:1/v1", "http://file:1/v1", ""


@pytest.mark.parametrize("name", ["llm", "embed", "openai"])
@pytest.mark.parametrize(
    ("environment", "file", "used"),
    [
        ((KEY, ENVIRONMENT), ("sk-file", FILE), ("sk-file", FILE)),
        ((KEY, ENVIRONMENT), ("sk-file", ""), ("sk-file", DEFAULT)),
        ((KEY, ENVIRONMENT), ("", FILE), (KEY, ENVIRONMENT)),
        ((KEY, ""), ("sk-file", FILE), ("sk-file", FILE)),
        ((KEY, ""), ("", FILE), ("", FILE)),
        (("", ENVIRONMENT), ("sk-file", ""), ("sk-file", DEFAULT)),
        (("", ENVIRONMENT), ("sk-file", FILE), ("sk-file", FILE)),
        (("", ENVIRONMENT), ("", FILE), ("", ENVIRONMENT)),
        ((KEY, ENVIRONMENT), ("", ""), (KEY, ENVIRONMENT)),
    ],
)
def test_a_key_and_its_address_come_from_one_source(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    environment: tuple[str, str],
    file: tuple[str, str],
    used: tuple[str, str],
) -> None:
    """The file comes first if it has the key. No key is sent to an address of the other source."""
    fields_of = (f"{name}_api_key", f"{name}_base_url")
    variables = [field.upper() if name == "openai" else f"AGENTFORMER_{field.upper()}" for field in fields_of]
    for variable, value in zip(variables, environment, strict=True):
        monkeypatch.setenv(variable, value)
    env_file(folder, "".join(f"{variable}={value}\n" for variable, value in zip(variables, file, strict=True)))
    settings = load_settings()
    assert tuple(getattr(settings, field) for field in fields_of) == used
    given = {*zip(variables, environment, strict=True), *zip(variables, file, strict=True)}
    unused = {variable for variable, value in given - {*zip(variables, used, strict=True)} if value}
    assert {line.partition(" ")[0] for line in unused_values()} == unused
    assert "sk-" not in "".join(unused_values())


def test_the_providers_own_variables_go_by_their_own_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    monkeypatch.setenv("LMSTUDIO_BASE_URL", "http://127.0.0.1:1234/v1/")
    env_file(folder, f"OPENAI_API_KEY={KEY}\nOLLAMA_BASE_URL=http://127.0.0.1:4000\n")
    settings = load_settings()
    assert (settings.openai_api_key, settings.openai_base_url) == (KEY, "")
    assert (settings.lmstudio_base_url, settings.ollama_base_url) == (
        "http://127.0.0.1:1234/v1",
        "http://127.0.0.1:4000",
    )


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"OPENAI_API_KEY={KEY}", KEY),
        (f'OPENAI_API_KEY="{KEY}"', KEY),
        (f"OPENAI_API_KEY='{KEY}'", KEY),
        (f"  export OPENAI_API_KEY = {KEY}  # of the project", KEY),
        (f"\ufeffOPENAI_API_KEY={KEY}", KEY),
        (f"# the key\r\nOPENAI_API_KEY={KEY}\r\n", KEY),
        ("OPENAI_API_KEY=a#b", "a#b"),
        ("OPENAI_API_KEY=a$b", "a$b"),
        ("OPENAI_API_KEY=a${HOME}b", "a${HOME}b"),
        ("OPENAI_API_KEY='a${HOME}b'", "a${HOME}b"),
        (f'OPENAI_API_KEY="{KEY}\\n"', KEY),
        ("OPENAI_API_KEY=one\nOPENAI_API_KEY=two", "two"),
        (f"this line is no assignment\nOPENAI_API_KEY={KEY}", KEY),
    ],
)
def test_a_key_is_read_as_it_is_written(folder: Path, line: str, value: str) -> None:
    env_file(folder, line)
    assert load_settings().openai_api_key == value


@pytest.mark.parametrize("line", ["", "OPENAI_API_KEY=", 'OPENAI_API_KEY=""', "OPENAI_API_KEY", "#OPENAI_API_KEY=x"])
def test_an_empty_value_in_the_file_leaves_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    env_file(folder, line)
    assert load_settings().openai_api_key == KEY


def test_a_folder_of_that_name_is_no_settings_file(folder: Path) -> None:
    (folder / ".env").mkdir()
    assert load_settings() == Settings()


def test_a_link_that_leads_nowhere_is_warned_about(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / ".env").symlink_to(folder / "gone")
    assert load_settings() == Settings()
    (record,) = caplog.records
    assert f"{folder / '.env'} is a link to {folder / 'gone'}, which does not exist" in record.getMessage()


def test_lines_that_are_no_assignment_are_told_by_their_number_without_what_they_say(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env_file(folder, f"AGENTFORMER_TOP_K=6\n\n\n{KEY} is the key\n  # fine\n= {KEY}\nAGENTFORMER_FANOUT='{KEY}\n")
    for _ in range(2):
        assert load_settings() == Settings(top_k=6)
    told = [(record.name, record.getMessage()) for record in caplog.records]
    assert told == [
        (
            "agentformer",
            f"{folder / '.env'}, line {n}: this line is ignored, because it does not have the form NAME=value",
        )
        for n in (4, 6, 7)
    ]


@pytest.mark.parametrize("content", [b"OPENAI_API_KEY=\xff\xfe\xfa", "OPENAI_API_KEY=x\n".encode("utf-16")])
def test_a_file_that_is_no_utf8_is_refused_with_its_place(folder: Path, content: bytes) -> None:
    env_file(folder, content)
    with pytest.raises(InvalidInput, match=r"\.env: .*\.env is not UTF-8 text"):
        load_settings()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused_with_its_place(folder: Path) -> None:
    env_file(folder, f"OPENAI_API_KEY={KEY}")
    (folder / ".env").chmod(0)
    with pytest.raises(InvalidInput, match=r"\.env cannot be read \(PermissionError\)"):
        load_settings()


def test_every_line_of_the_example_is_a_setting_of_a_right_value() -> None:
    example = Path(__file__).resolve().parents[1] / ".env.example"
    lines = [line.removeprefix("# ") for line in example.read_text("utf-8").splitlines() if ENV_LINE.match(line)]
    assert len(lines) > 20
    for line in lines:
        name, value = line.split("=", 1)
        setting = name.removeprefix("AGENTFORMER_").lower()
        found = getattr(load_settings({}, {name: value or KEY}), setting)
        assert found == type(found)(value or KEY), line


def test_the_file_does_not_change_the_environment(folder: Path) -> None:
    env_file(folder, f"OPENAI_API_KEY={KEY}")
    load_settings()
    assert "OPENAI_API_KEY" not in os.environ


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("AGENTFORMER_TOPK_", "did you mean AGENTFORMER_TOP_K?"),
        ("AGENTFORMER_LLM_APIKEY", "did you mean AGENTFORMER_LLM_API_KEY?"),
        ("AGENTFORMER_OPENAI_API_KEY", "did you mean OPENAI_API_KEY?"),
        ("AGENTFORMER_XYZZY_QUUX_42", "AGENTFORMER_XYZZY_QUUX_42 is not a setting and has no effect"),
    ],
)
def test_a_misspelt_variable_is_told_once_without_its_value(
    folder: Path, caplog: pytest.LogCaptureFixture, variable: str, told: str
) -> None:
    env_file(folder, f"{variable}={KEY}")
    load_settings()
    load_settings()
    (record,) = (record for record in caplog.records if variable in record.getMessage())
    assert (record.name, record.levelno) == ("agentformer", logging.WARNING)
    assert told in record.getMessage()
    assert KEY not in caplog.text


@pytest.mark.process
def test_the_command_line_tells_a_misspelt_variable(folder: Path) -> None:
    environ = {**os.environ, "AGENTFORMER_EMBEDDER": "hashing", "AGENTFORMER_INDEXDIR": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "agentformer.cli", "keys", "list"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "AGENTFORMER_INDEXDIR is not a setting and has no effect; did you mean AGENTFORMER_INDEX_DIR?" in done.stderr


def test_what_is_shown_of_settings_holds_no_secret() -> None:
    keys = {"llm_api_key": KEY, "embed_api_key": KEY, "openai_api_key": KEY}
    urls = ("llm_base_url", "embed_base_url", "openai_base_url", "lmstudio_base_url", "ollama_base_url")
    settings = load_settings({**keys, **dict.fromkeys(urls, f"http://user:{KEY}@host:1234/v1")}, {})
    for text in (repr(settings), str(settings), f"{settings}"):
        assert KEY not in text and "user" not in text
        assert text.startswith("Settings(index_dir=") and text.count("'http://host:1234/v1'") == len(urls)
    assert settings.llm_base_url == f"http://user:{KEY}@host:1234/v1"


@pytest.mark.parametrize("rest", [f"?token={KEY}", f"#{KEY}", f"/v1?api-version=1&key={KEY}"])
@pytest.mark.parametrize("name", ["llm_base_url", "embed_base_url", "openai_base_url"])
def test_an_address_with_more_than_a_path_is_refused_at_once(name: str, rest: str) -> None:
    with pytest.raises(InvalidInput, match="must not contain") as caught:
        load_settings({name: f"http://host:1234{rest}"}, {})
    assert caught.value.field == name
    assert KEY not in str(caught.value)


MISPLACED = [
    "AGENTFORMER_LLM_TIMEOUT",
    "AGENTFORMER_TOP_K",
    "AGENTFORMER_RUNTIME",
    "AGENTFORMER_ROUTES",
    "AGENTFORMER_DECAY_RATES",
    "AGENTFORMER_EMBED_LANGUAGES",
    "OLLAMA_BASE_URL",
]


@pytest.mark.parametrize("variable", MISPLACED)
@pytest.mark.parametrize("key", [KEY, f"sk-{'canary' * 8}", f"{KEY}={KEY}", f"kind:{KEY},{KEY}:x=x"])
def test_a_key_in_the_wrong_variable_is_not_repeated_and_its_place_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, key: str
) -> None:
    monkeypatch.setenv(variable, key)
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert caught.value.field in variable.lower()
    assert str(caught.value).endswith(f"(set by {variable})")
    monkeypatch.delenv(variable)
    env_file(folder, f"{variable}={key}")
    with pytest.raises(InvalidInput) as again:
        load_settings()
    assert str(again.value).endswith(f"(set by {variable} in {folder / '.env'})")
    error: BaseException | None
    for error in (caught.value, again.value):
        while error is not None:
            assert "canary" not in str(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_an_argument_is_repeated_only_if_it_is_too_short_for_a_key() -> None:
    with pytest.raises(InvalidInput, match=r"^llm_timeout: must be a number, got 'soon'$"):
        load_settings({"llm_timeout": "soon"}, {"AGENTFORMER_LLM_TIMEOUT": "5"})
    for name in ("llm_timeout", "runtime", "routes", "decay_rates"):
        with pytest.raises(InvalidInput, match=f"^{name}: must ") as caught:
            load_settings({name: f"sk-{'canary' * 8}"}, {})
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"), [("threads", "a whole number"), ("llm_timeout", "a number"), ("embed_base_url", "text")]
)
def test_true_is_no_number_and_no_text(name: str, kind: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name}: must be {kind}"):
        load_settings({name: True}, {})


def test_a_number_without_end_is_told_as_such() -> None:
    with pytest.raises(InvalidInput, match=r"^llm_timeout: must be at least 1 and finite \(set by"):
        load_settings({}, {"AGENTFORMER_LLM_TIMEOUT": "inf"})


@pytest.mark.parametrize("source", ["_FILE", "CREDENTIALS_DIRECTORY"])
def test_a_secret_may_be_in_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    for variable in ("AGENTFORMER_LLM_API_KEY", "OPENAI_API_KEY", "AGENTFORMER_POSTGRES_URL"):
        path = folder / variable
        path.write_text(f"{'postgresql://' if 'URL' in variable else 'sk-'}{variable}\n")
        monkeypatch.setenv(*((f"{variable}_FILE", str(path)) if source == "_FILE" else (source, str(folder))))
    settings = load_settings()
    assert settings.llm_api_key == "sk-AGENTFORMER_LLM_API_KEY" and settings.openai_api_key == "sk-OPENAI_API_KEY"
    assert settings.postgres_url == "postgresql://AGENTFORMER_POSTGRES_URL"


@pytest.mark.parametrize(
    ("content", "wrong"),
    [(None, "cannot be read"), (b"", "empty"), (b"\xff\xff", "UTF-8"), (b"x" * 70_000, "too long")],
)
def test_a_secret_that_cannot_be_read_is_named_by_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, wrong: str
) -> None:
    path = folder / "key"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("AGENTFORMER_LLM_API_KEY_FILE", str(path))
    with pytest.raises(InvalidInput, match=f"AGENTFORMER_LLM_API_KEY_FILE: the file {path} .*{wrong}"):
        load_settings()


def test_a_secret_has_one_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "key").write_text("sk-1")
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(folder / "key"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    with pytest.raises(InvalidInput, match="together with OPENAI_API_KEY; remove one"):
        load_settings()


def test_specs_lose_the_blanks_around_them() -> None:
    settings = load_settings({"embedder": " hashing:64 "}, {"AGENTFORMER_LLM_MODEL": "gemma3 \t"})
    assert (settings.embedder, settings.llm_model) == ("hashing:64", "gemma3")


@pytest.mark.parametrize("name", ["index_dir", "upload_dir"])
@pytest.mark.parametrize("value", ["a\0b", "~nobody-of-this-name/x"])
def test_a_folder_that_no_system_has_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_settings({name: value}, {})
    assert caught.value.field == name


def test_languages_are_codes_or_a_star() -> None:
    for text, languages in [("en, FI", "en fi"), (" * ", "*"), ("", ""), ("fin", "fin")]:
        assert load_settings({"embed_languages": text}, {}).embed_languages == languages


def test_other_words_for_languages_are_refused() -> None:
    for text in ["english", "en *", "e", "en_GB"]:
        with pytest.raises(InvalidInput, match=f"language codes.*got '{re.escape(text)}'"):
            load_settings({"embed_languages": text}, {})


@pytest.mark.parametrize("name", ["llm_api_key", "embed_api_key", "openai_api_key"])
@pytest.mark.parametrize("key", [f"{KEY} and more", f"{KEY}\nX-Header: 1", f"{KEY}\x00", f"{KEY}ä", f"“{KEY}”"])
def test_a_key_that_no_header_can_carry_is_refused_without_quoting_it(name: str, key: str) -> None:
    with pytest.raises(InvalidInput, match="copy the key again") as caught:
        load_settings({name: key}, {})
    assert caught.value.field == name
    assert KEY not in str(caught.value)


def test_an_address_that_is_none_is_refused_with_an_example_and_without_its_credentials() -> None:
    for url in ["127.0.0.1:11434", "ftp://host", "http://", "http://host:99999", "http://[::1", "x"]:
        with pytest.raises(InvalidInput, match=r"http://127\.0\.0\.1:11434") as caught:
            load_settings({}, {"OLLAMA_BASE_URL": url.replace("//", f"//user:{KEY}@")})
        assert caught.value.field == "ollama_base_url"
        assert KEY not in str(caught.value)


def test_a_value_out_of_range_names_the_setting() -> None:
    for name, value in [
        ("runtime", "tensorrt"),
        ("embed_batch", "0"),
        ("embed_retries", "-1"),
        ("breaker_seconds", "nan"),
        ("llm_timeout", "inf"),
        ("noise_floor", "-1.5"),
        ("temperature", "2.1"),
        ("chunk_overlap", "500"),
        ("embed_batch", "6.5"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            load_settings({}, {f"AGENTFORMER_{name.upper()}": value})
        assert caught.value.field == name


def test_caches_are_kept_where_the_user_keeps_caches() -> None:
    assert load_settings({}, {}).cache_dir == Path("~/.cache/agentformer").expanduser()
    assert load_settings({}, {"XDG_CACHE_HOME": "/elsewhere"}).cache_dir == Path("/elsewhere/agentformer")
    both = {"XDG_CACHE_HOME": "/elsewhere", "AGENTFORMER_CACHE_DIR": "/mine"}
    assert load_settings({}, both).cache_dir == Path("/mine")
    assert load_settings({"cache_dir": "given"}, both).cache_dir == Path("given")


def test_a_user_without_a_home_has_settings_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert Settings().cache_dir == Path(os.devnull)


def test_numbers_have_bounds() -> None:
    for names, least in ((fields._POSITIVE, 1), (fields._NOT_NEGATIVE, 0)):
        for name in names:
            given = {"chunk_overlap": 0, name: least}
            assert getattr(Settings(**given), name) == least  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match=rf"^{name}: must be at least {least}"):
                Settings(**{**given, name: least - 1})  # type: ignore[arg-type]
    for name, ends in fields._RANGES.items():
        for end, beyond in zip(ends, (ends[0] - 0.001, ends[1] + 0.001), strict=True):
            assert getattr(Settings(**{name: end}), name) == end  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match=rf"^{name}: must be in"):
                Settings(**{name: beyond})  # type: ignore[arg-type]
    assert Settings(chunk_tokens=10, chunk_overlap=9).chunk_overlap == 9
    assert [Settings(window_tokens=size).window_tokens for size in (0, 16)] == [0, 16]
    for given in ({"chunk_tokens": 10, "chunk_overlap": 10}, {"window_tokens": 15}, {"window_tokens": 1}):
        with pytest.raises(InvalidInput):
            Settings(**given)  # type: ignore[arg-type]
