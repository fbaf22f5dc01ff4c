"""A folder of Markdown files as a home of memories: one file for each entry, which people read and edit. A sync takes
edits back as new versions, and writes changed entries into the files (docs/MARKDOWN.md)."""
