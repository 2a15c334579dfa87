// The button of the theme: the system's, or the other one. The page hears "theme" of every change.
(() => {
  "use strict";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const changed = () => {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
    document.dispatchEvent(new Event("theme"));
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    changed();
  });
  system.addEventListener("change", changed);
  changed();
})();
