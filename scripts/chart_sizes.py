"""The size of one chart as the reports draw it and as matplotlib does: `python -m scripts.chart_sizes`.

Four curves of 60 points each, from a fixed seed; docs/architecture.md has the numbers.
"""

import io
import random

import matplotlib

from growthring.report.charts import ChartAxis, Line, line_chart

matplotlib.use("svg")

SEED = 0


def main() -> None:
    from matplotlib import pyplot

    source = random.Random(SEED)
    curves = [[(i, i / 60 + 0.1 * source.random()) for i in range(60)] for _ in range(4)]
    lines = [Line(f"run {k}", points, "red") for k, points in enumerate(curves)]
    ours = line_chart("Accuracy over epochs", lines, ChartAxis("epochs"), ChartAxis("accuracy"))
    figure, axes = pyplot.subplots()
    for points in curves:
        axes.plot(*zip(*points, strict=True))
    axes.set(title="Accuracy over epochs", xlabel="epochs", ylabel="accuracy")
    theirs = io.StringIO()
    figure.savefig(theirs, format="svg")
    print(f"report: {len(ours):,} bytes, matplotlib: {len(theirs.getvalue()):,} bytes")


if __name__ == "__main__":
    main()
