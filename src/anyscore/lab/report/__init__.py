"""Results as files: an HTML page, a page in Markdown, tables and pictures.

    page         writes a comparison as one HTML page
    proofs       writes proofs as one HTML page, and in Markdown
    exports      writes a comparison as CSV, LaTeX, PNG and JSON
    rendering    renders the templates of `templates/`, in the frame of `anyscore.plot.page`
    charts       draws every chart, for pages and exports
    forest       holds the differences of pairs; curves, the learning curves; rates, the results by
                 learning rate; scores, the table of scores
    alignments   labels tokens, and turns attention weights into tables of percents
    examples     chooses the test items that a report shows

Imports `anyscore.plot` and the verdicts and data of the laboratory. Start with `page`.
"""
