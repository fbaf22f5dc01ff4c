"""The SQLite database of a store: entries with their history, embedding spaces and vectors, and the change feed.

The module `database` opens the file and begins transactions. The functions of the other modules take an open
connection, so a caller can combine several of these functions in one transaction.
"""
