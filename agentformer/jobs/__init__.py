"""The upload jobs of the HTTP API: their queue, and the stores of the jobs and their files."""

from agentformer.jobs.queue import FILE, FOLDER, JobFiles, Jobs, delete_jobs_of, files_elsewhere, stored_jobs

__all__ = ["FILE", "FOLDER", "JobFiles", "Jobs", "delete_jobs_of", "files_elsewhere", "stored_jobs"]
