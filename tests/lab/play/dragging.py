"""A point of a picture dragged by the mouse."""

from __future__ import annotations

from helpers.browser import Page


def drag(page: Page, score: str, point: str, to: tuple[float, float]) -> tuple[float, float]:
    """Drag a point on the picture of a score to shares of its width and height.

    Returns:
        The place of the mouse on the page where the point was.
    """
    picture = page.locator(f"[data-score={score}] .picture")
    picture.scroll_into_view_if_needed()
    frame = picture.bounding_box()
    handle = page.locator(f"[data-score={score}] [data-point={point}]").bounding_box()
    assert frame is not None
    assert handle is not None
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(frame["x"] + frame["width"] * to[0], frame["y"] + frame["height"] * to[1])
    page.mouse.up()
    return x, y
