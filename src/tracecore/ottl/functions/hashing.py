"""Hash functions of text. None of them is for secrets."""

from __future__ import annotations

import hashlib

import mmh3
import xxhash

from tracecore.ottl.signature import Utf8, value_converters
from tracecore.ottl.values import wrap_int64


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a as Go's int64."""
    number = 0xCBF29CE484222325
    for byte in data:
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return wrap_int64(number)


def _murmur32(data: bytes) -> str:
    return mmh3.hash(data, signed=False).to_bytes(4, "little").hex()


HASHES = value_converters(
    Utf8,
    ("FNV", "The 64-bit FNV-1a hash, as a signed integer.", lambda target: fnv1a(target)),
    ("MD5", "The MD5 hash in hexadecimal.", lambda target: hashlib.md5(target, usedforsecurity=False).hexdigest()),
    ("SHA1", "The SHA-1 hash in hexadecimal.", lambda target: hashlib.sha1(target, usedforsecurity=False).hexdigest()),
    ("SHA256", "The SHA-256 hash in hexadecimal.", lambda target: hashlib.sha256(target).hexdigest()),
    ("SHA512", "The SHA-512 hash in hexadecimal.", lambda target: hashlib.sha512(target).hexdigest()),
    ("Murmur3Hash", "The 32-bit MurmurHash3 in hexadecimal, little end first.", lambda target: _murmur32(target)),
    (
        "Murmur3Hash128",
        "The 128-bit MurmurHash3 (x64) in hexadecimal, little end first.",
        lambda target: mmh3.hash_bytes(target).hex(),
    ),
    ("XXH3", "The 64-bit XXH3 hash in hexadecimal.", lambda target: xxhash.xxh3_64_hexdigest(target)),
    ("XXH128", "The 128-bit XXH3 hash in hexadecimal.", lambda target: xxhash.xxh3_128_hexdigest(target)),
)
