"""Access: keys, and what they let their holders do."""
