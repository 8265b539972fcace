"""From the name of an experiment to what runs it, through the entry points of installed packages.

An entry point of the group `remat_lab.experiments` names an object with

- `run(path, preset=..., target=..., retry=..., report=...)`: measures what the file lacks, a JSON line for each point, and
  returns sentences about lines that it could not read;
- `read(path)`: (rows, such sentences);
- `text(rows, width)`: a table;
- `draw(rows)`: a matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from remat_lab.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUP = "remat_lab.experiments"
SUFFIXES = (".svg", ".png")


class Experiment(Protocol):
    """What an entry point names."""

    def run(
        self,
        path: str | Path,
        *,
        preset: str = ...,
        target: str | None = ...,
        retry: bool = ...,
        report: Callable[[str, int, int], None] | None = ...,
    ) -> list[str]:
        """Measures the points that the file lacks."""

    def read(self, path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows of a file, and what was skipped."""

    def text(self, rows: Sequence[dict[str, Any]], width: int = ...) -> str:
        """A table."""

    def draw(self, rows: Sequence[dict[str, Any]]) -> Figure:
        """A picture."""


def names() -> list[str]:
    """Names of the experiments of all installed packages, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def is_comparison(source: str) -> bool:
    """Whether the argument of `table` and `plot` is a comparison's file rather than an experiment's name."""
    return Path(source).suffix != "" or Path(source).is_file() or Path(source).name != source


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        InvalidArgument: if there is none, naming those there are.
    """
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise InvalidArgument(f"there is no experiment {name!r}: installed are {', '.join(names()) or 'none'}")
    made: Experiment = next(iter(found)).load()
    return made


def draw(experiment: Experiment, path: Path, pictures: Sequence[Path]) -> list[str]:
    """Draws the pictures of a file, from it alone.

    Returns:
        What was wrong with the file's lines.

    Raises:
        InvalidArgument: if the file cannot be read, or a suffix is no format of pictures.
        OSError: if a picture cannot be written.
    """
    from remat_lab.plots import check_format, save_figure

    for picture in pictures:
        check_format(picture)
    rows, problems = experiment.read(path)
    for picture in pictures:
        save_figure(experiment.draw(rows), picture)
    return problems
