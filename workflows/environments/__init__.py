"""Environments that need nothing else: frozen lake, sudoku, a database, a directory of files (docs/tools.md)."""
