"""A page on which trained models answer what a visitor types, and show where each looks.

    export  makes the page's data of the models of a comparison
    page    makes the page of the data and of the JavaScript beside it

Imports `data`, `train`, `translate` and `report`. Start with `export`.
"""
