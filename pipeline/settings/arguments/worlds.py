"""Arguments of the generators of worlds that agents act in."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.pipeline.settings.arguments.base import Arguments

MOST_BLANKS = {4: 10, 9: 50}  # of a sudoku; more leave one solution too rarely


class World(Arguments):
    """Tasks in a world that agents act in, and demonstrations of other tasks."""
    tasks: int = Field(ge=0, le=1_000_000, description="distinct rows without a solution")
    demonstrations: int = Field(ge=0, le=1_000_000, description="distinct tasks that are demonstrated")


class FrozenLake(World):
    """Lakes to cross without falling into a hole, and demonstrations."""
    size: int = Field(4, ge=2, le=12, description="rows and columns")
    holes: int = Field(3, ge=0, validate_default=True, description="at most (size - 1) squared: a way is left free")
    guesses: float = Field(0.5, ge=0, le=1, description="share of demonstrations that move at random")

    @field_validator("holes")
    @classmethod
    def _leave_a_way(cls, value: int, info: ValidationInfo) -> int:
        if value > (most := (info.data.get("size", 12) - 1) ** 2):
            raise ValueError(f"needed at most {most} at this size")
        return value


class Sudoku(World):
    """Sudokus with one solution, and demonstrations that look at each empty cell and fill it."""
    size: Literal[4, 9] = Field(4, description="rows and columns")
    blanks: int = Field(4, ge=1, validate_default=True, description="empty cells: at most 10 of 16, or 50 of 81")
    guesses: float = Field(0.5, ge=0, le=1, description="share of demonstrations that draw digits at random")

    @field_validator("blanks")
    @classmethod
    def _leave_one_solution(cls, value: int, info: ValidationInfo) -> int:
        if value > (most := MOST_BLANKS[info.data.get("size", 9)]):
            raise ValueError(f"needed at most {most} at this size")
        return value


class Shop(World):
    """Questions to databases of shops, and demonstrations of their SQL."""
    shops: int = Field(50, ge=1, le=1000, description="databases, each drawn from the run's seed and its number")
    guesses: float = Field(0.5, ge=0, le=1, description="share of demonstrations that answer without a query")


class Folder(World):
    """Chores with the files of a directory, and demonstrations."""
    files: int = Field(3, ge=2, le=12, description="number of files of each directory")
    guesses: float = Field(0.5, ge=0, le=1, description="share of demonstrations that do a chore at random")


class Terminal(World):
    """Harbor tasks of chores in a shell, and demonstrations."""
    guesses: float = Field(0.5, ge=0, le=1, description="share of demonstrations that do a chore at random")
