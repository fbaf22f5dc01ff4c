"""Upload jobs: files that are ingested after their request was answered."""
