"""Packages of one module, for locked environments."""

import zipfile
from pathlib import Path


def wheel(source: Path, place: Path) -> Path:
    """A package of one module."""
    name, about = source.stem, f"{source.stem}-0.1.dist-info"
    parts = {f"{name}.py": source.read_text(),
             f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n",
             f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    path = place / f"{name}-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for part, text in (parts | {f"{about}/RECORD": "".join(f"{one},,\n" for one in parts)}).items():
            archive.writestr(zipfile.ZipInfo(part), text)  # without a time: the hash is that of the content
    return path
