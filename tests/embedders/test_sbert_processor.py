"""What the model may use of the processor: never more than this process has."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from agentformer.embedders.sbert import runtime


@pytest.fixture(autouse=True)
def _told_by_files_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("_QUOTA", "_OLD_QUOTA", "_OLD_PERIOD", "_FLAGS"):
        monkeypatch.setattr(runtime, name, tmp_path / name)
    if sys.platform == "linux":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5})
    else:
        monkeypatch.setattr(os, "cpu_count", lambda: 4)


def test_all_processors_of_this_process_are_used() -> None:
    assert runtime.usable_cpus() == 4


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("", 4)],
)
def test_a_containers_quota_is_a_limit(tmp_path: Path, quota: str, expected: int) -> None:
    (tmp_path / "_QUOTA").write_text(quota)
    assert runtime.usable_cpus() == expected


def test_an_older_containers_quota_is_a_limit_and_minus_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "_OLD_PERIOD").write_text("100000\n")
    (tmp_path / "_OLD_QUOTA").write_text("100000\n")
    assert runtime.usable_cpus() == 1
    (tmp_path / "_OLD_QUOTA").write_text("-1\n")
    assert runtime.usable_cpus() == 4


@pytest.mark.parametrize(("told", "expected"), [("3", 3), ("2,1", 2), ("64", 4), ("0", 4), ("many", 4), ("", 4)])
def test_what_the_user_told_openmp_holds_here_too(monkeypatch: pytest.MonkeyPatch, told: str, expected: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert runtime.usable_cpus() == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_vnni", False), ("fpu avx512_bf16", True), ("amx_bf16 amx_tile", True), (None, False)],
)
def test_bf16_is_used_where_the_processor_has_it(tmp_path: Path, flags: str | None, expected: bool) -> None:
    if flags is not None:
        (tmp_path / "_FLAGS").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: none\n")
    runtime.has_bf16.cache_clear()
    try:
        assert runtime.has_bf16() is expected
    finally:
        runtime.has_bf16.cache_clear()


@pytest.mark.parametrize("package", ["numpy", "sentence-transformers", "agentformer", "openvino", "no-such-package"])
def test_the_version_of_a_package_is_that_of_its_metadata(package: str) -> None:
    try:
        expected = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        expected = ""
    assert runtime.package_version(package) == expected


def test_a_package_with_two_folders_of_metadata_has_the_version_that_python_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_told").mkdir()
    (tmp_path / "twice_told" / "__init__.py").touch()
    for version in ("1.0", "2.0"):
        folder = tmp_path / f"twice_told-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: twice-told\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert runtime.package_version("twice-told") == importlib.metadata.version("twice-told")
