"""The readers of Word documents, presentations, spreadsheets and OpenDocument files."""
