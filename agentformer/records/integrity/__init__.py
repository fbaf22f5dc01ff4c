"""The doctor of the records: what is verified, mended, saved and set aside."""
