"""A page on which trained models answer what a visitor types, and show where each looks.

    export  makes the page's data of the models of a comparison
    page    makes the page of the data and of the JavaScript beside it

The JavaScript, in modules that run as they stand:

    play.js, tabs.js      the page, and its tabs
    scores.js             the scoring functions of the library
    model.js, tokens.js   the recurrent model; texts to tokens and back
    alignment.js          the tab "Where does it look?": alignment_map.js draws a model's weights,
                          step.js one step in detail with bars.js, changes.js changes the text
    plane.js              the tab "Draw a score", in picture.js, with points.js to drag
    proofs.js             the tab "Two proofs"
    words.js              numbers, formulas and tokens as the page shows them

Imports `data`, `train`, `translate` and `report`. Start with `export`.
"""
