"""The console: the page that a browser shows (docs/CONSOLE.md)."""
