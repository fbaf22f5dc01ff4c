"""Tests of the console: its files, and the page in a real browser."""
