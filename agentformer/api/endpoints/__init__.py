"""The endpoints of the HTTP API: a module for each resource. `openai/` has the endpoints in the format of OpenAI."""
