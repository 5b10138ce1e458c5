"""Draws docs/hit-rate.svg from reports of `tender replay --json`: hit rate by arena size, a curve for each trace.

python scripts/replay_plot.py REPORT.json ...
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 50, 60
COLOURS = ("a", "b", "c", "d")


def x_of(chunks: float, ends: tuple[float, float]) -> float:
    first, last = (math.log10(end) for end in ends)
    return LEFT + (math.log10(chunks) - first) / (last - first) * (WIDTH - LEFT - RIGHT)


def y_of(rate: float, highest: float) -> float:
    return HEIGHT - BOTTOM - rate / highest * (HEIGHT - TOP - BOTTOM)


def grid(sizes: list[int], ends: tuple[float, float], highest: float) -> list[str]:
    out = []
    for size in sizes:
        x = x_of(size, ends)
        out.append(f'<path class="line" d="M{x:.0f} {TOP}V{HEIGHT - BOTTOM}"/>')
        out.append(f'<text class="mid" x="{x:.0f}" y="{HEIGHT - BOTTOM + 20}">{size:,}</text>')
    for tenth in range(round(highest * 10) + 1):
        y = y_of(tenth / 10, highest)
        out.append(f'<path class="line" d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}"/>')
        out.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.0f}">{tenth * 10} %</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text class="mid" x="{middle:.0f}" y="{HEIGHT - 16}">arena, in chunks of 512 tokens</text>')
    return out


def curve(report: dict, colour: str, row: int, ends: tuple[float, float], highest: float) -> list[str]:
    points = [(x_of(run["arena_chunks"], ends), y_of(run["hit_rate"], highest)) for run in report["runs"]]
    line = "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
    dots = "".join(f'<circle class="dot {colour}" cx="{x:.0f}" cy="{y:.0f}" r="3"/>' for x, y in points)
    name, y = Path(report["trace"]).stem.replace("_", " "), TOP + 18 + 18 * row
    return [
        f'<path class="curve {colour}" d="M{line}"/>{dots}',
        f'<path class="curve {colour}" d="M{LEFT + 12} {y - 4}h24"/>',
        f'<text x="{LEFT + 44}" y="{y}">{name}</text>',
    ]


def draw(reports: list[dict]) -> str:
    sizes = sorted({run["arena_chunks"] for report in reports for run in report["runs"]})
    ends = (sizes[0], sizes[-1])
    highest = math.ceil(max(run["hit_rate"] for report in reports for run in report["runs"]) * 10) / 10
    body = grid(sizes, ends, highest)
    for row, (report, colour) in enumerate(zip(reports, COLOURS, strict=False)):
        body += curve(report, colour, row, ends, highest)
    title = "Tokens served from the arena, by its size"
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.mid{text-anchor:middle}.end{text-anchor:end}"
        ".head{font-weight:600}.line{stroke:#d0d7de;fill:none}.curve{fill:none;stroke-width:2.5}"
        ".a{stroke:#0969da}.b{stroke:#1a7f37}.c{stroke:#bf3989}.d{stroke:#9a6700}.dot{fill:#fff}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.line{stroke:#3d444d}.dot{fill:#0d1117}}"
    )
    head = f'<text class="head" x="{LEFT}" y="28">{title}</text>'
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
