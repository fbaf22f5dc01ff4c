"""Every command on one page: where it is, and what it is for. One is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import click

from agentformer.registry import load

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Documents": {
        "ingest": ("documents:ingest", "Bring documents in: files, and folders with all below them"),
        "ask": ("documents:ask", "Answer a question from the documents, with citations"),
        "search": ("memory:search", "Find passages of documents and memories, best first"),
        "list": ("documents:list_documents", "List the documents; `memories` lists what was remembered"),
        "remove": ("documents:remove", "Remove documents, with everything made from them"),
        "eval": ("evaluating:evaluate", "Measure how well the documents answer questions of your own"),
        "optimize": (
            "optimizing:optimize_command",
            "Search the settings with which questions of your own are answered best",
        ),
    },
    "Memories": {
        "remember": ("memory:remember", "Keep a fact, a decision, or a message of a session"),
        "recall": ("memory:recall", "Find the memories that bear on a query, best first"),
        "context": ("memory:context", "Show what a model should be given for a task"),
        "memories": ("memory:memories", "List entries, oldest first"),
        "core": ("core:core", "Show and edit the named blocks that are always in context"),
        "update": ("changing:update", "Change a memory; `history` shows its former versions"),
        "supersede": ("changing:supersede", "Let a newer memory take the place of an older one"),
        "history": ("changing:history", "Show the former versions of an entry, and what it is now"),
        "forget": ("changing:forget", "Delete memories for good"),
    },
    "Upkeep": {
        "status": ("state:status", "Show what is kept, and in which state"),
        "doctor": ("doctor:doctor", "Check that what is stored is whole, in every namespace"),
        "clean": ("upkeep:clean", "Summarise the older messages of sessions, and archive them"),
        "restore": ("upkeep:restore", "Bring back a summary's originals, or a superseded entry"),
        "audit": ("upkeep:audit", "Show duplicates, contradictions and entries never read"),
        "reindex": ("embedding:reindex", "Embed what waits for an embedder, in every namespace"),
        "reembed": ("embedding:reembed", "Move the memory to another embedder, while it is used"),
        "spaces": ("embedding:spaces", "Show the embedding spaces of the memory"),
        "backup": ("backup:backup", "Copy everything into a new folder, while it is used"),
        "export": ("exporting:export", "Write out what is stored, for `import` or to read"),
        "import": ("exporting:import_", "Bring in what `export --to` wrote"),
    },
    "Ways in": {
        "chat": ("chat:chat", "Talk with a language model that remembers, and answers from the documents"),
        "serve": (
            "serving:serve",
            "Serve the HTTP API until SIGTERM or Ctrl-C; what runs then has 20 seconds to finish",
        ),
        "keys": ("keys:keys", "Make, list and revoke the keys that let others in over HTTP and MCP"),
        "mcp": ("mcp:mcp", "Serve the tools and documents to MCP clients, such as Claude, Cursor and VS Code"),
        "completion": ("completion:completion", "Print the script that completes commands in a shell"),
    },
}
HELP = {name: told for commands in SECTIONS.values() for name, (_, told) in commands.items()}
_PLACES = {name: place for commands in SECTIONS.values() for name, (place, _) in commands.items()}


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, in the order of the table; their names are known without importing them."""

    def __init__(self) -> None:
        self._there: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._there:
            command: click.Command = load(f"agentformer.cli.{_PLACES[name]}")
            self._there.setdefault(name, command)  # whose module has put it there already
        return self._there[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._there[name] = command

    def __delitem__(self, name: str) -> None:
        del self._there[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_PLACES, *self._there]))

    def __len__(self) -> int:
        return len(set(_PLACES) | set(self._there))
