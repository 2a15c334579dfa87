// Points of the plane that a visitor moves: by pointer on any picture, by arrow keys on a button.

import { REACH } from "./picture.js";
import { decimal } from "./words.js";

const ARROWS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
};
const bounded = (x) => Math.min(REACH, Math.max(-REACH, Math.round(100 * x) / 100));

/** Put a mark at a point of the element that shows the plane; its text is beside the point. */
export function put(mark, [x, y]) {
  mark.style.left = `${50 * (1 + x / REACH)}%`;
  mark.style.top = `${50 * (1 - y / REACH)}%`;
  mark.classList.toggle("leftwards", x > 0.6 * REACH);
}

/** Return the name of a point for readers. */
export const pointName = (name) => (name === "query" ? "Query" : `Key ${name}`);

export class Points {
  /**
   * places: {name: [x, y]}.
   * moved: is called with the name of a point after each of its moves.
   */
  constructor(places, moved) {
    this.places = places;
    this.moved = moved;
    this.active = null; // the point that a pointer or the focus holds
    this.handles = [];
    this.buttons = [];
  }

  move(name, x, y) {
    this.places[name] = [bounded(x), bounded(y)];
    this.moved(name);
  }

  hold(name) {
    this.active = name;
    this.moved(name);
  }

  /** Add a button for each point to a list: arrow keys move the point of the focused button. */
  addButtons(list) {
    for (const name of Object.keys(this.places)) {
      const button = document.createElement("button"), item = document.createElement("li");
      button.type = "button";
      button.addEventListener("focus", () => this.hold(name));
      button.addEventListener("blur", () => this.hold(null));
      button.addEventListener("keydown", (event) => {
        const arrow = ARROWS[event.key];
        if (!arrow || event.ctrlKey || event.metaKey || event.altKey) return;
        const [x, y] = this.places[name], step = event.shiftKey ? 0.5 : 0.1;
        this.move(name, x + step * arrow[0], y + step * arrow[1]);
        event.preventDefault();
      });
      item.append(button);
      list.append(item);
      this.buttons.push({ name, button });
    }
  }

  /** Lay a handle for each point over an element that shows the plane; pointers drag it. */
  addHandles(element) {
    for (const name of Object.keys(this.places)) {
      const handle = document.createElement("span");
      handle.className = "mark handle";
      handle.setAttribute("aria-hidden", "true"); // buttons are for those who do not see
      handle.dataset.point = name;
      if (name !== "query") handle.textContent = name;
      let grip = [0, 0]; // from the pointer to the point, so that the point does not jump
      const at = (event) => {
        const box = element.getBoundingClientRect();
        return [
          REACH * (2 * (event.clientX - box.left) / box.width - 1),
          REACH * (1 - 2 * (event.clientY - box.top) / box.height),
        ];
      };
      handle.addEventListener("pointerdown", (event) => {
        handle.setPointerCapture(event.pointerId);
        const [x, y] = at(event), place = this.places[name];
        grip = [place[0] - x, place[1] - y];
        this.hold(name);
        event.preventDefault();
      });
      handle.addEventListener("pointermove", (event) => {
        if (!handle.hasPointerCapture(event.pointerId)) return;
        const [x, y] = at(event);
        this.move(name, x + grip[0], y + grip[1]);
      });
      handle.addEventListener("lostpointercapture", () => this.hold(null));
      element.append(handle);
      this.handles.push({ name, handle });
    }
  }

  /** Show on handles and buttons where the points are. */
  show() {
    for (const { name, handle } of this.handles) put(handle, this.places[name]);
    for (const { name, button } of this.buttons) {
      const [x, y] = this.places[name];
      button.textContent = `${pointName(name)} (${decimal(x)}, ${decimal(y)})`;
    }
  }
}
