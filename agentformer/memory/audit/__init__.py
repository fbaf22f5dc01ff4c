"""Reports duplicates, contradictions and stale facts in a memory."""
