"""Hooks: a coding agent runs `agentformer hook EVENT` at certain moments, such as before it answers a prompt.

A hook gives the agent what the memory knows about the prompt (`recall`), and captures the event (`spool`). A process in
the background, the `companion`, stores captured events and answers the next hooks; it ends by itself. A hook is never
in the way: after a deadline it answers nothing, and its exit code is always 0.
"""
