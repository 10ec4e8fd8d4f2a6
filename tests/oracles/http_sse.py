"""Slow, obvious versions of reading a stream of server-sent events and a chunked body."""

from __future__ import annotations


def events(stream: bytes) -> tuple[list[bytes], bytes]:
    """Whole events, each with its blank line, and the unfinished rest; line by line."""
    found: list[bytes] = []
    current = line = b""
    for value in stream:
        byte = bytes([value])
        line += byte
        if byte == b"\n":
            current += line
            if line in (b"\n", b"\r\n"):
                found.append(current)
                current = b""
            line = b""
    return found, current + line


def data(event: bytes) -> bytes:
    """The data of an event: its data fields, joined with line feeds."""
    values = []
    for line in event.replace(b"\r\n", b"\n").split(b"\n"):
        if line == b"data":
            values.append(b"")
        elif line.startswith(b"data:"):
            value = line[5:]
            values.append(value[1:] if value[:1] == b" " else value)
    return b"\n".join(values)
