"""Run readers in a child process with restricted rights."""
