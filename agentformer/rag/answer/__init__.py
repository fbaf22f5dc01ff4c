"""Build answers from passages: prompts, citations, quotes, confidence and streaming."""
