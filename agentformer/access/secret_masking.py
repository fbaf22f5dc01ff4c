"""Secrets in what an agent reads and writes: keys, tokens and passwords are replaced before hooks and imports store it.

The forms are those that the issuers document (a prefix and a length), assignments to a name such as API_KEY, options of
commands such as --password, and private keys. A secret without such a form, such as a password in the middle of a
sentence, cannot be recognised.
"""

from __future__ import annotations

import json
import re
from typing import Any

HIDDEN = "[secret]"
_TOKENS = re.compile(
    r"(?<![\w-])(?:sk-(?=[\w-]*\d)[\w-]{16,}|(?:ghp|gho|ghu|ghs|ghr)_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_\w{30,}"
    r"|pypi-[\w-]{30,}|hf_\w{30,}|(?:rk|pk|sk)_(?:live|test)_\w{16,}|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_\w{30,}"
    r"|shp(?:at|ca|pa|ss)_\w{20,}|dckr_pat_[\w-]{20,}|eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]{8,})"
    r"|hooks\.slack\.com/services/[\w/]{10,}"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z ]{0,60}-----|\Z)")
# NAME_KEY=value, "password": "value", the password is value, <password>value</password>
_NAMES = (
    r"api[_-]?key|secret|token|password|passwd|pwd|passphrase|(?<![a-z])pass|(?<![a-z])credentials?"
    r"|(?:private|access|account|encryption|signing|anthropic|openai|azure)[_-]?key"
    r"|salasana|lösenord(?:et)?|passord|adgangskode|passwort|kennwort|contraseña|mot de passe|パスワード"
)
_SAYS = (
    r"(?:password|passphrase)\s{1,3}is\b\s{0,3}:?|salasana\w{0,4}\s{1,3}on\b|lösenord\w{0,4}\s{1,3}är\b"
    r"|(?:passord|adgangskode)\w{0,4}\s{1,3}er\b|(?:passwort|kennwort)\s{1,3}(?:ist|lautet)\b|パスワードは"
)
_ASSIGNED = re.compile(
    rf"(?P<name>(?:\b[\w.-]{{0,60}}?(?:{_NAMES})(?![a-z])(?:[_-]\w{{0,20}})?(?:\\?[\"'])?\s{{0,3}}(?:[:=：]|=>)"
    rf"|{_SAYS}|<(?:{_NAMES})>)\s{{0,3}}(?:[|>]-?\s{{0,9}})?)"
    r"(?P<value>\\?\"[^\"\\\n]{3,400}\\?\"|'[^'\n]{3,400}'|[^\s\"',;<\\]{4,400})",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?P<name>(?<!\S)(?:--(?:password|passwd|token|secret|api-key|pass)(?:=|\s{1,3})|(?:sshpass\s{1,3}-p\s{0,3}))"
    r"|(?<!\S)(?:-u|--user)\s{1,3}[^\s:]{1,60}:|\bmysql\b[^\n]{0,80}\s-p(?=\S))[^\s\"']{3,400}"
)
_HEADER = re.compile(
    r"(?P<name>\bAuthorization\s{0,3}[:=]\s{0,3}(?:Bearer|Basic)\s{1,3}|\bBearer\s{1,3}(?=\S*\d)"
    r"|\b(?:Set-)?Cookie\s{0,3}:\s{0,3})[\w.~+/=%;: -]{8,400}",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"(?P<name>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,100}:)[^\s/]{1,400}(?=@)", re.IGNORECASE)
# Values that are no secrets: references to variables, types, plain numbers of a few digits, and words about a password.
_NOT_SECRET = re.compile(
    r"\\?[\"']?(?:(?-i:\$\{?[A-Z_][A-Z0-9_]*\}?(?!\w))|\$\(|\{\{|<[\w-]+>?|%\w+%|\*+|os\.|process\.|getenv|\d{1,6}(?!\S)"
    r"|(?:none|null|true|false|str|string|required|needed|wrong|invalid|missing|empty|correct|not|bert-[\w-]+)"
    r"(?=[|(\[]|[\W_]{0,9}(?:\s|\Z)))",
    re.IGNORECASE,
)
# Files and commands with nothing but secrets. The output of a tool that read one is not captured.
_FILE = re.compile(
    r"(?<!process)(?<!meta)\.env(?:rc)?(?![a-z0-9_])|\.(?:netrc|pgpass|npmrc|pypirc|git-credentials)\b|\bid_(?:rsa|ed25519"
    r"|ecdsa|dsa)\b(?!\.pub)|\.kube/config|\.docker/config\.json|\.aws/|\bcredentials?\b(?!\s)|\bprintenv\b|^env$"
    r"|\.(?:pem|p12|pfx|keystore)\b|\bsecrets?\.(?:ya?ml|json|toml|env)\b",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return the text in which `[secret]` replaces keys, tokens and passwords.

    >>> without_secrets("export API_KEY=abcd1234efgh")
    'export API_KEY=[secret]'
    """
    text = _PRIVATE.sub(HIDDEN, text)
    text = _TOKENS.sub(HIDDEN, text)
    for pattern in (_ADDRESS, _HEADER, _OPTION):
        text = pattern.sub(rf"\g<name>{HIDDEN}", text)
    return _ASSIGNED.sub(_hidden, text)


def shortened(value: Any, most: int) -> Any:
    """Return a JSON value whose texts have no secrets and at most `most` characters each, and that has at most 50
    values at each level. A text is cut before its secrets are searched, so a long one costs no time."""
    if isinstance(value, str):
        return without_secrets(value[:most])
    if isinstance(value, dict):
        named = {str(name)[:80]: each for name, each in [*value.items()][:50]}
        hidden = {name: HIDDEN for name, each in named.items() if isinstance(each, str) and _is_secret(name, each)}
        return {**{name: shortened(each, most) for name, each in named.items()}, **hidden}
    return [shortened(each, most) for each in value[:50]] if isinstance(value, list) else value


def reads_secrets(value: Any) -> bool:
    """Return whether the input of a tool names a file or a command with nothing but secrets, such as `.env`."""
    if isinstance(value, str):
        return _FILE.search(value[:20_000]) is not None
    if isinstance(value, dict):
        value = [*value.values()]
    return isinstance(value, list) and any(map(reads_secrets, value[:50]))


def _is_secret(name: str, value: str) -> bool:
    return HIDDEN in without_secrets(f"{name}={json.dumps(value[:200])}")


def _hidden(match: re.Match[str]) -> str:
    value = match["value"]
    return match[0] if _NOT_SECRET.match(value) or HIDDEN in value else f"{match['name']}{HIDDEN}"
