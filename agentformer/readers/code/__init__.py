"""The structure of source code: which functions, classes and sections a text has."""
