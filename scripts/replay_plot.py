"""Draws docs/hit-rate.svg: hit rate by arena size, a panel for each trace, a curve for each way to evict.

python scripts/replay_plot.py REPORT.json ...

Reports are those of `tender-eviction` and of `tender replay --json --eviction two-queue,lru`; a later one replaces
the curves of earlier ones. Ways that the daemon does not have are dashed.
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT = 1020, 420
LEFT, RIGHT, TOP, BOTTOM, GAP = 60, 40, 60, 60, 60
# In the order of the legend.
NAMES = {
    "two-queue": "two queues",
    "lru": "LRU",
    "s3-fifo": "S3-FIFO",
    "w-tinylfu": "W-TinyLFU",
    "prefix-lru": "prefix-aware LRU",
    "farthest": "farthest next use",
}
OF_THE_DAEMON = ("two-queue", "lru")
Curve = list[tuple[int, float]]


def kind_of(way: str) -> str:
    return way if way in OF_THE_DAEMON else f"{way} dashed"


class Panel:
    """One trace's part of the picture."""

    def __init__(self, index: int, panels: int, sizes: list[int], highest: float) -> None:
        width = (WIDTH - LEFT - RIGHT - GAP * (panels - 1)) / panels
        self.left = LEFT + index * (width + GAP)
        self.right = self.left + width
        self.sizes, self.highest = sizes, highest

    def x_of(self, chunks: float) -> float:
        first, last = math.log10(self.sizes[0]), math.log10(self.sizes[-1])
        share = (math.log10(chunks) - first) / (last - first) if last > first else 0.5
        return self.left + share * (self.right - self.left)

    def y_of(self, rate: float) -> float:
        return HEIGHT - BOTTOM - rate / self.highest * (HEIGHT - TOP - BOTTOM)

    def grid(self, name: str) -> list[str]:
        middle = (self.left + self.right) / 2
        out = [
            f'<text class="head" x="{self.left:.0f}" y="{TOP - 12}">{name}</text>',
            f'<text class="mid" x="{middle:.0f}" y="{HEIGHT - 16}">arena, in chunks of 512 tokens</text>',
        ]
        for size in self.sizes:
            x = self.x_of(size)
            out.append(f'<path class="line" d="M{x:.0f} {TOP}V{HEIGHT - BOTTOM}"/>')
            out.append(f'<text class="mid" x="{x:.0f}" y="{HEIGHT - BOTTOM + 20}">{size:,}</text>')
        for tenth in range(round(self.highest * 10) + 1):
            y = self.y_of(tenth / 10)
            out.append(f'<path class="line" d="M{self.left:.0f} {y:.0f}H{self.right:.0f}"/>')
            out.append(f'<text class="end" x="{self.left - 8:.0f}" y="{y + 4:.0f}">{tenth * 10} %</text>')
        return out

    def curve(self, way: str, points: Curve) -> list[str]:
        places = [(self.x_of(size), self.y_of(rate)) for size, rate in sorted(points)]
        line = "L".join(f"{x:.0f} {y:.0f}" for x, y in places)
        dots = [f'<circle class="dot {way}" cx="{x:.0f}" cy="{y:.0f}" r="3"/>' for x, y in places]
        return [f'<path class="curve {kind_of(way)}" d="M{line}"/>', *(dots if way in OF_THE_DAEMON else [])]

    def legend(self, ways: list[str]) -> list[str]:
        # At the lower right, where no curve is.
        out, x = [], self.left + (self.right - self.left) * 0.5
        for row, way in enumerate(ways):
            y = HEIGHT - BOTTOM - 12 - 18 * (len(ways) - 1 - row)
            out.append(f'<path class="curve {kind_of(way)}" d="M{x:.0f} {y - 4}h24"/>')
            out.append(f'<text x="{x + 32:.0f}" y="{y}">{NAMES[way]}</text>')
        return out


def by_trace(reports: list[dict]) -> dict[str, dict[str, Curve]]:
    """Of each trace each way's curve."""
    traces: dict[str, dict[str, Curve]] = {}
    for report in reports:
        curves: dict[str, Curve] = {}
        for run in report["runs"]:
            curves.setdefault(run["eviction"], []).append((run["arena_chunks"], run["hit_rate"]))
        name = Path(report["trace"]).stem.replace("_", " ")
        traces.setdefault(name, {}).update(curves)
    return traces


def draw(reports: list[dict]) -> str:
    traces = by_trace(reports)
    points = [point for curves in traces.values() for curve in curves.values() for point in curve]
    sizes = sorted({size for size, _ in points})
    body = []
    for index, (name, curves) in enumerate(sorted(traces.items())):
        highest = math.ceil(max(rate for curve in curves.values() for _, rate in curve) * 10) / 10
        panel = Panel(index, len(traces), sizes, highest)
        ways = [way for way in NAMES if way in curves]
        body += panel.grid(name)
        for way in reversed(ways):
            body += panel.curve(way, curves[way])
        if index == len(traces) - 1:
            body += panel.legend(ways)
    title = "Tokens served from the arena, by its size and by what goes first"
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.mid{text-anchor:middle}.end{text-anchor:end}"
        ".head{font-weight:600}.line{stroke:#d0d7de;fill:none}.curve{fill:none;stroke-width:2}"
        ".dashed{stroke-dasharray:5 4;stroke-width:1.5}.two-queue{stroke:#0969da}.lru{stroke:#bf3989}"
        ".s3-fifo{stroke:#1a7f37}.w-tinylfu{stroke:#9a6700}.prefix-lru{stroke:#8250df}.farthest{stroke:#6e7781}"
        ".dot{fill:#fff}@media (prefers-color-scheme:dark){text{fill:#e6edf3}.line{stroke:#3d444d}.dot{fill:#0d1117}}"
    )
    head = f'<text class="head" x="{LEFT}" y="24">{title}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n<title>{title}</title>\n<style>{style}</style>\n{head}\n' + "\n".join(body) + "\n</svg>\n"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    target = Path(__file__).resolve().parent.parent / "docs" / "hit-rate.svg"
    target.write_text(draw([json.loads(Path(name).read_text()) for name in sys.argv[1:]]), encoding="utf-8")
    print(f"{target.name} is drawn")
