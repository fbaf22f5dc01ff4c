"""Endpoints below `/v1` with the protocol of OpenAI (docs/OPENAI.md)."""
