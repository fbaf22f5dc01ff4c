"""The SQLite system of record: entries with their history, embedding spaces and vectors, and the change feed.

The module `database` opens the file and begins transactions. The other modules contain functions that take an open
connection. A caller can therefore combine several of these functions in one transaction.
"""
