"""The MCP server: it offers the tools and the documents of a memory, over standard input and output or over HTTP. It
needs the extra `mcp`."""
