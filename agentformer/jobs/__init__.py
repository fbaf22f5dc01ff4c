"""Upload jobs: files that the server ingests after it has answered the upload request."""
