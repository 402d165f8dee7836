# SPDX-License-Identifier: Apache-2.0
"""Run by a Python that has matplotlib: draw the JSON of its second argument into the file of its first.

Three panels over the input length, for what a reader asks first: how long until the first token,
how fast after it, how much a card gives. Hollow marks are figures that contradict themselves.
"""

import importlib
import json
import sys
from typing import Any

MEASURED = ("#0b62a8", "#c8501e")
GUIDE = "#767676"
CEILING = "#222222"
PALE = "#dddddd"
WIDE = 6
"""Largest to smallest value, from where on a linear axis would flatten the small ones."""

PANELS = (
    ("ttft", "Time to first token, s"),
    ("tpot", "Time per output token, ms"),
    ("rate", "Output tokens/s a card"),
)

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "svg.fonttype": "none",  # text stays text: to be searched, and read aloud
    "svg.hashsalt": "kit report",
}


def length(tokens: int) -> str:
    """ "64K" for 65536, "1000" for what is no multiple."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def series(axes: Any, points: list[dict[str, Any]], key: str, name: str, **look: Any) -> None:
    points = sorted(points, key=lambda point: (point["input"], point["concurrency"]))
    places = [point["input"] for point in points]
    axes.plot(places, [point[key] for point in points], label=name, **look)
    doubted = [point for point in points if key == "rate" and point["doubted"]]
    axes.plot(
        [point["input"] for point in doubted],
        [point[key] for point in doubted],
        linestyle="none",
        marker=look.get("marker", "o"),
        markersize=look.get("markersize", 5),
        markerfacecolor="white",
        markeredgecolor=look["color"],
        zorder=5,
    )


def panel(axes: Any, data: dict[str, Any], key: str, title: str) -> None:
    guide = data["guide"]
    if guide:
        series(axes, guide, key, "deployment guide", color=GUIDE, marker="s", markersize=4, linewidth=1.2)
    if guide and key == "rate":
        implied = [point["implied"] for point in guide]
        places = [point["input"] for point in guide]
        name = "guide, from its TTFT and TPOT"
        axes.plot(places, implied, label=name, color=GUIDE, linestyle="dotted", linewidth=1.6)
    for run, colour in zip(data["runs"], MEASURED):  # noqa: B905 - two colours, one or two runs
        series(axes, run["points"], key, run["name"], color=colour, marker="o", markersize=5.5, linewidth=2)
    if key == "rate" and data["ceiling"]:
        places = [point["input"] for point in data["ceiling"]]
        rates = [point["rate"] for point in data["ceiling"]]
        axes.plot(
            places,
            rates,
            color=CEILING,
            linestyle=(0, (4, 3)),
            marker="_",
            label="bandwidth ceiling",
            linewidth=1,
        )
    axes.set_title(title, pad=10)
    scale_of(axes)
    lengths_of(axes, data)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def scale_of(axes: Any) -> None:
    """From 0 where that shows the differences, else logarithmic with ticks at 1, 2 and 5."""
    values = [value for line in axes.get_lines() for value in line.get_ydata()]
    if max(values) < WIDE * min(values):
        axes.set_ylim(0, max(values) * 1.08)
        return
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))


def lengths_of(axes: Any, data: dict[str, Any]) -> None:
    """Ticks where rows are, with the requests at once below the length: they change along the axis."""
    at_once: dict[int, list[int]] = {}
    for points in (data["guide"], *(run["points"] for run in data["runs"])):
        for point in points:
            known = at_once.setdefault(point["input"], [])
            if point["concurrency"] not in known:
                known.append(point["concurrency"])
    places = sorted(at_once)
    axes.set_xscale("log", base=2)
    labels = [f"{length(n)}\n×{'/'.join(map(str, at_once[n]))}" for n in places]
    axes.set_xticks(places, labels=labels)
    axes.minorticks_off()
    axes.set_xlabel("input tokens, × requests at once")


def draw(data: dict[str, Any], path: str) -> None:
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    with pyplot.rc_context(STYLE):
        figure, all_axes = pyplot.subplots(1, len(PANELS), figsize=(12.5, 4.2))
        for axes, (key, title) in zip(all_axes, PANELS):  # noqa: B905 - made to match
            panel(axes, data, key, title)
        handles, labels = all_axes[-1].get_legend_handles_labels()
        if any(
            point["doubted"]
            for points in (data["guide"], *(r["points"] for r in data["runs"]))
            for point in points
        ):
            marker = importlib.import_module("matplotlib.lines").Line2D(
                [],
                [],
                linestyle="none",
                marker="s",
                markersize=4,
                markerfacecolor="white",
                markeredgecolor=GUIDE,
            )
            handles, labels = [*handles, marker], [*labels, "contradicts its own TTFT and TPOT"]
        figure.legend(
            handles, labels, loc="upper left", ncols=len(labels), frameon=False, bbox_to_anchor=(0.005, 1.0)
        )
        figure.tight_layout(rect=(0, 0, 1, 0.92), w_pad=2.5)
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.endswith(".svg") else None)


def main(path: str, text: str) -> int:
    """Exit code 0, or 1 after one last line that says why."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        print("no matplotlib")
        return 1
    try:
        draw(json.loads(text), path)
    except OSError as error:
        print(error.strerror or error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
