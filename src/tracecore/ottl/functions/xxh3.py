"""XXH3 by Yann Collet, 64 and 128 bits, with the default secret and seed 0."""

from __future__ import annotations

import struct

_64 = 0xFFFFFFFFFFFFFFFF
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _swap(number: int, size: int) -> int:
    return int.from_bytes(number.to_bytes(size, "little"), "big")


def _rotl(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _64


def _fold(a: int, b: int) -> int:
    product = a * b
    return product & _64 ^ product >> 64


def _avalanche(h: int) -> int:
    h = (h ^ h >> 37) * _MX1 & _64
    return h ^ h >> 32


def _avalanche_xxh64(h: int) -> int:
    h = (h ^ h >> 33) * _P64_2 & _64
    h = (h ^ h >> 29) * _P64_3 & _64
    return h ^ h >> 32


def _mix16(data: bytes, at: int, secret: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret), _u64(data, at + 8) ^ _u64(_SECRET, secret + 8))


def _combined(data: bytes) -> int:
    size = len(data)
    return data[0] << 16 | data[size >> 1] << 24 | data[size - 1] | size << 8


def _long(data: bytes) -> list[int]:
    """The eight accumulators of an input of more than 240 bytes."""
    acc = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    keys = [struct.unpack_from("<8Q", _SECRET, 8 * stripe) for stripe in range(16)]
    scramble = struct.unpack_from("<8Q", _SECRET, 128)
    stripes = (len(data) - 1) // 64
    for stripe in range(stripes):
        _accumulate(acc, struct.unpack_from("<8Q", data, 64 * stripe), keys[stripe % 16])
        # A block is scrambled when another stripe follows it; the last stripe of all is taken apart below.
        if stripe % 16 == 15:
            for lane in range(8):
                a = acc[lane]
                acc[lane] = (a ^ a >> 47 ^ scramble[lane]) * _P32_1 & _64
    _accumulate(acc, struct.unpack_from("<8Q", data, len(data) - 64), struct.unpack_from("<8Q", _SECRET, 121))
    return acc


def _accumulate(acc: list[int], stripe: tuple[int, ...], key: tuple[int, ...]) -> None:
    for lane in range(8):
        mixed = stripe[lane] ^ key[lane]
        acc[lane ^ 1] = (acc[lane ^ 1] + stripe[lane]) & _64
        acc[lane] = (acc[lane] + (mixed & 0xFFFFFFFF) * (mixed >> 32)) & _64


def _merge(acc: list[int], secret: int, start: int) -> int:
    total = start
    for pair in range(4):
        total += _fold(
            acc[2 * pair] ^ _u64(_SECRET, secret + 16 * pair), acc[2 * pair + 1] ^ _u64(_SECRET, secret + 16 * pair + 8)
        )
    return _avalanche(total & _64)


def hash64(data: bytes) -> int:
    """XXH3_64bits."""
    size = len(data)
    if size <= 16:
        return _short64(data)
    if size > 240:
        return _merge(_long(data), 11, size * _P64_1 & _64)
    acc = size * _P64_1
    if size <= 128:
        for step in reversed(range((size - 1) // 32 + 1)):
            acc += _mix16(data, 16 * step, 32 * step) + _mix16(data, size - 16 * (step + 1), 32 * step + 16)
        return _avalanche(acc & _64)
    for step in range(8):
        acc += _mix16(data, 16 * step, 16 * step)
    acc = _avalanche(acc & _64)
    for step in range(8, size // 16):
        acc += _mix16(data, 16 * step, 16 * (step - 8) + 3)
    return _avalanche((acc + _mix16(data, size - 16, 119)) & _64)


def _short64(data: bytes) -> int:
    size = len(data)
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        return _avalanche((size + _swap(low, 8) + high + _fold(low, high)) & _64)
    if size > 3:
        keyed = (_u32(data, size - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        h = (keyed ^ _rotl(keyed, 49) ^ _rotl(keyed, 24)) * _MX2 & _64
        h = (h ^ (h >> 35) + size) * _MX2 & _64
        return h ^ h >> 28
    if size:
        return _avalanche_xxh64(_combined(data) ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _avalanche_xxh64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def hash128(data: bytes) -> int:
    """XXH3_128bits."""
    size = len(data)
    if size <= 16:
        low, high = _short128(data)
    elif size > 240:
        acc = _long(data)
        low, high = _merge(acc, 11, size * _P64_1 & _64), _merge(acc, 117, ~(size * _P64_2) & _64)
    else:
        low, high = _middle128(data)
    return high << 64 | low


def _middle128(data: bytes) -> tuple[int, int]:
    size = len(data)
    low, high = size * _P64_1 & _64, 0
    if size <= 128:
        for step in reversed(range((size - 1) // 32 + 1)):
            low, high = _mix32(low, high, data, 16 * step, size - 16 * (step + 1), 32 * step)
    else:
        for at in range(32, 160, 32):
            low, high = _mix32(low, high, data, at - 32, at - 16, at - 32)
        low, high = _avalanche(low), _avalanche(high)
        for at in range(160, size + 1, 32):
            low, high = _mix32(low, high, data, at - 32, at - 16, at - 157)
        low, high = _mix32(low, high, data, size - 16, size - 32, 103)
    return _avalanche((low + high) & _64), -_avalanche((low * _P64_1 + high * _P64_4 + size * _P64_2) & _64) & _64


def _mix32(low: int, high: int, data: bytes, first: int, second: int, secret: int) -> tuple[int, int]:
    low = (low + _mix16(data, first, secret)) & _64 ^ (_u64(data, second) + _u64(data, second + 8)) & _64
    high = (high + _mix16(data, second, secret + 16)) & _64 ^ (_u64(data, first) + _u64(data, first + 8)) & _64
    return low, high


def _short128(data: bytes) -> tuple[int, int]:
    size = len(data)
    if size > 8:
        low_in, high_in = _u64(data, 0), _u64(data, size - 8)
        product = (low_in ^ high_in ^ _u64(_SECRET, 32) ^ _u64(_SECRET, 40)) * _P64_1
        low, high = (product & _64) + (size - 1 << 54) & _64, product >> 64
        high_in ^= _u64(_SECRET, 48) ^ _u64(_SECRET, 56)
        high = (high + high_in + (high_in & 0xFFFFFFFF) * (_P32_2 - 1)) & _64
        low ^= _swap(high, 8)
        product = low * _P64_2
        return _avalanche(product & _64), _avalanche(((product >> 64) + high * _P64_2) & _64)
    if size > 3:
        keyed = (_u32(data, 0) + (_u32(data, size - 4) << 32)) ^ _u64(_SECRET, 16) ^ _u64(_SECRET, 24)
        product = keyed * (_P64_1 + (size << 2) & _64)
        low, high = product & _64, product >> 64
        high = (high + (low << 1)) & _64
        low ^= high >> 3
        low = (low ^ low >> 35) * _MX2 & _64
        return low ^ low >> 28, _avalanche(high)
    if size:
        combined = _combined(data)
        swapped = _swap(combined, 4)
        rotated = (swapped << 13 | swapped >> 19) & 0xFFFFFFFF
        return (
            _avalanche_xxh64(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4)),
            _avalanche_xxh64(rotated ^ _u32(_SECRET, 8) ^ _u32(_SECRET, 12)),
        )
    return (
        _avalanche_xxh64(_u64(_SECRET, 64) ^ _u64(_SECRET, 72)),
        _avalanche_xxh64(_u64(_SECRET, 80) ^ _u64(_SECRET, 88)),
    )
