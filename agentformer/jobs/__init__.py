"""Upload jobs. A job contains uploaded files that the server ingests in the background, after it has answered the
upload request."""
