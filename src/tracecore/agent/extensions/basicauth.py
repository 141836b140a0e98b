"""The `basicauth` extension: a user and password that clients send, and a list of them that servers believe."""

from __future__ import annotations

import base64
import binascii
import ctypes
import ctypes.util
import hashlib
import hmac
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tracecore.agent.component import Extension, Setting
from tracecore.agent.options import Secret

#: Of a file of users so much is read.
MAX_FILE = 1 << 20


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        username: who we are.
        password: never printed.
        username_file: a file that has it, read for each request.
        password_file: a file that has it, read for each request.
    """

    username: str = ""
    password: Secret = ""
    username_file: str = ""
    password_file: str = ""

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if bool(self.username) == bool(self.username_file):
            yield (), "one of username and username_file is needed"


class Htpasswd(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        file: lines `user:password`, as htpasswd writes them, read at the start.
        inline: the same, written here; a user of the file goes before one of the same name here.
    """

    file: str = ""
    inline: Secret = ""

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.file and not self.inline:
            yield (), "one of file and inline is needed"
        for line in self.inline.splitlines():
            if line.strip() and ":" not in line:
                yield ("inline",), "each line is user:password"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        client_auth: for exporters: what they send.
        htpasswd: for receivers: whom they believe.
    """

    client_auth: Client | None = None
    htpasswd: Htpasswd | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if (self.client_auth is None) == (self.htpasswd is None):
            yield (), "one of client_auth and htpasswd is needed"


class BasicAuthExtension(Extension):
    """Knows users and passwords."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._users: dict[str, str] = {}
        #: Passwords that were correct before: some hashes take a tenth of a second on purpose.
        self._known: set[bytes] = set()

    def start(self) -> None:
        given = self._options.htpasswd
        if given is None:
            return
        text = given.inline
        if given.file:
            with open(given.file, encoding="utf-8") as file:
                text += "\n" + file.read(MAX_FILE)
        for line in text.splitlines():
            user, colon, password = line.strip().partition(":")
            if colon and not user.startswith("#"):
                self._users[user] = password

    def headers(self) -> dict[str, str]:
        client = self._options.client_auth
        if client is None:
            raise OSError("client_auth is not configured")
        user = client.username or _line(client.username_file)
        password = _line(client.password_file) if client.password_file else client.password
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def allows(self, headers: Mapping[str, str]) -> bool:
        scheme, _, pair = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        digest = hashlib.sha256(pair.encode("utf-8", "replace")).digest()
        if digest in self._known:
            return True
        try:
            user, colon, password = base64.b64decode(pair, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return False
        stored = self._users.get(user)
        good = bool(colon) and stored is not None and matches(password, stored)
        if good and len(self._known) < 1024:
            self._known.add(digest)
        return good


def _line(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


def matches(password: str, stored: str) -> bool:
    """Whether a password is the one of an htpasswd entry: plain, `{SHA}`, or hashed by crypt (`$2y$`, `$6$`, …)."""
    if stored.startswith("{SHA}"):
        made = "{SHA}" + base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()
    elif stored.startswith("$"):
        made = _crypt(password, stored)
    else:
        made = password
    return bool(made) and hmac.compare_digest(made.encode(), stored.encode())


_CRYPT_LOCK = threading.Lock()


def _crypt(password: str, stored: str) -> str:
    """The system's crypt; nothing where there is none, or where it does not know the kind of hash."""
    name = ctypes.util.find_library("crypt")
    if name is None or "\0" in password:
        return ""
    try:
        function: Any = ctypes.CDLL(name).crypt
    except (OSError, AttributeError):
        return ""
    function.restype = ctypes.c_char_p
    with _CRYPT_LOCK:  # its answer is in one place for everybody
        made = function(password.encode(), stored.encode())
        return made.decode("ascii", "replace") if made and not made.startswith(b"*") else ""
