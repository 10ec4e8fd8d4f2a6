"""How figures look, and how they become SVG and PNG."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

WIDTH_IN = 9.0
"""Of every figure; two columns of a paper."""

INK = "#010203"
"""Stands for the colour of text and lines until an SVG takes that of the page around it."""
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


@dataclass(frozen=True)
class Look:
    """How one scheduler is drawn in all figures."""

    colour: tuple[float, float, float]
    line: str
    marker: str


def quiet_matplotlib() -> None:
    """Where it cannot keep a font cache it says so at length; figures come out all the same."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def looks(schedulers: Sequence[str]) -> dict[str, Look]:
    """One look a scheduler, in the order given."""
    quiet_matplotlib()
    import seaborn as sns

    palette = sns.color_palette("colorblind", 10)
    return {
        name: Look(colour, line, marker)
        for name, colour, line, marker in zip(
            schedulers,
            islice(cycle(palette), len(schedulers)),
            islice(cycle(LINES), len(schedulers)),
            islice(cycle(MARKERS), len(schedulers)),
            strict=True,
        )
    }


@contextmanager
def style() -> Iterator[None]:
    """Plain, with thin grid lines; text in SVG stays as drawn whatever fonts the reader has."""
    quiet_matplotlib()
    import matplotlib

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "grid.color")
    settings: Any = {
        "backend": "Agg",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.6,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "svg.fonttype": "path",
        "svg.hashsalt": "agentsched",
        **dict.fromkeys((*ink, "xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(settings):
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in the style: colours of text are fixed when it is made, not when it is saved."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return drawn


def new_axes(rows: int, columns: int, height: float, **more: Any) -> tuple[Figure, Any]:
    """A figure that belongs to no window and is freed like any other object."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)  # inches
    figure = Figure(figsize=(WIDTH_IN, height), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def legend_below(figure: Figure, axis: Axes, entries: int) -> None:
    figure.legend(
        *axis.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(entries, 6),
        handlelength=2.6,
    )


def mark(figure: Figure, text: str) -> None:
    """Says in the corner what the figures are and of what, for a picture that stands alone."""
    figure.suptitle(text, x=0.992, ha="right", fontsize=7.5, fontweight="normal")


def to_svg(figure: Figure, *, inline: str | None = None) -> str:
    """The figure as SVG text.

    Args:
        inline: for use inside a page: takes the page's text colour and background, and gives all
            of its ids this prefix. None: a file of its own, black on white.
    """
    out = io.StringIO()
    colours: dict[str, Any] = {"transparent": True} if inline else {"facecolor": "white"}
    with style():
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, **colours)
    text = out.getvalue()
    if inline is None:
        return text.replace(INK, "#000000")
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{inline}-", text)
    return re.sub(
        r'(<svg [^>]*?)width="[^"]*" height="[^"]*"|height="[^"]*" width="[^"]*"',
        r"\1",
        text,
        count=1,
    )


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    out = io.BytesIO()
    with style():
        figure.savefig(out, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return out.getvalue()
