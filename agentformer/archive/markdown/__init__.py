"""Memory homes. A memory home is a folder with a Markdown file for each entry, which people read and edit. A sync
stores edited files as new versions of their entries, and writes changed entries into their files (docs/MARKDOWN.md)."""
