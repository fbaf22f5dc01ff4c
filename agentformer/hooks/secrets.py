"""Secrets in what an agent reads and writes: keys, tokens and passwords are replaced before anything is captured.

The forms are those that the issuers document (a prefix and a length), assignments to a name such as API_KEY, and
private keys. A secret without such a form, such as a password in the middle of a sentence, cannot be recognised.
"""

from __future__ import annotations

import re

HIDDEN = "[secret]"
_TOKENS = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{16,}|(?:ghp|gho|ghu|ghs|ghr)_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_\w{30,}|pypi-[\w-]{30,}|hf_\w{30,}"
    r"|(?:rk|pk|sk)_(?:live|test)_\w{16,}|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]{8,})"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,20000}?(?:-----END [A-Z ]{0,40}-----|\Z)")
# NAME_KEY=value, "password": "value", the password is value
_NAMES = (
    r"api[_-]?key|secret|token|password|passwd|pwd|passphrase|private[_-]?key|access[_-]?key|credentials?"
    r"|salasana|lösenord|passord|adgangskode|passwort|kennwort"
)
_SAYS = (
    r"(?:password|passphrase)\s{1,3}is\b|salasana\w{0,4}\s{1,3}on\b|lösenord\w{0,4}\s{1,3}är\b"
    r"|(?:passord|adgangskode)\w{0,4}\s{1,3}er\b|(?:passwort|kennwort)\s{1,3}ist\b"
)
_ASSIGNED = re.compile(
    rf"(?P<name>\b(?:[\w.-]{{0,60}}?(?:{_NAMES})[\w-]{{0,20}}[\"']?\s{{0,3}}[:=]|{_SAYS})\s{{0,3}})"
    r"(?P<value>\"[^\"\n]{4,400}\"|'[^'\n]{4,400}'|[^\s\"',;]{4,400})",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"(?P<name>\b(?:Authorization\s{0,3}[:=]\s{0,3})?(?:Bearer|Basic)\s{1,3})[\w.~+/=-]{8,}", re.IGNORECASE
)
_ADDRESS = re.compile(r"(?P<name>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,100}:)[^\s/@]{1,400}(?=@)", re.IGNORECASE)
# Files with nothing but secrets. The output of a tool that read one is not captured.
_FILE = re.compile(
    r"(?:^|[\s/\\\"'])(?:\.env(?:\.[\w.-]+)?|\.netrc|\.pgpass|id_(?:rsa|ed25519|ecdsa)|credentials)(?=$|[\s\"'|;&>)])"
)
_NOT_SECRET = re.compile(
    r"[\"']?(?:\$|<|\{\{|%|\*+[\"']?$|os\.|process\.|getenv|None\b|null\b|true\b|false\b|str\b|string\b)", re.IGNORECASE
)


def without_secrets(text: str) -> str:
    """Return the text in which `[secret]` replaces keys, tokens and passwords.

    >>> without_secrets("export API_KEY=abcd1234efgh")
    'export API_KEY=[secret]'
    """
    text = _PRIVATE.sub(HIDDEN, text)
    text = _TOKENS.sub(HIDDEN, text)
    text = _ADDRESS.sub(rf"\g<name>{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<name>{HIDDEN}", text)
    return _ASSIGNED.sub(_hidden, text)


def reads_secrets(given: str) -> bool:
    """Return whether the input of a tool names a file with secrets, such as `.env`."""
    return _FILE.search(given) is not None


def _hidden(match: re.Match[str]) -> str:
    value = match["value"]
    return match[0] if _NOT_SECRET.match(value) or HIDDEN in value else f"{match['name']}{HIDDEN}"
