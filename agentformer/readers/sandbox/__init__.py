"""Runs readers in a confined child process."""
