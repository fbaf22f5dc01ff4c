"""How well a memory finds what it should: questions with known passages, measured, and built where there are none."""
