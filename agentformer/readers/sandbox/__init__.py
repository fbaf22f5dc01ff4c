"""Run the readers of files in a child process with restricted rights."""
