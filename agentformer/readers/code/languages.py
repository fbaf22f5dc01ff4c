"""The programming languages of source code: which language the name of a file identifies, and which nodes of its syntax
tree are symbols.

A file whose name identifies a language is source code. If a grammar of tree-sitter is installed for the language (extra
`code`), the functions and classes are found in the syntax tree. Otherwise, or if the text cannot be parsed, they are
found by blank lines and indentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

MAX_SYMBOLS = 20_000
MAX_ABOUT = 300  # code points
_SUFFIXES = {
    "bash": ".sh .bash .zsh .ksh .bats",
    "c": ".c .h",
    "c_sharp": ".cs .csx",
    "cpp": ".cc .cpp .cxx .c++ .hh .hpp .hxx .h++ .ipp .cu .cuh .ino",
    "go": ".go",
    "java": ".java",
    "javascript": ".js .mjs .cjs .jsx",
    "json": ".json .jsonc .webmanifest",
    "php": ".php .phtml",
    "python": ".py .pyi .pyw .pyx",
    "ruby": ".rb .rake .gemspec .ru",
    "rust": ".rs",
    "sql": ".sql .ddl",
    "toml": ".toml",
    "tsx": ".tsx",
    "typescript": ".ts .mts .cts",
    "yaml": ".yaml .yml",
    # These languages have no grammar. Their symbols are found by blank lines and indentation.
    "clojure": ".clj .cljs",
    "css": ".css .scss .less",
    "dart": ".dart",
    "elixir": ".ex .exs",
    "erlang": ".erl .hrl",
    "fortran": ".f .f90 .f95",
    "groovy": ".groovy .gradle",
    "haskell": ".hs",
    "ini": ".ini .cfg .properties",
    "julia": ".jl",
    "kotlin": ".kt .kts",
    "lisp": ".lisp .el .scm",
    "lua": ".lua",
    "make": ".mk",
    "ocaml": ".ml .mli",
    "perl": ".pl .pm",
    "powershell": ".ps1 .psm1",
    "protobuf": ".proto",
    "r": ".r",
    "scala": ".scala",
    "swift": ".swift",
    "terraform": ".tf",
    "zig": ".zig",
}
_NAMES = {"makefile": "make", "gnumakefile": "make", "rakefile": "ruby", "gemfile": "ruby", "dockerfile": "docker"}
_OF_SUFFIX = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}


class Part(NamedTuple):
    """A symbol of source code, and its lines: `first` is the number of its first line, counted from 0, and `last` is
    the number of its last line. `about` describes the symbol."""

    name: str
    first: int
    last: int
    about: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar of tree-sitter for a language, and the nodes of its syntax trees from which symbols are read. The
    Python module `module` contains the function `function`, which returns the grammar. A node whose type is in
    `symbols` is a symbol. A node whose type is in `wrappers` encloses a symbol and belongs to it, such as a definition
    with decorators. A node whose type is in `notes` precedes a symbol and describes it. `names` are the fields that may
    contain the name of a node."""

    module: str
    symbols: frozenset[str]
    function: str = "language"
    wrappers: frozenset[str] = frozenset()
    notes: frozenset[str] = frozenset({"comment"})
    names: tuple[str, ...] = ("name",)


def _grammar(
    module: str, symbols: str, function: str = "language", wrappers: str = "", notes: str = "", names: str = ""
) -> Grammar:
    """Return a grammar from types and fields that spaces separate. `notes` and `names` are added to the defaults."""
    return Grammar(
        f"tree_sitter_{module}",
        frozenset(symbols.split()),
        function,
        frozenset(wrappers.split()),
        frozenset({"comment", *notes.split()}),
        ("name", *names.split()),
    )


_SCRIPT = (
    "function_declaration generator_function_declaration class_declaration method_definition variable_declarator "
    "field_definition public_field_definition pair assignment_expression"
)
_TYPED = (
    f"{_SCRIPT} interface_declaration type_alias_declaration enum_declaration abstract_class_declaration "
    "internal_module module function_signature abstract_method_signature"
)
_SCRIPT_WRAPPERS = "export_statement lexical_declaration variable_declaration expression_statement ambient_declaration"
_C = "function_definition struct_specifier enum_specifier union_specifier preproc_function_def type_definition"
GRAMMARS = {
    "bash": _grammar("bash", "function_definition"),
    "c": _grammar("c", _C, names="declarator"),
    "c_sharp": _grammar(
        "c_sharp",
        "namespace_declaration file_scoped_namespace_declaration class_declaration interface_declaration "
        "struct_declaration enum_declaration record_declaration delegate_declaration method_declaration "
        "constructor_declaration destructor_declaration property_declaration operator_declaration "
        "local_function_statement",
    ),
    "cpp": _grammar(
        "cpp",
        f"{_C} class_specifier namespace_definition concept_definition alias_declaration",
        wrappers="template_declaration",
        names="declarator",
    ),
    "go": _grammar("go", "function_declaration method_declaration type_spec type_alias", wrappers="type_declaration"),
    "java": _grammar(
        "java",
        "class_declaration interface_declaration enum_declaration record_declaration annotation_type_declaration "
        "method_declaration constructor_declaration compact_constructor_declaration",
        notes="line_comment block_comment",
    ),
    "javascript": _grammar(
        "javascript", _SCRIPT, wrappers=_SCRIPT_WRAPPERS, notes="decorator", names="property left key"
    ),
    "json": _grammar("json", "pair", names="key"),
    "php": _grammar(
        "php",
        "function_definition class_declaration interface_declaration trait_declaration enum_declaration "
        "method_declaration namespace_definition",
        function="language_php",
    ),
    "python": _grammar("python", "function_definition class_definition", wrappers="decorated_definition"),
    "ruby": _grammar("ruby", "class module method singleton_method"),
    "rust": _grammar(
        "rust",
        "function_item function_signature_item struct_item enum_item union_item trait_item impl_item mod_item "
        "macro_definition type_item",
        notes="line_comment block_comment attribute_item",
        names="type",
    ),
    "sql": _grammar(
        "sql",
        "create_table create_view create_materialized_view create_function create_index create_trigger create_type "
        "create_schema create_sequence alter_table",
        wrappers="statement",
        notes="marginalia",
    ),
    "toml": _grammar("toml", "table table_array_element pair"),
    "tsx": _grammar("typescript", _TYPED, "language_tsx", _SCRIPT_WRAPPERS, "decorator", "property left key"),
    "typescript": _grammar(
        "typescript", _TYPED, "language_typescript", _SCRIPT_WRAPPERS, "decorator", "property left key"
    ),
    "yaml": _grammar("yaml", "block_mapping_pair", names="key"),
}
DATA = frozenset({"css", "ini", "json", "toml", "yaml"})  # their parts have no signatures


def language_of(name: str) -> str:
    """Return the programming language of a file with this name, such as "python", or "" if it is not source code."""
    path = PurePath(name.lower())
    return _NAMES.get(path.name) or _OF_SUFFIX.get(path.suffix, "")
