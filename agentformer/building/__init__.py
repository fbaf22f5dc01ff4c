"""The parts of an opened memory, made from settings when they are first used. `registry.LATE` names them for
`factory`, so that a command imports what it uses and no more."""
