"""Finds dates, periods and time expressions in texts and queries."""
