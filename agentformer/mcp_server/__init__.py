"""The MCP server: the toolbox and the documents, over standard input and output or over HTTP (extra `mcp`)."""
