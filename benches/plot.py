"""Panels of curves as an SVG file, for the reports of the scripts here: the mean of the runs of each series, and their range."""

import math
import pathlib
import statistics

# Quantiles of the t distribution for a 95 % interval of the mean of two and more seeds.
T = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26]
WIDTH, HEIGHT, GAP, LEFT, TOP, ROW = 200, 130, 30, 40, 44, 4


def half_interval(values):
    """Half of the 95 % t interval of the mean of two or more values."""
    return T[min(len(values) - 2, len(T) - 1)] * statistics.stdev(values) / math.sqrt(len(values))


def panels(path, curves, colours, ends, caption):
    """Writes a panel for each name in `curves`, a dictionary of series by name: each series has one list of values from 0 to 1 a run.
    `colours` orders and names the series, `ends` labels the ends of the axis below."""
    step = HEIGHT + TOP
    total = LEFT + min(len(curves), ROW) * (WIDTH + GAP), (len(curves) + ROW - 1) // ROW * step + TOP
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" font-family="sans-serif" font-size="11">']
    svg.append('<rect width="100%" height="100%" fill="#fff"/>')
    for number, (series, colour) in enumerate(colours.items()):
        x = LEFT + number * 130
        svg.append(f'<path d="M{x} 12h18" stroke="{colour}" stroke-width="2"/><text x="{x + 23}" y="16" fill="#333">{series}</text>')
    for number, (name, of_series) in enumerate(curves.items()):
        x0, top = LEFT + number % ROW * (WIDTH + GAP), TOP + number // ROW * step
        svg.append(f'<text x="{x0}" y="{top - 8}" font-weight="bold" fill="#111">{name}</text>')
        y = lambda value: top + HEIGHT * (1 - value)
        for value in (0, 0.5, 1):
            svg.append(f'<path d="M{x0} {y(value):.1f}h{WIDTH}" stroke="#ddd"/>')
            if number % ROW == 0:
                svg.append(f'<text x="{x0 - 6}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#555">{value:g}</text>')
        for series, colour in colours.items():
            points = list(zip(*of_series.get(series, [])))
            line = lambda of: [f"{x0 + WIDTH * at / max(1, len(points) - 1):.1f},{y(of(values)):.1f}" for at, values in enumerate(points)]
            svg.append(f'<polygon points="{" ".join(line(max) + line(min)[::-1])}" fill="{colour}" opacity="0.15"/>')
            svg.append(f'<polyline points="{" ".join(line(statistics.mean))}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, label in zip((x0, x0 + WIDTH), ends):
            svg.append(f'<text x="{x}" y="{top + HEIGHT + 14}" text-anchor="middle" fill="#555">{label}</text>')
    svg.append(f'<text x="{LEFT}" y="{total[1] - 8}" fill="#555">{caption}</text>')
    pathlib.Path(path).write_text("\n".join(svg) + "\n</svg>\n")
