"""The records of a store: entries with their history, embedding spaces and vectors, and the change feed.

The module `database` opens the SQLite file and begins transactions. The functions of the other modules take an open
`Connection` of any database, so a caller can combine several of these functions in one transaction. Each of their SQL
statements is a `Statement`, which is written for both databases.
"""
