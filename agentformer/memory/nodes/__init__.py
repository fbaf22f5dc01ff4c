"""The nodes of a `DistributedMemory`, and the files that they share."""
