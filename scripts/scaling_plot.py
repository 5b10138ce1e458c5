"""Draws docs/scaling.svg from the formulas of docs/scaling.md: commands that the directory executes, by fleet size.

Run it from anywhere; it needs nothing but Python. The numbers below are the assumptions of that page.
"""

import math
from pathlib import Path

REQUESTS_PER_S = 1.0
CHUNKS_PER_REQUEST = 47.0
LOCAL_SHARE = 0.1
ARENA_CHUNKS = 2048
ROUNDS_PER_TTL = 3
REDIS_COMMANDS_PER_S = 300_000

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 50, 60
NODES = (1, 4)  # powers of ten
COMMANDS = (3, 7)

CURVES = (
    ("as it is: TTL 300 s", 300, 1.0, "a"),
    ("TTL 1,800 s, every fourth chunk published", 1800, 0.25, "b"),
)


def commands_per_node(ttl_s: float, published: float) -> float:
    """Commands each second for one node."""
    missing = REQUESTS_PER_S * CHUNKS_PER_REQUEST * (1 - LOCAL_SHARE)
    asked = missing
    written = 2 * missing * published
    withdrawn = missing * published
    refreshed = 2 * ARENA_CHUNKS * published * ROUNDS_PER_TTL / ttl_s
    return asked + written + withdrawn + refreshed


def x_of(nodes: float) -> float:
    share = (math.log10(nodes) - NODES[0]) / (NODES[1] - NODES[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(commands: float) -> float:
    share = (math.log10(commands) - COMMANDS[0]) / (COMMANDS[1] - COMMANDS[0])
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def grid() -> list[str]:
    out = []
    for power in range(NODES[0], NODES[1] + 1):
        x = x_of(10**power)
        out.append(f'<path class="line" d="M{x:.0f} {TOP}V{HEIGHT - BOTTOM}"/>')
        out.append(f'<text class="mid" x="{x:.0f}" y="{HEIGHT - BOTTOM + 20}">{10**power:,}</text>')
    for power in range(COMMANDS[0], COMMANDS[1] + 1):
        y = y_of(10**power)
        out.append(f'<path class="line" d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}"/>')
        out.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.0f}">{10**power:,}</text>')
    out.append(f'<text class="mid" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 16}">nodes</text>')
    return out


def draw() -> str:
    body = grid()
    for shards, name in ((1, "one Redis"), (16, "16 shards")):
        y = y_of(REDIS_COMMANDS_PER_S * shards)
        body.append(f'<path class="limit" d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}"/>')
        body.append(f'<text x="{LEFT + 8}" y="{y - 6:.0f}">{name}</text>')
    for index, (name, ttl_s, published, kind) in enumerate(CURVES):
        rate = commands_per_node(ttl_s, published)
        first, last = 10 ** NODES[0], 10 ** NODES[1]
        body.append(
            f'<path class="curve {kind}" d="M{x_of(first):.0f} {y_of(max(rate * first, 1000)):.0f}'
            f'L{x_of(last):.0f} {y_of(rate * last):.0f}"/>'
        )
        y = HEIGHT - BOTTOM - 34 + 18 * index
        body.append(f'<path class="curve {kind}" d="M{WIDTH - 370} {y - 4}h24"/>')
        body.append(f'<text x="{WIDTH - 338}" y="{y}">{name}</text>')
    title = "Commands that the directory executes each second"
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.mid{text-anchor:middle}.end{text-anchor:end}"
        ".head{font-weight:600}.line{stroke:#d0d7de;fill:none}.limit{stroke:#cf222e;stroke-dasharray:5 4;fill:none}"
        ".curve{fill:none;stroke-width:2.5}.a{stroke:#0969da}.b{stroke:#1a7f37}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.line{stroke:#3d444d}}"
    )
    head = f'<text class="head" x="{LEFT}" y="28">{title}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n<title>{title}</title>\n<style>{style}</style>\n{head}\n' + "\n".join(body) + "\n</svg>\n"
    )


if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "docs" / "scaling.svg"
    target.write_text(draw(), encoding="utf-8")
    print(f"{target.name}: {commands_per_node(300, 1.0):.0f} commands/s for a node")
