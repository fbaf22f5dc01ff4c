"""The SQLite system of record: what is remembered, what is still to be embedded, and what has changed.

`database` opens and transacts; the other modules are functions over an open connection, so that a caller
can put several of them into one transaction.
"""
