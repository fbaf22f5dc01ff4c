"""Conversations of other programs: chat exports are read one conversation at a time, and stored as sessions, each
message once (docs/ARCHIVE.md)."""
