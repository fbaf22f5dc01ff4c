"""Answers from passages: prompts, citations, quotes, confidence and streaming."""
