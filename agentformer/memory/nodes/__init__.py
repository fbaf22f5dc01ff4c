"""The nodes of a `DistributedMemory`: processes on any machine that share one PostgreSQL database. They divide the
work by claims and leases. If a node dies, these expire by the clock of the database server."""
