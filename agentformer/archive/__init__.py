"""What leaves a memory and comes back: exports for any memory (docs/ARCHIVE.md), and backups of one as it is."""
