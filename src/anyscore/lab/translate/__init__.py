"""Answers of a trained model to sources of the user's.

    trials       finds the trial whose model answers
    sources      reads the sources
    translations answers them, and keeps remarks
    heatmap      draws attention weights on a terminal
    pictures     draws them as PNG, and writes them as a page

Imports `train`, `data` and `report`. Start with `translations`.
"""
