"""The SQLite system of record: entries with their history, embedding spaces and vectors, and the change feed.

`database` opens the file and its transactions. The other modules are functions over an open connection, so that a
caller can combine several of them in one transaction.
"""
