"""Python programs that an agent writes, each in its own sandbox (programs.py); nothing is kept between two."""

from ouroboros.workflows.environments.programs import PYTHON, VARIABLES, Cell, cell
from ouroboros.workflows.protocol.tools import Environment

SECONDS, MEMORY_MB = 20, 1024  # of a program
LARGEST = 1 << 16  # bytes of its text


class Interpreter(Environment):
    """A tool that runs programs with Python's standard library, without network; needs bubblewrap."""

    @classmethod
    def check(cls) -> None:
        cls._cell()

    @staticmethod
    def _cell() -> Cell:
        """Raises ConfigError where this machine forbids user namespaces."""
        return cell("namespaces", MEMORY_MB)

    def execute_python_code(self, code: str) -> str:
        """Runs a Python program and returns what it prints. Variables and files are not kept between programs."""
        if len(code.encode(errors="replace")) > LARGEST:
            raise ValueError(f"the program has more than {LARGEST} bytes")
        ended = self._cell().run([str(PYTHON), "-s", "-S", "-P", "-c", code], SECONDS, "/tmp", VARIABLES)
        return f"{ended.output}{ended.why}" or "it printed nothing"
