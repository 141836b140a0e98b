"""MurmurHash3 by Austin Appleby (public domain): 32 bits, and 128 bits for 64-bit machines; seed 0."""

from __future__ import annotations

_32 = 0xFFFFFFFF
_64 = 0xFFFFFFFFFFFFFFFF


def _rotl32(number: int, by: int) -> int:
    return (number << by | number >> 32 - by) & _32


def _rotl64(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _64


def hash32(data: bytes) -> int:
    """MurmurHash3_x86_32."""
    h = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & _32
        h ^= _rotl32(k, 15) * 0x1B873593 & _32
        h = (_rotl32(h, 13) * 5 + 0xE6546B64) & _32
    if tail := data[whole:]:
        k = int.from_bytes(tail, "little") * 0xCC9E2D51 & _32
        h ^= _rotl32(k, 15) * 0x1B873593 & _32
    h ^= len(data) & _32
    h = (h ^ h >> 16) * 0x85EBCA6B & _32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _32
    return h ^ h >> 16


_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _mix1(k: int) -> int:
    return _rotl64(k * _C1 & _64, 31) * _C2 & _64


def _mix2(k: int) -> int:
    return _rotl64(k * _C2 & _64, 33) * _C1 & _64


def _finish(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _64
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _64
    return h ^ h >> 33


def hash128(data: bytes) -> tuple[int, int]:
    """MurmurHash3_x64_128, as its two halves."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotl64(h1, 27) + h2) * 5 + 0x52DCE729) & _64
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotl64(h2, 31) + h1) * 5 + 0x38495AB5) & _64
    tail = data[whole:]
    if len(tail) > 8:
        h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    if tail:
        h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _64
    h2 = (h2 + h1) & _64
    h1, h2 = _finish(h1), _finish(h2)
    h1 = (h1 + h2) & _64
    return h1, (h2 + h1) & _64
