# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw the result of ``weights --result RESULT``: ``python -m tools.bench weights_plot RESULT IMAGE``.

The image is transparent, with colours for light and dark pages. Prints the same figures as a Markdown table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tools.bench.weights import Cell, medians
from tools.markdown import table

# Label, colour, marker and its size by method; where lines meet, the smaller markers are on top.
STYLES = {
    "hub": ("every host from the hub", "#8c6bb1", "s", 11),
    "rsync": ("one from the hub, then rsync", "#d9730d", "^", 9),
    "ours": ("ours", "#2f81f7", "o", 5),
}
INK = "#6e7781"
SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "font.family": "sans-serif",
    "grid.alpha": 0.25,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    # Text as text, and the same element ids in each run.
    "svg.fonttype": "none",
    "svg.hashsalt": "trtllm.fleet",
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw(result: dict[str, Any], image: Path) -> None:
    """Draw the time until the last host is verified, and the bytes over the WAN, by the number of hosts."""
    cells = medians([Cell(**cell) for cell in result["cells"]])
    with rc_context():
        # Ignore the user's matplotlib settings.
        rcdefaults()
        rcParams.update(SETTINGS)
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        time, wan = figure.subplots(1, 2)
        for way, (label, colour, marker, size) in STYLES.items():
            line = sorted((cell for (name, _hosts), cell in cells.items() if name == way), key=lambda cell: cell.hosts)
            hosts = [cell.hosts for cell in line]
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": size, "label": label}
            time.plot(hosts, [cell.seconds for cell in line], **look)
            wan.plot(hosts, [cell.wan_bytes / result["model_bytes"] for cell in line], **look)
        prepare(time, sorted({hosts for _way, hosts in cells}), "Seconds until the last host is verified")
        prepare(wan, sorted({hosts for _way, hosts in cells}), "Times that the model crosses the WAN")
        time.legend(loc="upper left")
        links = result["links_mbit"]
        figure.supxlabel(
            f"Hosts. {result['model_bytes'] / 1e6:.0f} MB in 15 shards, hub behind {links['wan']:g} Mbit/s, "
            f"hosts at {links['lan']:g} Mbit/s. {result['date']}",
            color=INK,
            fontsize="medium",
        )
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None})


def as_table(result: dict[str, Any]) -> str:
    """Return all figures as a table, with bytes as multiples of the model's."""
    model = result["model_bytes"]
    cells = medians([Cell(**cell) for cell in result["cells"]]).values()
    return table(
        ["Hosts", "Way", "Seconds", "WAN", "LAN", "Busiest host", "Cores busy"],
        [
            [
                str(cell.hosts),
                f"`{cell.way}`",
                f"{cell.seconds:.1f}",
                *(f"{count / model:.3f}" for count in (cell.wan_bytes, cell.lan_bytes, cell.busiest_bytes)),
                f"{cell.cpu:.0%}",
            ]
            for cell in cells
        ],
    )


def prepare(axes: Axes, hosts: list[int], title: str) -> None:
    axes.set_title(title, fontsize="large")
    axes.set_xticks(hosts)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text())
    draw(result, arguments.image)
    print(as_table(result), end="")
