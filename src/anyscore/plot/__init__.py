"""Pictures of attention weights: heatmaps, and a page to explore the weights of a model.

    heatmaps     `show_heatmaps`, and `explore`
    recording    `record`: the weights of every layer as a model runs
    explorer     the page that `explore` writes
    page         the frame that all pages share

Imports `ops` and `layers`; matplotlib is imported when a heatmap is drawn.
"""

from anyscore.plot.heatmaps import explore, show_heatmaps

__all__ = ["explore", "show_heatmaps"]
