"""Find the symbols of source code, such as functions and classes."""
