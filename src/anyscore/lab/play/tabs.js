// Tabs: one panel of several is in sight. The arrow keys choose the next tab.

/**
 * Make tabs of panels, named by their headings.
 *
 * list: an empty element for the tabs. shows: a function of each panel, called when the panel is
 * first in sight. The panel of the page's address is chosen first, if it names one.
 */
export function makeTabs(list, panels, shows) {
  const tabs = panels.map((panel, i) => {
    const tab = document.createElement("button"), heading = panel.querySelector("h2");
    heading.classList.add("unseen");
    Object.assign(tab, { type: "button", id: `${panel.id}-tab`, textContent: heading.textContent });
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
      panels[i].hidden = i !== chosen;
    });
    if (!shown.has(chosen)) shows[chosen](panels[chosen]);
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
  choose(Math.max(0, panels.findIndex((panel) => `#${panel.id}` === location.hash)));
}
