"""Damage as disks and people cause it."""

from pathlib import Path


def flip(path: Path) -> Path:
    """Changes one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def cut_short(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-1])
    return path
