"""Tools: what a person or an agent does with documents and memories."""
