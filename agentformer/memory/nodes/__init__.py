"""The nodes of a `DistributedMemory`: processes on any machine that share one PostgreSQL database. They divide the work
by claims and leases, which end by the clock of the server if a node dies."""
