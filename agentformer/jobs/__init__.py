"""Jobs: long work that outlives the request that asked for it."""
