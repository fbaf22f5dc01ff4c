"""Tools: the operations on documents and memories that a person or an agent can call."""
