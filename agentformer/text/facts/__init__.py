"""Facts in a text: values, quantities with units, claims, and what sentences state, and how two facts compare."""
