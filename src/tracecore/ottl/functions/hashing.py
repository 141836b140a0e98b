"""Hash functions of text. None of them is for secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import mmh3
import xxhash

from tracecore.ottl.context import Context
from tracecore.ottl.signature import Getter, StringGetter, converter
from tracecore.ottl.values import Value, wrap_int64


def _hashed(target: StringGetter, digest: Callable[[bytes], Value]) -> Getter:
    def run(ctx: Context) -> Value:
        return digest(target(ctx).encode("utf-8", "surrogateescape"))

    return run


@converter("FNV")
def fnv(target: StringGetter) -> Getter:
    """The 64-bit FNV-1a hash, as a signed integer."""
    return _hashed(target, fnv1a)


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a as Go's int64."""
    number = 0xCBF29CE484222325
    for byte in data:
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return wrap_int64(number)


@converter("MD5")
def md5(target: StringGetter) -> Getter:
    """The MD5 hash in hexadecimal."""
    return _hashed(target, lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest())


@converter("SHA1")
def sha1(target: StringGetter) -> Getter:
    """The SHA-1 hash in hexadecimal."""
    return _hashed(target, lambda data: hashlib.sha1(data, usedforsecurity=False).hexdigest())


@converter("SHA256")
def sha256(target: StringGetter) -> Getter:
    """The SHA-256 hash in hexadecimal."""
    return _hashed(target, lambda data: hashlib.sha256(data).hexdigest())


@converter("SHA512")
def sha512(target: StringGetter) -> Getter:
    """The SHA-512 hash in hexadecimal."""
    return _hashed(target, lambda data: hashlib.sha512(data).hexdigest())


@converter("Murmur3Hash")
def murmur3_hash(target: StringGetter) -> Getter:
    """The 32-bit MurmurHash3 in hexadecimal, little end first."""
    return _hashed(target, lambda data: mmh3.hash(data, signed=False).to_bytes(4, "little").hex())


@converter("Murmur3Hash128")
def murmur3_hash128(target: StringGetter) -> Getter:
    """The 128-bit MurmurHash3 (x64) in hexadecimal, little end first."""
    return _hashed(target, lambda data: mmh3.hash_bytes(data).hex())


@converter("XXH3")
def xxh3_64(target: StringGetter) -> Getter:
    """The 64-bit XXH3 hash in hexadecimal."""
    return _hashed(target, lambda data: xxhash.xxh3_64_hexdigest(data))


@converter("XXH128")
def xxh3_128(target: StringGetter) -> Getter:
    """The 128-bit XXH3 hash in hexadecimal."""
    return _hashed(target, lambda data: xxhash.xxh3_128_hexdigest(data))
