"""The files of the languages, and the detection of the language of a text."""
