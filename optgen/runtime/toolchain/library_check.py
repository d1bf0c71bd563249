"""Check a new library in a child process, before any process trusts it.

A compiler may exit with 0 and leave a library that is cut short, or no library of this source. The
first would crash every process that loads it. The second would lack the kernels, and steps would do
nothing. So each source ends with a function that returns the digest of the source.
"""

import hashlib
import struct
import subprocess
import sys
from pathlib import Path

_SYMBOL = "optgen_source_digest"
_STARTED = b"started\n"
_PROGRAM = f"""
import ctypes, sys
print({_STARTED.decode().strip()!r}, flush=True)
function = ctypes.CDLL(sys.argv[1])[{_SYMBOL!r}]
function.restype = ctypes.c_char_p
print(function().decode(), flush=True)
"""
_TIME_LIMIT = 60.0  # seconds; a check takes some hundredths of a second


def with_digest(source: str) -> str:
    """Return a source with a function that returns the source's digest."""
    return f'{source}\nextern "C" const char* {_SYMBOL}() {{ return "{_digest(source)}"; }}\n'


def why_unusable(library: Path, source: str) -> str:
    """Say why a library is not that of a source, compiled `with_digest`; "" if it is.

    If this process cannot start a Python interpreter, the library is trusted.
    """
    if not _is_whole(library.read_bytes()):
        return "it is cut short"
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(library)]
    if not sys.executable or getattr(sys, "frozen", False):  # a program that holds an interpreter
        return ""
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIME_LIMIT, check=False
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        return "it does not load in time"
    if not child.stdout.startswith(_STARTED):
        return ""
    if child.returncode:
        last_line = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"a process that loads it ends with status {child.returncode}: {last_line}"
    return "" if _digest(source).encode() in child.stdout else "it is of another source"


def _is_whole(data: bytes) -> bool:
    """Tell whether an ELF file has its last part, the table of its sections.

    The file of another format counts as whole.
    """
    if data[:5] != b"\x7fELF\x02":  # 2: of 64 bits
        return bool(data)
    if len(data) < 64:
        return False
    (table,) = struct.unpack_from("=Q", data, 40)
    entry_bytes, entry_count = struct.unpack_from("=HH", data, 58)
    return bool(table + entry_bytes * entry_count <= len(data))


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
