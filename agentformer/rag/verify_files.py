"""Verification of the files beside the store: upload jobs, API keys, and the permissions of all files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agentformer.access.keys import KeyStore
from agentformer.access.places import FILE as KEYS_FILE
from agentformer.errors import StoreError
from agentformer.jobs import FILE as JOBS_FILE
from agentformer.jobs import FOLDER as JOBS_FOLDER
from agentformer.jobs import files_elsewhere
from agentformer.jobs.store import JobStore, check_log, damaged_rows
from agentformer.records.integrity import MAX_REPORTED, Findings
from agentformer.records.integrity.file_guard import is_passing_failure
from agentformer.settings.access import readable_by_others

_BUSY_SECONDS = 60


def verify_jobs(index_dir: Path, upload_dir: Path, root: Path | None = None) -> Findings:
    """Check that the database of background uploads, if it exists, and each job in it can be read. Report files of
    uploads that have no job, and files of this memory's uploads in a folder of another memory. `root` contains the
    upload folders of all memories, and `upload_dir` is that of this memory; without `root`, it is the only one."""
    advice = "stop the servers, move this database to another folder, and send the waiting uploads again"
    findings = Findings("jobs", "each background upload can be read", advice)
    path = index_dir / JOBS_FILE
    if path.exists():
        _verify_jobs(path, findings)
    if not findings.found:
        _note_files(JobStore(path), upload_dir / JOBS_FOLDER, root or upload_dir, findings)
    return findings


def _verify_jobs(path: Path, findings: Findings) -> None:
    try:
        check_log(path)
    except StoreError as error:
        findings.add(str(error))
        return
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                return  # its process was killed before it made the table; the next upload makes it
            findings.looked_at = int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
            messages = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            findings.add_all((f"{path.name}: {message}", message) for message in messages if message != "ok")
            findings.add_all((f"{path.name}: the job {name} is damaged", name) for name in damaged_rows(connection))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if is_passing_failure(error):  # it says nothing about the database
            findings.advice = "try again"
        findings.add(f"{path.name}: {error}")


def _note_files(jobs: JobStore, folder: Path, root: Path, findings: Findings) -> None:
    """Note the folders of uploaded files that no job names: a process was killed before it had added the job, or the
    database of the jobs was lost. Also note the files that another memory has, of which this memory is a copy."""
    try:
        folders = [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []
        elsewhere = files_elsewhere(root, folder)
        known = jobs.ids() if folders or elsewhere else set[str]()
        elsewhere = {job_id: path for job_id, path in elsewhere.items() if job_id in known}
        waiting = elsewhere.keys() & set(jobs.active()) - {each.name for each in folders} if elsewhere else set[str]()
    except (OSError, StoreError) as error:
        findings.note(f"the files of waiting uploads were not checked: {error}")
        return
    finally:
        jobs.close()
    if unknown := sorted(str(each) for each in folders if each.name not in known):
        findings.note(
            f"the files of {len(unknown)} background uploads have no job: {', '.join(unknown[:MAX_REPORTED])}; if they "
            "were not stored, send them again; a server deletes them after the days for which jobs are kept"
        )
    if elsewhere:
        findings.note(
            f"the files of {len(elsewhere)} background uploads are in folders of another memory, of which this one is "
            f"a copy: {', '.join(map(str, [*elsewhere.values()][:MAX_REPORTED]))}; `agentformer serve` takes copies of "
            f"the {len(waiting)} that wait for them; delete these folders if the other memory does not use them"
        )


def verify_keys(index_dir: Path) -> list[Findings]:
    """Check that the file of the API keys, if it exists, can be read. Without a file, return no result."""
    if not (index_dir / KEYS_FILE).exists():
        return []
    findings = Findings("keys", "each API key can be read", "")
    try:
        findings.looked_at = len(KeyStore(index_dir).all())
    except StoreError as error:
        findings.add(str(error))
    return [findings]


def verify_access(*folders: Path) -> list[Findings]:
    """Return a note for each folder that other users of this machine can read. An existing folder keeps its
    permissions, so this is no damage. Return no result if there is no such folder."""
    findings = Findings("access", "each folder can be read by its owner alone", "", len(folders))
    notes = [
        f"other users of this machine can list {folder} and read {len(found) - 1} files in it; run "
        f"`chmod -R go-rwx {folder}`, or set AGENTFORMER_FILE_ACCESS=group if the group may read them"
        for folder in dict.fromkeys(folders)
        if (found := readable_by_others(folder))
    ]
    for note in notes:
        findings.note(note)
    return [findings] if notes else []
