"""Tools: the operations that a person or an agent can use on documents and memories."""
