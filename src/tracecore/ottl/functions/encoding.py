"""Converters between text and its encodings."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlRuntimeError, OttlTypeError
from tracecore.ottl.signature import (
    BytesLike,
    Getter,
    String,
    StringGetter,
    Utf8,
    converter,
    prepared,
    value_converter,
)
from tracecore.ottl.values import go_type

_BASE64 = {
    "base64": (False, True),
    "base64-raw": (False, False),
    "base64-url": (True, True),
    "base64-raw-url": (True, False),
}


@value_converter("Base64Encode")
def base64_encode(target: Utf8, variant: String | None = None) -> str:
    """A string in base64; `variant` is `base64`, `base64-raw` (no padding), `base64-url` or `base64-raw-url`."""
    name = "base64" if variant is None else variant
    if name not in _BASE64:
        raise OttlRuntimeError(f"unsupported base64 variant: {name}")
    url, padded = _BASE64[name]
    text = (base64.urlsafe_b64encode if url else base64.b64encode)(target).decode()
    return text if padded else text.rstrip("=")


@value_converter("Base64Decode")
def base64_decode(target: Utf8) -> str:
    """The string that base64 stands for. `Decode(target, "base64")` does the same."""
    return _from_base64(target, url=False, padded=True)


@value_converter("Hex")
def hex_(target: BytesLike) -> str:
    """The bytes of a value in hexadecimal; a number's are its eight, big end first."""
    return (target or b"").hex()


@converter("Decode")
def decode(target: Getter, encoding: StringGetter) -> Getter:
    """The text that bytes, or the bytes of a string, are in an encoding: base64 or a character set by its IANA name."""
    decoder = prepared(encoding, _decoder)

    def run(ctx: Context) -> str:
        value = target(ctx)
        read = decoder(ctx)
        if isinstance(value, str):
            return read(value.encode("utf-8", "surrogateescape"))
        if type(value) is bytes:
            return read(value)
        raise OttlTypeError(f"unsupported type provided to Decode function: {go_type(value)}")

    return run


_UTF8 = frozenset(("utf-8", "utf8", "ascii", "us-ascii", ""))
_AS_IS = frozenset(("utf-8-raw", "utf8-raw", "nop"))
_UTF16_LITTLE = frozenset(("utf-16", "utf16", "utf-16le"))

# The names of the IANA registry that Go has decoders for, by Python's name of each character set.
_NAMES = {
    "utf-16-be": "utf-16be",
    "big5": "big5 csbig5",
    "gbk": "gbk cp936 ms936 windows-936 csgbk",
    "gb18030": "gb18030 csgb18030",
    "hz": "hz-gb-2312",
    "euc_jp": "euc-jp cseucpkdfmtjapanese",
    "iso2022_jp": "iso-2022-jp csiso2022jp",
    "shift_jis": "shift_jis ms_kanji csshiftjis",
    "cp949": "euc-kr cseuckr",
    "koi8_r": "koi8-r cskoi8r",
    "koi8_u": "koi8-u cskoi8u",
    "mac_roman": "macintosh mac csmacintosh",
    "iso8859_1": "latin1 l1",
    "iso8859_2": "latin2",
    "iso8859_3": "latin3",
    "iso8859_4": "latin4",
    "iso8859_5": "cyrillic",
    "iso8859_6": "arabic",
    "iso8859_7": "greek",
    "iso8859_8": "hebrew",
    "iso8859_9": "latin5",
    "iso8859_10": "latin6",
    "iso8859_15": "latin-9",
    "cp037": "ibm037 cp037",
    "cp858": "ibm858 ibm00858",
    "cp874": "windows-874",
    "cp1140": "ibm01140 cp01140",
}
_CHARACTER_SETS = {
    **{name: codec for codec, names in _NAMES.items() for name in names.split()},
    **{f"windows-{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"cswindows{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"iso-8859-{part}": f"iso8859_{part}" for part in (*range(1, 12), *range(13, 17))},
    **{f"iso_8859-{part}": f"iso8859_{part}" for part in (*range(1, 12), *range(13, 17))},
    **{f"ibm{page}": f"cp{page}" for page in (437, 850, 852, 855, 860, 862, 863, 865, 866)},
    **{f"cp{page}": f"cp{page}" for page in (437, 850, 852, 855, 860, 862, 863, 865, 866)},
}

# Names that the registry has and Go has no decoder for.
_NO_DECODER = frozenset(
    [
        "gb2312",
        "csgb2312",
        "gb_2312-80",
        "iso-2022-kr",
        "iso-2022-cn",
        "iso-2022-cn-ext",
        "iso-2022-jp-2",
        "utf-7",
        "utf-32",
        "utf-32be",
        "utf-32le",
        "iso-10646-ucs-2",
        "iso-10646-ucs-4",
        "cesu-8",
        "scsu",
        "bocu-1",
        "big5-hkscs",
        "tis-620",
        "viscii",
        "ibm500",
        "ibm1026",
        "ibm-thai",
        "hp-roman8",
        "ebcdic-us",
        "jis_c6226-1978",
        "ks_c_5601-1987",
        "johab",
        "ptcp154",
        "koi7-switched",
    ]
)


def _decoder(name: str) -> Callable[[bytes], str]:
    if name in _BASE64:
        url, padded = _BASE64[name]
        return lambda data: _from_base64(data, url=url, padded=padded)
    folded = name.lower()
    if folded in _UTF8:
        return lambda data: data.decode("utf-8", "replace")
    if folded in _AS_IS:
        return lambda data: data.decode("utf-8", "surrogateescape")
    codec = "utf-16-le" if folded in _UTF16_LITTLE else _CHARACTER_SETS.get(folded)
    if codec is None:
        what = "no charmap defined for" if folded in _NO_DECODER else "unsupported"
        raise OttlRuntimeError(f"{what} encoding '{name}'")
    read = codecs.lookup(codec).decode
    return lambda data: read(data, "replace")[0]


_STANDARD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_URL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def _from_base64(data: bytes, *, url: bool, padded: bool) -> str:
    """As Go's decoders: line ends are skipped, the padding must be right, and an error names the byte."""
    alphabet = _URL if url else _STANDARD
    places = [index for index, byte in enumerate(data) if byte not in b"\r\n"]
    body = bytes(data[index] for index in places) if len(places) < len(data) else data
    core = body.rstrip(b"=") if padded else body
    for index, byte in enumerate(core):
        if byte not in alphabet:
            raise _illegal(places[index])
    padding = len(body) - len(core)
    left = len(core) % 4
    if left == 1:
        raise _illegal(places[-1] if padding else len(data))
    if padded and padding != (4 - left) % 4:
        raise _illegal(places[len(core)] if padding > (4 - left) % 4 else len(data))
    whole = core + b"=" * ((4 - left) % 4)
    decoded = base64.urlsafe_b64decode(whole) if url else base64.b64decode(whole)
    return decoded.decode("utf-8", "surrogateescape")


def _illegal(place: int) -> OttlRuntimeError:
    return OttlRuntimeError(f"could not decode: illegal base64 data at input byte {place}")
