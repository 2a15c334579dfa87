// Tabs: one panel of several is in sight. Arrow keys choose the next tab.

/**
 * Make tabs of panels, named by the headings of the panels.
 *
 * list: an empty element for the tabs. panels: elements {panel, show}; `show` is called when the
 * panel first comes into sight. The address may name the first panel, as in #plane.
 */
export function makeTabs(list, panels) {
  const tabs = panels.map(({ panel }, i) => {
    const tab = document.createElement("button");
    Object.assign(tab, { type: "button", id: `${panel.id}-tab` });
    tab.textContent = panel.querySelector("h2").textContent;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    tab.addEventListener("click", () => choose(i));
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    return tab;
  });
  const shown = new Set();
  const choose = (chosen) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panels[i].panel.hidden = i !== chosen;
    });
    if (!shown.has(chosen)) panels[chosen].show();
    shown.add(chosen);
  };
  list.addEventListener("keydown", (event) => {
    const now = tabs.indexOf(document.activeElement), count = tabs.length;
    const next = {
      ArrowLeft: (now + count - 1) % count, ArrowRight: (now + 1) % count, Home: 0, End: count - 1,
    }[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    choose(next);
    tabs[next].focus();
    event.preventDefault();
  });
  list.setAttribute("role", "tablist");
  list.append(...tabs);
  list.hidden = false;
  choose(Math.max(0, panels.findIndex(({ panel }) => `#${panel.id}` === location.hash)));
}
